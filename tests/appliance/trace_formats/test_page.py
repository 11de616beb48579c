"""The page of a trace, in a real browser."""

import html
import re
import subprocess
from pathlib import Path

import pytest

from appliance.trace_formats.critical_path import critical_path
from appliance.trace_formats.page import trace_page
from tests.appliance.trace_formats.samples import NASTY, sample_explanation, sample_trace

pytestmark = pytest.mark.process

CHROMIUM = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--virtual-time-budget=2000",
]  # fmt: skip


def shown(page: Path, profile: Path) -> str:
    """What the page is after its script has run."""
    command = [*CHROMIUM, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return re.sub(r'<script id="data".*?</script>', "", done.stdout, flags=re.DOTALL)


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("page")
    page = root / "trace.html"
    page.write_text(trace_page(sample_trace(), sample_explanation()), encoding="utf-8")
    return shown(page, root / "profile")


def test_every_row_of_the_waterfall_is_there(document):
    rows = re.findall(r'<div class="row[^"]*"', document)

    assert len(rows) == 13  # all spans but the linked ones, and one row that folds these
    for name in ("auth", "queue", "prefill", "decode", "send AddRequest", "1 output message"):
        assert name in document


def test_the_critical_path_and_the_explanation_are_drawn(document):
    path = critical_path(sample_trace().spans)
    assert document.count('class="bar critical"') == len(path)
    assert "waited 30 ms in the queue, 11x the median" in document
    assert "212 requests of m" in document
    assert "time in the queue: 30.0 ms (usually 2.7 ms)" in document


def test_what_a_text_contains_stays_text(document):
    assert html.escape(NASTY.replace("&amp;", "&amp;"), quote=False)[:40] in document
    assert "<script>window.broken" not in document


def test_the_page_asks_no_network():
    page = trace_page(sample_trace())

    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "default-src 'none'" in page

"""Reading `/metrics` in tests: series by name and labels, sums over them, and a steady scraper."""

import re
import threading
from collections import Counter

import httpx

from tests.integration.appliance_process import ApplianceProcess

LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Series:
    """Parse the plain format; buckets are left out."""
    series: Series = {}
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        name, _, labels = sample.partition("{")
        if not line.startswith("#") and not name.endswith("_bucket"):
            series[name, frozenset(LABEL.findall(labels))] = float(value)
    return series


def total(series: Series, name: str, **labels: str) -> float:
    wanted = frozenset(labels.items())
    return sum(
        value for (found, pairs), value in series.items() if found == name and wanted <= pairs
    )


def by_label(series: Series, name: str, label: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for (metric, pairs), value in series.items():
        if metric == name:
            found[dict(pairs)[label]] += value
    return found


def assert_sums_close(series: Series) -> None:
    accepted = total(series, "quarterdeck_requests_accepted_total")
    rejected = total(series, "quarterdeck_requests_rejected_total")
    ended = by_label(series, "quarterdeck_requests_ended_total", "outcome")
    running = total(series, "quarterdeck_requests_running")
    assert total(series, "quarterdeck_requests_received_total") == accepted + rejected
    assert accepted == ended.total() + running
    assert running >= 0
    for shares in ("quarterdeck_key_requests_total", "quarterdeck_model_requests_total"):
        outcomes = by_label(series, shares, "outcome")
        assert outcomes.pop("rejected", 0) == rejected
        assert +outcomes == +ended
    by_kind = by_label(series, "quarterdeck_key_tokens_total", "kind")
    for kind, counted in (("prompt", "prompt"), ("cached", "cached_prompt"), ("completion",) * 2):
        assert by_kind[kind] == total(series, f"quarterdeck_{counted}_tokens_total")


class Scraper(threading.Thread):
    """Scrapes all the time and keeps what did not close; no scrape may make a count fall."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        super().__init__(daemon=True)
        self._url = f"{appliance.admin_url}/metrics"
        self._headers = appliance.admin_headers
        self._ended = threading.Event()
        self.scrapes = 0
        self.problems: list[str] = []
        self.most_running = 0.0

    def run(self) -> None:
        before: Series = {}
        text = ""
        with httpx.Client(headers=self._headers) as client:
            while not self._ended.wait(0.1):
                answer = client.get(self._url)
                if answer.status_code != 200:
                    self.problems.append(f"{answer.status_code}: {answer.text}")
                    continue
                if answer.text == text:  # of the moment before
                    continue
                text, series = answer.text, read(answer.text)
                self.scrapes += 1
                self._check(before, series)
                before = series

    def _check(self, before: Series, series: Series) -> None:
        try:
            assert_sums_close(series)
        except AssertionError as error:
            self.problems.append(str(error))
        for (name, labels), value in before.items():
            if name.endswith(("_total", "_count")) and series.get((name, labels), 0) < value:
                self.problems.append(f"{name} {dict(labels)} fell from {value}")
        running = total(series, "quarterdeck_requests_running")
        self.most_running = max(self.most_running, running)

    def stop(self) -> None:
        self._ended.set()
        self.join(10)

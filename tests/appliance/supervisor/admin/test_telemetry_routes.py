"""Traces, events and the telemetry's switches over HTTP."""

from datetime import UTC, datetime

import httpx
import pytest

from appliance.supervisor.admin.ports import EventQuery, TraceQuery
from tests.appliance.supervisor.admin.conftest import Plane, client
from tests.appliance.supervisor.admin.in_memory import REQUEST_ID

pytestmark = pytest.mark.anyio

API = "/admin/v1"


async def test_traces_are_asked_for_by_every_filter(plane: Plane, admin: httpx.AsyncClient):
    await admin.get(f"{API}/traces")
    await admin.get(
        f"{API}/traces",
        params={
            "limit": 7,
            "outcome": "failed",
            "min_ms": 1.5,
            "model": "m",
            "key_id": "k1",
            "engine": "e0",
            "trace_id": "ab" * 16,
            "since": "2026-01-02T03:04:05Z",
            "until": "2026-01-02T04:04:05",
            "order": "slowest",
        },
    )

    assert plane.hub.trace_queries == [
        TraceQuery(),
        TraceQuery(
            limit=7,
            outcome="failed",
            min_ms=1.5,
            model="m",
            key_id="k1",
            engine="e0",
            trace_id="ab" * 16,
            since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            until=datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC),
            slowest_first=True,
        ),
    ]


async def test_events_are_asked_for_by_every_filter(plane: Plane, admin: httpx.AsyncClient):
    answer = await admin.get(f"{API}/events")
    await admin.get(
        f"{API}/events",
        params={
            "limit": 1,
            "since": "2026-01-02T03:04:05Z",
            "min_level": "warning",
            "kind": "engine.",
            "subject": "e0",
        },
    )

    assert [row["id"] for row in answer.json()["items"]] == [2, 1]
    assert plane.hub.event_queries[1] == EventQuery(
        limit=1,
        since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        min_level="warning",
        kind="engine.",
        subject="e0",
    )


@pytest.mark.parametrize(
    "path", ["traces?trace_id=xyz", "traces?since=yesterday", "events?min_level=loud", "moment"]
)
async def test_a_filter_that_makes_no_sense_is_refused(admin: httpx.AsyncClient, path: str):
    assert (await admin.get(f"{API}/{path}")).status_code == 422


async def test_what_people_wrote_is_shown_to_administrators_alone(plane: Plane):
    for key in ("viewer-secret", "operator-secret", "admin-secret"):
        async with client(plane.tcp, key) as caller:
            assert (await caller.get(f"{API}/traces/{REQUEST_ID}")).status_code == 200

    assert plane.hub.content_shown == [False, False, True]


async def test_an_operator_changes_everything_but_the_recording_of_content(plane: Plane):
    async with client(plane.tcp, "operator-secret") as operator:
        changed = await operator.patch(
            f"{API}/telemetry", json={"recording": False, "content": False}
        )
        refused = await operator.patch(f"{API}/telemetry", json={"content": True})
    async with client(plane.tcp, "viewer-secret") as viewer:
        shown = await viewer.get(f"{API}/telemetry")
        forbidden = await viewer.patch(f"{API}/telemetry", json={"recording": True})
    async with client(plane.tcp, "admin-secret") as administrator:
        allowed = await administrator.patch(f"{API}/telemetry", json={"content": True})

    assert (changed.status_code, changed.json()["recording"]) == (200, False)
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_too_small")
    assert (shown.status_code, shown.json()["recording"]) == (200, False)
    assert forbidden.status_code == 403
    assert (allowed.status_code, allowed.json()["content"]) == (200, True)
    assert [actor for _, actor in plane.hub.changes] == ["k2", "k3"]


async def test_a_change_that_cannot_work_says_why(admin: httpx.AsyncClient):
    refused = await admin.patch(f"{API}/telemetry", json={"export": True})
    unknown = await admin.patch(f"{API}/telemetry", json={"ratio": 1})
    outside = await admin.patch(f"{API}/telemetry", json={"trace_ratio": 1.5})

    assert (refused.status_code, refused.json()["code"]) == (422, "no_collector")
    assert unknown.status_code == outside.status_code == 422


async def test_explanations_moments_and_promises_are_answered(
    plane: Plane, admin: httpx.AsyncClient
):
    explanation = await admin.get(f"{API}/traces/{REQUEST_ID}/explanation")
    missing = await admin.get(f"{API}/traces/nope/explanation")
    moment = await admin.get(f"{API}/moment?at=2026-01-02T03:04:05Z&window_s=30")
    slos = await admin.get(f"{API}/slos")

    assert explanation.json()["verdict"] == "not slow"
    assert missing.status_code == 404
    assert moment.json()["summary"] == ["nothing happened"]
    assert plane.hub.moments == [(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 30.0)]
    assert [row["name"] for row in slos.json()["items"]] == ["availability"]

"""The supervisor's side of a gateway, on the real wire: a fleet that a test moves as it likes."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.control_link.messages import (
    AdapterRoute,
    EngineRoute,
    FleetState,
    GatewayAccounts,
    GatewayRecords,
    KeyRecord,
    Limits,
    Recording,
    SloTargets,
)
from appliance.control_link.supervisor_end import SupervisorLink
from appliance.telemetry.records import RequestRecord
from engine.wire.messages import Body, EngineReady

KEY = "sk-test-inference"
VIEWER_KEY = "sk-test-viewer"
EXPIRED_KEY = "sk-test-expired"
GATEWAY = "gateway-0"
MODEL = "tiny"
MAX_MODEL_LEN = 512

BodyT = TypeVar("BodyT", bound=Body)


def key_record(secret: str, scope: str, expires_at: float | None = None) -> KeyRecord:
    return KeyRecord(
        key_id=f"key-{scope}",
        name=scope,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        scope=scope,
        expires_at=expires_at,
    )


def a_ready(max_model_len: int = MAX_MODEL_LEN) -> EngineReady:
    return EngineReady(
        model=MODEL,
        architecture="fake",
        max_model_len=max_model_len,
        num_blocks=64,
        block_size=16,
        vocab_size=512,
        dtype="float32",
        device="cpu",
        kernel_backend="fake",
        weights_bytes=1,
        kv_cache_bytes=1,
        resident_bytes=1,
    )


def a_route(model_path: Path, engine_id: str = "e0", **changes: object) -> EngineRoute:
    route = EngineRoute(
        engine_id=engine_id,
        epoch=1,
        state="ready",
        phase="",
        done=0,
        total=0,
        reason=None,
        model=MODEL,
        served_names=(MODEL, "alias"),
        model_path=str(model_path),
        ready=a_ready(),
        sleep_level=0,
        retry_after_s=3.0,
    )
    return msgspec.structs.replace(route, **changes)


class FakeSupervisor:
    """Publishes a fleet and remembers what the gateway said."""

    def __init__(self, run_dir: Path) -> None:
        self.engines: dict[str, EngineRoute] = {}
        self.adapters: tuple[AdapterRoute, ...] = ()
        self.keys = (
            key_record(KEY, "inference"),
            key_record(VIEWER_KEY, "viewer"),
            key_record(EXPIRED_KEY, "inference", expires_at=1.0),
        )
        self.limits = Limits(
            max_queued=64, requests_per_minute=6000, tokens_per_minute=4_000_000, hold_s=20
        )
        self.on_asleep = "wake"
        self.auth_required = True
        self.slo: SloTargets | None = None
        self.recording = Recording()
        self.said: list[Body] = []
        self.stale = 0
        """Accounts that did not close: received = rejected + accepted and so on."""
        self._heard = asyncio.Condition()
        self._changes = asyncio.Event()
        self.link = SupervisorLink(run_dir, 1, on_message=self._take, on_hop=lambda hop: None)
        self.link.expect(GATEWAY, 1)

    async def run(self) -> None:
        self.publish()
        try:
            await self.link.run()
        finally:
            self.link.close()

    def publish(self) -> int:
        return self.link.publish(
            FleetState(
                sequence=0,
                engines=tuple(self.engines.values()),
                keys=self.keys,
                limits=self.limits,
                on_asleep=self.on_asleep,
                draining=False,
                auth_required=self.auth_required,
                adapters=self.adapters,
                slo=self.slo,
                recording=self.recording,
            )
        )

    def move(self, engine_id: str = "e0", **changes: object) -> int:
        """Change an engine's route and tell the gateway."""
        self.engines[engine_id] = msgspec.structs.replace(self.engines[engine_id], **changes)
        return self.publish()

    async def moved(self, engine_id: str = "e0", **changes: object) -> None:
        """The same, and wait until the gateway works from it."""
        await self.acked(self.move(engine_id, **changes))

    async def acked(self, sequence: int) -> None:
        async with asyncio.timeout(5):
            while self.link.acked(GATEWAY) < sequence:
                await asyncio.sleep(0.002)

    def _take(self, name: str, epoch: int, body: Body) -> None:
        self.said.append(body)
        if isinstance(body, GatewayAccounts) and not closes(body):
            self.stale += 1
        self._changes.set()

    async def hear(
        self, kind: type[BodyT], accept: Callable[[BodyT], bool] = lambda body: True
    ) -> BodyT:
        """Return the first message of this kind that `accept` takes, waiting for it."""
        async with asyncio.timeout(10):
            while True:
                self._changes.clear()
                for body in self.said:
                    if isinstance(body, kind) and accept(body):
                        return body
                await self._changes.wait()

    async def record(self, hex_id: str) -> RequestRecord:
        """Return the record of an ended request."""
        batch = await self.hear(
            GatewayRecords, lambda b: any(hex_id in r.request_id for r in b.finished)
        )
        return next(r for r in batch.finished if hex_id in r.request_id)

    @property
    def records(self) -> list[RequestRecord]:
        return [r for b in self.said if isinstance(b, GatewayRecords) for r in b.finished]

    async def totals(self, ended: int) -> dict[str, float]:
        """Return the accounts once `ended` requests (rejected or ended) are in them."""

        def done(body: GatewayAccounts) -> bool:
            counts = totals(body)
            return counts["rejected"] + counts["ended"] >= ended

        await self.hear(GatewayAccounts, done)
        return totals(next(b for b in reversed(self.said) if isinstance(b, GatewayAccounts)))


def totals(accounts: GatewayAccounts) -> dict[str, float]:
    """Sums over routes of the request accounts, and each outcome."""
    sums = dict.fromkeys(
        ("received", "rejected", "accepted", "ended", "running", "finished", "aborted", "failed"),
        0.0,
    )
    for sample in (*accounts.snapshot.counters, *accounts.snapshot.gauges):
        for name in ("received", "rejected", "accepted", "ended"):
            if sample.name == f"quarterdeck_requests_{name}_total":
                sums[name] += sample.value
        if sample.name == "quarterdeck_requests_running":
            sums["running"] += sample.value
        if sample.name == "quarterdeck_requests_ended_total":
            sums[dict(sample.labels)["outcome"]] += sample.value
    return sums


def closes(accounts: GatewayAccounts) -> bool:
    """Whether both equations hold in a snapshot."""
    t = totals(accounts)
    return (
        t["received"] == t["rejected"] + t["accepted"]
        and t["accepted"] == t["finished"] + t["aborted"] + t["failed"] + t["running"]
    )

"""Slow requests with a known cause, on a real appliance: the faults are real, the truth is known.

Every stage says what the truth is before anybody has been asked for an explanation. Traffic that
makes the trouble goes to another route than its victims, so that it is not among their cohort.
"""

import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.staged_traffic import (
    Filler,
    OtherLoad,
    QueueWatch,
    begin_chat,
    join,
    pause,
    words,
)
from tests.lora import make_adapter
from tests.tiny_model import make_tiny_model

SEATS = 16
LAYERS = 2
TOKENS = 24
PREFIX_WORDS = 3000
KV_TOKENS = 10_240
LEAST_SLOW = 1.5
OTHER_BODIES = frozenset({"asleep", "adapter"})
"""What is asked for in these stages is shorter than what all others ask for."""
LEAST_WAIT_S = 0.25
"""A shorter queue is none: fillers were done before their victims came."""
BYTES_PER_TOKEN = LAYERS * 2 * 2 * 16 * 4


@dataclass
class Victim:
    """A request, and what made it slow: `truth` is all that did, `side` what that brings along."""

    name: str
    truth: frozenset[str]
    request_id: str
    took_s: float
    side: frozenset[str] = frozenset()
    others: float = 0.0
    """Share of the machine that other processes took meanwhile: it slows steps down."""


@dataclass
class Stage:
    """An appliance, and ways to make its requests slow."""

    appliance: ApplianceProcess
    model: str
    load: OtherLoad
    victims: list[Victim] = field(default_factory=list)
    usual_s: float = 0.0
    misfires: int = 0
    """Stages whose fault did not hold a request up: the clients' clocks say so."""
    _seed: int = 1000
    _calm_s: list[float] = field(default_factory=list)

    # ------------------------------------------------------------ requests

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": words(PREFIX_WORDS, 1)},
            {"role": "user", "content": words(5, self.seed())},
        ]
        return {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
            **fields,
        }

    def chat(
        self, on_token: Callable[[], object] = lambda: None, **fields: Any
    ) -> tuple[str, float]:
        """One streaming chat; `on_token` is called at the first frame with a token."""
        body = self.body(**fields)
        start_s = time.monotonic()
        url = f"{self.appliance.url}/v1/chat/completions"
        headers = self.appliance.headers
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", url, json=body, headers=headers) as answer,
        ):
            is_first = True
            for line in answer.iter_lines():
                if is_first and line.startswith("data: "):
                    is_first = False
                    on_token()
            assert answer.status_code == 200
            return answer.headers["x-request-id"], time.monotonic() - start_s

    def calm_adapters(self, count: int) -> None:
        """The same for requests that name an adapter: nobody else does."""
        messages = [{"role": "user", "content": "hello"}]
        for _ in range(count):
            self.chat(model="second", messages=messages)

    def calm(self, count: int) -> list[tuple[str, float]]:
        """Requests that nothing happens to."""
        made = [self.chat() for _ in range(count)]
        self._calm_s += [took_s for _, took_s in made]
        self.usual_s = statistics.median(self._calm_s)
        return made

    def filler(self, words_of_prompt: int, tokens: int, **fields: Any) -> "Filler":
        """Traffic on the other route, in a thread."""
        body = {
            "model": self.model,
            "prompt": words(words_of_prompt, self.seed()),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            **fields,
        }
        filler = Filler(self.appliance, body)
        filler.start()
        return filler

    @contextmanager
    def fillers(
        self, count: int, words_of_prompt: int, tokens: int
    ) -> Iterator[Sequence["Filler"]]:
        """So many of them decode inside."""
        threads = [self.filler(words_of_prompt, tokens) for _ in range(count)]
        for thread in threads:
            assert thread.started.wait(20), "a filler got no token"
        try:
            yield threads
        finally:
            join(threads)

    def engine(self) -> dict[str, Any]:
        return self.appliance.engine()

    def add(
        self,
        name: str,
        truth: Sequence[str],
        made: tuple[str, float],
        *side: str,
        least: float = 1.7,
        usual_s: float | None = None,
    ) -> None:
        """Note a victim, unless its client saw that nothing held it up."""
        request_id, took_s = made
        least_s = least * self.usual_s if usual_s is None else usual_s
        if took_s < least_s:
            self.misfires += 1
        else:
            others = self.load.share(took_s)
            self.victims.append(
                Victim(name, frozenset(truth), request_id, took_s, frozenset(side), others)
            )

    def settle(self) -> int:
        """Drop victims that were no slower than their hour, and return how many are left.

        The machine's load has changed since then.

        That too is what the clients' clocks say, over all chats; short ones are left alone.
        """
        usual_s = statistics.median([*self._calm_s, *(v.took_s for v in self.victims)])
        slow = [v for v in self.victims if not v.truth or v.took_s >= LEAST_SLOW * usual_s]
        slow += [v for v in self.victims if v.name in OTHER_BODIES and v not in slow]
        self.misfires += len(self.victims) - len(slow)
        self.victims = slow
        return len(slow)

    def together(self, count: int) -> list[tuple[str, float]]:
        """So many chats at once."""
        made: list[tuple[str, float]] = []
        threads = [threading.Thread(target=lambda: made.append(self.chat())) for _ in range(count)]
        for thread in threads:
            thread.start()
        join(threads)
        assert len(made) == count, "a victim failed"
        return made

    # ------------------------------------------------------------ causes

    def negatives(self, count: int) -> None:
        """The quicker half of some that nothing was done to."""
        start_s = time.monotonic()
        made = sorted(self.calm(2 * count), key=lambda one: one[1])[:count]
        others = self.load.share(time.monotonic() - start_s)
        for request_id, took_s in made:
            self.victims.append(Victim("calm", frozenset(), request_id, took_s, others=others))

    def queue(self, count: int = 4) -> None:
        with QueueWatch(self.appliance) as watch, self.fillers(SEATS, 3, 350):
            made = self.together(count)
        if watch.seconds < LEAST_WAIT_S:
            self.misfires += count
            return
        for one in made:
            self.add("queue", ["queue"], one, "crowded_batch", "cold_prefix")

    def preemption(self) -> None:
        """Others grow until the cache holds no more; the youngest gives way."""
        before = self.appliance.metric("quarterdeck_engine_preemptions_total")
        with self.fillers(10, 692, 120):  # 10 x 45 blocks, and 10 more after 28 tokens
            made = self.chat()
        self.calm(1)
        if self.appliance.metric("quarterdeck_engine_preemptions_total") > before:
            self.add("preemption", ["preemption"], made, "cold_prefix", "crowded_batch", "queue")
        else:  # it came when they had grown already
            self.misfires += 1

    def prompt_between(self) -> None:
        """A long prompt comes while it decodes."""
        threads: list[Filler] = []
        made = self.chat(on_token=lambda: threads.append(self.filler(6000, 1)))
        join(threads)
        self.add("prompt between", ["long_prefill_beside"], made, least=3.0)
        self.calm(1)

    def prompt_before(self) -> None:
        """A long prompt is in the engine when it comes."""
        threads = [self.filler(6000, 1)]
        time.sleep(0.05)
        made = self.chat()
        join(threads)
        self.add("prompt before", ["long_prefill_beside"], made, "queue", "cold_prefix")
        self.calm(1)

    def cold_prefix(self) -> None:
        made = self.chat(cache_salt=f"salt{self.seed()}")
        self.add("cold prefix", ["cold_prefix"], made, least=1.4)

    def reset_cache(self) -> None:
        self.appliance.admin("/admin/v1/engines/e0/reset-prefix-cache", "POST")
        wait_until(lambda: self.engine()["state"] == "ready", 5)
        time.sleep(0.2)  # the call has reached the engine by then
        self.add("cache reset", ["cold_prefix"], self.chat(), least=1.4)

    def long_prompt(self) -> None:
        messages = [{"role": "user", "content": words(4500, self.seed())}]
        self.add("long prompt", ["long_prompt"], self.chat(messages=messages))
        self.calm(1)

    def long_output(self, tokens: int = 300) -> None:
        self.add("long output", ["long_output"], self.chat(max_tokens=tokens))

    def asleep(self) -> None:
        """It wakes the engine; a short chat, for the cache is empty then, and one more without."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
        }
        _, awake_s = self.chat(**body)
        self.appliance.admin("/admin/v1/engines/e0/sleep", "POST", json={"level": 1})
        wait_until(lambda: self.engine()["state"] == "asleep", 10, "asleep")
        made = self.chat(**body)
        self.add("asleep", ["asleep_engine"], made, usual_s=2 * awake_s)
        self.calm(1)

    def slow_client(self) -> None:
        self.add("slow client", ["slow_client"], self.lazy_reader(), "crowded_batch")

    def lazy_reader(self) -> tuple[str, float]:
        """Read nothing until long after the engine is done; the buffers take less than all."""
        body = self.body(n=8, logprobs=True, top_logprobs=20)
        start_s = time.monotonic()
        connection = begin_chat(self.appliance, json.dumps(body).encode())
        head = connection.recv(300).decode()
        wait_until(lambda: not self.engine()["running"], 20, "the engine is done")
        time.sleep(0.9)
        while connection.recv(65536):
            pass
        connection.close()
        request_id = head.split("x-request-id: ")[1].split("\r\n")[0]
        return request_id, time.monotonic() - start_s

    def slow_upload(self) -> None:
        body = json.dumps(self.body()).encode()
        start_s = time.monotonic()
        connection = begin_chat(self.appliance, body[:2000], length=len(body))
        time.sleep(0.6)
        connection.sendall(body[2000:])
        text = b""
        while chunk := connection.recv(65536):
            text += chunk
        connection.close()
        request_id = text.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
        self.add("slow upload", ["admission"], (request_id, time.monotonic() - start_s))

    def chat_during_pause(self, pid: int, pause_s: float, **fields: Any) -> tuple[str, float]:
        """A process stands still from the first token on; it is over when this returns."""
        timers: list[threading.Thread] = []
        made = self.chat(on_token=lambda: timers.append(pause(pid, pause_s)), **fields)
        join(timers)
        return made

    def gateway_stops(self, pause_s: float = 0.6) -> None:
        pid = self.appliance.admin("/admin/v1/gateways").json()["items"][0]["pid"]
        made = self.chat_during_pause(pid, pause_s)
        self.add("gateway stops", ["collector"], made)

    def engine_stops(self, pause_s: float = 0.6, **fields: Any) -> None:
        pid = self.engine()["pid"]
        made = self.chat_during_pause(pid, pause_s, **fields)
        truth = ["slow_steps", *(["long_output"] if fields else [])]
        self.add("engine stops", truth, made)

    def grammar(self) -> None:
        kind = f"[a-{'mnopqrstuvwxyz'[self.seed() % 14]}]"
        properties = {
            f"p{i}": {
                "type": "string",
                "pattern": f"^{kind}{{3,40}}([0-9]{{2,30}}|x{kind}{{5,60}})$",
            }
            for i in range(200)
        }
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        made = self.chat(response_format=form)
        self.add("grammar", ["grammar"], made, "slow_steps")

    def adapter(self) -> None:
        """The one slot for adapters is taken by another."""
        thread = self.filler(3, 250, model="first")
        assert thread.started.wait(20)
        messages = [{"role": "user", "content": "hello"}]
        self.add("adapter", ["adapter"], self.chat(model="second", messages=messages))
        join([thread])

    def engine_dies(self, count: int = 4) -> None:
        """Nothing of theirs was delivered: they are sent again to the next incarnation."""
        pid = self.engine()["pid"]
        with self.fillers(SEATS, 3, 400):
            killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
            killer.start()
            made = self.together(count)
        for one in made:
            self.add("engine dies", ["engine_died"], one, "cold_prefix", "queue")
        self.appliance.wait_ready()
        self.calm(2)

    # ------------------------------------------------------------ two at once

    def queue_and_slow_client(self) -> None:
        with QueueWatch(self.appliance) as watch, self.fillers(SEATS, 3, 350):
            made = self.lazy_reader()
        truth = ["queue", "slow_client"] if watch.seconds >= LEAST_WAIT_S else ["slow_client"]
        self.add("queue + client", truth, made, "crowded_batch")

    def cold_and_stop(self) -> None:
        pid = self.engine()["pid"]
        salt = f"salt{self.seed()}"
        made = self.chat_during_pause(pid, 0.5, cache_salt=salt)
        self.add("cold + stop", ["cold_prefix", "slow_steps"], made)

    def long_and_stop(self) -> None:
        self.engine_stops(0.7, max_tokens=250)


def start_stage(root: Path) -> Stage:
    """Start an appliance whose limits are near."""
    model = make_tiny_model(root / "tiny", layers=LAYERS, max_len=8192)
    adapters = root / "adapters"
    for seed, name in enumerate(("first", "second")):
        make_adapter(adapters / name, rank=4, seed=seed, model_dir=model)
    appliance = ApplianceProcess(
        root, str(model), "--dtype", "float32", "--drain-s", "2",
        "--max-num-seqs", str(SEATS), "--kv-cache-bytes", str(KV_TOKENS * BYTES_PER_TOKEN),
        "--max-num-batched-tokens", "2048", "--long-prefill-threshold", "2048",
        "--no-predict-lengths", "--adapter-root", str(adapters), "--max-loras", "1",
    )  # fmt: skip
    appliance.start()
    load = OtherLoad(appliance)
    load.start()
    stage = Stage(appliance, appliance.model, load)
    for name in ("first", "second"):
        loaded = appliance.cli("lora", "load", name, str(adapters / name))
        assert loaded.returncode == 0, loaded.stderr
    return stage

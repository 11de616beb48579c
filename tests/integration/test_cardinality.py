"""Ten thousand random model names, paths and keys, on both planes, leave the series as they are."""

import asyncio
import json
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.integration.appliance_process import ApplianceProcess
from tests.integration.scrapes import read

pytestmark = [pytest.mark.process, pytest.mark.anyio]

CONNECTIONS = 4
DEPTH = 16
"""Requests that are sent before the first answer is read."""


def word(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits + "-_.", k=12))


def request(method: str, path: str, key: str, body: dict[str, object] | None = None) -> bytes:
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


async def answers(port: int, requests: list[bytes]) -> Counter[int]:
    """Send requests in pipelines over one connection after the other; count the answers' status."""
    statuses: Counter[int] = Counter()
    at = 0
    while at < len(requests):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while at < len(requests):
                batch = requests[at : at + DEPTH]
                writer.write(b"".join(batch))
                for _ in batch:
                    statuses[await one_answer(reader)] += 1
                    at += 1
        except asyncio.IncompleteReadError:
            pass  # the server closed this connection; the next one goes on
        finally:
            writer.close()
    return statuses


async def one_answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = head.partition("content-length: ")[2].partition("\r\n")[0]
    await reader.readexactly(int(length or 0))
    return int(head.split(" ", 2)[1])


async def flood(port: int, make: Callable[[], bytes], count: int) -> Counter[int]:
    shares = [[make() for _ in range(count // CONNECTIONS)] for _ in range(CONNECTIONS)]
    async with asyncio.TaskGroup() as tasks:
        all_answers = [tasks.create_task(answers(port, share)) for share in shares]
    return sum((task.result() for task in all_answers), Counter())


def kinds(
    appliance: ApplianceProcess, chance: random.Random
) -> Iterator[tuple[int, Callable[[], bytes], set[int]]]:
    """Yield port, requests of one kind, and the answers that they may get."""
    data, admin = appliance.instance["port"], appliance.instance["admin_port"]

    def model() -> bytes:
        body = {"model": word(chance), "messages": [{"role": "user", "content": "x"}]}
        return request("POST", "/v1/chat/completions", appliance.api_key, body)

    yield data, model, {404}
    yield data, lambda: request("GET", f"/v1/models/{word(chance)}", appliance.api_key), {404}
    yield data, lambda: request("GET", f"/{word(chance)}", f"sk-{word(chance)}"), {401, 404}
    yield admin, lambda: request("GET", f"/{word(chance)}", f"qd_{word(chance)}"), {401, 404, 429}
    yield admin, lambda: request("GET", f"/admin/v1/{word(chance)}", appliance.admin_key), {404}
    yield (
        admin,
        lambda: request("GET", f"/admin/v1/engines/{word(chance)}", appliance.admin_key),
        {404},
    )


def series_of(appliance: ApplianceProcess) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return set(read(appliance.metrics()))


async def test_strangers_cannot_make_series(tiny_appliance: ApplianceProcess):
    """Complaints: paths, models and keys of strangers become labels (path cardinality, leak)."""
    chance = random.Random(5)
    appliance = tiny_appliance
    appliance.chat("warm", max_tokens=2)
    for port, make, _ in kinds(appliance, chance):
        await flood(port, make, 2 * CONNECTIONS)
    series_of(appliance)  # the scrape itself is counted too
    await asyncio.sleep(1.2)  # the last accounts are in
    before = series_of(appliance)

    all_kinds = list(kinds(appliance, chance))
    sent = 0
    for port, make, expected in all_kinds:
        share = 10_000 // len(all_kinds) + CONNECTIONS
        statuses = await flood(port, make, share)
        sent += statuses.total()
        assert set(statuses) <= expected, statuses
    await asyncio.sleep(1.2)

    assert sent >= 10_000
    assert series_of(appliance) - before == set()
    text = appliance.metrics()
    assert len(text) < 500_000

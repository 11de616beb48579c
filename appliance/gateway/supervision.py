"""Run a request's work for as long as its client is there and nobody ends it."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.types import Receive

from appliance.gateway.openai.errors import ApiError
from appliance.gateway.request_context import ClientGoneError


class Interrupt:
    """A way to end one request from elsewhere, with the error that its client gets."""

    def __init__(self) -> None:
        self._error: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()

    def end(self, error: ApiError) -> None:
        """End the request; the first call counts."""
        if not self._error.done():
            self._error.set_result(error)

    async def wait(self) -> ApiError:
        """Wait until somebody ends the request."""
        return await asyncio.shield(self._error)


async def supervise(work: Coroutine[Any, Any, None], receive: Receive, end: Interrupt) -> None:
    """Run `work`; cancel it when the client disconnects or `end` is called.

    Raises:
        ClientGoneError: the client disconnected.
        ApiError: of `end`, or of the work itself, like anything else that the work raises.
    """
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(_outcome(work))
        gone = tasks.create_task(_disconnected(receive))
        ended = tasks.create_task(end.wait())
        await asyncio.wait({worker, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        is_worked, is_ended = worker.done(), ended.done()
        for task in (worker, gone, ended):
            task.cancel()
    if not is_worked:
        raise ended.result() if is_ended else ClientGoneError()
    error = worker.result()
    if error is not None:
        raise error


async def beside(companion: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Run `work` with a companion that ends with it; what either raises is raised."""
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(_outcome(work))
        helper = tasks.create_task(_outcome(companion))
        await asyncio.wait({worker, helper}, return_when=asyncio.FIRST_COMPLETED)
        error = helper.result() if helper.done() else None
        if error is None:
            await asyncio.wait({worker})
            error = worker.result()
        worker.cancel()
        helper.cancel()
    if error is not None:
        raise error


async def together(works: list[Coroutine[Any, Any, None]]) -> None:
    """Run all of `works`; the first that raises ends the others, and its error is raised."""
    async with asyncio.TaskGroup() as tasks:
        waiting = {tasks.create_task(_outcome(work)) for work in works}
        error: Exception | None = None
        while waiting and error is None:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            error = next((found for task in done if (found := task.result())), None)
        for task in waiting:
            task.cancel()
    if error is not None:
        raise error


async def _outcome(work: Awaitable[None]) -> Exception | None:
    """Return what the work raised as a value: a TaskGroup would wrap it."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - raised again by whoever asked for the work
        return error
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

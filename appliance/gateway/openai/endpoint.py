"""The ASGI application of a generating route: one request, from its first byte to its last."""

import logging

from starlette.types import Receive, Scope, Send

from appliance.gateway.data_plane import DataPlane, LiveRequest
from appliance.gateway.journey import journey_of
from appliance.gateway.limits import in_proportion, read_json_object
from appliance.gateway.openai.dialect import Dialect
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.openai.exchange import Exchange
from appliance.gateway.request_context import ClientGoneError, context_of
from appliance.gateway.supervision import Interrupt, supervise
from engine.clock import now_ns
from engine.wire.messages import AbortReason

logger = logging.getLogger(__name__)


class GeneratingEndpoint:
    """The ASGI application of one generating route."""

    def __init__(self, plane: DataPlane, dialect: Dialect) -> None:
        self._plane = plane
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        plane, context = self._plane, context_of(scope)
        journey = journey_of(scope, context)
        assert journey is not None
        plane.refuse_when_draining()
        body, body_bytes = await read_json_object(scope, receive)
        parameters, encode = await in_proportion(
            body_bytes, lambda: self._dialect.parse(body, strict=plane.strict_parameters)
        )
        journey.parameters = parameters
        context.ignored = parameters.ignored
        if parameters.ignored:
            plane.ledger.ignored_parameters()
        interrupt = Interrupt()
        exchange = Exchange(plane, self._dialect, journey, scope, send)
        plane.enter(context.hex_id, LiveRequest(journey, interrupt))
        reason = AbortReason.SHUTDOWN
        try:
            await supervise(exchange.run(encode, body_bytes), receive, interrupt)
        except ClientGoneError:
            reason = AbortReason.CLIENT_DISCONNECTED
            raise
        except ApiError as error:
            reason = AbortReason.OPERATOR
            await exchange.fail(error)
        except Exception:
            logger.exception("request %s failed", context.request_id)
            await exchange.fail(ApiError("internal_error", "The server failed."))
        finally:
            context.ended_ns = context.ended_ns or now_ns()
            await exchange.settle(reason)
            plane.leave(context.hex_id)

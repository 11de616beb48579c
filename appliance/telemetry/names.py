"""Every telemetry name in one place: metrics, span names, attributes.

Sources: OpenTelemetry semantic conventions for GenAI, messaging, RPC and HTTP
(https://github.com/open-telemetry/semantic-conventions, v1.44). No colon in a metric name: it is
reserved for recording rules. Label values are closed sets with `other`.
"""

from typing import Final

from appliance.telemetry.metric import Metric
from appliance.telemetry.metrics_of_engines import *  # noqa: F403
from appliance.telemetry.metrics_of_processes import *  # noqa: F403
from appliance.telemetry.metrics_of_requests import *  # noqa: F403
from appliance.telemetry.span_names import *  # noqa: F403

METRICS: Final = {
    metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)
}
"""Every metric by name."""

# --------------------------------------------------------------------- spans

SERVICE_NAME: Final = "quarterdeck"
MESSAGING_SYSTEM: Final = "zeromq"
PROVIDER: Final = "quarterdeck"
"""`gen_ai.provider.name`."""

PHASES: Final = (
    "auth",
    "admission",
    "tokenize",
    "dispatch",
    "queue",
    "prefill",
    "decode",
    "stream",
)
"""Span names of a request's phases in time order; each carries `PHASE` with its name."""

PROCESS: Final = "quarterdeck.process"
PHASE: Final = "quarterdeck.phase"
REQUEST_ID: Final = "quarterdeck.request.id"
ENGINE_REQUEST_ID: Final = "quarterdeck.engine_request.id"
ENGINE_ID: Final = "quarterdeck.engine.id"
ENGINE_EPOCH: Final = "quarterdeck.engine.epoch"
STEP: Final = "quarterdeck.step"
OUTCOME: Final = "quarterdeck.outcome"
HOP_TRANSIT: Final = "quarterdeck.hop.transit_ns"
"""From the sender's stamp to the receiver's."""
HOP_QUEUED: Final = "quarterdeck.hop.queued_ns"
"""From the receiver's stamp to its logic taking the message."""
HOP_OUTCOME: Final = "quarterdeck.hop.outcome"
ERROR_TYPE: Final = "error.type"

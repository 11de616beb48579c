"""Names of span attributes; `names` shows them together with all other telemetry names.

Sources: OpenTelemetry semantic conventions v1.44 for HTTP, messaging and RPC
(https://github.com/open-telemetry/semantic-conventions) and those for GenAI
(https://github.com/open-telemetry/semantic-conventions-genai).
"""

from typing import Final

# ------------------------------------------------------------ HTTP

HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"

# ------------------------------------------------------------ GenAI

GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_STREAM: Final = "gen_ai.request.stream"
GEN_AI_CHOICES: Final = "gen_ai.request.choice.count"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
CONTENT: Final = (GEN_AI_INPUT_MESSAGES, GEN_AI_OUTPUT_MESSAGES)
"""Attributes that hold what people wrote and got."""

# ------------------------------------------------------------ messaging

MESSAGING: Final = "messaging.system"
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_TEMPLATE: Final = "messaging.destination.template"
"""The message's type: what all destinations of this kind of message have in common."""
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_SIZE: Final = "messaging.message.envelope.size"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"

# ------------------------------------------------------------ RPC

RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
SERVER_ADDRESS: Final = "server.address"

# ------------------------------------------------------------ ours: requests

ERROR_CODE: Final = "quarterdeck.error_code"
CLIENT_REQUEST_ID: Final = "quarterdeck.client_request.id"
KEY_ID: Final = "quarterdeck.key.id"
REQUEUES: Final = "quarterdeck.requeues"
PREEMPTIONS: Final = "quarterdeck.preemptions"
DURATION: Final = "quarterdeck.duration_ns"
SAMPLING_REASON: Final = "quarterdeck.sampling.reason"
UPSTREAM_PARENT: Final = "quarterdeck.upstream.parent_id"
HELD: Final = "quarterdeck.held_ns"
HELD_FOR: Final = "quarterdeck.held_for"
WAITED_FOR: Final = "quarterdeck.waited_for"
TOKENS: Final = "quarterdeck.tokens"
PREFILL_CHUNKS: Final = "quarterdeck.prefill.chunks"
PREFILL_CACHED: Final = "quarterdeck.prefill.cached_tokens"
RECOMPUTED: Final = "quarterdeck.recomputed_tokens"
FIRST_STEP: Final = "quarterdeck.first_step"
LAST_STEP: Final = "quarterdeck.last_step"
MAX_BATCH: Final = "quarterdeck.max_batch"
DRAFTED: Final = "quarterdeck.drafted_tokens"
ACCEPTED: Final = "quarterdeck.accepted_tokens"
CHOICE: Final = "quarterdeck.choice"
FINISH_REASON: Final = "quarterdeck.finish_reason"
FRAMES: Final = "quarterdeck.stream.frames"
DETOKENIZE: Final = "quarterdeck.stream.detokenize_ns"
STREAM_BLOCKED: Final = "quarterdeck.stream.send_blocked_ns"
COLLECTED: Final = "quarterdeck.stream.collected_ns"
LIVE: Final = "quarterdeck.live"

# ------------------------------------------------------------ ours: steps, starts, operations

LINKS_DROPPED: Final = "quarterdeck.links.dropped"
STEP_SCHEDULE: Final = "quarterdeck.step.schedule_ns"
STEP_BUILD: Final = "quarterdeck.step.build_ns"
STEP_FORWARD: Final = "quarterdeck.step.forward_ns"
STEP_SAMPLE: Final = "quarterdeck.step.sample_ns"
STEP_EXECUTE: Final = "quarterdeck.step.execute_ns"
"""Build, forward and sample together."""
STEP_UPDATE: Final = "quarterdeck.step.update_ns"
STEP_SEND: Final = "quarterdeck.step.send_ns"
STEP_PREFILL_TOKENS: Final = "quarterdeck.step.prefill_tokens"
STEP_DECODE_TOKENS: Final = "quarterdeck.step.decode_tokens"
STEP_CACHED_TOKENS: Final = "quarterdeck.step.cached_tokens"
STEP_REQUESTS: Final = "quarterdeck.step.requests"
STEP_WAITING: Final = "quarterdeck.step.waiting"
STEP_ROWS: Final = "quarterdeck.step.rows"
STEP_USED_BLOCKS: Final = "quarterdeck.step.used_blocks"
STEP_PREEMPTED: Final = "quarterdeck.step.preempted"
ENGINE_DEVICE: Final = "quarterdeck.engine.device"
ENGINE_DTYPE: Final = "quarterdeck.engine.dtype"
ENGINE_KERNELS: Final = "quarterdeck.engine.kernels"
ENGINE_QUANTIZATION: Final = "quarterdeck.engine.quantization"
ENGINE_KV_DTYPE: Final = "quarterdeck.engine.kv_cache_dtype"
ENGINE_WEIGHT_CACHE: Final = "quarterdeck.engine.weight_cache"
ENGINE_THREADS: Final = "quarterdeck.engine.num_threads"
ENGINE_WEIGHTS: Final = "quarterdeck.engine.weights_bytes"
ENGINE_BLOCKS: Final = "quarterdeck.engine.num_blocks"
EVENT_TEXT: Final = "quarterdeck.event.text"
OPERATION_ID: Final = "quarterdeck.operation.id"
OPERATION_TARGET: Final = "quarterdeck.operation.target"
OPERATION_ACTOR: Final = "quarterdeck.operation.actor"
OPERATION_STATE: Final = "quarterdeck.operation.state"

"""`serve`: every flag of the appliance; values and bounds are in `appliance.config.settings`.

A flag that is not given is None, so that the environment and the files decide.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.output import say

Text = str | None
Number = float | None
Count = int | None
Switch = bool | None
Texts = list[str] | None
File = Path | None

_MODEL = "Model pack, local directory, .gguf file, or hub id. [default: smollm2]"


def serve(  # noqa: PLR0913 (options of a command)
    ctx: typer.Context,
    model: Annotated[Text, typer.Argument(help=_MODEL)] = None,
    served_model_name: Annotated[
        Texts, typer.Option(help="Name for clients; repeatable, the first is the main one.")
    ] = None,
    engines: Annotated[Count, typer.Option(help="Number of engines. [default: 1]")] = None,
    device: Annotated[Text, typer.Option(help="cpu, cuda or cuda:N. [default: cpu]")] = None,
    dtype: Annotated[
        Text, typer.Option(help="bfloat16, float16, float32 or auto. [default: auto]")
    ] = None,
    max_model_len: Annotated[Text, typer.Option(help="Longest context, such as 4k.")] = None,
    kv_cache_bytes: Annotated[
        Text, typer.Option(help="Size of the KV cache, such as 1GiB; 256MiB on a CPU by default.")
    ] = None,
    max_num_seqs: Annotated[
        Count, typer.Option(help="Most requests in a step. [default: 64]")
    ] = None,
    max_num_batched_tokens: Annotated[
        Text, typer.Option(help="Most tokens in a step. [default: 512]")
    ] = None,
    num_threads: Annotated[
        Count, typer.Option("--num-threads", "--threads", help="Threads of an engine on the CPU.")
    ] = None,
    quantization: Annotated[
        Text, typer.Option(help="Of the weights: auto, none, int8 or w4. [default: auto]")
    ] = None,
    kv_cache_dtype: Annotated[
        Text, typer.Option(help="auto, bfloat16 or int8. [default: auto]")
    ] = None,
    kernels: Annotated[
        Text, typer.Option(help="auto, reference, cpu or cpu:INSTRUCTIONS. [default: auto]")
    ] = None,
    weight_cache: Annotated[
        Text,
        typer.Option(help="Directory for packed weights, or off; the user's cache by default."),
    ] = None,
    weight_cache_bytes: Annotated[
        Text, typer.Option(help="Most that this directory holds. [default: 16GiB]")
    ] = None,
    revision: Annotated[Text, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    policy: Annotated[
        Text, typer.Option(help="Who is next: fcfs, priority or fair. [default: fcfs]")
    ] = None,
    reserved_seqs: Annotated[
        Count, typer.Option(help="Places in a step for negative (high) priorities. [default: 0]")
    ] = None,
    prefix_caching: Annotated[
        Switch, typer.Option("--prefix-caching/--no-prefix-caching", help="[default: on]")
    ] = None,
    long_prefill_threshold: Annotated[
        Text,
        typer.Option(
            help="Most tokens of long prompts in a step beside decodes; measured by default."
        ),
    ] = None,
    predict_lengths: Annotated[
        Switch,
        typer.Option(
            "--predict-lengths/--no-predict-lengths",
            help="Leave room for the usual output at admission. [default: on]",
        ),
    ] = None,
    speculative_tokens: Annotated[
        Count, typer.Option(help="Tokens guessed by prompt lookup in a step. [default: 0]")
    ] = None,
    adapter_root: Annotated[
        Texts, typer.Option(help="Directory that LoRA adapters may come from; repeatable.")
    ] = None,
    max_loras: Annotated[Count, typer.Option(help="Adapters in one step. [default: 8]")] = None,
    max_lora_rank: Annotated[Count, typer.Option(help="[default: 128]")] = None,
    max_cpu_loras: Annotated[Count, typer.Option(help="Adapters in memory. [default: 32]")] = None,
    host: Annotated[Text, typer.Option(help="[default: 127.0.0.1]")] = None,
    port: Annotated[Count, typer.Option(help="Of the OpenAI endpoint. [default: 8000]")] = None,
    gateways: Annotated[Count, typer.Option(help="Gateway processes. [default: 1]")] = None,
    on_asleep: Annotated[
        Text, typer.Option(help="Request for a sleeping engine: wake or reject. [default: wake]")
    ] = None,
    strict_parameters: Annotated[
        Switch, typer.Option("--strict-parameters", help="Refuse unknown request fields.")
    ] = None,
    cors_origin: Annotated[
        Texts, typer.Option(help="Site whose pages may call; repeatable, none by default.")
    ] = None,
    max_queued: Annotated[
        Count, typer.Option(help="Most requests without a first token. [default: 256]")
    ] = None,
    requests_per_minute: Annotated[
        Number, typer.Option(help="Limit of each key. [default: 6000]")
    ] = None,
    tokens_per_minute: Annotated[
        Number, typer.Option(help="Limit of each key. [default: 4000000]")
    ] = None,
    hold_s: Annotated[
        Number, typer.Option(help="Longest wait for an engine to start or wake. [default: 120]")
    ] = None,
    admin_host: Annotated[Text, typer.Option(help="[default: 127.0.0.1]")] = None,
    admin_port: Annotated[
        Count, typer.Option(help="Of the admin API and /metrics. [default: 8001]")
    ] = None,
    allowed_host: Annotated[
        Texts, typer.Option(help="Name under which the control plane is reached; repeatable.")
    ] = None,
    no_auth: Annotated[
        Switch, typer.Option("--no-auth", help="No inference keys. Loopback only.")
    ] = None,
    api_key: Annotated[
        Texts, typer.Option(help="Inference key; repeatable. [env: QUARTERDECK_API_KEY]")
    ] = None,
    admin_key: Annotated[
        Texts, typer.Option(help="Admin key; repeatable. [env: QUARTERDECK_ADMIN_KEY]")
    ] = None,
    api_key_file: Annotated[File, typer.Option(help="Inference keys, one a line.")] = None,
    admin_key_file: Annotated[File, typer.Option(help="Admin keys, one a line.")] = None,
    tls_cert: Annotated[File, typer.Option(help="Certificate of both planes (PEM).")] = None,
    tls_key: Annotated[File, typer.Option(help="Its private key.")] = None,
    state_dir: Annotated[File, typer.Option(help="[env: QUARTERDECK_STATE_DIR]")] = None,
    model_dir: Annotated[File, typer.Option(help="[env: QUARTERDECK_MODEL_DIR]")] = None,
    config: Annotated[File, typer.Option(help="Configuration file (TOML).")] = None,
    otlp_endpoint: Annotated[Text, typer.Option(help="Collector that traces go to.")] = None,
    otlp_protocol: Annotated[
        Text, typer.Option(help="http/protobuf or grpc. [default: http/protobuf]")
    ] = None,
    trace_ratio: Annotated[
        Number, typer.Option(help="Share of traces exported. [default: 1]")
    ] = None,
    trace_slowest_per_minute: Annotated[
        Count, typer.Option(help="Slowest requests exported whatever the ratio. [default: 5]")
    ] = None,
    trace_content: Annotated[
        Switch, typer.Option("--trace-content", help="Record texts of keys that allow it.")
    ] = None,
    trace_store_bytes: Annotated[
        Text, typer.Option(help="Size of the local trace store. [default: 256MiB]")
    ] = None,
    trace_store_hours: Annotated[
        Number, typer.Option(help="Age of what it keeps. [default: 24]")
    ] = None,
    slo: Annotated[
        Text, typer.Option(help="Promises: ttft_ms=500,ttft_share=0.95,availability=0.999,...")
    ] = None,
    log_level: Annotated[
        Text, typer.Option(help="debug, info, warning or error. [default: info]")
    ] = None,
    log_format: Annotated[Text, typer.Option(help="text or json. [default: text]")] = None,
    drain_s: Annotated[
        Number, typer.Option(help="Time for running requests at the end. [default: 30]")
    ] = None,
) -> None:
    """Serve a model on an OpenAI endpoint.

    Every flag can also be an environment variable (QUARTERDECK_PORT=9000) or stand in
    quarterdeck.toml (port = 9000).
    """
    raise typer.Exit(run(ctx.params))


def run(flags: dict[str, Any]) -> int:
    """Load the settings, hide the keys from other processes, and serve; return the exit code."""
    from appliance.cli import hidden_arguments
    from appliance.config.sources import load_from_process
    from engine.redaction import known_secrets

    given = {key: value for key, value in flags.items() if value not in (None, [], ())}
    loaded = load_from_process(given)
    hidden_arguments.forget_environment()
    keys = (*given.get("api_key", ()), *given.get("admin_key", ()))
    if not hidden_arguments.hide([*keys, *known_secrets({}, [given.get("otlp_endpoint")])]):
        say("warning: the keys in the flags show in the process list; use --api-key-file")
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    from appliance.supervisor.serve import serve as run_appliance

    return run_appliance(loaded.settings, loaded.origins)

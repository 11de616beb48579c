"""`generate`: its options."""

from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.exits import CliError, Exit

Text = str | None
Number = float | None
Count = int | None
File = Path | None


def generate(  # noqa: PLR0913 (options of a command)
    model: Annotated[
        Text, typer.Argument(help="Model pack, local directory, .gguf file or hub id.")
    ] = None,
    input_: Annotated[str, typer.Option("--input", help="Prompts; - is standard input.")] = "-",
    output: Annotated[
        str, typer.Option("--output", help="Results, as JSON lines; - is standard output.")
    ] = "-",
    format_: Annotated[
        str, typer.Option("--format", help="Of the prompts: auto, text or jsonl.")
    ] = "auto",
    chat: Annotated[
        bool, typer.Option("--chat", help="A prompt is a user's message, not a text to continue.")
    ] = False,
    system: Annotated[Text, typer.Option(help="System message of every chat.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[Number, typer.Option(min=0.0, max=1.0)] = None,
    top_k: Annotated[Count, typer.Option(min=0)] = None,
    min_p: Annotated[Number, typer.Option(min=0.0, max=1.0)] = None,
    seed: Annotated[Count, typer.Option(help="Of each prompt: the same results again.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer; repeatable.")
    ] = None,
    logprobs: Annotated[Count, typer.Option(min=0, max=20, help="Best tokens shown.")] = None,
    json_schema: Annotated[File, typer.Option(help="File with the answers' JSON schema.")] = None,
    regex: Annotated[Text, typer.Option(help="What every answer matches.")] = None,
    engines: Annotated[Count, typer.Option(min=1, help="Engines that share the work.")] = None,
    device: Annotated[Text, typer.Option(help="cpu, cuda or cuda:N. [default: cpu]")] = None,
    dtype: Annotated[
        Text, typer.Option(help="bfloat16, float16, float32 or auto. [default: auto]")
    ] = None,
    max_model_len: Annotated[Text, typer.Option(help="Longest context, such as 4k.")] = None,
    kv_cache_bytes: Annotated[
        Text, typer.Option(help="Size of the KV cache, such as 1GiB; 256MiB on a CPU by default.")
    ] = None,
    max_num_seqs: Annotated[Count, typer.Option(help="Most requests in a step.")] = None,
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
    adapter: Annotated[File, typer.Option(help="Directory of a LoRA adapter.")] = None,
    revision: Annotated[Text, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    model_dir: Annotated[File, typer.Option(help="[env: QUARTERDECK_MODEL_DIR]")] = None,
    config: Annotated[File, typer.Option(help="Configuration file (TOML).")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget earlier results.")] = False,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Do failed prompts again.")
    ] = False,
) -> None:
    """Generate from a file of prompts, without a server.

    Prompts are text, one a line, or JSON lines with "prompt", "messages" or "prompt_token_ids", an
    "id" if you like, and sampling fields of their own. Results are written as they are done, with
    the prompt's id or number. A run that was stopped goes on when it is started again: what the
    output holds is not done twice. Ctrl-C ends it with exit code 130.
    """
    from appliance.cli.generate_input import InputFormat
    from appliance.cli.generate_run import GeneratePlan, run_generate

    if format_ not in set(InputFormat):
        raise CliError(f"--format {format_}: one of {', '.join(InputFormat)}", Exit.USAGE)
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or None,
        "logprobs": logprobs,
        "structured_outputs": _structure(json_schema, regex),
    }
    settings: dict[str, Any] = {
        "model": model,
        "engines": engines,
        "device": device,
        "dtype": dtype,
        "max_model_len": max_model_len,
        "kv_cache_bytes": kv_cache_bytes,
        "max_num_seqs": max_num_seqs,
        "num_threads": num_threads,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "kernels": kernels,
        "weight_cache": weight_cache,
        "revision": revision,
        "model_dir": model_dir,
        "config": config,
    }
    plan = GeneratePlan(
        input=input_,
        output=output,
        format=InputFormat(format_),
        sampling=_given(sampling),
        chat=chat or system is not None,
        system=system,
        adapter=adapter,
        restart=restart,
        retry_errors=retry_errors,
        settings=_given(settings),
    )
    raise typer.Exit(run_generate(plan))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _structure(json_schema: Path | None, regex: str | None) -> dict[str, Any] | None:
    if json_schema is not None and regex is not None:
        raise CliError("--json-schema and --regex exclude each other", Exit.USAGE)
    if regex is not None:
        return {"regex": regex}
    if json_schema is None:
        return None
    import json

    try:
        return {"json": json.loads(json_schema.read_text(encoding="utf-8"))}
    except OSError as error:
        raise CliError(f"cannot read {json_schema}: {error.strerror}", Exit.USAGE) from error
    except ValueError as error:
        raise CliError(f"{json_schema} is not JSON: {error}", Exit.USAGE) from error

"""`quarterdeck generate`: prompts from a file through engines of its own, results into a file.

The results come in the order in which they are done. What the output holds is not done again, so a
run that was stopped, however, goes on when it is started again.
"""

import signal
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from appliance.cli.exits import CliError, Exit
from appliance.cli.generate_input import Defaults, InputFormat, Item, pending, read_items
from appliance.cli.generate_output import ResultSink, open_output
from appliance.cli.output import say

if TYPE_CHECKING:
    from appliance.config.settings import Settings
    from appliance.model_store.resolve import ResolvedModel
    from engine.llm import LLM
    from engine.offline.progress_bar import ProgressBar
    from engine.offline.results import Completion, Generation

ADAPTER = "adapter"
"""Name of the adapter that all prompts use."""
GO_ON = "Run the same command again to go on."


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratePlan:
    """What to do."""

    input: str
    output: str
    format: InputFormat = InputFormat.AUTO
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chat: bool = False
    system: str | None = None
    adapter: Path | None = None
    """A LoRA adapter for all prompts."""
    restart: bool = False
    retry_errors: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As flags: `model`, `engines`, `dtype`, ..."""


def run_generate(plan: GeneratePlan) -> int:
    """Do it; return the exit code: 0, 1 when a prompt failed, 128 + N when signal N stopped it.

    Raises:
        CliError: input or output cannot be used, the model does not load, an engine died.
    """
    with Interrupts() as interrupts:
        try:
            return _run(plan, interrupts)
        except KeyboardInterrupt:
            return interrupts.exit_code


def _run(plan: GeneratePlan, interrupts: "Interrupts") -> int:
    from appliance.config.paths import model_dir
    from appliance.config.sources import load_from_process
    from appliance.model_store.packs import ModelStoreError
    from appliance.model_store.resolve import resolve

    settings = load_from_process(plan.settings).settings
    try:
        model = resolve(settings.model, model_dir(settings.model_dir), revision=settings.revision)
    except ModelStoreError as error:
        raise CliError(str(error)) from error
    defaults = Defaults(
        sampling=plan.sampling,
        model=_computes(model, settings, plan.adapter),
        chat=plan.chat,
        system=plan.system,
    )
    items = read_items(plan.input, plan.format, defaults)
    _refuse_same_file(plan)
    with open_output(plan.output, restart=plan.restart, retry_errors=plan.retry_errors) as output:
        todo = list(pending(items, output.done))
        if len(todo) < len(items):
            say(f"{len(items) - len(todo)} of {len(items)} are done already")
        if todo:
            engines = _Engines(model, settings.model_dump(), plan.adapter)
            _generate(engines, items, todo, output, interrupts)
        return _verdict(output)


def _computes(model: "ResolvedModel", settings: "Settings", adapter: Path | None) -> str:
    """Name all that answers depend on beside the prompt."""
    parts = (
        model.path,
        settings.dtype,
        settings.quantization,
        settings.kv_cache_dtype,
        settings.kernels,
        adapter and adapter.absolute(),
    )
    return " ".join(map(str, parts))


def _refuse_same_file(plan: GeneratePlan) -> None:
    try:
        is_same = Path(plan.input).samefile(plan.output)
    except OSError:
        return  # one of them is no file, or not there yet
    if is_same:
        raise CliError(f"{plan.output} is the input: name another --output", Exit.USAGE)


def _verdict(output: ResultSink) -> int:
    if output.num_failed:
        say(f"{output.num_failed} prompts failed: their results have an `error`")
        return Exit.FAILED
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Engines:
    """Which engines to start."""

    model: "ResolvedModel"
    settings: Mapping[str, Any]
    adapter: Path | None

    def start(self) -> "LLM":
        from appliance.config.paths import weight_cache_dir
        from engine.llm import LLM
        from engine.offline.setup import OPTIONS

        options = {name: self.settings[name] for name in OPTIONS if name in self.settings}
        cache = weight_cache_dir(self.settings["weight_cache"])
        options["weight_cache_dir"] = None if cache is None else str(cache)
        if self.adapter is None:
            options["max_loras"] = 0
        say(f"loading {self.model.name}")
        llm = LLM(
            self.model.path,
            num_engines=self.settings["num_engines"],
            dtype=self.settings["dtype"],
            start_timeout_s=self.settings["start_timeout_s"],
            **options,
        )
        try:
            if self.adapter is not None:
                llm.load_adapter(ADAPTER, self.adapter)
        except BaseException:
            llm.close()
            raise
        return llm


def _generate(
    engines: _Engines,
    items: list[Item],
    todo: list[Item],
    output: ResultSink,
    interrupts: "Interrupts",
) -> None:
    from engine.checkpoint.errors import CheckpointError
    from engine.client.core_client import EngineClientError

    try:
        with engines.start() as llm, _bar(len(items), len(items) - len(todo)) as bar:
            for item, result in _results(llm, todo, engines.adapter is not None):
                with interrupts.held():
                    output.write(record_of(item, result, llm))
                bar.add(1, sum(len(each.token_ids) for each in result.outputs))
    except KeyboardInterrupt:
        say(_stopped(len(items), output))
        raise
    except (CheckpointError, EngineClientError) as error:
        raise CliError(str(error), Exit.FAILED, GO_ON if output.done else None) from error


@contextmanager
def _bar(total: int, done: int) -> "Generator[ProgressBar]":
    from engine.offline.progress_bar import ProgressBar

    bar = ProgressBar(total, sys.stderr, done)
    try:
        yield bar
    finally:
        bar.close()


def _stopped(total: int, output: ResultSink) -> str:
    told = f"stopped: {len(output.done)} of {total} are done."
    return f"{told} {GO_ON}" if output.resumes else told


def _results(
    llm: "LLM", todo: list[Item], has_adapter: bool
) -> Iterator[tuple[Item, "Generation"]]:
    stream = llm.stream(
        (item.prompt for item in todo),
        (item.params for item in todo),
        adapter=ADAPTER if has_adapter else None,
    )
    with closing(stream):  # pyright: ignore[reportArgumentType] - an iterator that is a generator
        for index, result in stream:
            yield todo[index], result


def record_of(item: Item, result: "Generation", llm: "LLM") -> dict[str, Any]:
    """Return the line of a result."""
    head: dict[str, Any] = {"id": item.id, "index": item.index, "hash": item.content_hash}
    if result.error is not None:
        return {**head, "error": result.error}
    answers = [_answer_of(output, llm) for output in result.outputs]
    return {
        **head,
        **answers[0],
        **({"outputs": answers} if len(answers) > 1 else {}),
        **({"warnings": result.warnings} if result.warnings else {}),
        "prompt_tokens": len(result.prompt_token_ids),
        "completion_tokens": sum(len(output.token_ids) for output in result.outputs),
    }


def _answer_of(output: "Completion", llm: "LLM") -> dict[str, Any]:
    answer: dict[str, Any] = {"text": output.text, "finish_reason": output.finish_reason}
    if output.logprobs is not None:
        answer["logprobs"] = [
            {
                "token": llm.tokenizer.token_text(entry.token_id),
                "token_id": entry.token_id,
                "logprob": entry.logprob,
                "top": [[top.token_id, top.logprob] for top in entry.top],
            }
            for entry in output.logprobs
        ]
    return answer


class Interrupts:
    """Signals that end a program as KeyboardInterrupt, but not in the middle of a result.

    So that engines and their files go, whoever stops it: Ctrl-C, a terminal that is closed, a
    batch system.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        """128 + the signal that came."""
        self._is_held = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` wants it so
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Generator[None]:
        """Let the block end first."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self.exit_code:
            raise KeyboardInterrupt

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        if not self._is_held:
            raise KeyboardInterrupt

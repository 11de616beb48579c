"""Runs a model's Jinja template in a sandbox, with bounds on its work and on its output.

A template is code that comes with a model. It sees plain data, cannot reach Python's internals, and
can neither loop nor write without end. The bounds are on work, not on every allocation: a single
filter may still build a large string before its size is looked at. Templates in requests are
therefore not accepted at all.
"""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from typing import Any, cast

import jinja2
import jinja2.ext
from jinja2 import nodes, pass_context
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000
"""Loop turns, calls and `range` items in one rendering."""
MAX_CHARS = 4 << 20
"""Length of the rendered chat, and of any string that the template keeps or multiplies."""
_MAX_EXPONENT = 64
_REASON_CHARS = 300


class TemplateError(Exception):
    """A chat cannot be rendered; the message is meant for the client."""


_steps_left: ContextVar[int] = ContextVar("steps_left")


def compile_template(source: str) -> jinja2.Template:
    """Compile a template for `render`.

    Raises:
        TemplateError: it is not valid Jinja.
    """
    try:
        return _Sandbox().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateError(f"the model's chat template is not valid: {error}") from error


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Run a compiled template.

    Raises:
        TemplateError: it failed, refused the chat (`raise_exception`), or exceeded a bound.
    """
    token = _steps_left.set(MAX_STEPS)
    try:
        return _collect(template.generate(**variables))
    except TemplateError:
        raise
    except _FAILURES as error:
        reason = str(error)[:_REASON_CHARS] or type(error).__name__
        raise TemplateError(f"the model's chat template failed: {reason}") from error
    finally:
        _steps_left.reset(token)


_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression of a template can raise."""


def _collect(parts: Iterable[str]) -> str:
    texts: list[str] = []
    num_chars = 0
    for part in parts:
        num_chars += len(part)
        if num_chars > MAX_CHARS:
            raise TemplateError(f"the rendered chat is longer than {MAX_CHARS} characters")
        texts.append(part)
    return "".join(texts)


def _spend(steps: int) -> None:
    left = _steps_left.get(MAX_STEPS) - steps
    _steps_left.set(left)
    if left < 0:
        raise TemplateError(f"the model's chat template takes more than {MAX_STEPS} steps")


def _bounded_size(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_CHARS:
        raise TemplateError(f"the chat template made a string of over {MAX_CHARS} characters")
    return value


@pass_context  # of no use here, but it keeps the compiler from calling the filter
def _kept(_context: Context, value: Any) -> Any:
    return _bounded_size(value)


@pass_context
def _counted(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _spend(1)
        yield value


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    _spend(min(len(numbers), MAX_STEPS + 1))
    return numbers


class _Bounds(NodeTransformer):
    """Puts the checks into a template: each loop is counted, each kept string is measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the visitor's protocol)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.node, nodes.Tuple):
            node.node = _filtered(node.node, "_kept")
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "_kept")
        return node


def _filtered(node: nodes.Node | None, name: str) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr | None", node), name, [], [], None, None)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (the extension protocol)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment that `transformers` gives to chat templates, with bounds."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        self.filters |= {"tojson": _to_json, "_counted": _counted, "_kept": _kept}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "range": _bounded_range,
        }
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return cast("nodes.Template", _Bounds().visit(tree))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (names that no keyword of a template hits)
        _spend(1)
        return _bounded_size(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _spend(max(_repeated(left, right), _repeated(right, left)))
        elif isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise TemplateError(f"the chat template has an exponent over {_MAX_EXPONENT}")
        return super().call_binop(context, operator, left, right)


def _repeated(value: Any, times: Any) -> int:
    """Return how many items `value * times` has, where that is a repetition."""
    if isinstance(value, Sized) and isinstance(times, int):
        return len(value) * max(0, times)
    return 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise without the HTML escapes of Jinja's own filter.

    Private-use characters are never escaped: they may stand for what a user wrote.
    """
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


_NOT_ASCII = re.compile("[^\x00-~\U000f0000-\U0010ffff]")


def _raise_exception(message: object) -> None:
    raise TemplateError(
        f"the model's chat template refuses this chat: {str(message)[:_REASON_CHARS]}"
    )


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().astimezone().strftime(layout)

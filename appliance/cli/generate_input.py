"""Reads the prompts of `quarterdeck generate`: text, one a line, or JSON lines."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import msgspec

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import say
from engine.offline.parameters import SamplingParams

STDIN = "-"
PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
_JSON_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_HASH_BYTES = 8


class InputFormat(StrEnum):
    """`--format`."""

    AUTO = "auto"
    TEXT = "text"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of the input."""

    id: str | int
    """Its own, or its number, from 0; blank lines do not count."""
    index: int
    prompt: dict[str, Any]
    params: SamplingParams
    content_hash: str
    """Of the prompt and of all that its answer depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for prompts that do not say otherwise."""

    sampling: Mapping[str, Any]
    """Fields of `SamplingParams`."""
    model: str
    """Names what computes: the model's files, the dtype, an adapter if there is one."""
    chat: bool = False
    """Lines of text are messages of a user."""
    system: str | None = None


def read_items(source: str, format_: InputFormat, defaults: Defaults) -> list[Item]:
    """Read the whole input, so that what is wrong with it is known before anything is computed.

    Raises:
        CliError: 2, it cannot be read, or a line is no prompt.
    """
    text = _read(source)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    is_json = _is_json(source, format_, lines)
    items: list[Item] = []
    seen: dict[str | int, int] = {}
    for index, (number, line) in enumerate(lines):
        try:
            item = (
                _json_item(index, line, defaults) if is_json else _text_item(index, line, defaults)
            )
        except (ValueError, TypeError) as error:
            raise CliError(f"{_name(source)}: line {number}: {error}", Exit.USAGE) from error
        if item.id in seen:
            message = f"line {number}: id {item.id!r} is that of line {seen[item.id]}"
            raise CliError(f"{_name(source)}: {message}", Exit.USAGE)
        seen[item.id] = number
        items.append(item)
    return items


def _read(source: str) -> str:
    if source == STDIN and sys.stdin.isatty():
        say("prompts, one a line; Ctrl-D ends them")
    try:
        raw = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {source}: {error.strerror}", Exit.USAGE) from error
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CliError(f"{_name(source)} is not UTF-8: {error.reason}", Exit.USAGE) from error


def _is_json(source: str, format_: InputFormat, lines: list[tuple[int, str]]) -> bool:
    """By what was asked, by the file's name, or by its first line."""
    if format_ is not InputFormat.AUTO:
        return format_ is InputFormat.JSONL
    if source != STDIN and Path(source).suffix.lower() in _JSON_SUFFIXES:
        return True
    if not lines:
        return False
    try:
        return isinstance(json.loads(lines[0][1]), dict)
    except ValueError:
        return False


def _text_item(index: int, line: str, defaults: Defaults) -> Item:
    prompt: dict[str, Any] = {"prompt": line}
    if defaults.chat:
        prompt = {"messages": _with_system([{"role": "user", "content": line}], defaults)}
    return _item(index, index, prompt, {}, defaults)


def _json_item(index: int, line: str, defaults: Defaults) -> Item:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TypeError(f"not an object: a {type(record).__name__}")
    fields = cast("dict[str, Any]", record)
    id_ = fields.pop("id", index)
    if not isinstance(id_, str | int) or isinstance(id_, bool):
        raise TypeError("id must be text or a whole number")
    return _item(index, id_, _prompt_of(fields, defaults), fields, defaults)


def _prompt_of(fields: dict[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Take the prompt out of a record."""
    given = [name for name in PROMPT_FIELDS if name in fields]
    if len(given) != 1:
        raise ValueError(f"needs one of {', '.join(PROMPT_FIELDS)}")
    name, value = given[0], fields.pop(given[0])
    if name == "messages":
        if not isinstance(value, list):
            raise TypeError("messages must be a list")
        return {name: _with_system(cast("list[Any]", value), defaults)}
    if name == "prompt" and defaults.chat and isinstance(value, str):
        return {"messages": _with_system([{"role": "user", "content": value}], defaults)}
    return {name: value}


def _with_system(messages: list[Any], defaults: Defaults) -> list[Any]:
    has_own = any(isinstance(each, dict) and each.get("role") == "system" for each in messages)  # pyright: ignore[reportUnknownMemberType]
    if defaults.system is None or has_own:
        return messages
    return [{"role": "system", "content": defaults.system}, *messages]


def _item(
    index: int,
    id_: str | int,
    prompt: dict[str, Any],
    own: Mapping[str, Any],
    defaults: Defaults,
) -> Item:
    sampling = {**defaults.sampling, **own}
    try:
        params = msgspec.convert(sampling, SamplingParams)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    canonical = json.dumps([defaults.model, prompt, sampling], sort_keys=True)
    digest = hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES)
    return Item(id_, index, prompt, params, digest.hexdigest())


def _name(source: str) -> str:
    return "standard input" if source == STDIN else source


def pending(items: list[Item], done: Mapping[str | int, str]) -> Iterator[Item]:
    """Yield the items that have no result yet.

    Raises:
        CliError: 5, a result is there that was made from something else.
    """
    for item in items:
        content_hash = done.get(item.id)
        if content_hash is None:
            yield item
        elif content_hash != item.content_hash:
            raise CliError(
                f"the result of {item.id!r} was made from another prompt, model or other options",
                Exit.CONFLICT,
                "Name another --output, or start anew with --restart.",
            )

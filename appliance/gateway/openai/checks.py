"""Strict checks of single JSON values: `true` is no integer, `"5"` is no number, null is absent."""

import re
from collections.abc import Callable, Collection
from typing import Any

from appliance.gateway.openai.errors import (
    ApiError,
    invalid,
    unsupported,
    unsupported_value,
    wrong_type,
)

Check = Callable[[Any, str], Any]
"""Called with (value, parameter path); returns the value to work with, or raises ApiError."""


def integer(low: int, high: int) -> Check:
    """An integer within bounds."""

    def check(value: Any, param: str) -> int:
        if type(value) is not int:
            raise wrong_type(param, "an integer")
        if value < low:
            message = f"'{param}' must be at least {low}."
            raise ApiError("integer_below_min_value", message, param=param)
        if value > high:
            message = f"'{param}' must be at most {high}."
            raise ApiError("integer_above_max_value", message, param=param)
        return value

    return check


def decimal(low: float, high: float, *, above_low: bool = False) -> Check:
    """A number within bounds; `above_low` excludes the lower one."""

    def check(value: Any, param: str) -> float:
        if type(value) not in (int, float):
            raise wrong_type(param, "a number")
        if value < low or (above_low and value == low):
            bound = "greater than" if above_low else "at least"
            message = f"'{param}' must be {bound} {low:g}."
            raise ApiError("decimal_below_min_value", message, param=param)
        if value > high:
            message = f"'{param}' must be at most {high:g}."
            raise ApiError("decimal_above_max_value", message, param=param)
        return float(value)

    return check


def boolean(value: Any, param: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise wrong_type(param, "a boolean")
    return value


def string(value: Any, param: str) -> str:
    """A string."""
    if type(value) is not str:
        raise wrong_type(param, "a string")
    return value


def json_object(value: Any, param: str) -> dict[str, Any]:
    """An object."""
    if type(value) is not dict:
        raise wrong_type(param, "an object")
    return value


def array(value: Any, param: str) -> list[Any]:
    """An array."""
    if type(value) is not list:
        raise wrong_type(param, "an array")
    return value


def one_of(*allowed: str) -> Check:
    """A string out of a closed set."""

    def check(value: Any, param: str) -> str:
        if string(value, param) not in allowed:
            raise invalid(param, f"'{param}' must be one of: {', '.join(allowed)}.")
        return value

    return check


def anything(value: Any, param: str) -> Any:
    """Any value: the field cannot change the output."""
    return value


def only(check: Check, *neutral: Any) -> Check:
    """A checked value that must be one of the `neutral` ones, which change nothing."""

    def checked(value: Any, param: str) -> Any:
        if check(value, param) not in neutral:
            shown = ", ".join("absent" if not v and v != 0 else str(v) for v in neutral)
            raise unsupported_value(param, shown)
        return value

    return checked


def refused(value: Any, param: str) -> Any:
    """Known, and not to be had here: refused unless it is empty."""
    if value in ([], {}, False) and type(value) is not int:
        return None
    raise unsupported(param)


def stop_strings(limit: int, max_chars: int) -> Check:
    """One stop string or up to `limit`, none of them empty."""

    def check(value: Any, param: str) -> tuple[str, ...]:
        stops = [value] if type(value) is str else value
        if type(stops) is not list:
            raise wrong_type(param, "a string or an array of strings")
        check_length(stops, param, limit)
        for stop in stops:
            if type(stop) is not str:
                raise wrong_type(param, "a string or an array of strings")
            if not stop:
                raise ApiError("empty_string", f"'{param}' must not be empty.", param=param)
            if len(stop) > max_chars:
                message = f"'{param}' must be at most {max_chars} characters long."
                raise ApiError("string_above_max_length", message, param=param)
        return tuple(stops)

    return check


def token_ids(limit: int) -> Check:
    """An array of at most `limit` token ids; the vocabulary is checked where it is known."""
    check_id = integer(0, 2**31 - 1)

    def check(value: Any, param: str) -> tuple[int, ...]:
        ids = array(value, param)
        check_length(ids, param, limit)
        return tuple(check_id(token_id, param) for token_id in ids)

    return check


def check_length(values: Collection[Any], param: str, limit: int) -> None:
    """Raise ApiError when an array is longer than `limit`."""
    if len(values) > limit:
        message = f"'{param}' must have at most {limit} entries."
        raise ApiError("array_above_max_length", message, param=param)


def allowed_token_ids(limit: int) -> Check:
    """One to `limit` token ids, each once."""
    check_ids = token_ids(limit)

    def check(value: Any, param: str) -> tuple[int, ...]:
        ids = check_ids(value, param)
        if not ids:
            raise ApiError("empty_array", f"'{param}' must not be empty.", param=param)
        return tuple(sorted(set(ids)))

    return check


def logit_bias(limit: int) -> Check:
    """An object of at most `limit` token ids, written as strings, to numbers from -100 to 100."""
    check_bias = decimal(-100, 100)

    def check(value: Any, param: str) -> tuple[tuple[int, float], ...]:
        biases = json_object(value, param)
        check_length(biases, param, limit)
        pairs = ((_token_id(key, param), check_bias(bias, param)) for key, bias in biases.items())
        return tuple(sorted(pairs))

    return check


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _token_id(text: str, param: str) -> int:
    if not _TOKEN_ID.fullmatch(text):
        raise invalid(param, f"The keys of '{param}' must be token ids.")
    return int(text)


def bad_words(limit: int, max_chars: int) -> Check:
    """At most `limit` texts, none of them empty."""

    def check(value: Any, param: str) -> tuple[str, ...]:
        words = array(value, param)
        check_length(words, param, limit)
        return tuple(dict.fromkeys(_word(word, param, max_chars) for word in words))

    return check


def _word(value: Any, param: str, max_chars: int) -> str:
    if type(value) is not str:
        raise wrong_type(param, "an array of strings")
    if not value.strip():
        raise ApiError("empty_string", f"'{param}' must not have blank entries.", param=param)
    if len(value) > max_chars:
        message = f"The entries of '{param}' must be at most {max_chars} characters long."
        raise ApiError("string_above_max_length", message, param=param)
    return value


def short_string(max_bytes: int) -> Check:
    """A string of one to `max_bytes` bytes."""

    def check(value: Any, param: str) -> str:
        text = string(value, param)
        if not text:
            raise ApiError("empty_string", f"'{param}' must not be empty.", param=param)
        if len(text.encode("utf-8", "replace")) > max_bytes:
            message = f"'{param}' must be at most {max_bytes} bytes long."
            raise ApiError("string_above_max_length", message, param=param)
        return text

    return check

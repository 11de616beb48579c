"""The messages of a chat request: checked strictly, reduced to what a template needs."""

from collections.abc import Mapping
from typing import Any

from appliance.gateway.openai.checks import check_length, json_object, string
from appliance.gateway.openai.errors import (
    ApiError,
    invalid,
    missing,
    unsupported,
    unsupported_value,
    wrong_type,
)

MAX_MESSAGES = 10_000
ROLES = ("system", "developer", "user", "assistant")
UNSUPPORTED_ROLES = ("tool", "function")
UNSUPPORTED_FIELDS = ("tool_calls", "function_call", "audio")
OTHER_PARTS = frozenset({"image_url", "input_audio", "file", "refusal", "video_url", "audio_url"})


def parse_messages(values: list[Any]) -> list[dict[str, Any]]:
    """Return messages with `role` and text `content` only.

    Raises:
        ApiError: naming the message and field that is wrong or not supported.
    """
    if not values:
        raise ApiError("empty_array", "'messages' must not be empty.", param="messages")
    check_length(values, "messages", MAX_MESSAGES)
    return [_message(value, f"messages[{index}]") for index, value in enumerate(values)]


def _message(value: Any, param: str) -> dict[str, Any]:
    fields = json_object(value, param)
    role = _role(fields, param)
    for name in UNSUPPORTED_FIELDS:
        if fields.get(name):
            raise unsupported(f"{param}.{name}")
    content = fields.get("content")
    if content is None and role == "assistant":
        content = ""
    if content is None:
        raise missing(f"{param}.content")
    return {"role": role, "content": _content(content, f"{param}.content")}


def _role(fields: Mapping[str, Any], param: str) -> str:
    if fields.get("role") is None:
        raise missing(f"{param}.role")
    role = string(fields["role"], f"{param}.role")
    if role in UNSUPPORTED_ROLES:
        raise unsupported_value(f"{param}.role", ", ".join(ROLES))
    if role not in ROLES:
        raise invalid(f"{param}.role", f"'{param}.role' must be one of: {', '.join(ROLES)}.")
    return "system" if role == "developer" else role


def _content(value: Any, param: str) -> str:
    if type(value) is str:
        return value
    if type(value) is not list:
        raise wrong_type(param, "a string or an array of content parts")
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(value))


def _part(value: Any, param: str) -> str:
    fields = json_object(value, param)
    if fields.get("type") is None:
        raise missing(f"{param}.type")
    kind = string(fields["type"], f"{param}.type")
    if kind in OTHER_PARTS:
        raise unsupported_value(f"{param}.type", "text")
    if kind != "text":
        raise invalid(f"{param}.type", f"'{param}.type' must be one of: text.")
    if fields.get("text") is None:
        raise missing(f"{param}.text")
    return string(fields["text"], f"{param}.text")

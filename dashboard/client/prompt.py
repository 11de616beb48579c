"""One chat request to the data plane, so that an operator can see a trace of their own."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.supervisor.admin.schemas import Problem, SystemInfo
from dashboard.client.calls import Endpoint, open_client
from dashboard.client.problems import ApiProblem, UnreachableError

PROMPT_TIMEOUT_S: Final = 120.0
MAX_TOKENS: Final = 48


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """What came back for a tried prompt."""

    request_id: str
    text: str


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str
    choices: list[_Choice]


def data_endpoint(system: SystemInfo, *, local: bool, inference_key: str | None) -> Endpoint:
    """Where to send prompts: the data plane's socket on this machine, else its address."""
    if local and system.data_socket:
        return Endpoint(socket_path=system.data_socket)
    address = system.data_plane
    url = address if "://" in address else f"http://{address}"
    return Endpoint(base_url=url, api_key=inference_key)


async def try_prompt(endpoint: Endpoint, model: str, prompt: str) -> PromptAnswer:
    """Send `prompt` to `model` and return its id and text.

    Raises:
        ApiProblem: the data plane refused.
        UnreachableError: nobody answered.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
    }
    async with open_client(endpoint) as http:
        try:
            response = await http.post(
                "/v1/chat/completions", json=body, timeout=httpx.Timeout(PROMPT_TIMEOUT_S)
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"data plane: {error or type(error).__name__}") from error
    if not response.is_success:
        raise _refusal(response)
    return _answer(response)


def _answer(response: httpx.Response) -> PromptAnswer:
    try:
        completion = _Completion.model_validate_json(response.content)
    except ValidationError as error:
        raise UnreachableError("the data plane answered something else than a chat") from error
    text = completion.choices[0].message.content if completion.choices else None
    return PromptAnswer(response.headers.get("x-request-id", completion.id), text or "")


class _ErrorBody(BaseModel):
    message: str
    code: str | None = None


class _ErrorEnvelope(BaseModel):
    error: _ErrorBody


def _refusal(response: httpx.Response) -> ApiProblem:
    try:
        error = _ErrorEnvelope.model_validate_json(response.content).error
    except ValidationError:
        error = _ErrorBody(message=response.reason_phrase)
    hint = None
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        hint = "set QUARTERDECK_API_KEY to an inference key"
    return ApiProblem(
        Problem(
            title="the data plane refused",
            status=response.status_code,
            detail=error.message,
            code=error.code or f"http_{response.status_code}",
            hint=hint,
            request_id=response.headers.get("x-request-id"),
        )
    )

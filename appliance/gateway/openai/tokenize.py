"""POST /tokenize and /detokenize, as vLLM has them: what a prompt is to the model."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from appliance.gateway.data_plane import DataPlane
from appliance.gateway.limits import read_json_object
from appliance.gateway.model_texts import ModelText
from appliance.gateway.openai.chat import chat_encoder
from appliance.gateway.openai.checks import Check, array, boolean, string, token_ids
from appliance.gateway.openai.dialect import Encode
from appliance.gateway.openai.errors import invalid, missing, model_not_found
from appliance.gateway.openai.models import json_response
from appliance.gateway.openai.parameters import check_fields
from appliance.gateway.request_context import context_of

MAX_TOKEN_IDS = 1 << 20
TOKENIZE: dict[str, Check] = {
    "model": string,
    "prompt": string,
    "messages": array,
    "add_special_tokens": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "return_token_strs": boolean,
}
DETOKENIZE: dict[str, Check] = {"model": string, "tokens": token_ids(MAX_TOKEN_IDS)}


class TokenizeRoutes:
    """Both routes."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a prompt or of rendered messages."""
        fields = await self._read(request, TOKENIZE)
        encode = _encoder(fields)
        model = self._model(fields)
        text = await self._text(model)
        ids = (await asyncio.to_thread(encode, text, None))[0]
        body: dict[str, Any] = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": self._plane.fleet.max_model_len(model),
        }
        if fields.get("return_token_strs"):
            body["token_strs"] = [text.tokenizer.token_text(token_id) for token_id in ids]
        return json_response(body)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, control tokens included."""
        fields = await self._read(request, DETOKENIZE)
        if "tokens" not in fields:
            raise missing("tokens")
        text = await self._text(self._model(fields))
        text.check_ids(fields["tokens"], "tokens")
        prompt = await asyncio.to_thread(
            text.tokenizer.decode, fields["tokens"], skip_special_tokens=False
        )
        return json_response({"prompt": prompt})

    async def _read(self, request: Request, table: Mapping[str, Check]) -> dict[str, Any]:
        self._plane.refuse_when_draining()
        body, _ = await read_json_object(request.scope, request.receive)
        fields, ignored = check_fields(body, table, strict=self._plane.strict_parameters)
        if ignored:
            context_of(request.scope).ignored = ignored
            self._plane.ledger.ignored_parameters()
        return fields

    def _model(self, fields: Mapping[str, Any]) -> str:
        served = self._plane.fleet.models()
        model = fields.get("model") or next(iter(served), "")
        if model not in served:
            raise model_not_found()
        return model

    async def _text(self, model: str) -> ModelText:
        path = self._plane.fleet.models()[model].model_path
        return await self._plane.texts.get(path, self._plane.hold_s)


def _encoder(fields: Mapping[str, Any]) -> Encode:
    if "prompt" not in fields:
        return chat_encoder(fields)
    if "messages" in fields:
        raise invalid("prompt", "'prompt' and 'messages' exclude each other.")
    adds_special = fields.get("add_special_tokens", True)

    def encode(text: ModelText, _limit: int | None) -> list[tuple[int, ...]]:
        ids = text.tokenizer.encode(fields["prompt"], add_special_tokens=adds_special)
        return [tuple(ids)]

    return encode

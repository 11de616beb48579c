"""Loading a model's tokenizer: what cannot be loaded is not tried for every request."""

import asyncio

import pytest

from appliance.gateway import model_texts
from appliance.gateway.model_texts import TextRegistry
from appliance.gateway.openai.errors import ApiError
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.anyio


async def test_a_text_that_fails_to_load_is_tried_again_only_after_a_while(
    tmp_path, caplog, monkeypatch
):
    path = tmp_path / "model"
    texts = TextRegistry()
    loading = asyncio.ensure_future(texts.run())

    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            await texts.get(str(path), 5)
        assert caught.value.code == "internal_error"
    assert caplog.text.count("could not be loaded") == 1

    make_tiny_model(path)
    monkeypatch.setattr(model_texts, "LOAD_AGAIN_NS", 0)
    assert (await texts.get(str(path), 5)).tokenizer.vocab_size
    loading.cancel()

"""Frames of a stream, and templates that give the same bytes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from appliance.gateway.openai.frames import HOLE, FrameTemplate, frame


@given(st.text(), st.text())
def test_a_filled_template_is_the_frame_of_the_whole(model: str, text: str):
    def chunk(content: object) -> dict[str, object]:
        return {"model": model, "choices": [{"delta": {"content": content}, "end": None}]}

    filled = FrameTemplate(chunk(HOLE)).fill(text)

    assert filled == frame(chunk(text))
    assert json.loads(filled.removeprefix(b"data: ")) == chunk(text)
    assert filled.count(b"\n") == 2

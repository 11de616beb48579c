"""The default model: its greedy text is that of transformers on the same weights."""

from pathlib import Path

import pytest

from engine.checkpoint.checkpoint import open_checkpoint
from tests.engine.models.real_models import assert_greedy, greedy, transformers_model

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time",
    "The three primary colours are",
    "In 1969, the first man",
    "To bake bread you need",
    "The opposite of hot is",
    "My favourite animal is the",
    "Photosynthesis is the process",
    "1, 2, 3, 4,",
    "The largest planet in our solar system",
    "Dear Sir or Madam,",
    "import numpy as np\n",
    "She opened the door and",
    "The speed of light is",
    "A haiku about the sea:",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWho wrote Hamlet?<|im_end|>\n<|im_start|>assistant\n",
]


def check(path: Path, num_tokens: int) -> None:
    tokenizer = open_checkpoint(path).tokenizer()
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    oracle = transformers_model(path)
    outputs = greedy(path, prompts, num_tokens, together=len(prompts))
    assert_greedy(oracle, prompts, outputs, together=10)


def test_the_greedy_text_of_20_prompts_equals_that_of_transformers(smollm2_path: Path):
    check(smollm2_path, 12)


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_the_longer_greedy_text_of_20_prompts_equals_that_of_transformers(smollm2_path: Path):
    check(smollm2_path, 64)

"""The default model: its greedy text is that of transformers on the same weights."""

from pathlib import Path

import pytest
import torch

from engine.checkpoint.checkpoint import open_checkpoint
from tests.engine.models.harness import make_runner, share, transformers_model

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


def greedy(path: Path, num_tokens: int) -> list[tuple[list[int], list[int]]]:
    """Generate for all prompts in one batch, in float32; returns (prompt, output) pairs."""
    tokenizer = open_checkpoint(path).tokenizer()
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    texts = [list(prompt) for prompt in prompts]
    blocks = [list(range(8 * at, 8 * at + 8)) for at in range(len(prompts))]
    runner = make_runner(path, dtype="float32", max_model_len=128)
    done = [0] * len(texts)
    for _ in range(num_tokens):
        result = runner.execute(
            [
                share(text[done[at] :], done[at], blocks=blocks[at], request_id=str(at))
                for at, text in enumerate(texts)
            ]
        )
        assert not result.faults
        done = [len(text) for text in texts]
        for at, text in enumerate(texts):
            text.append(result.token_ids[str(at)])
    return [(prompt, text[len(prompt) :]) for prompt, text in zip(prompts, texts, strict=True)]


def assert_greedy(path: Path, pairs: list[tuple[list[int], list[int]]]) -> None:
    """Each token must be transformers' best one after the same prefix: then the texts are equal."""
    oracle = transformers_model(path)
    texts = [torch.tensor(prompt + output) for prompt, output in pairs]
    # padding on the right: no token looks that way
    batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with torch.inference_mode():
        best = torch.cat([oracle(part).logits.argmax(dim=-1) for part in batch.split(5)])
    for (prompt, output), tokens in zip(pairs, best.tolist(), strict=True):
        assert tokens[len(prompt) - 1 : len(prompt) + len(output) - 1] == output


def test_the_greedy_text_of_20_prompts_equals_that_of_transformers(smollm2_path: Path):
    assert_greedy(smollm2_path, greedy(smollm2_path, 12))


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_the_longer_greedy_text_of_20_prompts_equals_that_of_transformers(smollm2_path: Path):
    assert_greedy(smollm2_path, greedy(smollm2_path, 64))

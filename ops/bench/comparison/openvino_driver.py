"""Runs OpenVINO GenAI's continuous batching in its own interpreter; loads come as lines of JSON.

It has no server on PyPI, so it is measured without one: an upper bound for that peer. A line in is
`{"prompts": [...], "slots": 8, "output_tokens": 128, "seconds": 60}`, a line out
`{"samples": [{"started_s", "chunks_s", "prompt_tokens", "output_tokens", "ended_s"}], ...}`.
"""

import argparse
import json
import sys
import time
from typing import Any

import openvino_genai

CACHE_GB = 1
BATCH_TOKENS = 2048
MAX_SEQS = 32


class Driver:
    """The pipeline and what runs in it."""

    def __init__(self, model: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = BATCH_TOKENS
        scheduler.max_num_seqs = MAX_SEQS
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._next_id = 0

    def run(self, load: dict[str, Any]) -> dict[str, Any]:
        """Keep the slots busy with the prompts; return what happened."""
        waiting, active, samples = list(reversed(load["prompts"])), [], []
        lengths = [self._tokenizer.encode(each).input_ids.shape[1] for each in load["prompts"]]
        generation = self._generation(load["output_tokens"])
        started_s = time.perf_counter()
        until_s = started_s + load["seconds"]
        while (waiting or active) and time.perf_counter() < until_s:
            while waiting and len(active) < load["slots"]:
                sample = {"started_s": time.perf_counter(), "chunks_s": [], "output_tokens": 0}
                sample["prompt_tokens"] = lengths[len(samples)]
                active.append((self._add(waiting.pop(), generation), sample))
                samples.append(sample)
            self._pipeline.step()
            active = [pair for pair in active if not take(*pair)]
        for handle, _ in active:
            handle.cancel()
        return {"samples": samples, "started_s": started_s, "ended_s": time.perf_counter()}

    def _add(self, prompt: str, generation: Any) -> Any:
        self._next_id += 1
        return self._pipeline.add_request(self._next_id, prompt, generation)

    @staticmethod
    def _generation(output_tokens: int) -> Any:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = output_tokens
        generation.ignore_eos = True
        generation.do_sample = False
        generation.apply_chat_template = False
        return generation


def take(handle: Any, sample: dict[str, Any]) -> bool:
    """Note what the last step made for a request; return whether it has ended."""
    while handle.can_read():
        count = sum(len(output.generated_ids) for output in handle.read().values())
        if count:
            sample["chunks_s"].append(time.perf_counter())
            sample["output_tokens"] += count
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return False
    sample["ended_s"] = time.perf_counter()
    return True


def main() -> None:
    """Read loads until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    driver = Driver(asked.model, asked.threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(driver.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

"""What a new user does first: ask for Tokyo, stream with the OpenAI package, look around."""

import concurrent.futures

import httpx
import openai
import pytest

from tests.integration.appliance_process import ApplianceProcess

pytestmark = pytest.mark.process


def test_the_capital_of_japan_is_tokyo(smollm2_appliance: ApplianceProcess):
    answer = smollm2_appliance.chat("What is the capital of Japan?").json()

    assert "Tokyo" in answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_eight_clients_at_once_get_each_their_own_complete_answer(
    smollm2_appliance: ApplianceProcess,
):
    openai_client = smollm2_appliance.sdk
    countries = ["France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Kenya", "Norway"]

    def ask(country: str, *, stream: bool) -> tuple[str, str | None]:
        messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
        options = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 12}
        if not stream:
            choice = openai_client.chat.completions.create(**options).choices[0]
            return choice.message.content or "", choice.finish_reason
        text, finish = "", None
        for chunk in openai_client.chat.completions.create(**options, stream=True):
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        return text, finish

    alone = [ask(country, stream=False) for country in countries[:3]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        streamed = list(pool.map(lambda c: ask(c, stream=True), countries))
        plain = list(pool.map(lambda c: ask(c, stream=False), countries))

    assert streamed == plain
    assert plain[:3] == alone
    assert all(finish in {"stop", "length"} for _, finish in plain)
    assert len({text for text, _ in plain}) == len(countries)


def test_the_same_seed_gives_the_same_text_whoever_shares_the_batch(
    smollm2_appliance: ApplianceProcess,
):
    def sample(seed: int | None) -> str:
        fields = {"temperature": 1.0, "seed": seed, "max_tokens": 12}
        answer = smollm2_appliance.chat("Tell me a story about a ship.", **fields)
        return answer.json()["choices"][0]["message"]["content"]

    alone = sample(42)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        shared = list(pool.map(sample, [42, 1, None, 42]))

    assert shared[0] == shared[3] == alone
    assert len(set(shared)) > 1


def test_models_probes_and_the_tokenizer_answer(smollm2_appliance: ApplianceProcess):
    appliance = smollm2_appliance
    models = appliance.sdk.models.list().data
    assert [model.id for model in models] == ["smollm2"]
    assert appliance.sdk.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        appliance.sdk.models.retrieve("gpt-4")

    for path in ("/livez", "/readyz", "/startupz", "/health"):
        assert httpx.get(f"{appliance.url}{path}").status_code == 200
        assert httpx.get(f"{appliance.admin_url}{path}").status_code == 200

    tokens = appliance.post("/tokenize", {"prompt": "Hello <|im_end|>"}).json()["tokens"]
    back = appliance.post("/detokenize", {"tokens": tokens}).json()
    assert back["prompt"] == "Hello <|im_end|>"
    assert len(tokens) > 3


def test_the_command_line_shows_the_instance(smollm2_appliance: ApplianceProcess):
    listing = smollm2_appliance.cli("ps")
    assert listing.returncode == 0
    assert "e0" in listing.stdout
    assert "ready" in listing.stdout.lower()

    reply = smollm2_appliance.cli("chat", "--temperature", "0", "What is the capital of Japan?")
    assert reply.returncode == 0, reply.stderr
    assert "Tokyo" in reply.stdout

    doctor = smollm2_appliance.cli("doctor")
    assert doctor.returncode in {0, 6}
    assert "unproven on CUDA" in doctor.stdout + doctor.stderr

"""What is to be generated for each choice of a request, once its prompts are tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from appliance.gateway.generation import ChoicePlan, sampling_within
from appliance.gateway.openai.dialect import Answer, Dialect
from appliance.gateway.openai.errors import ApiError, context_length_exceeded
from appliance.gateway.openai.parameters import Parameters
from engine.wire.messages import SamplingParams

if TYPE_CHECKING:
    from appliance.gateway.model_texts import ModelText
    from engine.text.answer import AnswerRules

IDS_IN_VOCABULARY = ("stop_token_ids", "allowed_token_ids")


def check_token_ids(text: "ModelText", parameters: Parameters) -> None:
    """Raise ApiError when a field has a token id that the model does not have."""
    for name in IDS_IN_VOCABULARY:
        text.check_ids(parameters.fields.get(name, ()), name)
    biased = [token_id for token_id, _ in parameters.fields.get("logit_bias", ())]
    text.check_ids(biased, "logit_bias")


def rooms_of(answer: Answer, dialect: Dialect, limit: int) -> list[int]:
    """Return how many tokens to generate for each prompt, in the engine's real context.

    Raises:
        ApiError: a prompt leaves no room, or more than the context is wanted.
    """
    wanted = answer.parameters.max_tokens
    if wanted is not None and wanted > limit:
        param = answer.parameters.max_tokens_param
        message = f"'{param}' must be at most {limit}, this model's context length."
        raise ApiError("integer_above_max_value", message, param=param)
    rooms = [limit - len(prompt) for prompt in answer.prompts]
    if min(rooms) < 1:
        longest = max(map(len, answer.prompts))
        raise context_length_exceeded(limit, longest, dialect.prompt_param)
    if wanted is None:
        return [dialect.default_max_tokens(room) for room in rooms]
    return [min(wanted, room) for room in rooms]


def choice_plans(
    answer: Answer, dialect: Dialect, rooms: Sequence[int], adapter: str | None
) -> list[ChoicePlan]:
    """Return the plan of every choice; `rooms` are those of `rooms_of`."""
    parameters = answer.parameters
    rules = _answer_rules(parameters)
    plans: list[ChoicePlan] = []
    for state in answer.journey.choices:
        prompt, choice = divmod(state.index, parameters.n)
        plan = ChoicePlan(
            state=state,
            prompt_token_ids=answer.prompts[prompt],
            sampling=_sampling(answer, choice, rooms[prompt]),
            rules=rules,
            num_choices=answer.num_choices,
            grammar=parameters.grammar,
            keeps_stop_token_entry=rules.include_stop or dialect.prompt_param == "prompt",
            drops_output=not parameters.generates,
            grammar_param=parameters.grammar_param,
            cache_salt=parameters.cache_salt,
            priority=parameters.priority,
            adapter=adapter,
        )
        plans.append(plan)
    return plans


def _sampling(answer: Answer, choice: int, max_tokens: int) -> SamplingParams:
    """The sampling of one choice: with a seed, each choice has its own, reproducibly."""
    sampling = sampling_within(answer.parameters.sampling(), max(1, max_tokens))
    seed = sampling.seed
    if seed is not None:
        seed = _wrap_int64(seed + choice)
    return msgspec.structs.replace(sampling, seed=seed, bad_words=answer.bad_words)


def _answer_rules(parameters: Parameters) -> "AnswerRules":
    from engine.text.answer import AnswerRules  # noqa: PLC0415 - start-up time

    return AnswerRules(
        stop=parameters.stop,
        include_stop=parameters.flag("include_stop_str_in_output", default=False),
        skip_special_tokens=parameters.flag("skip_special_tokens", default=True),
        min_tokens=parameters.fields.get("min_tokens", 0),
    )


def _wrap_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63

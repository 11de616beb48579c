"""Finds the policy that the configuration names: ours, or one of an installed package.

A package adds one with an entry point in the group `quarterdeck.policies`: its name is the name of
the policy, its object is called with the configuration and the model's facts.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

from engine.config import POLICY_GROUP, EngineConfig
from engine.core.batch import ConfigError, ModelFacts
from engine.core.policies.fair import Fair
from engine.core.policies.policy import FirstComeFirstServed, Policy
from engine.core.policies.priority import Priority

PolicyFactory = Callable[[EngineConfig, ModelFacts], Policy]

BUILT_IN: dict[str, PolicyFactory] = {
    "fcfs": lambda config, facts: FirstComeFirstServed(
        config.max_num_seqs, _max_num_tokens(config, facts)
    ),
    "priority": lambda config, facts: Priority(
        config.max_num_seqs, _max_num_tokens(config, facts), config.reserved_seqs
    ),
    "fair": lambda config, facts: Fair(
        config.max_num_seqs, _max_num_tokens(config, facts), config.tenant_weights
    ),
}


def _max_num_tokens(config: EngineConfig, facts: ModelFacts) -> int:
    return facts.num_blocks * config.block_size


def make_policy(config: EngineConfig, facts: ModelFacts) -> Policy:
    """Make the policy that `config.policy` names.

    Raises:
        ConfigError: there is none of that name, or it cannot be loaded, or it is none.
    """
    if config.policy in BUILT_IN:
        return BUILT_IN[config.policy](config, facts)
    installed = {point.name: point for point in entry_points(group=POLICY_GROUP)}
    if config.policy not in installed:
        known = ", ".join(sorted({*BUILT_IN, *installed}))
        raise ConfigError(f"no scheduling policy is called {config.policy!r}; known: {known}")
    try:
        policy = installed[config.policy].load()(config, facts)
    except Exception as error:
        raise ConfigError(f"scheduling policy {config.policy!r} cannot be made: {error}") from error
    if not isinstance(policy, Policy):
        raise ConfigError(f"scheduling policy {config.policy!r} made a {type(policy).__name__}")
    return policy

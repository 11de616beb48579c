"""What pairs of windows say of telemetry's cost."""

import random

import pytest
from overhead.figures import Ratio, paired_ratio, verdicts_of

FREE = Ratio(1.0, 0.99, 1.01)


def passed(scenario: str, *, cpu: float = 1.0, rate: float = 1.0) -> list[bool]:
    appliance, tokens = (Ratio(mean, mean - 0.05, mean + 0.05) for mean in (cpu, rate))
    return [each.passed for each in verdicts_of(scenario, FREE, appliance, tokens, 0.001)]


@pytest.mark.parametrize(
    ("scenario", "cpu", "rate"),
    [("default", 1.01, 0.985), ("sampled", 1.01, 0.985), ("all", 1.03, 0.971)],
)
def test_means_are_held_to_the_bounds_of_their_scenario(scenario: str, cpu: float, rate: float):
    assert passed(scenario, cpu=cpu - 0.001, rate=rate + 0.001) == [True, True, True, True]
    assert passed(scenario, cpu=cpu + 0.001) == [True, False, True, True]
    assert passed(scenario, rate=rate - 0.001) == [True, True, False, True]


def test_a_supervisor_that_hangs_does_not_pass():
    assert [v.passed for v in verdicts_of("all", FREE, FREE, FREE, 0.021)][3] is False
    assert [v.passed for v in verdicts_of("all", FREE, FREE, FREE, None)][3] is False


def test_pairs_tell_a_cost_of_two_percent_from_the_noise_of_the_machine_and_its_bursts():
    draw = random.Random(1)
    weather = [draw.gauss(200.0, 30.0) for _ in range(60)]
    on = [rate * 0.98 * draw.gauss(1.0, 0.02) for rate in weather]
    on[7] *= 0.3
    found = paired_ratio(on, weather)
    assert found.low < 0.98 < found.high
    assert found.high - found.low < 0.03

"""The random number that decides on a token: a function of a seed and a position, nothing else."""

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """Return the random number in [0, 1) of a seed's token at `position`.

    Source:
        The finalizer of SplitMix64, https://prng.di.unimi.it/splitmix64.c
    """
    mixed = _mix(_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15)
    return (mixed >> 12) * 2.0**-52


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)

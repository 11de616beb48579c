"""A guard for methods that others call and that must never fail them."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class CountsFaults(Protocol):
    """Whoever has unfailing methods."""

    def count_fault(self, where: str, error: Exception) -> None:
        """Note that the method named `where` failed."""
        ...


Params = ParamSpec("Params")
OwnerT = TypeVar("OwnerT", bound=CountsFaults)


def unfailing(
    method: Callable[Concatenate[OwnerT, Params], None],
) -> Callable[Concatenate[OwnerT, Params], None]:
    """Telemetry cannot stop work: what goes wrong in the method is counted and not raised."""

    @functools.wraps(method)
    def guarded(owner: OwnerT, /, *args: Params.args, **kwargs: Params.kwargs) -> None:
        try:
            method(owner, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - logged by `count_fault`
            owner.count_fault(method.__name__, error)

    return guarded

"""What the supervisor says of itself: what it costs, how late its loop is, since when it runs."""

from collections.abc import Mapping

from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts, Level
from appliance.telemetry.loop_lag import LoopLag
from appliance.telemetry.process_accounts import book_figures
from engine.process_figures import FigureReader

NS_PER_S = 1e9


class OwnFigures:
    """Books a process's own figures into its accounts.

    Args:
        accounts: Of the process.
        process: Its name.
    """

    def __init__(self, accounts: Accounts, process: str) -> None:
        self._accounts = accounts
        self._process = process
        self._reader = FigureReader()
        self.lag = LoopLag(accounts.histogram(names.LOOP_LAG, (process,)))
        self._begin_at_zero()

    def book(self, queues: Mapping[str, int]) -> None:
        """Copy what holds now; `queues` are the lengths of bounded queues by name."""
        book_figures(self._accounts, self._process, self._reader.read())
        for queue, depth in queues.items():
            self._accounts.set(names.QUEUE_DEPTH, (self._process, queue), depth)

    def _begin_at_zero(self) -> None:
        """Show the losses that alerts watch before there is one: a growth needs a start."""
        for outcome in ("written", "lost"):
            self._accounts.set(names.AUDIT_ENTRIES, (outcome,), 0)
        self._accounts.set(names.RECORDS_DROPPED, (self._process, "log"), 0)

    def close(self) -> None:
        """Stop the timer and give the files back."""
        self.lag.stop()
        self._reader.close()


def instance_levels(version: str, started_unix_ns: int) -> list[Level]:
    """Return what never changes while the appliance runs."""
    return [
        (names.BUILD_INFO, (version,), 1.0),
        (names.START_TIME, (), started_unix_ns / NS_PER_S),
    ]

"""What a process says that it costs, as accounts: the same metrics for every kind of process."""

from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from engine.wire.stats import ProcessFigures


def book_figures(accounts: Accounts, process: str, figures: ProcessFigures) -> None:
    """Copy a process's figures into accounts, its own or those made for it."""
    label = (process,)
    accounts.set(names.PROCESS_CPU, (process, "user"), figures.cpu_user_seconds)
    accounts.set(names.PROCESS_CPU, (process, "system"), figures.cpu_system_seconds)
    accounts.set(names.PROCESS_RESIDENT, label, figures.resident_bytes)
    accounts.set(names.PROCESS_FDS, label, figures.open_fds)
    accounts.set(names.PROCESS_MAX_FDS, label, figures.max_fds)
    accounts.set(names.PROCESS_THREADS, label, figures.threads)
    accounts.set(names.GC_PAUSES, label, figures.gc_pauses)
    accounts.set(names.GC_SECONDS, label, figures.gc_seconds)
    accounts.set(names.GC_MAX, label, figures.gc_max_seconds)

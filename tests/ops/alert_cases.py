"""For every alert: figures that must raise it, and figures that look alike and must not."""

from dataclasses import dataclass, field

JOB = 'job="quarterdeck",instance="a"'
E0 = f'{JOB},engine="e0"'
GATEWAY = f'{JOB},gateway="gateway-0"'
PROCESS = f'{JOB},process="gateway-0"'


@dataclass(frozen=True)
class Case:
    """One alert at one time.

    Args:
        name: Of the alert, without the prefix.
        series: Values by series, a minute apart.
        at: When to look.
        labels: Of the alert that must fire, besides those that the rule adds; empty: none may.
        says: Its description.
        window: Of a burn rate.
        why: What a case without an alert is about.
    """

    name: str
    series: dict[str, str]
    at: str
    labels: dict[str, str] = field(default_factory=dict)
    says: str = ""
    window: str | None = None
    why: str = ""


Group = list[Case]
"""Cases of one alert's name that fire at the same time, and no others of it do."""
Scene = list[Group]
"""Groups whose series are all there at once."""

HERE = {"job": "quarterdeck", "instance": "a"}
OF_E0 = HERE | {"engine": "e0"}


def _state(state: str, values: str) -> dict[str, str]:
    return {f'quarterdeck_engine_state{{{E0},state="{state}"}}': values}


def _lag(late_per_minute: int) -> dict[str, str]:
    """1,000 timers a minute, of which some are between 0.25 and 0.5 s late."""
    family = "quarterdeck_loop_lag_seconds_bucket"
    return {
        f'{family}{{{PROCESS},le="0.01"}}': f"0+{1000 - late_per_minute}x20",
        f'{family}{{{PROCESS},le="0.25"}}': f"0+{1000 - late_per_minute}x20",
        f'{family}{{{PROCESS},le="0.5"}}': "0+1000x20",
        f'{family}{{{PROCESS},le="+Inf"}}': "0+1000x20",
    }


SERVICE = (
    Case(
        "ScrapeAbsent",
        {f"up{{{JOB}}}": "1x3 0x5"},
        "6m",
        HERE,
        "The scrape of a has failed for a minute (or no target is configured): all other alerts "
        "are blind.",
    ),
    Case("ScrapeAbsent", {f"up{{{JOB}}}": "1 0 1x10"}, "6m", why="one scrape was lost"),
    Case(
        "NoEngineReady",
        _state("ready", "0x10") | _state("backoff", "1x10"),
        "5m",
        HERE,
        "No engine has been ready or asleep for a minute: every request waits or is refused.",
    ),
    Case("NoEngineReady", _state("asleep", "1x10"), "5m", why="a sleeping engine is woken"),
    Case(
        "EngineDown",
        _state("backoff", "1x30"),
        "15m",
        OF_E0,
        "Engine e0 has been starting, waiting for its next start, or failed for ten minutes.",
    ),
    Case("EngineDown", _state("starting", "1x7 0 1x20"), "15m", why="it came up in between"),
    Case(
        "EngineCrashLoop",
        _state("crash_loop", "0 1x5"),
        "2m",
        OF_E0 | {"state": "crash_loop"},
        "Engine e0 died again and again and is not started any more.",
    ),
    Case("EngineCrashLoop", _state("crash_loop", "0x5"), "2m", why="another state"),
    Case(
        "EngineRestarting",
        {f"quarterdeck_engine_restarts_total{{{E0}}}": "0x5 1x5 2x5"},
        "15m",
        OF_E0,
        "Engine e0 was restarted 2 times in half an hour.",
    ),
    Case(
        "EngineRestarting",
        {f"quarterdeck_engine_restarts_total{{{E0}}}": "0x5 1x15"},
        "15m",
        why="one restart is no pattern",
    ),
    Case(
        "EngineRestarting",
        {f"quarterdeck_engine_restarts_total{{{E0}}}": "0x3 1x3 0x9"},
        "15m",
        why="one restart, then the whole appliance was started anew",
    ),
    Case(
        "EngineHung",
        {f"quarterdeck_engine_heartbeat_age_seconds{{{E0}}}": "0 60+60x5"},
        "3m",
        OF_E0,
        "The loop of engine e0 last ticked 3m 0s ago, and the supervisor has not ended it.",
    ),
    Case(
        "EngineHung",
        {f"quarterdeck_engine_heartbeat_age_seconds{{{E0}}}": "0 12 0 12 0"},
        "3m",
        why="long steps",
    ),
    Case(
        "KvCacheFull",
        {
            f"quarterdeck_kv_cache_used_ratio{{{E0}}}": "0.97x20",
            f"quarterdeck_engine_preemptions_total{{{E0}}}": "0+3x20",
        },
        "12m",
        OF_E0,
        "97% of the KV blocks of engine e0 are in use and it preempts requests: work is done "
        "twice.",
    ),
    Case(
        "KvCacheFull",
        {
            f"quarterdeck_kv_cache_used_ratio{{{E0}}}": "0.99x20",
            f"quarterdeck_engine_preemptions_total{{{E0}}}": "3x20",
        },
        "12m",
        why="full without preemptions is what a cache is for",
    ),
    Case(
        "QueueGrowing",
        {f"quarterdeck_engine_waiting_requests{{{E0}}}": "1+2x40"},
        "20m",
        OF_E0,
        "At least 21 requests have waited for engine e0 for ten minutes, and they become more.",
    ),
    Case(
        "QueueGrowing",
        {f"quarterdeck_engine_waiting_requests{{{E0}}}": "40-1x40"},
        "20m",
        why="the queue gets shorter",
    ),
    Case(
        "ErrorRatio",
        {
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="200"}}': "0+90x20",
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="500"}}': "0+10x20",
        },
        "10m",
        HERE,
        "10% of the answers of the last five minutes were 5xx (probes not counted).",
    ),
    Case(
        "ErrorRatio",
        {
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="200"}}': "0+90x20",
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="429"}}': "0+10x20",
        },
        "10m",
        why="refusals of a limit are no errors",
    ),
    Case(
        "ErrorRatio",
        {
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="200"}}': "0+90x20",
            f'quarterdeck_http_responses_total{{{JOB},route="/readyz",status="503"}}': "0+60x20",
        },
        "10m",
        why="probes while it starts",
    ),
    Case(
        "ErrorRatio",
        {
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="200"}}': "0+1x20",
            f'quarterdeck_http_responses_total{{{JOB},route="r",status="500"}}': "0x5 1x15",
        },
        "8m",
        why="one error while hardly anybody asks",
    ),
    Case(
        "NoEngineReady",
        _state("failed", "1x10")
        | {f'quarterdeck_engine_state{{{JOB},engine="e0",state="ready"}}': "0x10"}
        | {f'quarterdeck_engine_state{{{JOB},engine="e1",state="ready"}}': "1x10"},
        "5m",
        why="one of two engines serves",
    ),
)

PROCESSES = (
    Case(
        "NoGateway",
        {
            f"quarterdeck_start_time_seconds{{{JOB}}}": "100x10",
            f'quarterdeck_process_resident_bytes{{{JOB},process="e0"}}': "5x10",
        },
        "5m",
        HERE,
        "No gateway process has reported for half a minute: nobody answers on the data plane.",
    ),
    Case(
        "NoGateway",
        {
            f"quarterdeck_start_time_seconds{{{JOB}}}": "100x10",
            f"quarterdeck_process_resident_bytes{{{PROCESS}}}": "5x10",
        },
        "5m",
        why="one gateway is enough",
    ),
    Case(
        "GatewayRestarting",
        {f"quarterdeck_gateway_restarts_total{{{GATEWAY}}}": "0 1x5 2x5"},
        "10m",
        HERE | {"gateway": "gateway-0"},
        "gateway-0 was restarted 2 times in half an hour.",
    ),
    Case(
        "GatewayRestarting",
        {f"quarterdeck_gateway_restarts_total{{{GATEWAY}}}": "0 1x10"},
        "10m",
        why="one restart is no pattern",
    ),
    Case(
        "GatewayRestarting",
        {f"quarterdeck_gateway_restarts_total{{{GATEWAY}}}": "0 1x4 0x5"},
        "10m",
        why="one restart, then the whole appliance was started anew",
    ),
    Case(
        "LoopLagHigh",
        _lag(20),
        "12m",
        HERE | {"process": "gateway-0"},
        "One in a hundred timers of gateway-0 is 375ms late or more.",
    ),
    Case("LoopLagHigh", _lag(5), "12m", why="one in two hundred"),
    Case(
        "ClientCutOff",
        {f"quarterdeck_engine_clients_cut_off_total{{{E0}}}": "0x5 1x10"},
        "8m",
        OF_E0,
        "Engine e0 cut a client off; its requests were aborted.",
    ),
    Case(
        "ClientCutOff",
        {f"quarterdeck_engine_clients_cut_off_total{{{E0}}}": "4x20"},
        "18m",
        why="it was long ago",
    ),
    Case(
        "FdsNearLimit",
        {
            f"quarterdeck_process_open_fds{{{PROCESS}}}": "900x10",
            f"quarterdeck_process_max_fds{{{PROCESS}}}": "1000x10",
        },
        "8m",
        HERE | {"process": "gateway-0"},
        "gateway-0 has 90% of its file descriptors open; beyond the limit connections are refused.",
    ),
    Case(
        "FdsNearLimit",
        {
            f"quarterdeck_process_open_fds{{{PROCESS}}}": "900x10",
            f"quarterdeck_process_max_fds{{{PROCESS}}}": "4096x10",
        },
        "8m",
        why="many, but far from the limit",
    ),
    Case(
        "AuditLost",
        {f'quarterdeck_audit_entries_total{{{JOB},outcome="lost"}}': "0x3 2x10"},
        "8m",
        HERE | {"outcome": "lost"},
        "Control calls of the last hour could not be written into the audit log.",
    ),
    Case(
        "AuditLost",
        {f'quarterdeck_audit_entries_total{{{JOB},outcome="written"}}': "0+5x10"},
        "8m",
        why="all were written",
    ),
)


def _dropped(stage: str, values: str) -> dict[str, str]:
    labels = f'{JOB},process="supervisor",stage="{stage}"'
    return {f"quarterdeck_records_dropped_total{{{labels}}}": values}


TELEMETRY = (
    Case(
        "RecordsDropped",
        _dropped("hop_join", "0+60x20"),
        "12m",
        HERE | {"process": "supervisor", "stage": "hop_join"},
        "The stage hop_join of supervisor drops 1.0 records per second: traces have gaps. Counts "
        "and requests are not affected.",
    ),
    Case("RecordsDropped", _dropped("hop_join", "0 60x20"), "12m", why="it is over"),
    Case("RecordsDropped", _dropped("trace_store", "0+60x20"), "12m", why="another alert's"),
    Case(
        "TraceStoreDropping",
        _dropped("trace_store", "0+120x20"),
        "12m",
        HERE,
        "The trace store drops 2.0 records per second: the disk is full or too slow.",
    ),
    Case("TraceStoreDropping", _dropped("export", "0+120x20"), "12m", why="another stage"),
    Case(
        "ExportFailing",
        {f"quarterdeck_export_failing{{{JOB}}}": "0 1x10"},
        "8m",
        HERE,
        "The collector has refused spans for five minutes. Requests are not affected; the local "
        "trace store has the traces.",
    ),
    Case(
        "ExportFailing",
        {f"quarterdeck_export_failing{{{JOB}}}": "0 1x3 0 1x3"},
        "8m",
        why="it recovers in between",
    ),
)

PROMISES = {
    "availability": (
        0.999,
        "AvailabilityBudgetBurn",
        "failed or were refused for want of capacity",
    ),
    "ttft": (0.95, "TtftBudgetBurn", "got their first token too late"),
    "tpot": (0.95, "TpotBudgetBurn", "got their tokens too slowly"),
}
LASTS = {"1h": "two days", "6h": "five days", "1d": "ten days", "3d": "thirty days"}


def _judged(slo: str, *, good: str, bad: str) -> dict[str, str]:
    return {
        f'quarterdeck_slo_objective_ratio{{{JOB},slo="{slo}"}}': f"{PROMISES[slo][0]}x40",
        f'quarterdeck_slo_events_total{{{JOB},slo="{slo}",outcome="good"}}': good,
        f'quarterdeck_slo_events_total{{{JOB},slo="{slo}",outcome="bad"}}': bad,
    }


def _alerting(
    slo: str, series: dict[str, str], share: float, windows: tuple[str, ...]
) -> list[Case]:
    _, name, what = PROMISES[slo]
    return [
        Case(
            name,
            series,
            "40m",
            HERE | {"slo": slo},
            f"{100 * share:.4g}% of the requests of the last {window} {what}; at this rate the "
            f"error budget of 30 days lasts {LASTS[window]} at most.",
            window,
        )
        for window in windows
    ]


def _burning(slo: str, times: float, windows: tuple[str, ...]) -> list[Case]:
    """Cases of a steady burn rate: one for each window that must alert, or one for none."""
    objective, name, _ = PROMISES[slo]
    bad = round(100_000 * times * (1 - objective))
    series = _judged(slo, good=f"0+{100_000 - bad}x40", bad=f"0+{bad}x40")
    if not windows:
        return [Case(name, series, "40m", why=f"{times} times is within the budget")]
    return _alerting(slo, series, bad / 100_000, windows)


def _over(slo: str) -> list[Case]:
    """The short windows forgot it, the long ones did not."""
    over = _judged(slo, good="0+100x40", bad="0+400x5 2000x34")
    return _alerting(slo, over, 2000 / 6000, ("1d", "3d"))


def _few(slo: str) -> list[Case]:
    few = _judged(slo, good="0x40", bad="0x9 1x9 2x9 3x4 4x4")
    return [Case(PROMISES[slo][1], few, "40m", why="four bad requests of four")]


def burns() -> list[Scene]:
    """Scenes of the burn rates, in each of which all promises fare alike."""
    scenes = [
        [_burning(slo, times, windows) for slo in PROMISES]
        for times, windows in (
            (15, ("1h", "6h", "1d", "3d")),
            (14, ("6h", "1d", "3d")),
            (5.8, ("1d", "3d")),
            (2.9, ("3d",)),
            (0.95, ()),
        )
    ]
    return [*scenes, [_over(slo) for slo in PROMISES], [_few(slo) for slo in PROMISES]]


SCENES: list[Scene] = [[[case]] for case in (*SERVICE, *PROCESSES, *TELEMETRY)] + burns()

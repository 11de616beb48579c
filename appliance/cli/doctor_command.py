"""`doctor`: looks at this machine and says what would not work."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.exits import Exit
from appliance.cli.output import Output, print_json, printable
from appliance.cli.target import Format, StateDir

_MARKS = {"ok": "ok  ", "warning": "WARN", "failed": "FAIL"}


def doctor(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    state_dir: StateDir = None,
    output: Format = Output.TABLE,
) -> None:
    """Check this machine. Exit code 6 with warnings, 1 if something cannot work."""
    from appliance.cli.doctor_checks import run_checks
    from appliance.cli.doctor_finding import Verdict
    from appliance.config.sources import load_from_process

    settings = load_from_process({"config": config, "state_dir": state_dir}).settings
    findings = run_checks(settings)
    if output is Output.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            hint = f"\n      → {finding.hint}" if finding.hint else ""
            print(f"{_MARKS[finding.verdict]} {finding.check:<16} {printable(finding.text)}{hint}")
    verdicts = {finding.verdict for finding in findings}
    if Verdict.FAILED in verdicts:
        raise typer.Exit(Exit.FAILED)
    if Verdict.WARNING in verdicts:
        raise typer.Exit(Exit.DEGRADED)

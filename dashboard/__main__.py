"""`python -m dashboard`: prepares the terminal, then starts the app."""

import argparse
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from dashboard.client.api import Endpoint
from dashboard.source.demo import DemoSource
from dashboard.source.frames import Source
from dashboard.source.live import LiveSource, Locate

PERIOD_S: Final = 0.25
PERIOD_OVER_SSH_S: Final = 1.0
_FRAMES_PER_S: Final = "20"
USAGE_EXIT: Final = 2


def run(
    base_url: str | None,
    locate: Locate | None,
    api_key: str | None,
    *,
    demo: bool = False,
    inference_key: str | None = None,
) -> int:
    """Show the dashboard until the operator leaves; returns the exit code.

    Args:
        base_url: Address of the control plane.
        locate: Returns the unix socket of the control plane on this machine, None while none runs;
            used when there is no address.
        api_key: A key of scope viewer or more, for `base_url`.
        demo: Show an invented instance; needs no server.
        inference_key: For prompts that are tried over TCP; `QUARTERDECK_API_KEY` by default.
    """
    socket_path = locate() if locate and not base_url else None
    if not demo and not base_url and not socket_path:
        sys.stderr.write("quarterdeck top: no instance is known; start one, or use --demo\n")
        return USAGE_EXIT
    prepare_environment(os.environ)
    source: Source = DemoSource()
    if not demo:
        endpoint = Endpoint(socket_path, base_url, api_key)
        key = inference_key or os.environ.get("QUARTERDECK_API_KEY")
        source = LiveSource(endpoint, key, locate=locate if socket_path else None)
    return _show(source, PERIOD_OVER_SSH_S if is_remote(os.environ) else PERIOD_S)


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set what Textual reads when it is imported: nothing moves by itself, few frames a second."""
    environment.setdefault("TEXTUAL_ANIMATIONS", "none")
    environment.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    environment.setdefault("TEXTUAL_FPS", _FRAMES_PER_S)


def is_remote(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is on the other end of a network line."""
    return any(name in environment for name in ("SSH_CONNECTION", "SSH_TTY"))


def _show(source: Source, period_s: float) -> int:
    from dashboard.app import QuarterdeckTop  # noqa: PLC0415 - Textual reads the environment then
    from dashboard.session import Session  # noqa: PLC0415

    app = QuarterdeckTop(Session(source), period_s)
    app.run()
    return app.return_code or 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m dashboard", description=__doc__)
    parser.add_argument("--demo", action="store_true", help="show an invented instance")
    parser.add_argument("--socket", metavar="PATH", help="unix socket of the control plane")
    parser.add_argument("--url", help="address of the control plane; key in QUARTERDECK_ADMIN_KEY")
    options = parser.parse_args(arguments)
    key = os.environ.get("QUARTERDECK_ADMIN_KEY")
    return run(options.url, lambda: options.socket, key, demo=options.demo)


if __name__ == "__main__":
    sys.exit(main())

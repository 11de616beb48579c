"""A process that says that it is deaf, and is: SIGTERM does not end it."""

import signal
import sys


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()

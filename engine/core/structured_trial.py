"""Compiles a grammar in a process of its own first: one that takes too much dies there.

llguidance has no bound on some of the work: a schema of a few kilobytes can take hours, all memory,
or the stack, and then the engine with it. So a server process holds the tokenizer and forks a
child for each grammar, with limits of time, memory and stack.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.core.structured_compile import compile_grammar
from engine.core.structured_faults import RefusedGrammarError
from engine.core.structured_tokenizer import TokenizerBridge, TokenizerState
from engine.parent_death import watch_parent
from engine.wire.messages import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_EXTRA_BYTES = 256 << 20
"""Memory that a compilation may take."""
MAX_STACK_BYTES = 4 << 20
"""Half of what a thread of the engine has."""
CONTROL_FD = 0
STATM = Path("/proc/self/statm")
"""Its first number is the size of the address space in pages."""
_SIZE_BYTES = 8
_CHUNK_BYTES = 1 << 16
TOO_MUCH = "it is too large, too deep, or takes too long"


class Trial(msgspec.Struct, frozen=True, array_like=True):
    """What a child is to do."""

    grammar: Grammar
    timeout_s: float


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What became of it."""

    refusal: str | None = None


class GrammarTrials:
    """The engine's side: starts the server, and asks it from any thread.

    Args:
        tokenizer: For the server.
    """

    def __init__(self, tokenizer: TokenizerState) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.core.structured_trial"],
                stdin=theirs.fileno(),
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
            )
        state = msgspec.msgpack.encode(tokenizer)
        self._control.sendall(len(state).to_bytes(_SIZE_BYTES, "little") + state)

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        """Compile there; return when that ended well.

        Raises:
            RefusedGrammarError: it did not.
            OSError: the server is gone.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            ours.sendall(msgspec.msgpack.encode(Trial(grammar, timeout_s)))
            ours.shutdown(socket.SHUT_WR)
            answer = _read_all(ours)
        if not answer:  # the kernel or a failed allocation ended it
            raise RefusedGrammarError(f"the grammar cannot be used: {TOO_MUCH}")
        if refusal := msgspec.msgpack.decode(answer, type=Verdict).refusal:
            raise RefusedGrammarError(refusal)

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._server.wait()


def main() -> None:
    """Serve trials until the engine closes the control socket."""
    watch_parent(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need not be waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=CONTROL_FD)
    size = int.from_bytes(_read_exactly(control, _SIZE_BYTES), "little")
    state = msgspec.msgpack.decode(_read_exactly(control, size), type=TokenizerState)
    bridge = state.bridge()
    compile_grammar(bridge, Grammar(kind=GrammarKind.JSON_OBJECT))  # builds what children share
    while True:
        asked, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            return
        if os.fork() == 0:
            control.close()
            _in_child(lambda fd=fds[0]: _try(bridge, fd))
        os.close(fds[0])


def _in_child(work: "Callable[[], None]") -> None:
    try:
        work()
    finally:
        os._exit(0)


def _try(bridge: TokenizerBridge, fd: int) -> None:
    with socket.socket(fileno=fd) as connection:
        trial = msgspec.msgpack.decode(_read_all(connection), type=Trial)
        _limit(trial.timeout_s)
        try:
            compile_grammar(bridge, trial.grammar)
            verdict = Verdict()
        except RefusedGrammarError as error:
            verdict = Verdict(str(error))
        connection.sendall(msgspec.msgpack.encode(verdict))


def _limit(timeout_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, timeout_s)  # its signal ends a process, in C code too
    now_bytes = int(STATM.read_text().split()[0]) * resource.getpagesize()
    for limit, most in (
        (resource.RLIMIT_AS, now_bytes + MAX_EXTRA_BYTES),
        (resource.RLIMIT_STACK, MAX_STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a crash has nothing to say


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), _CHUNK_BYTES))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _read_all(connection: socket.socket) -> bytes:
    parts = bytearray()
    while part := connection.recv(_CHUNK_BYTES):
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main()

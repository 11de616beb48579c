"""`quarterdeck chat`: talk to the served model over the appliance's own socket."""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from appliance.cli.data_plane import (
    DONE,
    SOCKET_URL,
    DataPlaneError,
    ServedModel,
    check_listening,
    check_status,
    connection_error,
    event_of,
    printable,
    served_model,
)

_OK, _INTERRUPTED = 0, 130
_CONNECT_S = 5.0
_READ_S = 600.0
_TEMPERATURE = 0.2
_MAX_TOKENS = 512
_HELP = (
    "commands: /reset forgets the conversation, /quit ends (as Ctrl-D does); Ctrl-C stops an answer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What is sent with every turn.

    Small models ramble at the API's default temperature of 1, and without a bound they may repeat
    themselves until their context is full.
    """

    system: str | None = None
    max_tokens: int | None = None
    """None: 512, or half of a context that is shorter than twice that."""
    temperature: float | None = None
    """None: 0.2."""

    def fields(self, model: ServedModel) -> dict[str, Any]:
        """Return the request fields."""
        temperature = _TEMPERATURE if self.temperature is None else self.temperature
        bound = min(_MAX_TOKENS, (model.max_model_len or 2 * _MAX_TOKENS) // 2)
        return {"temperature": temperature, "max_tokens": self.max_tokens or bound}


@dataclass(slots=True)
class Answer:
    """One answer as it comes, with what was measured on the way."""

    started_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float | None = None
    completion_tokens: int = 0
    is_cut: bool = False
    """It reached its longest length before its end."""
    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Take the next piece of text."""
        self.last_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = self.last_s
        self.texts.append(text)

    def figures(self) -> str:
        """Say how fast it was: time to the first token, and tokens per second after it."""
        if self.first_s is None or self.last_s is None:
            return "no text"
        ttft_ms = (self.first_s - self.started_s) * 1e3
        decode_s = self.last_s - self.first_s
        line = f"{self.completion_tokens} tokens · TTFT {ttft_ms:.0f} ms"
        if self.completion_tokens > 1 and decode_s > 0:
            line += f" · {(self.completion_tokens - 1) / decode_s:.1f} tok/s"
        return f"{line} · cut off, --max-tokens allows more" if self.is_cut else line


def run_chat(
    socket_path: Path, model: str | None, prompt: str | None, options: ChatOptions | None = None
) -> int:
    """Ask once (`prompt`) or start a conversation; answers go to stdout, figures to stderr.

    Args:
        socket_path: The data plane's unix socket: trusted, so no key.
        model: Name of a served model; None takes the first.
        prompt: One question; None reads turns from stdin.
        options: What to send with every turn.

    Returns:
        The exit code: 0, 1 failed, 2 no such model, 3 no connection, 4 timed out, 130 interrupted.
    """
    try:
        check_listening(socket_path)
    except DataPlaneError as error:
        return _fail(error)
    transport = httpx.HTTPTransport(uds=str(socket_path))
    timeout = httpx.Timeout(_READ_S, connect=_CONNECT_S)
    with httpx.Client(
        transport=transport, base_url=SOCKET_URL, timeout=timeout, trust_env=False
    ) as client:
        try:
            chat = Conversation(client, _served(client, model), options or ChatOptions())
            return _ask_once(chat, prompt) if prompt is not None else _converse(chat)
        except DataPlaneError as error:
            return _fail(error)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return _INTERRUPTED


class Conversation:
    """The turns so far, and the connection to the model that answers them."""

    def __init__(self, client: httpx.Client, model: ServedModel, options: ChatOptions) -> None:
        self.model = model
        self._client = client
        self._options = options
        self._messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget all turns."""
        system = self._options.system
        self._messages = [{"role": "system", "content": system}] if system else []

    def ask(self, prompt: str, show: Callable[[str], None]) -> Answer:
        """Send one turn and show the answer as it comes.

        An answer that was interrupted stays in the conversation as far as it came; a question that
        failed does not.

        Raises:
            DataPlaneError: no answer, or one that broke off.
        """
        self._messages.append({"role": "user", "content": prompt})
        answer = Answer()
        try:
            for text in self._stream(answer):
                show(printable(text))
        except DataPlaneError:
            del self._messages[-1]
            raise
        except KeyboardInterrupt:
            self._remember(answer)
            raise
        self._remember(answer)
        return answer

    def _remember(self, answer: Answer) -> None:
        self._messages.append({"role": "assistant", "content": "".join(answer.texts)})

    def _stream(self, answer: Answer) -> Iterator[str]:
        body = {
            "model": self.model.name,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options.fields(self.model),
        }
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    response.read()
                check_status(response)
                for event in _events(response):
                    usage = event.get("usage") or {}
                    answer.completion_tokens = usage.get(
                        "completion_tokens", answer.completion_tokens
                    )
                    for choice in event.get("choices", ()):
                        answer.is_cut = choice.get("finish_reason") == "length"
                        if text := choice["delta"].get("content"):
                            answer.add(text)
                            yield text
        except httpx.HTTPError as error:
            raise connection_error(error) from error


def _served(client: httpx.Client, asked: str | None) -> ServedModel:
    try:
        return served_model(client.get("/v1/models"), asked)
    except httpx.HTTPError as error:
        raise connection_error(error) from error


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for line in response.iter_lines():
        if line.startswith(":") and line not in told:  # says what the server waits for
            told.add(line)
            print(f"[{printable(line[1:]).strip()}]", file=sys.stderr)
        event = event_of(line)
        if event is DONE:
            return
        if event is not None:
            yield event
    raise DataPlaneError("the answer broke off")


def _ask_once(chat: Conversation, prompt: str) -> int:
    answer = chat.ask(prompt, _show)
    print()
    print(f"[{answer.figures()}]", file=sys.stderr)
    return _OK


def _converse(chat: Conversation) -> int:
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        importlib.import_module("readline")  # gives `input` its line editing
        print(f"{printable(chat.model.name)} · {_HELP}", file=sys.stderr)
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except EOFError:
            return _OK
        if line == "/quit":
            return _OK
        if line == "/reset":
            chat.reset()
        elif line.startswith("/"):
            print(_HELP, file=sys.stderr)
        elif line:
            _take_turn(chat, line)


def _take_turn(chat: Conversation, line: str) -> None:
    """Answer one line; neither an error nor Ctrl-C ends the conversation."""
    try:
        figures = chat.ask(line, _show).figures()
    except DataPlaneError as error:
        print()
        _fail(error)
        return
    except KeyboardInterrupt:
        figures = "stopped"
    print()
    print(f"[{figures}]", file=sys.stderr)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _fail(error: DataPlaneError) -> int:
    print(f"quarterdeck: {printable(str(error))}", file=sys.stderr)
    return error.exit_code

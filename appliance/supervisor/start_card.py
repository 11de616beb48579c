"""The card that the terminal shows at the start: keys, addresses, lines to paste."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.config.paths import state_dir
from appliance.supervisor.admin.schemas import CreatedKey

QUESTION = "What is the capital of Japan?"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What the card tells."""

    model: str
    data_url: str
    admin_url: str
    state_dir: Path
    minted: Sequence[CreatedKey]
    has_auth: bool
    tls_cert: Path | None = None
    adapter_root: Path | None = None
    """Where LoRA adapters may be loaded from; None: nowhere."""
    executable: Path | None = None
    """The `quarterdeck` program; None: the one that runs."""


def start_card(facts: StartFacts) -> str:
    """Return the card: plain text whose command lines can be pasted as they stand."""
    return "\n".join((*_keys(facts), *_lines_to_paste(facts), "", ""))


def _keys(facts: StartFacts) -> list[str]:
    head = f"Quarterdeck serves {facts.model}"
    lines = ["", head, "=" * len(head), ""]
    lines += [f"  {key.scope} key, shown once:  {key.secret}" for key in facts.minted]
    if facts.minted:
        lines.append("")
    if not facts.has_auth:
        lines += ["  !! --no-auth: everybody on this machine may use the data plane !!", ""]
    elif not facts.minted:
        command = quarterdeck(facts, "keys create --scope inference")
        lines += ["  Keys exist already. To make another:", f"    {command}", ""]
    return lines


def _lines_to_paste(facts: StartFacts) -> list[str]:
    tools = {
        "Watch it": "top",
        "List engines": "ps",
        "Trace a request (its id is in the answer's x-request-id)": "trace REQUEST_ID",
    }
    if facts.adapter_root is not None:
        place = shlex.quote(f"{facts.adapter_root}/DIRECTORY")
        tools["Load a LoRA adapter; requests then name it as their model"] = (
            f"lora load NAME {place}"
        )
    lines = [f"  data plane     {facts.data_url}/v1", f"  control plane  {facts.admin_url}", ""]
    lines += ["  Ask it something:", f"    {_curl(facts)}"]
    for what, command in tools.items():
        lines += [f"  {what}:", f"    {quarterdeck(facts, command)}"]
    return lines + _scraping(facts)


def _scraping(facts: StartFacts) -> list[str]:
    """Return how Prometheus gets its key, and an entry for its `scrape_configs`."""
    key_file = facts.state_dir / "prometheus.key"
    scheme, _, target = facts.admin_url.partition("://")
    entry: dict[str, object] = {"job_name": "quarterdeck"}
    if facts.tls_cert is not None:
        entry |= {"scheme": scheme, "tls_config": {"ca_file": str(facts.tls_cert)}}
    entry |= {
        "authorization": {"credentials_file": str(key_file)},
        "static_configs": [{"targets": [target]}],
    }
    command = f"keys create --scope viewer --out {shlex.quote(str(key_file))}"
    return [
        "  Let Prometheus scrape it: make its key, then add the entry to its scrape_configs:",
        f"    {quarterdeck(facts, command)}",
        f"    - {json.dumps(entry)}",
    ]


def _curl(facts: StartFacts) -> str:
    secret = next((key.secret for key in facts.minted if key.scope == "inference"), None)
    words = ["curl", "-s", f"{facts.data_url}/v1/chat/completions"]
    if facts.tls_cert is not None:
        words += ["--cacert", str(facts.tls_cert)]
    words += ["-H", "Content-Type: application/json"]
    if facts.has_auth:
        words += ["-H", f"Authorization: Bearer {secret or 'YOUR_KEY'}"]
    body = (
        f'{{"model": "{facts.model}", "max_tokens": 32, "temperature": 0,'
        f' "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'
    )
    return shlex.join([*words, "-d", body])


def quarterdeck(facts: StartFacts, command: str) -> str:
    """Return a shell line that runs a client command against this instance."""
    executable = shlex.quote(str(facts.executable or running_executable()))
    if facts.state_dir == state_dir(env={}):
        return f"{executable} {command}"
    return f"QUARTERDECK_STATE_DIR={shlex.quote(str(facts.state_dir))} {executable} {command}"


def running_executable() -> Path:
    """Return the absolute path of the command that was installed with this interpreter."""
    beside = Path(sys.executable).with_name("quarterdeck")
    return beside if beside.is_file() else Path(sys.argv[0]).absolute()

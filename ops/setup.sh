#!/bin/sh
# Install Quarterdeck into .venv: `ops/setup.sh run` for the product, `ops/setup.sh dev` with the tools for tests.
# PYTHON chooses the interpreter; TORCH_INDEX chooses where PyTorch comes from (see the README).
set -eu
cd "$(dirname "$0")/.."
what=${1:-run}
python=${PYTHON:-python3}

refuse() { echo "quarterdeck: $1" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || refuse "$(uname -s) is not supported: Quarterdeck needs Linux (pidfd, memfd, unix sockets)."
case "$(uname -m)" in x86_64 | aarch64) ;; *) refuse "$(uname -m) is not supported: Quarterdeck needs x86_64 or aarch64." ;; esac
command -v "$python" >/dev/null || refuse "no $python found: install Python 3.11 or newer, or set PYTHON."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    refuse "$("$python" --version) is too old: Python 3.11 or newer is needed; set PYTHON to one."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    refuse "$python has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)."

fingerprint=$(cat constraints.txt pyproject.toml ops/setup.sh | cksum)
stamp=.venv/installed-$what
[ "$(cat "$stamp" 2>/dev/null)" = "$fingerprint" ] && exit 0

[ -x .venv/bin/python ] || "$python" -m venv .venv
pip="$PWD/.venv/bin/python -m pip --disable-pip-version-check --quiet"
echo "quarterdeck: installing into .venv (torch first; this takes about a minute)" >&2
$pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
case $what in
run) $pip install -c constraints.txt -e . ;;
dev) $pip install -c constraints.txt -e '.[dev]' ;;
*) refuse "usage: ops/setup.sh run|dev" ;;
esac
echo "$fingerprint" >"$stamp"
[ "$what" = dev ] && echo "$fingerprint" >.venv/installed-run
exit 0

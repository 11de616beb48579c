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

# The kernels are compiled again when their sources changed or a compiler came, and only then.
compile_kernels() {
    [ "$(cat .venv/kernels 2>/dev/null)" = "$(kernels_state)" ] && return 0
    echo "quarterdeck: compiling the CPU kernels (this takes about a minute)" >&2
    .venv/bin/python ops/compile_kernels.py ||
        { rm -f "$library"; echo "quarterdeck: the slower reference kernels will run." >&2; }
    kernels_state >.venv/kernels
}
library=engine/kernels/cpu/_native.so
kernels_state() {
    cat ops/compile_kernels.py engine/kernels/cpu/native/* | cksum
    echo "${CXX-}" "$(command -v c++)" "$(command -v g++)" "$(command -v clang++)"
    ls "$library" 2>/dev/null || true
}

fingerprint=$(cat constraints.txt pyproject.toml setup.py ops/setup.sh | cksum)
stamp=.venv/installed-$what
if [ "$(cat "$stamp" 2>/dev/null)" = "$fingerprint" ]; then
    compile_kernels
    exit 0
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
pip="$PWD/.venv/bin/python -m pip --disable-pip-version-check --quiet"
echo "quarterdeck: installing into .venv (torch first; this takes about a minute)" >&2
$pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
export QUARTERDECK_BUILD_KERNELS=off # compiled below, where one can see it
case $what in
run) $pip install -c constraints.txt -e . ;;
dev) $pip install -c constraints.txt -e '.[dev]' ;;
*) refuse "usage: ops/setup.sh run|dev" ;;
esac
echo "$fingerprint" >"$stamp"
[ "$what" != dev ] || echo "$fingerprint" >.venv/installed-run
compile_kernels

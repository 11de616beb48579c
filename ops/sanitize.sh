#!/bin/sh
# Run the tests of the CPU kernels on a build that watches them: `ops/sanitize.sh [address|thread] [pytest arguments]`.
# address: AddressSanitizer and UndefinedBehaviorSanitizer: no access out of bounds or after a free, no overflow, no
# misaligned access, no bad shift; the first finding ends the run. thread: ThreadSanitizer on the pool's own tests.
# It watches the kernels alone: Python and torch are not built with it, so leaks are not looked for. Python takes its memory
# from malloc here, for out of its own arenas nobody sees where an array ends.
set -eu
cd "$(dirname "$0")/.."
variant=${1:-address}
[ $# -eq 0 ] || shift
case $variant in
address) runtime=libasan.so tests=tests/engine/kernels/cpu ;;
thread) runtime=libtsan.so tests=tests/engine/kernels/cpu/test_threads.py ;;
*) echo "usage: ops/sanitize.sh [address|thread] [pytest arguments]" >&2; exit 2 ;;
esac

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
.venv/bin/python ops/compile_kernels.py --variant "$variant" --to "$built/kernels.so"
preload=$(${CXX:-g++} -print-file-name="$runtime")
[ -e "$preload" ] || { echo "quarterdeck: $runtime is not here: it comes with g++." >&2; exit 1; }

echo "quarterdeck: $variant sanitizer on $tests" >&2
# --capture=sys: else pytest would keep, and lose, what a sanitizer writes before it ends the process
code=0
timeout "${SANITIZE_TIMEOUT_S:-600}" env LD_PRELOAD="$preload" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
    PYTHONMALLOC=malloc QUARTERDECK_CPU_LIBRARY="$built/kernels.so" OMP_NUM_THREADS=1 \
    .venv/bin/python -m pytest -q --capture=sys -p no:cacheprovider --timeout 300 \
    -m "not gpu and not prove" "$tests" "$@" || code=$?
[ "$code" -ne 124 ] || echo "quarterdeck: it took longer than ${SANITIZE_TIMEOUT_S:-600} s." >&2
[ "$code" -eq 0 ] || echo "quarterdeck: failed with code $code." >&2
exit "$code"

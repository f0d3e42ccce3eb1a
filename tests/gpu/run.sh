#!/bin/sh
# Runs the GPU suite from this folder, with the libraries of the machine's Python (ESTAFETTE_PYTHON, else python3).
#
#   sh run.sh [FOLDER]            everything, within eight minutes; FOLDER (here: results) gets a record and a log
#   sh run.sh FOLDER --only ...   only some steps (gpu-suite --help names them); the record says which
#
# Needs an NVIDIA driver; says "skipped: no device" without one. Needs no Rust, no compiler and no CUDA toolkit. Each step has a
# time limit, and the record is written anew after each, so that what hangs or crashes loses nothing of the rest.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
results=${1:-$here/results}
[ $# -eq 0 ] || shift
mkdir -p "$results" || exit 1
python=${ESTAFETTE_PYTHON:-python3}
site=$(mktemp -d) || exit 1
trap 'rm -rf "$site"' EXIT
# A wheel is an archive; an archive that cannot be unpacked fails in the step that needs it.
if command -v "$python" >/dev/null; then
    "$python" -m zipfile -e "$here"/estafette_engine-*.whl "$site" || echo "the wheel cannot be unpacked" >&2
    PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
fi
chmod +x "$here/gpu-suite" "$here/cuda-tests"
name=$(date -u +%F)-gpu
[ $# -eq 0 ] || name=$name-$(date -u +%H%M%S)
# The status is that of the suite, not of what shows its output.
status=$results/.status
{
    "$here/gpu-suite" --files "$here/python" --python "$python" --tests "$here/cuda-tests" --record "$results/$name.md" "$@" 2>&1
    echo $? >"$status"
} | tee "$results/$name.log"
code=$(cat "$status")
rm -f "$status"
exit "$code"

#!/bin/sh
# Runs the GPU suite from this folder, with the libraries of the machine's Python (ESTAFETTE_PYTHON, else python3).
#
#   sh run.sh [FOLDER]            everything; the record goes to FOLDER (here: results)
#   sh run.sh FOLDER --only ...   only some steps, without a record
#
# Needs an NVIDIA driver; says "skipped: no device" without one. Needs no Rust, no compiler and no CUDA toolkit.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-$here/results}
[ $# -eq 0 ] || shift
python=${ESTAFETTE_PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if command -v "$python" >/dev/null; then
    "$python" -m zipfile -e "$here"/estafette-*.whl "$site"
    PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
fi
chmod +x "$here/gpu-suite"
if [ $# -eq 0 ]; then
    set -- --record "$results/$(date -u +%F)-gpu.md"
fi
"$here/gpu-suite" --files "$here/python" --python "$python" "$@"

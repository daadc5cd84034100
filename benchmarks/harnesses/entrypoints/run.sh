#!/usr/bin/env bash
# Runs vLLM's tests of files.txt, without those of excluded.txt, against arcforge-serve; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"
here=$(pwd)
root=$(cd ../../.. && pwd)
files=$(sed 's#^#tests/entrypoints/#' files.txt)
cd "$root"/.venv-entrypoints/vllm-*/
export PYTHONPATH="$here:$root/tests" OMP_NUM_THREADS=1
exec ../bin/python -m pytest -c "$here/pytest.ini" --rootdir . -p vllm_plugin $files "$@"

#!/usr/bin/env bash
# Creates .venv from the requirements*.txt, or does nothing when it is up to date (then it needs no network).
#
#   PYTHON=python3.12      the interpreter to use, 3.11 or newer
#   TORCH_INDEX_URL=URL    a further package index for torch, e.g. PyTorch's index of CPU builds
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.arcforge-stamp

# What the environment depends on: the requirements by content (a checkout changes file times) and its place.
fingerprint() {
    { pwd; cat requirements*.txt constraints.txt packages/*/pyproject.toml; } | cksum
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python}; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or newer found${PYTHON:+ at PYTHON=$PYTHON}; set PYTHON=/path/to/python3" >&2
    exit 2
}

create_venv() {
    local python
    python=$(find_python)
    if command -v uv >/dev/null; then
        uv venv --quiet --allow-existing --python "$(command -v "$python")" "$VENV"
    elif ! "$python" -m venv "$VENV"; then
        echo "error: $python cannot create a virtual environment; install uv, or Python's venv module" >&2
        exit 2
    fi
}

announce_download() {
    cat <<'TEXT'
Installing into .venv. PyTorch is the large part: about 200 MB as a CPU build, about 3 GB with CUDA; a small
language model for the tests is 93 MB.
For a CPU build where the default is CUDA:  TORCH_INDEX_URL=<index of CPU builds> make run
(https://pytorch.org/get-started/locally shows the index address when you choose "CPU").
TEXT
}

# pip's find-links as uv wants them: separated by commas. uv itself does not read pip's configuration.
pip_find_links() {
    local links=${PIP_FIND_LINKS:-}
    if [ -z "$links" ]; then
        links=$("$(find_python)" -m pip config get global.find-links 2>/dev/null ||
            "$(find_python)" -m pip config get install.find-links 2>/dev/null || true)
    fi
    echo "$links" | xargs | tr ' ' ','
}

# ${options[@]+...}: the bash of macOS takes an empty array for an unset variable
install_with_uv() {
    local links options=()
    links=${UV_FIND_LINKS:-$(pip_find_links)}
    if [ -n "$links" ]; then
        export UV_FIND_LINKS=$links
    fi
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
        # as pip does: the best version of all indexes, not the first index that knows the name
        options=(--extra-index-url "$TORCH_INDEX_URL" --index-strategy unsafe-best-match)
    fi
    uv pip install --python "$VENV/bin/python" ${options[@]+"${options[@]}"} -r requirements.txt
    uv pip install --python "$VENV/bin/python" --no-deps -r requirements-no-deps.txt
}

install_with_pip() {
    local options=()
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
        options=(--extra-index-url "$TORCH_INDEX_URL")
    fi
    "$VENV/bin/python" -m pip install --disable-pip-version-check ${options[@]+"${options[@]}"} -r requirements.txt
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-deps -r requirements-no-deps.txt
}

if [ -x $VENV/bin/python ] && [ "$(cat $STAMP 2>/dev/null)" = "$(fingerprint)" ]; then
    exit 0
fi

if ! [ -x $VENV/bin/python ] || ! is_new_enough $VENV/bin/python; then
    rm -rf "$VENV"
    create_venv
fi
if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
    announce_download
fi
if command -v uv >/dev/null; then
    install_with_uv
elif "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    install_with_pip
else
    echo "error: $VENV has no pip and uv is not on PATH; delete $VENV and try again" >&2
    exit 2
fi
fingerprint >$STAMP

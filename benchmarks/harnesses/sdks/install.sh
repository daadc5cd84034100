#!/usr/bin/env bash
# Creates .venv-sdks/NAME for each requirements/NAME.txt, and .venv-sdks/ai_sdk with npm; does nothing where it exists.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
for file in requirements/*.txt; do
    environment="$root/.venv-sdks/$(basename "$file" .txt)"
    if [ ! -e "$environment/.installed" ]; then
        "$root/.venv/bin/python" -m venv "$environment"
        "$environment/bin/python" -m pip install --quiet -r "$file"
        touch "$environment/.installed"
    fi
done
environment="$root/.venv-sdks/ai_sdk"
if [ ! -d "$environment/node_modules" ] && command -v npm >/dev/null; then
    mkdir -p "$environment"
    cp requirements/package.json "$environment"
    npm install --silent --no-audit --no-fund --prefix "$environment"
fi

#!/usr/bin/env bash
# Creates .venv-entrypoints: what vLLM's tests import, and the tests of its source distribution; does nothing where it exists.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
version=0.33.0
environment="$root/.venv-entrypoints"
if [ -e "$environment/vllm-$version" ]; then exit 0; fi
"$root/.venv/bin/python" -m venv "$environment"
# The rest, the SDKs and torch among it, is that of .venv.
"$root/.venv/bin/python" -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
    > "$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/arcforge.pth"
"$environment/bin/python" -m pip install --quiet -r requirements.txt
# Fetched by its hash, and read only: pip would run the archive's setup.py for its metadata.
"$root/.venv/bin/python" -c 'import sys; from pathlib import Path; from arcforge_rl.swe.archives import fetch_release
fetch_release(sys.argv[1], Path(sys.argv[2]))' "vllm==$version" "$environment"
tar -xzf "$environment/vllm-$version.tar.gz" -C "$environment" "vllm-$version/tests/__init__.py" \
    "vllm-$version/tests/entrypoints"
rm "$environment/vllm-$version.tar.gz" "$environment/vllm-$version.tar.gz.sha256"

#!/usr/bin/env bash
# Brings a Chromium for the tests of the pages, or does nothing where there is one. `make test` calls it after
# scripts/setup_venv.sh; `make run` and `make demo` need no browser and never do.
#
#   CHROMIUM=PATH      the program to use
#
# As root with apt-get: the distribution's package. Otherwise, or where that package does not run: playwright's own
# build, in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."

find_chromium() {
    PYTHONPATH=tests .venv/bin/python -m support.browsing
}

install_package() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "Installing Chromium for the tests of the pages (apt-get install chromium, about 120 MB) ..."
    { apt-get -qq update &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } </dev/null >/dev/null
}

install_build() {
    echo "Fetching Chromium for the tests of the pages (playwright install chromium) ..."
    timeout 300 .venv/bin/python -m playwright install chromium-headless-shell </dev/null >/dev/null
}

if find_chromium >/dev/null 2>&1; then
    exit 0
fi
if [ -z "${CHROMIUM:-}" ]; then
    for attempt in install_package install_build; do
        if "$attempt" && find_chromium >/dev/null 2>&1; then
            exit 0
        fi
    done
fi
find_chromium >/dev/null || true
echo "error: the tests of the pages have no browser; tests alone, without these: make test-only ARGS=--without-browser" >&2
exit 2

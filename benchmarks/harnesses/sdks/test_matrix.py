"""Clients of all kinds against `arcforge-serve`, each in an environment of its own: one test for each cell.

    make sdks                       installs the environments and runs this
    pytest benchmarks/harnesses/sdks -k litellm

A cell is a function of ``cells/SDK.py`` (or ``.mjs``) that raises if the answer is not what was asked for. Environments
that are not installed are skipped; a request that the server refuses fails its cell.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support.right_answers import serve

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ENVIRONMENTS = ROOT / ".venv-sdks"
CELLS = ("chat", "stream", "tools", "structured", "tools_structured")
SDKS = ("openai", "anthropic", "litellm", "langchain", "pydantic_ai", "instructor", "openai_agents", "llama_index",
        "ai_sdk", "mini_swe_agent")  # fmt: skip
NOT_THERE = {
    ("instructor", "tools"): "instructor has structured output alone",
    ("instructor", "tools_structured"): "instructor has structured output alone",
    **{("mini_swe_agent", cell): "an agent: its two turns are the cell tools" for cell in CELLS if cell != "tools"},
}
"""Cells that an SDK has no function for."""
SECONDS = 120


@pytest.fixture(scope="module")
def url():
    with serve() as (_, address):
        yield address


def command(sdk: str) -> list[str]:
    """Returns the command that runs an SDK's cells; skips where its environment is not installed."""
    if sdk in ("openai", "anthropic"):  # the versions that the tests pin
        return [sys.executable, str(HERE / "cells" / f"{sdk}_cells.py")]
    if sdk == "ai_sdk":
        program = ENVIRONMENTS / "ai_sdk" / "node_modules"
        found, run = program, ["node", str(HERE / "cells" / "ai_sdk.mjs")]
    else:
        found = ENVIRONMENTS / sdk / "bin" / "python"
        run = [str(found), str(HERE / "cells" / f"{sdk}_cells.py")]
    if not found.exists():
        pytest.skip(f"{found.parent} is not installed: make sdks")
    return run


def refusals(address: str) -> float:
    """Returns how many requests the server has refused or failed."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in httpx.get(f"{address}/metrics").text.splitlines()
        if line.startswith("arcforge:http_requests_total{") and 'path="/v1' in line and 'status="200"' not in line
    )


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sdk", SDKS)
def test_cell(sdk: str, cell: str, url: str) -> None:
    if reason := NOT_THERE.get((sdk, cell)):
        pytest.skip(reason)
    before = refusals(url)
    run = subprocess.run(
        [*command(sdk), cell, url], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ENVIRONMENTS
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert refusals(url) == before

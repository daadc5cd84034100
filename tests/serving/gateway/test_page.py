"""The Python of docs/agentic.md, against the demo's server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer
from arcforge_core.ops.hardware import select_hardware
from arcforge_serving.configs import GatewayConfig, PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.serve import state_of
from support.servers import listening

PAGE = Path(__file__).parents[3] / "docs/agentic.md"


@pytest.mark.slow(reason="loads the demo's model and answers two questions")
def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    model, tokenizer = load_with_tokenizer(find_checkpoint("demo"), select_hardware("cpu"))
    state = state_of(PagedEngine(PagedEngineConfig(), model), tokenizer, "demo_model")
    with listening(state, app=gateway_app(state, GatewayConfig(sessions=1))) as (_, address):
        exec(compile(example.replace("http://localhost:8000", address), str(PAGE), "exec"), {})
    new, clean, branch = capsys.readouterr().out.splitlines()
    assert new.startswith("new stop ") and clean.startswith("clean stop ")
    read, sampled, version = map(int, branch.split())
    assert read > sampled > 0 and version == 0

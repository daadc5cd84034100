"""Pipelines of the test-sized model with core's own components."""

import json

import pytest

from arcforge_core.configs import PipelineConfig
from arcforge_core.pipeline import run as pipeline_run
from arcforge_core.pipeline.plan import CommandLine, plan_stages
from arcforge_core.train import run as run_module
from support.runs import tiny_overrides

STAGES = {
    "base": ["trainer.sequence_length=32", "model.max_position_embeddings=48", "model.rope_theta=1e4"],
    "extend": ["trainer.sequence_length=64", "model.max_position_embeddings=64", "data.packing=long_documents"],
    "last": ["trainer.sequence_length=128", "model.max_position_embeddings=200", "optimizer.lr=1e-4"],
}
COMMON = ["model.rope_theta=1e6", "trainer.max_steps=4", "trainer.log_every=1", "trainer.samples=0"]


@pytest.fixture
def recipe(tmp_path):
    """Returns a pipeline of three stages; changes are fields of its config."""

    def make(**changes):
        settings = {
            "name": "small",
            "overrides": [o for o in tiny_overrides(tmp_path) if not o.startswith("output_dir")] + COMMON,
            "stages": STAGES,
            "output_dir": str(tmp_path / "pipelines"),
        }
        return PipelineConfig(**{**settings, **changes})

    return make


@pytest.fixture
def plan(recipe):
    """Returns the stages of that recipe with overrides of a command line: of all stages, and `extra` by stage."""

    def make(*common, extra=None, **changes):
        return plan_stages(recipe(**changes), CommandLine(common=list(common), stages=extra or {}))

    return make


@pytest.fixture
def quick(monkeypatch):
    """Leaves out what takes time and is tested elsewhere."""

    def write_report(run_dir):
        (run_dir / "report.html").write_text(json.dumps("a report"))
        return run_dir / "report.html"

    monkeypatch.setattr(run_module, "write_report", write_report)
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e9)
    monkeypatch.setattr(pipeline_run, "write_page", lambda folder, state: folder / "index.html")

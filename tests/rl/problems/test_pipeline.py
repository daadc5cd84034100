"""One command from nothing to a trained run that was played before and after."""

import json

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.pipeline import run as pipeline_run
from arcforge_core.pipeline.plan import CommandLine, plan_stages
from arcforge_core.pipeline.run import run_pipeline
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.train import run as run_module
from arcforge_rl.problems import write
from support.runs import CORE_ONLY

MAKING = ["sources=[arithmetic,greetings]", "count=30", "+counts.greetings=10", "heldout=4"]


@pytest.fixture
def common(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(pipeline_run, "write_page", lambda folder, state: folder / "index.html")
    overrides = [
        "model=tiny",
        *CORE_ONLY,
        f"data.cache_dir={tmp_path / 'cache'}",
        "data.heldout=0.3",
        "trainer.max_steps=1",
        "trainer.sequence_length=256",
        "trainer.micro_batch_tokens=512",
        "trainer.samples=0",
        "trainer.threads=1",
        "generation.max_new_tokens=3",
        "generation.engine=simple",
    ]
    config = compose(["data=conversations", *overrides])
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path / "model", small_tokenizer())
    return overrides


def recipe(tmp_path, *overrides):
    settings = [f"output_dir={tmp_path / 'outputs'}", f"init={tmp_path / 'model'}", *overrides]
    return compose_config("pipeline", PipelineConfig, ["pipeline=made_conversations", *settings])


@pytest.mark.slow(reason="a training run, tiny as it is")
def test_one_command_makes_trains_and_plays(common, tmp_path, monkeypatch):
    line = CommandLine(common=common, stages={"conversations": MAKING})
    result = run_pipeline(recipe(tmp_path), line)
    assert result.status == "finished"
    made, run = result.dir / "1-conversations", result.dir / "2-sft"
    found = json.loads((run / "generation.json").read_text())["evaluations"]
    assert [one["step"] for one in found] == [0, 1]
    figures = found[-1]["figures"]
    assert figures["arithmetic"]["conversations"] == 4 and figures["greetings"]["answers"] == 8
    lines = (made / "train" / "chat" / "greetings.jsonl").read_text().splitlines()
    assert len(lines) == 10, "counts"
    corpora = json.loads((run / "corpus.json").read_text())["encoder"]["corpora"]
    assert corpora["reasoning"]["conversations"] == 30 and corpora["chat"]["conversations"] == 10
    assert result.figures["conversations.arithmetic, train"] == 30

    monkeypatch.setattr(write, "run", lambda *args: pytest.fail("made again"))
    assert run_pipeline(recipe(tmp_path, "resume=latest"), line).status == "finished"


def test_options_of_the_conversations_are_checked_first(common, tmp_path):
    with pytest.raises(ConfigError, match=r"stage conversations: sources='sums': must be one of"):
        plan_stages(recipe(tmp_path), CommandLine(stages={"conversations": ["sources=[sums]"]}))
    with pytest.raises(ConfigError, match=r"stage conversations: counts='lookup': must be one of arithmetic"):
        given = ["sources=[arithmetic]", "+counts.lookup=3"]
        plan_stages(recipe(tmp_path), CommandLine(stages={"conversations": given}))

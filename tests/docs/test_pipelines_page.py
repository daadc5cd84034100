"""The recipes that ``pipelines.md`` gives compose."""

from pathlib import Path

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.configs import PipelineConfig
from arcforge_core.pipeline.plan import CommandLine, plan_stages

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


@pytest.fixture
def stages_of(pages, tmp_path, monkeypatch):
    """Returns the stages of a recipe on the page by its name."""
    (tmp_path / "conf" / "pipeline").mkdir(parents=True)
    (tmp_path / "conf" / "arcforge.toml").touch()
    for block in pages[PAGE]:
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    monkeypatch.chdir(tmp_path)

    def plan(name, *overrides):
        return plan_stages(compose_config("pipeline", PipelineConfig, [f"pipeline={name}", *overrides]), CommandLine())

    return plan


def test_other_jobs_come_before_and_after_training(stages_of):
    stages = stages_of("assistant", "init=mini")
    assert [stage.job.name for stage in stages] == ["conversations", "train", "eval", "convert"]
    _, sft, score, model = (stage.config for stage in stages)
    assert (sft.init, sft.data.folders) == ("mini", ["RUN_OF_conversations/train"])
    assert score.suite.files == ["RUN_OF_conversations/heldout"]
    assert score.checkpoint == model.checkpoint == "RUN_OF_sft"


def test_stages_of_training_follow_each_other(stages_of):
    short, long = stages_of("mine")
    assert (short.config.trainer.sequence_length, long.config.trainer.sequence_length) == (512, 4096)
    assert (long.config.data.packing, long.config.trainer.max_steps) == ("long_documents", 100)

"""The recipe that ``pipelines.md`` gives is one."""

from pathlib import Path

from arcforge_core.config.compose import compose_config
from arcforge_core.configs import PipelineConfig
from arcforge_core.pipeline.plan import CommandLine, plan_stages

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def test_the_recipe_of_the_page_composes(pages, tmp_path, monkeypatch):
    [recipe] = [block for block in pages[PAGE] if block.title]
    file = tmp_path / recipe.title
    file.parent.mkdir(parents=True)
    file.write_text(recipe.text)
    (tmp_path / "conf" / "arcforge.toml").touch()
    monkeypatch.chdir(tmp_path)
    config = compose_config("pipeline", PipelineConfig, [f"pipeline={file.stem}"])
    short, long = plan_stages(config, CommandLine())
    assert (short.config.trainer.sequence_length, long.config.trainer.sequence_length) == (512, 4096)
    assert (long.config.data.packing, long.config.trainer.max_steps) == ("long_documents", 100)

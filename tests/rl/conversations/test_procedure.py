"""One command from nothing to a trained run that was played before and after."""

import json
from dataclasses import replace

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.runs import CORE_ONLY
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.train import run as run_module
from arcforge_rl.configs import MadeConversationsConfig
from arcforge_rl.conversations import procedure, write


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    config = compose(
        [
            "procedure=made_conversations",
            "data=conversations",
            "model=tiny",
            *CORE_ONLY,
            "procedure.sources=[arithmetic,greetings]",
            "procedure.count=30",
            "+procedure.counts.greetings=10",
            "procedure.heldout=4",
            f"procedure.folder={tmp_path / 'made'}",
            f"data.cache_dir={tmp_path / 'cache'}",
            "data.heldout=0.3",
            f"output_dir={tmp_path / 'outputs'}",
            f"init={tmp_path / 'model'}",
            "trainer.max_steps=1",
            "trainer.sequence_length=256",
            "trainer.micro_batch_tokens=512",
            "trainer.samples=0",
            "trainer.threads=1",
            "generation.max_new_tokens=3",
            "generation.engine=simple",
        ]
    )
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path / "model", small_tokenizer())
    return config


@pytest.mark.slow(reason="two training runs, tiny as they are")
def test_one_command_makes_trains_and_plays(config, tmp_path, monkeypatch):
    result = procedure.run(config)
    assert result.metrics["status"] == "finished"
    found = json.loads((result.dir / "generation.json").read_text())["evaluations"]
    assert [one["step"] for one in found] == [0, 1]
    figures = found[-1]["figures"]
    assert figures["arithmetic"]["conversations"] == 4 and figures["greetings"]["answers"] == 8
    lines = (tmp_path / "made" / "train" / "chat" / "greetings.jsonl").read_text().splitlines()
    assert len(lines) == 10, "counts"
    corpora = json.loads((result.dir / "corpus.json").read_text())["encoder"]["corpora"]
    assert corpora["reasoning"]["conversations"] == 30 and corpora["chat"]["conversations"] == 10

    monkeypatch.setattr(write, "run", lambda *args: pytest.fail("made again"))
    assert procedure.run(config).metrics["status"] == "finished"


def test_other_options_make_others(config, monkeypatch):
    made = []
    monkeypatch.setattr(write, "run", lambda options: made.append(options))
    for count in (3, 4):
        options = replace(config.procedure, count=count)
        procedure.make(options, write.Path(options.folder))
    assert [options.count for options in made] == [3, 4] and made[0].counts == {"greetings": 10}


def test_what_cannot_be_made_is_refused(config):
    with pytest.raises(ConfigError, match="data='stdlib': must be conversations"):
        procedure.run(replace(config, data=compose(["data=stdlib"]).data))
    with pytest.raises(ConfigError, match=r"procedure\.sources='sums': must be one of"):
        MadeConversationsConfig(sources=["sums"])
    with pytest.raises(ConfigError, match=r"procedure\.counts='lookup': must be one of arithmetic"):
        MadeConversationsConfig(sources=["arithmetic"], counts={"lookup": 3})

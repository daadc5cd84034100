"""Expert iteration with a scripted engine and real, tiny training runs: rounds, and going on where it stopped."""

import json
import random
from dataclasses import replace

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.conversations import evaluate
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.runs import CORE_ONLY
from arcforge_core.testing.scripted_engine import ScriptedEngine
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.train import run as run_module
from arcforge_rl.sampling import iterate

USER = "<|user|>"
pytestmark = pytest.mark.slow(reason="two training runs a test, tiny as they are")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Two rounds over problems of which the script solves about half of the tries."""
    problems = [
        {
            "source": "says",
            "task": f"says/{n}",
            "thinking": "off",
            "messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n}"}],
            "checker": {"name": "number", "arguments": {"answer": f"{n}"}},
        }
        for n in range(12)
    ]
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    (tmp_path / "heldout.json").write_text(json.dumps(problems[:2]))

    def script(prompt, params):
        said = prompt.partition("say ")[2].partition("<")[0].strip()
        return (said if random.Random(params.seed).random() < 0.5 else f"no {said}0") + USER

    tokenizer = small_tokenizer()
    monkeypatch.setattr(evaluate, "default_engine", lambda name, model: ScriptedEngine(tokenizer, script))
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    config = compose(
        [
            "procedure=expert_iteration",
            f"procedure.files=[{tmp_path / 'problems.json'}]",
            "procedure.samples=4",
            "procedure.limit=10",
            "data=conversations",
            "model=tiny",
            *CORE_ONLY,
            f"data.cache_dir={tmp_path / 'cache'}",
            "data.heldout=0.3",
            f"output_dir={tmp_path / 'outputs'}",
            f"init={tmp_path / 'model'}",
            "trainer.max_steps=2",
            "trainer.sequence_length=64",
            "trainer.micro_batch_tokens=64",
            "trainer.samples=0",
            "trainer.threads=1",
            f"generation.files=[{tmp_path / 'heldout.json'}]",
        ]
    )
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path / "model", tokenizer)
    return config


def test_rounds_follow_each_other_and_are_not_done_twice(config, monkeypatch, capsys):
    result = iterate.run(config)
    rounds = json.loads((result.dir / "expert_iteration.json").read_text())["rounds"]
    assert [one["round"] for one in rounds] == [1, 2]
    assert all(0 < one["kept"] <= 10 and 0 < one["pass@1"] < one["pass@4"] <= 1 for one in rounds)
    assert rounds[0]["pass@1"] != rounds[1]["pass@1"], "each round draws anew"
    assert result.metrics["round_1_kept"] == rounds[0]["kept"] and result.metrics["status"] == "finished"
    assert "generation_exact" in capsys.readouterr().out
    configs = [(result.dir / f"round-{n}" / "run" / "config.yaml").read_text() for n in (1, 2)]
    assert "round-1/tries/kept" in configs[1] and "round-2/tries/kept" in configs[1]
    assert f"init: {result.dir}/round-1/run" in configs[1] and f"init: {config.init}" in configs[0]

    monkeypatch.setattr(iterate, "sample", lambda *args: pytest.fail("tries again"))
    monkeypatch.setattr(iterate, "train", lambda *args: pytest.fail("trains again"))
    assert iterate.run(config).metrics == result.metrics


def test_what_was_stopped_goes_on(config, monkeypatch):
    train, folder = iterate.train, iterate.folder_of(config)

    def stop(run, folder=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(iterate, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        iterate.run(config)
    assert (folder / "round-1" / "tries" / "sampling.json").is_file()
    calls = []
    monkeypatch.setattr(iterate, "train", lambda *args: (calls.append(args), train(*args))[1])
    result = iterate.run(config)
    assert result.dir == folder and len(calls) == 2


def test_each_round_may_begin_anew(config):
    again = replace(config, procedure=replace(config.procedure, restart=True))
    result = iterate.run(again)
    assert result.dir != iterate.folder_of(config)
    assert f"init: {config.init}" in (result.dir / "round-2" / "run" / "config.yaml").read_text()


def test_where_nothing_is_right_there_is_nothing_to_learn(config, monkeypatch):
    tokenizer = small_tokenizer()
    silent = ScriptedEngine(tokenizer, lambda prompt, params: f"no{USER}")
    monkeypatch.setattr(evaluate, "default_engine", lambda name, model: silent)
    with pytest.raises(DataError, match="not one try is right"):
        iterate.run(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init": None}, "init=None: a checkpoint"),
        ({"resume": "latest"}, "resume='latest': must be null"),
    ],
)
def test_what_cannot_be_iterated_is_refused(config, change, message):
    with pytest.raises(ConfigError, match=message):
        iterate.run(replace(config, **change))


def test_problems_and_conversations_are_needed(config):
    with pytest.raises(ConfigError, match=r"procedure\.files=\[\]: name files"):
        iterate.run(replace(config, procedure=replace(config.procedure, files=[])))
    with pytest.raises(ConfigError, match="data='stdlib': must be conversations"):
        iterate.run(replace(config, data=compose(["data=stdlib"]).data))

"""Expert iteration, a pipeline that repeats, with a scripted engine and real, tiny training runs."""

import json
import random

import pytest
import yaml

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.eval.conversations import evaluate
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.pipeline import run as pipeline_run
from arcforge_core.pipeline.plan import CommandLine
from arcforge_core.pipeline.run import run_pipeline
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.train import run as run_module
from arcforge_rl.best_of import command
from support.runs import CORE_ONLY
from support.scripted_engine import ScriptedEngine

USER = "<|user|>"
pytestmark = pytest.mark.slow(reason="two training runs a test, tiny as they are")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs two rounds over problems of which the script solves about half of the tries."""
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
    monkeypatch.setattr(pipeline_run, "write_page", lambda folder, state: folder / "index.html")
    common = [
        "model=tiny",
        *CORE_ONLY,
        f"data.cache_dir={tmp_path / 'cache'}",
        "data.heldout=0.3",
        "trainer.max_steps=2",
        "trainer.sequence_length=64",
        "trainer.micro_batch_tokens=64",
        "trainer.samples=0",
        "trainer.threads=1",
        f"generation.files=[{tmp_path / 'heldout.json'}]",
    ]
    tries = [f"files=[{tmp_path / 'problems.json'}]", "samples=4", "limit=10"]
    config = compose(["data=conversations", *common])
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path / "model", tokenizer)

    def run(*own, learn=(), init=tmp_path / "model"):
        settings = [f"output_dir={tmp_path / 'outputs'}", f"init={init}", *own]
        recipe = compose_config("pipeline", PipelineConfig, ["pipeline=expert_iteration", *settings])
        return run_pipeline(recipe, CommandLine(common=common, stages={"tries": tries, "learn": list(learn)}))

    return run


def sampling(folder, name):
    return json.loads((folder / name / "sampling.json").read_text())


def test_rounds_follow_each_other_and_are_not_done_twice(run, tmp_path, monkeypatch):
    result = run()
    names = ["1-tries_1", "2-learn_1", "3-tries_2", "4-learn_2"]
    assert sorted(path.name for path in result.dir.iterdir() if path.is_dir() and path.name != "latest") == names
    rounds = [sampling(result.dir, name)["figures"]["all"] for name in names[::2]]
    assert all(0 < one["kept"] <= 10 and 0 < one["pass@1"] < one["pass@4"] <= 1 for one in rounds)
    assert rounds[0]["pass@1"] != rounds[1]["pass@1"], "each round draws others"
    assert result.figures["tries_1.kept"] == rounds[0]["kept"] and result.status == "finished"
    assert "learn_2.generation_exact" in result.figures
    configs = [yaml.safe_load((result.dir / name / "config.yaml").read_text()) for name in names[1::2]]
    kept = [str(result.dir / name / "kept") for name in names[::2]]
    assert [config["data"]["folders"] for config in configs] == [kept[:1], kept]
    assert [config["init"] for config in configs] == [str(tmp_path / "model"), str(result.dir / "2-learn_1")]
    assert [config["seed"] for config in configs] == [0, 1]
    settings = [sampling(result.dir, name)["settings"] for name in names[::2]]
    assert [one["seed"] for one in settings] == [0, 1]
    assert str(result.dir / "2-learn_1") in settings[1]["checkpoint"]

    monkeypatch.setattr(command, "sample", lambda *args: pytest.fail("tries again"))
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("trains again"))
    assert run("resume=latest").figures == result.figures


@pytest.mark.nightly(reason="a pipeline twice")
def test_what_was_stopped_is_resumed(run, tmp_path, monkeypatch):
    train = run_module.train

    def stop(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    folder = (tmp_path / "outputs" / "latest").resolve()
    assert (folder / "1-tries_1" / "sampling.json").is_file()
    calls = []
    monkeypatch.setattr(run_module, "train", lambda config: (calls.append(config.name), train(config))[1])
    assert run("resume=latest").dir == folder
    assert calls == ["expert_iteration-learn_1", "expert_iteration-learn_2"]


@pytest.mark.nightly(reason="another pipeline")
def test_each_round_may_start_from_the_first_weights(run, tmp_path):
    result = run(learn=[f"init={tmp_path / 'model'}"])
    assert f"init: {tmp_path / 'model'}" in (result.dir / "4-learn_2" / "config.yaml").read_text()


def test_where_nothing_is_right_there_is_nothing_to_learn(run, monkeypatch):
    silent = ScriptedEngine(small_tokenizer(), lambda prompt, params: f"no{USER}")
    monkeypatch.setattr(evaluate, "default_engine", lambda name, model: silent)
    with pytest.raises(DataError, match=r"stage learn_1: data\.folders=.*no conversations there"):
        run()


def test_weights_to_start_from_are_needed(run):
    with pytest.raises(ArcforgeError, match="stage tries_1: init=None: it needs a checkpoint"):
        run(init="null")

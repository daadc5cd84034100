"""Whole pipelines of the test-sized model: order, folders, interruption and resumption, faults."""

import json
import os
import signal

import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.pretrained import open_checkpoint
from arcforge_core.errors import ArcforgeError, CheckpointError, ConfigError
from arcforge_core.files.lock import LOCK
from arcforge_core.pipeline import run as pipeline_run
from arcforge_core.pipeline.plan import CommandLine
from arcforge_core.pipeline.run import run_pipeline
from arcforge_core.pipeline.state import FILE, PipelineState
from arcforge_core.train import run as run_module
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.state import checkpoints

STAGES = {
    "base": ["trainer.sequence_length=32", "model.max_position_embeddings=48", "model.rope_theta=1e4"],
    "extend": ["trainer.sequence_length=64", "model.max_position_embeddings=64", "data.packing=long_documents"],
}
ONE = {"base": STAGES["base"]}
pytestmark = pytest.mark.usefixtures("quick")
NAMES = ["1-base", "2-extend", "3-last"]


class Steps:
    """Notes (stage, step) of every step, and does something in those that are asked for."""

    def __init__(self, monkeypatch):
        self.taken, self.act = [], {}
        original = LanguageModelModule.training_step

        def training_step(module, batch, batch_idx):
            here = module.config.name.removeprefix("small-"), module.progress.step + 1
            self.taken.append(here)
            self.act.pop(here, lambda: None)()
            original(module, batch, batch_idx)

        monkeypatch.setattr(LanguageModelModule, "training_step", training_step)


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def die():
    raise SystemExit(9)


def weights(folder):
    return [dict(load_pretrained(checkpoints(folder / name)[-1]).state_dict()) for name in sorted_runs(folder)]


def sorted_runs(folder):
    return [name for name in NAMES if (folder / name).is_dir()]


def assert_same(folder, other):
    for ours, wanted in zip(weights(folder), weights(other), strict=True):
        assert [name for name in wanted if not torch.equal(ours[name], wanted[name])] == []


@pytest.mark.slow(reason="three runs with their starts and ends")
def test_stages_follow_each_other(recipe, steps, tmp_path, capsys):
    folder = run_pipeline(recipe(), CommandLine()).dir
    assert steps.taken == [(name, step) for name in ("base", "extend", "last") for step in range(1, 5)]
    assert folder.parent.parent == tmp_path / "pipelines" and (tmp_path / "pipelines" / "latest").resolve() == folder
    assert {path.name for path in folder.iterdir()} == {*NAMES, FILE, LOCK, "latest"}
    state = json.loads((folder / FILE).read_text())
    assert state["status"] == "finished"
    for record in state["stages"]:
        assert record["figures"] == json.loads((folder / record["folder"] / "summary.json").read_text())
    configs = [open_checkpoint(checkpoints(folder / name)[-1]).config for name in NAMES]
    assert [c.max_position_embeddings for c in configs] == [48, 64, 200]
    assert [c.rope_theta for c in configs] == [1e4, 1e6, 1e6]
    printed = capsys.readouterr().out
    assert "starting from" in printed and "model.rope_theta 10000.0 -> 1000000.0" in printed
    assert "stage 3 of 3, last" in printed


def test_each_stage_starts_from_the_weights_and_the_tokenizer_before(recipe, monkeypatch):
    seen = []
    original = run_module.train

    def train(config):
        result = original(config)
        seen.append((config.init, [p.name for p in checkpoints(result.dir)][-1]))
        return result

    monkeypatch.setattr(run_module, "train", train)
    still = {"extend": ["optimizer.lr=0", "optimizer.weight_decay=0", "model.router_bias_rate=0"]}
    folder = run_pipeline(recipe(stages=STAGES), CommandLine(stages=still)).dir
    assert [init for init, _ in seen] == [None, str(folder / "1-base")]
    base, extend = weights(folder)
    assert all(torch.equal(base[name], extend[name]) for name in base)
    corpora = [json.loads((folder / name / "corpus.json").read_text()) for name in NAMES[:2]]
    assert corpora[0]["tokenizer"]["sha256"] == corpora[1]["tokenizer"]["sha256"]


@pytest.mark.nightly(reason="two pipelines of three runs each")
def test_interrupted_in_a_stage_it_goes_on_bit_for_bit(recipe, steps, tmp_path, monkeypatch, capsys):
    """Ctrl-C in two stages, and one that is killed before its first checkpoint."""
    whole = run_pipeline(recipe(output_dir=str(tmp_path / "whole")), CommandLine()).dir
    expected, steps.taken = steps.taken, []
    arguments = ["pipeline=small", "seed=0"]
    monkeypatch.setattr("sys.argv", ["/bin/arcforge-pipeline", *arguments])
    steps.act = {("base", 3): press_ctrl_c, ("extend", 1): die, ("last", 2): press_ctrl_c}
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(recipe(), CommandLine())
    printed = capsys.readouterr().out
    assert "stopped at step 3; resume it with: arcforge-pipeline pipeline=small seed=0 resume=latest" in printed
    assert "stage 1 of 3, base has saved itself; remaining stages after it: 2" in printed
    with pytest.raises(SystemExit):
        run_pipeline(recipe(resume="latest"), CommandLine())
    assert "to resume: arcforge-pipeline pipeline=small seed=0 resume=latest" in capsys.readouterr().out
    latest = (tmp_path / "pipelines" / "latest").resolve()
    assert [r.status for r in PipelineState.read(latest).stages] == ["finished", "interrupted", "planned"]
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(recipe(resume=str(latest)), CommandLine())
    folder = run_pipeline(recipe(resume="latest"), CommandLine()).dir
    assert folder == latest and sorted({*steps.taken}) == sorted({*expected})
    assert len(steps.taken) == len(expected) + 1, "only the step that was killed is taken twice"
    assert_same(folder, whole)


def test_a_start_named_through_a_link_is_the_run_it_led_to(recipe, steps, tmp_path, monkeypatch, capsys):
    """The run moves ``latest`` itself, and a resumed one is given the same command line."""
    monkeypatch.chdir(tmp_path)
    before = run_pipeline(recipe(stages=ONE), CommandLine()).dir
    latest = "pipelines/latest/latest"
    steps.act = {("base", 2): press_ctrl_c}
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(recipe(stages=ONE, init=latest), CommandLine())
    folder = run_pipeline(recipe(stages=ONE, init=latest, resume="latest"), CommandLine()).dir
    assert folder != before and (tmp_path / "pipelines" / "latest").resolve() == folder
    (record,) = PipelineState.read(folder).stages
    assert (tmp_path / record.config["init"]).resolve() == before / NAMES[0]


def test_a_finished_pipeline_has_nothing_left_to_do(recipe, steps, capsys):
    one = {"base": ["trainer.sequence_length=32", "model.max_position_embeddings=48"]}
    folder = run_pipeline(recipe(stages=one), CommandLine()).dir
    steps.taken = []
    assert run_pipeline(recipe(stages=one, resume=str(folder)), CommandLine()).dir == folder
    assert steps.taken == [] and "stage 1 of 1, base: finished before" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=r"stages\.base\.trainer\.max_steps was 4, now 5"):
        run_pipeline(recipe(stages=one, resume="latest"), CommandLine(common=["trainer.max_steps=5"]))


def test_nothing_trains_before_everything_is_checked(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("a stage was trained"))
    for override in ("trainer.max_stepz=3", "model.hidden_size=32", "data.paths=[no_such_folder]"):
        with pytest.raises(ArcforgeError, match="stage last: "):
            run_pipeline(recipe(), CommandLine(stages={"last": [override]}))
    assert not (tmp_path / "pipelines").exists()


def test_check_prints_the_plan_and_writes_nothing(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline_run, "check_data", lambda *args: pytest.fail("data was read"))
    assert run_pipeline(recipe(check=True), CommandLine()) is None
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["stage", "base", "extend", "last"]
    assert lines[2].split()[1:] == [
        "reference", "4", "1,024", "64", "64", "1,000,000", "0.001", "long_documents"
    ]  # fmt: skip
    commands = [line for line in lines if line.startswith("arcforge-train ")]
    assert [c.rpartition(" ")[2] for c in commands[1:]] == ["init=RUN_OF_base", "init=RUN_OF_extend"]
    assert not (tmp_path / "pipelines").exists()


def test_a_stage_that_fails_is_named_and_kept(recipe, steps, tmp_path):
    def fail():
        raise ArcforgeError("it broke")

    steps.act = {("extend", 3): fail}
    with pytest.raises(ArcforgeError, match="stage extend: it broke"):
        run_pipeline(recipe(stages=STAGES), CommandLine())
    state = PipelineState.read((tmp_path / "pipelines" / "latest").resolve())
    assert [r.status for r in state.stages] == ["finished", "failed: stage extend: it broke"]
    steps.taken = []
    run_pipeline(recipe(stages=STAGES, resume="latest"), CommandLine())
    assert steps.taken[0] == ("extend", 3), "it continues after its last checkpoint"


def test_an_unfinished_run_is_mentioned(recipe, steps, capsys):
    one = {"base": STAGES["base"]}
    for said in (False, True):
        steps.act = {("base", 1): press_ctrl_c}
        with pytest.raises(KeyboardInterrupt):
            run_pipeline(recipe(stages=one), CommandLine())
        told = "is interrupted; starting a new one (resume=latest resumes it)" in capsys.readouterr().out
        assert told == said


def test_several_processes_are_refused(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2: a pipeline is one process; check=true prints the commands"):
        run_pipeline(recipe(), CommandLine())


@pytest.mark.nightly(reason="a training run and two other jobs, twice")
def test_other_jobs_follow_a_run_and_are_not_done_twice(recipe, tmp_path, monkeypatch, capsys):
    common = recipe().overrides
    data = [o for o in common if o.startswith("data")]
    small = ["sequence_length=32", "micro_batch_tokens=32", "max_tokens=64", "functions=0"]
    stages = {
        "base": STAGES["base"],
        "hf": {"job": "convert", "overrides": ["to=arcforge"]},
        "score": {"job": "eval", "overrides": [*data, *small, "checkpoint=${stage:hf}"]},
    }
    result = run_pipeline(recipe(stages=stages))
    assert (result.dir / "2-hf" / "model.safetensors").is_file()
    state = PipelineState.read(result.dir)
    assert [(r.job, r.status) for r in state.stages] == [(job, "finished") for job in ("train", "convert", "eval")]
    assert [r.dir for r in state.stages] == ["1-base", "2-hf", "2-hf"]
    assert result.figures["score.bits_per_byte"] == state.stages[2].figures["bits_per_byte"]
    assert "score  job eval     bits_per_byte" in capsys.readouterr().out

    again = {**stages, "twice": stages["score"]}
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("a stage was trained"))
    assert (
        run_pipeline(recipe(stages=again, resume="latest")).figures["twice.bits_per_byte"]
        == (result.figures["score.bits_per_byte"])
    )
    capsys.readouterr()
    other = {**again, "score": {"job": "eval", "overrides": [*data, *small, "max_tokens=32"]}}
    assert run_pipeline(recipe(stages=other, resume="latest")).figures["score.tokens"] == 32
    printed = capsys.readouterr().out
    assert "changed for a later stage: stages.score.suite.max_tokens was 64, now 32" in printed
    assert "twice: finished before" in printed
    with pytest.raises(CheckpointError, match=r"stages\.hf\.to was arcforge, now llama .*remove .*2-hf"):
        run_pipeline(recipe(stages={**other, "hf": {"job": "convert", "overrides": ["to=llama"]}}, resume="latest"))


def test_a_second_process_is_refused_while_a_pipeline_runs(recipe, steps, tmp_path):
    def resume():
        with pytest.raises(ArcforgeError, match=rf"in use by process {os.getpid()}\b"):
            run_pipeline(recipe(stages=ONE, resume="latest"), CommandLine())

    steps.act = {("base", 2): resume}
    run_pipeline(recipe(stages=ONE), CommandLine())
    assert steps.taken == [("base", n) for n in range(1, 5)] and not steps.act


def test_an_output_folder_that_cannot_be_written_is_reported_before_any_work(recipe, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(pipeline_run, "check_stages", lambda stages: pytest.fail("work has begun"))
    with pytest.raises(ConfigError, match=r"output_dir='.*/file/runs': cannot be written: Not a directory"):
        run_pipeline(recipe(output_dir=str(tmp_path / "file" / "runs")), CommandLine())

"""A run that is interrupted or killed and resumed equals one that was not, bit for bit; what may change in between."""

import copy
import csv
import itertools
import json
import os
import random
import shlex
import shutil
import signal

import numpy as np
import pytest
import torch

from arcforge_core import load_pretrained
from arcforge_core.errors import CheckpointError
from arcforge_core.train import run as run_module
from arcforge_core.train import step as step_module
from arcforge_core.train.module import LanguageModelModule, Progress
from arcforge_core.train.resume import offer_resume, resume_command
from arcforge_core.train.run import train
from arcforge_core.train.state import checkpoints
from support.marks import nightly_case
from support.runs import tiny_run

SMALL = (
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.intermediate_size=48", "model.moe_intermediate_size=16",
    "model.mtp.depths=1", "model.mtp.fraction=0.5", "model.router_bias_rate=0.01",
    "trainer.sequence_length=32", "trainer.micro_batch_tokens=64", "trainer.accumulate=3", "trainer.max_steps=9",
    "trainer.samples=0", "trainer.eval_every=4", "trainer.eval_tokens=128", "trainer.log_every=1",
)  # fmt: skip
EPOCHS = ("trainer.max_steps=30", "data.heldout=0.5", "trainer.micro_batch_tokens=96", "trainer.checkpoint_every=1")
MUON = ("attention=mla", "optimizer=muon_split", "schedule=wsd", "trainer.checkpoint_async=true")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leaves out what takes time and says nothing about resuming."""
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *a: 1e9)


class Recorder:
    """Notes the losses of every step and interrupts, as Ctrl-C does, in the steps that are asked for."""

    def __init__(self, monkeypatch):
        self.losses, self.interrupt = {}, set()
        original = LanguageModelModule.training_step

        def training_step(module, batch, batch_idx):
            number = module.progress.step + 1
            if number in self.interrupt:
                os.kill(os.getpid(), signal.SIGINT)
            original(module, batch, batch_idx)
            parts = {name: value.item().hex() for name, value in module.record.result.losses.items()}
            assert self.losses.setdefault(number, parts) == parts, f"step {number} has other losses than before"

        monkeypatch.setattr(LanguageModelModule, "training_step", training_step)


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def content(run_dir):
    """Returns weights, buffers and the optimizer's state at the end of a run."""
    last = checkpoints(run_dir)[-1]
    saved = torch.load(last / "training_state.pt", weights_only=True)
    tensors = dict(load_pretrained(last).state_dict())
    for number, values in saved["optimizer"]["state"].items():
        tensors |= {f"{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    return tensors


def assert_equal(run_dir, expected):
    found = content(run_dir)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def resumed(config, resume="latest", **changes):
    config = copy.deepcopy(config)
    config.resume = str(resume)
    for name, value in changes.items():
        setattr(config.trainer, name, value)
    return config


def assert_interruptions_change_nothing(config, recorder, steps):
    """Trains at one go, then in sittings that end after these steps."""
    whole = train(copy.deepcopy(config))
    expected, losses = content(whole.dir), dict(recorder.losses)
    assert len(losses) == config.trainer.max_steps
    recorder.interrupt, recorder.losses = set(steps), {}
    result = train(config)
    for step in steps:
        assert (result.figures["status"], result.figures["steps"]) == ("interrupted", step)
        result = train(resumed(config))
    assert result.figures["status"] == "finished"
    assert recorder.losses == losses
    assert_equal(result.dir, expected)
    timeless = [name for name in rows(whole.dir / "metrics.csv")[0] if name not in ("seconds", "tokens_per_s", "mfu")]
    here, there = rows(result.dir / "metrics.csv"), rows(whole.dir / "metrics.csv")
    assert [[row[n] for n in timeless] for row in here] == [[row[n] for n in timeless] for row in there]
    return result


# ---- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly(reason="five runs")
def test_sittings_of_several_lengths_equal_one(tmp_path, recorder):
    assert_interruptions_change_nothing(tiny_run(tmp_path, *SMALL, "trainer.max_steps=7"), recorder, [1, 4])


def test_the_command_that_resumes_is_told_as_a_shell_takes_it(tmp_path, recorder, monkeypatch, capsys):
    arguments = ["data.paths=[/some/file.txt]", "name=two words"]
    monkeypatch.setattr("sys.argv", ["/bin/arcforge-train", *arguments])
    recorder.interrupt = {1}
    train(tiny_run(tmp_path, *SMALL, "trainer.max_steps=2"))
    _, _, command = capsys.readouterr().out.partition("resume it with: ")
    assert shlex.split(command.splitlines()[0]) == ["arcforge-train", *arguments, "resume=latest"]


@pytest.mark.nightly(reason="thirty runs of one step, each with its start and its end")
@pytest.mark.parametrize("parts", [(), MUON], ids=["core", "muon_split"])
def test_thirty_steps_interrupted_in_every_one_equal_one_run(tmp_path, recorder, parts):
    """Three micro-batches a step, MTP on half of the text, router biases that move, more than one epoch."""
    if parts:
        pytest.importorskip("arcforge_attention")
        pytest.importorskip("arcforge_optim")
    config = tiny_run(tmp_path, *SMALL, *EPOCHS, *parts)
    result = assert_interruptions_change_nothing(config, recorder, list(range(1, 30)))
    manifest = json.loads((result.dir / "corpus.json").read_text())
    [source] = manifest["splits"]["train"].values()
    assert source["tokens"] < result.figures["tokens"], "an epoch ends within the run"
    router = content(result.dir)["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert router.abs().max() > 0.01


def test_random_numbers_go_on_where_they_were(tmp_path, recorder, monkeypatch):
    original = LanguageModelModule.training_step

    def with_noise(module, batch, batch_idx):
        noise = torch.randn(()) + random.random() + np.random.random()
        module.model.model.norm.weight.data += 1e-3 * noise
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", with_noise)
    assert_interruptions_change_nothing(tiny_run(tmp_path, *SMALL, "trainer.max_steps=5"), recorder, [2])


@pytest.mark.nightly(reason="three runs")
def test_a_budget_of_time_goes_on_where_it_was(tmp_path, recorder, monkeypatch):
    """Under a clock that counts steps; the rate rises with time, so a clock that restarts would show."""

    def tick(progress):
        progress.seconds += 1.0

    monkeypatch.setattr(Progress, "tick", tick)
    budget = ("trainer.max_steps=null", "trainer.minutes=0.1", "schedule.warmup=1.0")
    config = tiny_run(tmp_path, *SMALL, *budget)
    whole = train(copy.deepcopy(config))
    recorder.interrupt = {2, 4}
    result = train(config)
    for _ in range(2):
        result = train(resumed(config))
    assert result.figures["steps"] == whole.figures["steps"] == 6
    assert_equal(result.dir, content(whole.dir))


@pytest.mark.parametrize("micro", [nightly_case(1), 2, nightly_case(3)])
def test_a_run_killed_in_the_middle_of_a_step_takes_it_again_from_its_first_micro_batch(
    tmp_path, recorder, monkeypatch, micro
):
    config = tiny_run(tmp_path, *SMALL, "trainer.max_steps=6", "trainer.checkpoint_every=2", "trainer.eval_every=100")
    child = os.fork()
    if child == 0:
        counter, micro_loss = itertools.count(1), step_module.micro_loss

        def kill_at(*args):
            if next(counter) == 3 * 4 + micro:  # in the fifth step
                os.kill(os.getpid(), signal.SIGKILL)
            return micro_loss(*args)

        monkeypatch.setattr(step_module, "micro_loss", kill_at)
        try:
            train(config)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    result = train(resumed(config))
    assert sorted(recorder.losses) == [5, 6]
    assert [row["step"] for row in rows(result.dir / "metrics.csv")] == list("123456")
    assert_equal(result.dir, content(train(copy.deepcopy(config)).dir))


# ---- from which checkpoint -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of six steps with checkpoints after 2, 4 and 6."""
    root = tmp_path_factory.mktemp("finished").resolve()
    config = tiny_run(root, *SMALL, "trainer.max_steps=6", "trainer.checkpoint_every=2", "trainer.keep_checkpoints=3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
        return config, train(copy.deepcopy(config)).dir


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that run, its configuration and its folder."""
    config, run_dir = copy.deepcopy(finished[0]), tmp_path / "outputs" / "day" / "time-train"
    shutil.copytree(finished[1], run_dir, symlinks=True)
    (tmp_path / "outputs" / "latest").symlink_to(run_dir)
    config.output_dir = str(tmp_path / "outputs")
    return config, run_dir


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_latest_goes_back_over_damage_and_says_so(run, finished, capsys):
    config, run_dir = run
    flip(run_dir / "checkpoints" / "step-00000006" / "model.safetensors")
    result = train(resumed(config))
    said = " ".join(capsys.readouterr().out.split())
    assert "step-00000006/model.safetensors is damaged" in said and "going back to step-00000004" in said
    assert result.figures["steps"] == 6
    assert_equal(run_dir, content(finished[1]))


def test_a_named_run_or_checkpoint_must_be_whole(run):
    config, run_dir = run
    last = run_dir / "checkpoints" / "step-00000006"
    flip(last / "training_state.pt")
    with pytest.raises(CheckpointError, match=r"training_state\.pt is damaged.*; resume=.*step-00000004 takes"):
        train(resumed(config, run_dir))
    with pytest.raises(CheckpointError, match=r"training_state\.pt is damaged: its contents differ from its checksum"):
        train(resumed(config, last))
    for path in checkpoints(run_dir):
        flip(path / "config.json")
    with pytest.raises(CheckpointError, match=r"step-00000002/config\.json is damaged"):
        train(resumed(config))


def test_a_named_checkpoint_is_gone_back_to(run, finished, capsys):
    config, run_dir = run
    recorded = rows(run_dir / "metrics.csv")
    result = train(resumed(config, run_dir / "checkpoints" / "step-00000002", max_steps=5))
    said = " ".join(capsys.readouterr().out.split())
    assert "going back to step 2: the next save removes step-00000004, step-00000006" in said
    assert result.dir == run_dir
    assert [p.name for p in checkpoints(run_dir)] == ["step-00000002", "step-00000004", "step-00000005"]
    now = rows(run_dir / "metrics.csv")
    assert [row["step"] for row in now] == list("12345")
    assert [row["loss"] for row in now[:2]] == [row["loss"] for row in recorded[:2]]
    assert {row["step"] for row in rows(run_dir / "experts.csv")} == set("12345")


def test_the_links_can_be_resumed_from(run):
    config, run_dir = run
    folder = run_dir / "checkpoints"
    assert (folder / "latest").resolve().name == "step-00000006"
    assert (folder / "best").resolve().name == "step-00000004", "the only evaluation was there"
    assert train(resumed(config, folder / "best", max_steps=5)).figures["steps"] == 5
    assert (folder / "latest").resolve().name == "step-00000005"


def test_nothing_to_resume_from_is_told(tmp_path, finished):
    config = copy.deepcopy(finished[0])
    config.output_dir = str(tmp_path)
    with pytest.raises(CheckpointError, match="resume=latest: no run at"):
        train(resumed(config))
    (tmp_path / "latest").mkdir()
    with pytest.raises(CheckpointError, match="the run has nothing to resume from"):
        train(resumed(config))


def test_the_hint_to_resume_is_a_command_only_where_one_ran(monkeypatch):
    """A notebook's arguments are the kernel's."""
    monkeypatch.setattr("sys.argv", ["/bin/arcforge-train", "seed=1", "resume=outputs/a"])
    assert resume_command() == "arcforge-train seed=1 resume=latest"
    monkeypatch.setattr("sys.argv", ["/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    assert resume_command() == "resume=latest"


@pytest.mark.parametrize(("status", "offered"), [("interrupted", True), (None, True), ("finished", False)])
def test_an_unfinished_run_is_offered(run, capsys, status, offered):
    config, run_dir = run
    if status is None:  # killed
        (run_dir / "summary.json").unlink()
    else:
        (run_dir / "summary.json").write_text(json.dumps({"status": status}))
    offer_resume(config)
    assert (f"is {status or 'cut off'}; starting fresh (resume=latest continues" in capsys.readouterr().out) == offered
    config.name = "another"
    offer_resume(config)
    assert capsys.readouterr().out == "" and config.resume is None


# ---- what has changed ------------------------------------------------------------------------------------------------


def refusal(config, run_dir, capsys):
    with pytest.raises(CheckpointError) as caught:
        train(resumed(config, run_dir))
    return str(caught.value), " ".join(capsys.readouterr().out.split())


def test_changes_are_shown_before_work_and_fields_of_the_state_refused_together(run, capsys, monkeypatch):
    config, run_dir = run
    monkeypatch.setattr(run_module, "build_data", lambda *a, **k: pytest.fail("work has begun"))
    config.model.hidden_size, config.trainer.sequence_length, config.trainer.eval_every = 64, 64, 5
    error, said = refusal(config, run_dir, capsys)
    assert "model.hidden_size was 32, now 64" in error and "trainer.sequence_length was 32, now 64" in error
    assert "eval_every" not in error
    assert "│ trainer.eval_every │ 4 │ 5 │" in said and "│ model.hidden_size │ 32 │ 64 │" in said


def test_another_number_of_processes_is_refused(run, capsys, monkeypatch):
    config, run_dir = run
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE (processes) was 1, now 2" in refusal(config, run_dir, capsys)[0]


def test_other_versions_are_shown(run, capsys):
    config, run_dir = run
    versions = json.loads((run_dir / "versions.json").read_text())
    (run_dir / "versions.json").write_text(json.dumps({**versions, "torch": "1.0"}))
    train(resumed(config))
    assert f"│ torch │ 1.0 │ {versions['torch']} │" in " ".join(capsys.readouterr().out.split())
    train(resumed(config))
    assert "with changes" not in capsys.readouterr().out


def test_another_text_is_refused_and_the_same_elsewhere_is_not(run, tmp_path, capsys):
    config, run_dir = run
    moved = shutil.copytree(config.data.paths[0], tmp_path / "elsewhere" / "corpus")
    config.data.paths = [str(moved)]
    train(resumed(config))
    manifest = json.loads((run_dir / "corpus.json").read_text())
    shards = [{**shard, "sha256": "another"} for shard in manifest["shards"]]
    (run_dir / "corpus.json").write_text(json.dumps({**manifest, "shards": shards}))
    assert "the training text has changed" in refusal(config, run_dir, capsys)[0]
    (run_dir / "corpus.json").write_text(json.dumps(manifest))
    for path in moved.iterdir():
        path.write_text(path.read_text().replace("return", "yield"))
    assert "the tokenizer has changed" in refusal(config, run_dir, capsys)[0]


def test_a_new_learning_rate_takes_effect_and_the_momenta_stay(run, monkeypatch):
    config, _ = run
    seen = []
    original = LanguageModelModule.training_step

    def look(module, batch, batch_idx):
        optimizer = module.optimizers()
        seen.append((optimizer.param_groups[0]["base_lr"], len(optimizer.state)))
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", look)
    before = config.optimizer.lr
    config.optimizer.lr = 0.123
    train(resumed(config, max_steps=7))
    assert seen[0][0] == 0.123 != before and seen[0][1] > 0
    train(resumed(config, max_steps=8))
    assert [lr for lr, _ in seen] == [0.123, 0.123]


def test_a_damaged_record_of_the_run_is_told(run):
    config, run_dir = run
    (run_dir / "config.yaml").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read how .* was configured"):
        train(resumed(config))


@pytest.mark.nightly(reason="four runs")
def test_a_run_that_began_with_weights_resumes(recorder, tmp_path):
    """Its tokenizer is the one of those weights, which the command line does not name."""
    base = train(tiny_run(tmp_path, *SMALL, "name=base", "trainer.max_steps=2"))
    recorder.losses.clear()
    config = tiny_run(tmp_path, *SMALL, f"init={base.dir}", f"data.cache_dir={tmp_path / 'other_cache'}")
    assert_interruptions_change_nothing(config, recorder, [4])


def test_a_run_outside_of_output_dir_resumes(recorder, tmp_path):
    run = train(tiny_run(tmp_path, *SMALL, "trainer.max_steps=2"))
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    shutil.move(run.dir, moved)
    again = train(tiny_run(tmp_path, *SMALL, "trainer.max_steps=3", f"resume={moved}"))
    assert again.figures["steps"] == 3
    assert (tmp_path / "outputs" / "latest").resolve() == moved.resolve()

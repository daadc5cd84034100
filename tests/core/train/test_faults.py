"""Saves that are killed, torn, run out of disk or lose power at every write, fsync, rename and removal.

Run as a script, under `run_under_faults`, this file strikes; as a test module it starts itself and reads the tally.
"""

import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from arcforge_core import save_pretrained
from arcforge_core.errors import CheckpointError
from arcforge_core.files.atomic import previous
from arcforge_core.files.checksums import SUMS, write_checksums
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_core.train.snapshot import TrainingState, optimizer_options, random_states
from arcforge_core.train.state import checkpoints, last_checkpoint, write_checkpoint
from support.faults import Action, compiler, cut_power, run_under_faults, strike

MODELS = [small_model(seed) for seed in range(3)]
TOKENIZER = small_tokenizer()


def state(run_dir, step):
    """A training state whose content follows from the step; momenta of two parameters keep the number of writes low."""
    torch.manual_seed(step)
    random.seed(step)  # a forked child gets a seed of its own
    parameters = [MODELS[0].model.norm.weight, MODELS[0].lm_head.weight]
    optimizer = torch.optim.AdamW([{"params": parameters, "names": ["norm", "head"], "base_lr": 0.1}], lr=0.1)
    for p in parameters:
        moment = torch.full_like(p, step)
        optimizer.state[p] = {"step": torch.tensor(float(step)), "exp_avg": moment, "exp_avg_sq": moment.clone()}
    path = run_dir / "checkpoints" / f"step-{step:08d}"
    progress = {"step": step, "tokens": step, "cursor": step, "seconds": step / 3}
    options, rng = optimizer_options(optimizer), random_states(torch.device("cpu"))
    return TrainingState(path, progress, 1, None, optimizer.state_dict(), options, rng)


def save(run_dir, step):
    write_checkpoint(state(run_dir, step), MODELS[step % 3], TOKENIZER, keep_last=1, keep_best=False)


class AnotherStep:
    """Step 1 is there; step 2 is saved and step 1 then removed."""

    def prepare(self, folder):
        save(folder, 1)

    def work(self, folder):
        save(folder, 2)

    def find(self, folder):
        """Returns the checksums of what a resume finds, all files compared with them."""
        return (last_checkpoint(folder, None).path / SUMS).read_text()

    def check_usable(self, folder):
        """The next save works and leaves nothing else."""
        save(folder, 3)
        assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["latest", "step-00000003"]


class FirstStep(AnotherStep):
    """Nothing is there; step 2 is saved."""

    def prepare(self, folder):
        pass

    def find(self, folder):
        return super().find(folder) if checkpoints(folder) else "nothing"


class SameStep(AnotherStep):
    """Step 1 is whole, step 2 is damaged; step 2 is saved again."""

    def prepare(self, folder):
        save(folder, 2)
        sums = folder / "checkpoints" / "step-00000002" / SUMS
        save(folder, 1)
        sums.parent.mkdir()
        sums.write_text("damaged")

    def find(self, folder):
        return (last_checkpoint(folder, lambda message: None).path / SUMS).read_text()


class Pretrained(AnotherStep):
    """A model is replaced by another under the same name."""

    def prepare(self, folder):
        save_pretrained(MODELS[0], folder / "model", TOKENIZER)

    def work(self, folder):
        save_pretrained(MODELS[1], folder / "model", TOKENIZER)

    def find(self, folder):
        model = folder / "model"
        whole = model if model.is_dir() else previous(model)
        write_checksums(whole)
        return (whole / SUMS).read_text()

    def check_usable(self, folder):
        save_pretrained(MODELS[2], folder / "model", TOKENIZER)
        assert [p.name for p in folder.iterdir()] == ["model"]


SCENARIOS = (AnotherStep, FirstStep, SameStep, Pretrained)


def refused(work):
    """Runs `work`, which may fail, with the full disk as the reason."""
    try:
        work()
    except CheckpointError as error:
        assert "No space left" in str(error), error


def strike_all(scenario, root):
    """Strikes at every change of a scenario and counts how often it found the former or new state."""
    base, folder = root / "base", root / "run"
    base.mkdir()
    scenario.prepare(base)
    work = functools.partial(scenario.work, folder)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder, symlinks=True)

    fresh()
    before = scenario.find(folder)
    fresh()
    changes = strike(work, folder, 0, Action.KILL).changes
    assert_writes_are_seen(folder, changes)
    after = scenario.find(folder)
    assert before != after
    tally = Counter()

    def look(what, at):
        found = scenario.find(folder)
        assert found in (before, after), f"{what} at change {at}"
        tally[f"{what} {'old' if found == before else 'new'}"] += 1
        scenario.check_usable(folder)

    for at in itertools.count(1):
        fresh()
        if not strike(work, folder, at, Action.KILL).killed:
            break
        look("kill", at)
        for lost in ("data", "names"):
            fresh()
            cut_power(folder, strike(work, folder, at, Action.KILL).changes, lose_names=lost == "names")
            look(f"power cut, {lost} lost", at)
        fresh()
        if strike(work, folder, at, Action.TORN).killed:  # it was a write
            look("torn", at)
        fresh()
        assert not strike(functools.partial(refused, work), folder, at, Action.FULL).killed
        look("full", at)
    return {"changes": Counter(change.call for change in changes), "found": tally}


def assert_writes_are_seen(folder, changes):
    """Every byte of the files that are there now passed through the counter."""
    written = Counter()
    for change in changes:
        written[change.inode] += change.size
    files = [p for p in folder.rglob("*") if p.is_file() and p.stat().st_ino in written and p.stat().st_size]
    assert files and all(written[p.stat().st_ino] == p.stat().st_size for p in files)


def tally_of(scenario, tmp_path):
    return json.loads(run_under_faults(Path(__file__), tmp_path, str(tmp_path.resolve()), scenario.__name__))


def killed_at(number, work):
    """Runs `work` in a child that is killed at a call of Python that changes names or flushes; False if it ends."""
    child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def counted(original):
            def call(*args, **kwargs):
                if next(calls) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return call

        for name in ("mkdir", "fsync", "rename", "replace", "symlink", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_save_killed_at_every_call_of_python_leaves_a_whole_state(scenario, tmp_path):
    base, folder, found = tmp_path / "base", tmp_path / "run", []
    base.mkdir()
    scenario().prepare(base)
    killed = True
    while killed:
        shutil.copytree(base, folder, symlinks=True)
        killed = killed_at(len(found) + 1, functools.partial(scenario().work, folder))
        found.append(scenario().find(folder))
        shutil.rmtree(folder)
    assert len(found) > 10 and len(set(found)) == 2
    assert found == sorted(found, key=found.index), "once the new state is there, it stays"


needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler")


@pytest.mark.nightly(reason="hundreds of children that save a checkpoint")
@needs_compiler
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_save_that_is_struck_at_every_change_leaves_a_whole_state(scenario, tmp_path):
    tally = tally_of(scenario, tmp_path)
    changes, found = tally["changes"], tally["found"]
    assert changes["write"] >= 4 and changes["fsync"] >= 6 and changes["rename"] >= 2
    for what in ("kill", "power cut, data lost", "power cut, names lost", "full"):
        old, new = found.get(f"{what} old", 0), found.get(f"{what} new", 0)
        assert old + new == found["kill old"] + found["kill new"] >= sum(changes.values())  # calls that fail count too
        assert old >= changes["write"]
    assert found["torn old"] == changes["write"]
    assert found["kill new"] >= 2


if __name__ == "__main__":
    scenario_class = {s.__name__: s for s in SCENARIOS}[sys.argv[2]]
    print(json.dumps(strike_all(scenario_class(), Path(sys.argv[1]))))

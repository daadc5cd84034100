"""When a run saves, and what a save does to training while it lasts."""

import threading

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.train import run as run_module
from arcforge_core.train.callbacks import checkpointing as checkpointing_module
from arcforge_core.train.callbacks import evaluation as evaluation_module
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.run import train
from arcforge_core.train.state import checkpoints, read_checkpoint
from arcforge_core.train.step import NonFiniteError
from support.runs import tiny_run

QUICK = (
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.mtp.depths=0", "trainer.sequence_length=32",
    "trainer.micro_batch_tokens=64", "trainer.samples=0", "trainer.eval_every=100", "trainer.max_steps=4",
    "trainer.checkpoint_async=true",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *a: 1e9)


@pytest.fixture
def steps(monkeypatch):
    """The steps begun so far."""
    begun, original = [], LanguageModelModule.training_step

    def training_step(module, batch, batch_idx):
        begun.append(module.progress.step + 1)
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", training_step)
    return begun


@pytest.fixture
def writes(monkeypatch):
    """Lets a test put a function before every write; it gets the state."""
    before, original = [], checkpointing_module.write_checkpoint

    def write(state, *args):
        for function in before:
            function(state)
        original(state, *args)

    monkeypatch.setattr(checkpointing_module, "write_checkpoint", write)
    return before


@pytest.mark.parametrize("asynchronous", ["true", "false", "null"])
def test_training_goes_on_while_a_thread_writes(tmp_path, steps, writes, monkeypatch, asynchronous):
    """The write of step 2 ends only when step 3 has begun, or when waiting for that has proved in vain."""
    begun = threading.Event()
    original = LanguageModelModule.training_step

    def training_step(module, batch, batch_idx):
        if module.progress.step == 2:
            begun.set()
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", training_step)
    expected = asynchronous == "true"  # null: not on a CPU
    went_on, threads = [], []
    writes.append(lambda state: went_on.append(begun.wait(60.0 if expected else 0.5)) if state.step == 2 else None)
    writes.append(lambda state: threads.append(threading.current_thread() is threading.main_thread()))
    result = train(tiny_run(tmp_path, *QUICK, f"trainer.checkpoint_async={asynchronous}"))
    assert went_on == [expected] and threads == [not expected] * 2
    assert [read_checkpoint(path).step for path in checkpoints(result.dir)] == [2, 4]


def test_both_ways_write_the_same(tmp_path):
    sums = []
    for asynchronous in (True, False):
        run = train(tiny_run(tmp_path / str(asynchronous), *QUICK, f"trainer.checkpoint_async={asynchronous}"))
        sums.append([(path / "model.safetensors").read_bytes() for path in checkpoints(run.dir)])
    assert sums[0] == sums[1] and len(sums[0]) == 2


def test_a_later_save_waits_for_the_one_before(tmp_path, writes):
    running, most = [], []

    def slow(state):
        running.append(state.step)
        most.append(len(running))
        threading.Event().wait(0.3)
        running.remove(state.step)

    writes.append(slow)
    result = train(tiny_run(tmp_path, *QUICK, "trainer.checkpoint_every=1"))
    assert most == [1, 1, 1, 1]
    assert [p.name for p in checkpoints(result.dir)] == ["step-00000003", "step-00000004"]


def test_an_error_of_the_thread_ends_the_run(tmp_path, steps, writes):
    def full(state):
        raise CheckpointError("cannot write it: No space left on device")

    writes.append(full)
    with pytest.raises(CheckpointError, match="No space left"):
        train(tiny_run(tmp_path, *QUICK, "trainer.max_steps=400", "trainer.checkpoint_every=3"))
    assert 3 <= len(steps) <= 6, "at the latest when the next save is due"


def test_a_run_that_fails_waits_for_its_save(tmp_path, writes, monkeypatch):
    original = LanguageModelModule.training_step

    def poison(module, batch, batch_idx):
        if module.progress.step == 2:
            module.model.model.norm.weight.data[0] = float("nan")
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", poison)
    writes.append(lambda state: threading.Event().wait(1.0))
    with pytest.raises(NonFiniteError, match="the checkpoint of step 2 is kept"):
        train(tiny_run(tmp_path, *QUICK))
    [saved] = checkpoints((tmp_path / "outputs" / "latest").resolve())
    assert read_checkpoint(saved).step == 2


@pytest.fixture
def heldout(monkeypatch):
    """Held-out bits per byte of the evaluations to come."""
    figures = []
    monkeypatch.setattr(
        evaluation_module, "bits_per_byte", lambda *a: BitsPerByte(figures.pop(0) if figures else 9.0, 1.0, 10, 10)
    )
    return figures


def saved_steps(writes):
    steps = []
    writes.append(lambda state: steps.append((state.step, state.heldout.bits_per_byte if state.heldout else None)))
    return steps


EVALUATED = ("trainer.eval_every=1", "trainer.checkpoint_every=4", "trainer.max_steps=6", "trainer.keep_checkpoints=1")


def test_the_best_on_heldout_text_is_saved_and_kept(tmp_path, writes, heldout):
    saved = saved_steps(writes)
    heldout += [3.0, 2.0, 2.5, 2.2, 2.4]
    result = train(tiny_run(tmp_path, *QUICK, *EVALUATED))
    assert saved == [(1, 3.0), (2, 2.0), (4, 2.2), (6, None)]
    assert [p.name for p in checkpoints(result.dir)] == ["step-00000002", "step-00000006"]


def test_a_resumed_run_remembers_the_best(tmp_path, writes, heldout):
    saved = saved_steps(writes)
    heldout += [3.0, 2.0, 9.0, 2.5, 1.9, 2.3]
    rarely = (*QUICK, *EVALUATED, "trainer.checkpoint_every=100")
    train(tiny_run(tmp_path, *rarely, "trainer.max_steps=3"))
    result = train(tiny_run(tmp_path, *rarely, "resume=latest"))
    assert saved == [(1, 3.0), (2, 2.0), (3, None), (5, 1.9), (6, None)]
    assert [p.name for p in checkpoints(result.dir)] == ["step-00000005", "step-00000006"]


def test_without_keep_best_only_the_schedule_saves(tmp_path, writes, heldout):
    saved = saved_steps(writes)
    heldout += [3.0, 2.0, 2.5, 2.2, 2.4]
    result = train(tiny_run(tmp_path, *QUICK, *EVALUATED, "trainer.keep_best=false"))
    assert [step for step, _ in saved] == [4, 6]
    assert [p.name for p in checkpoints(result.dir)] == ["step-00000006"]

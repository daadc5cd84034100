"""Checkpoints on disk: which stay, which is best, what damage does; and states that come back as they were."""

import dataclasses
import json
import random

import numpy as np
import pytest
import torch

from arcforge_core.errors import CheckpointError
from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_core.train import state as state_module
from arcforge_core.train.snapshot import (
    TrainingState,
    host_copy,
    optimizer_options,
    random_states,
    restore_optimizer,
    restore_random_states,
)
from arcforge_core.train.state import (
    best_checkpoint,
    checkpoints,
    last_checkpoint,
    read_checkpoint,
    read_heldout,
    write_checkpoint,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture
def save(tmp_path, tokenizer):
    """Saves a step, evaluated or not, and returns the names of the checkpoints that are there then."""

    def save(step, bits=None, num_bytes=100, keep_last=2, keep_best=True):
        heldout = None if bits is None else BitsPerByte(bits, 1.0, 10, num_bytes)
        progress = {"step": step, "tokens": 10 * step, "cursor": step, "seconds": step / 3}
        optimizer = optimizer_with({"momentum_buffer": torch.full((2,), float(step))})
        path = tmp_path / "checkpoints" / f"step-{step:08d}"
        state = TrainingState(
            path, progress, 1, heldout, optimizer.state_dict(), optimizer_options(optimizer), random_states(CPU)
        )
        write_checkpoint(state, small_model(step), tokenizer, keep_last, keep_best)
        return [int(p.name.removeprefix("step-")) for p in checkpoints(tmp_path)]

    return save


def optimizer_with(state, names=("weight",), **options):
    parameter = torch.nn.Parameter(torch.zeros(2))
    group = {"params": [parameter], "names": list(names), "base_lr": 0.1, **options}
    optimizer = torch.optim.SGD([group], lr=0.1, momentum=0.9)
    optimizer.state[parameter] = state
    return optimizer


# ---- which stay ------------------------------------------------------------------------------------------------------


def test_the_last_ones_and_the_best_stay(tmp_path, save):
    assert save(1, bits=2.0) == [1]
    assert save(2, bits=1.5) == [1, 2]
    assert save(3) == [2, 3]
    assert save(4, bits=1.7) == [2, 3, 4]
    assert save(5) == [2, 4, 5]
    assert best_checkpoint(checkpoints(tmp_path)).name == "step-00000002"
    folder = tmp_path / "checkpoints"
    assert ((folder / "latest").readlink().name, (folder / "best").readlink().name) == (
        "step-00000005",
        "step-00000002",
    )
    assert save(6, bits=1.4) == [5, 6]
    assert (folder / "best").resolve().name == "step-00000006"


def test_the_best_goes_when_it_is_not_to_be_kept(save):
    save(1, bits=1.0, keep_best=False)
    save(2, bits=2.0, keep_best=False)
    assert save(3, keep_best=False) == [2, 3]


def test_evaluations_of_other_texts_do_not_compete(tmp_path, save):
    save(1, bits=1.0, num_bytes=100)
    assert save(2, bits=3.0, num_bytes=500, keep_last=1) == [2]


def test_later_steps_and_leftovers_go_with_the_next_save(tmp_path, save):
    for step in (1, 2, 3):
        save(step, keep_last=3)
    (tmp_path / "checkpoints" / ".step-00000009.partial").mkdir()
    (tmp_path / "checkpoints" / ".latest-1").symlink_to("step-00000001")
    assert save(2, keep_last=3) == [1, 2]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000001", "step-00000002"]


def test_the_older_one_stays_when_the_new_one_cannot_be_written(tmp_path, save, monkeypatch):
    save(1)

    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_module, "write_checksums", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*step-00000002: No space left on device"):
        save(2, keep_last=1)
    assert last_checkpoint(tmp_path, None).step == 1


def test_ctrl_c_while_torch_writes_is_no_error_of_torch(tmp_path, save, monkeypatch):
    save(1)

    def torch_save(content, file):
        try:
            raise KeyboardInterrupt
        finally:  # as torch does, whose file is unfinished
            raise RuntimeError("unexpected pos 338240 vs 338128")

    monkeypatch.setattr(torch, "save", torch_save)
    with pytest.raises(KeyboardInterrupt):
        save(2)
    assert last_checkpoint(tmp_path, None).step == 1


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path, save):
    save(3, bits=1.25)
    state = last_checkpoint(tmp_path, None)
    assert (state.step, state.progress["seconds"], state.world_size) == (3, 1.0, 1)
    assert state.heldout == read_heldout(state.path) == BitsPerByte(1.25, 1.0, 10, 100)
    assert torch.equal(state.optimizer["state"][0]["momentum_buffer"], torch.full((2,), 3.0))


def test_a_flipped_byte_in_any_file_is_found_and_named(tmp_path, save):
    save(1)
    save(2)
    messages = []
    for path in [p for p in checkpoints(tmp_path)[1].iterdir() if p.is_file()]:
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match=r"step-00000002/.*; resume=.*step-00000001 takes"):
                last_checkpoint(tmp_path, None)
            assert last_checkpoint(tmp_path, messages.append).step == 1
            assert path.name in messages[-1] or path.name == "SHA256SUMS"
            assert "going back to step-00000001" in messages[-1]
        path.write_bytes(whole)
    assert last_checkpoint(tmp_path, None).step == 2 and len(messages) == 3 * 8


def test_a_whole_checkpoint_of_another_layout_is_told(tmp_path, save):
    save(1)
    path = checkpoints(tmp_path)[0]
    (path / "progress.json").write_text(json.dumps({"steps": 1}))
    state_module.write_checksums(path)
    with pytest.raises(CheckpointError, match="was written by another version"):
        read_checkpoint(path)
    assert read_heldout(path) is None


# ---- states ----------------------------------------------------------------------------------------------------------


def draw():
    return (random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(())))


def test_random_states_come_back(tmp_path):
    draw()  # so that the second normal variate of a pair is pending
    torch.save(random_states(CPU), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)]
    restore_random_states(torch.load(tmp_path / "rng.pt", weights_only=True), CPU)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_states_of_a_device_come_back():
    device = torch.device("cuda", 0)
    states = random_states(device)
    expected = torch.rand(3, device=device)
    restore_random_states(states, device)
    assert torch.equal(torch.rand(3, device=device), expected)


def test_options_are_the_saved_ones_unless_the_configuration_has_changed():
    saved = optimizer_with({"momentum_buffer": torch.ones(2)}, weight_decay=0.5, counted=0)
    configured = optimizer_options(saved)
    saved.param_groups[0] |= {"counted": 7, "lr": 0.01}  # as training does
    now = optimizer_with({}, weight_decay=0.25, counted=0, fresh=True)
    restore_optimizer(now, saved.state_dict(), configured)
    [group] = now.param_groups
    assert (group["weight_decay"], group["counted"], group["lr"], group["fresh"]) == (0.25, 7, 0.01, True)
    assert torch.equal(now.state[group["params"][0]]["momentum_buffer"], torch.ones(2))


def test_other_parameter_groups_are_refused():
    saved = optimizer_with({}, names=("a",))
    with pytest.raises(CheckpointError, match="parameter groups are not those of the checkpoint"):
        restore_optimizer(optimizer_with({}, names=("b",)), saved.state_dict(), optimizer_options(saved))


def test_a_host_copy_shares_nothing_and_is_saved_alike():
    model = small_model(tie_word_embeddings=True)
    copied = host_copy(model, [*model.parameters(), *model.buffers()])
    assert copied.lm_head.weight is copied.model.embed_tokens.weight
    before, after = model.state_dict(), copied.state_dict()
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]) and before[name].data_ptr() != after[name].data_ptr()
    optimizer = optimizer_with({"momentum_buffer": torch.ones(2)})
    state = dataclasses.replace(
        TrainingState(None, {}, 1, None, optimizer.state_dict(), [], {}), optimizer=optimizer.state_dict()
    )
    copied = host_copy(state, [state.optimizer["state"][0]["momentum_buffer"]])
    state.optimizer["state"][0]["momentum_buffer"].zero_()
    assert torch.equal(copied.optimizer["state"][0]["momentum_buffer"], torch.ones(2))

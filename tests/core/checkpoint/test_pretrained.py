import errno
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import arcforge_core
from arcforge_core import load_pretrained, save_pretrained
from arcforge_core.checkpoint import pretrained, shards
from arcforge_core.checkpoint.pretrained import CONFIG, WEIGHTS, find_checkpoint, load_weights, load_with_tokenizer
from arcforge_core.config.schema import HardwareConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import CheckpointError
from arcforge_core.model.adapt.state import check_state, state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer

REFERENCE = Ops(None)  # as `small_model`'s, so that equal weights give equal bits
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_pretrained(small_model(), tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = config
        for name in parents:
            section = section[name]
        section[last] = value
    (folder / CONFIG).write_text(json.dumps(config))


# ---- round trip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_round_trip_keeps_every_value_and_the_logits(tmp_path: Path, tied: bool) -> None:
    model = small_model(tie_word_embeddings=tied)
    model.model.layers[1].mlp.gate.e_score_correction_bias.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
    save_pretrained(model, tmp_path / "model")
    loaded = load_pretrained(tmp_path / "model", ops=REFERENCE)
    assert not loaded.training
    assert loaded.config == model.config
    assert loaded.attention == model.attention
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(model(IDS).logits, loaded(IDS).logits)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert all(p.requires_grad for p in loaded.parameters())


def test_a_loaded_model_trains(saved: Path) -> None:
    model = load_pretrained(saved).train()
    model(IDS).logits.logsumexp(-1).sum().backward()
    assert model.model.embed_tokens.weight.grad is not None


def test_dtype_casts_parameters_and_leaves_the_router_bias(saved: Path) -> None:
    model = load_pretrained(saved, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}
    assert model(IDS).logits.dtype == torch.bfloat16


def test_stored_dtype_is_kept(tmp_path: Path) -> None:
    save_pretrained(small_model().to(torch.bfloat16), tmp_path / "model")
    assert load_pretrained(tmp_path / "model").dtype == torch.bfloat16


def test_folder_looks_like_hugging_face(tmp_path: Path, tokenizer: Tokenizer) -> None:
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "model", tokenizer)
    config = json.loads((tmp_path / "model" / CONFIG).read_text())
    assert config["model_type"] == "arcforge"
    assert config["architectures"] == ["CausalLM"]
    assert config["model"]["hidden_size"] == 32
    assert config["attention"]["name"] == "reference"
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert os.listdir(tmp_path) == ["model"]


def test_load_weights_replaces_the_values_in_place(saved: Path) -> None:
    model = small_model(seed=1)
    weight = model.lm_head.weight
    load_weights(model, saved)
    assert model.lm_head.weight is weight
    assert torch.equal(model(IDS).logits, load_pretrained(saved, ops=REFERENCE)(IDS).logits)


def test_load_with_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cpu = TorchCpu(HardwareConfig("torch_cpu"))
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "fits", tokenizer)
    model, loaded = load_with_tokenizer(tmp_path / "fits", cpu)
    assert model.config.vocab_size == loaded.vocab_size == 280
    assert loaded.encode("one two") == tokenizer.encode("one two")
    save_pretrained(small_model(), tmp_path / "bare")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        load_with_tokenizer(tmp_path / "bare", cpu)
    save_pretrained(small_model(), tmp_path / "narrow", tokenizer)
    with pytest.raises(CheckpointError, match="the tokenizer has 280 ids, the model only 64"):
        load_with_tokenizer(tmp_path / "narrow", cpu)


@pytest.mark.parametrize(
    ("dtype", "fast", "computed"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("stored", False, torch.bfloat16),
        ("float32", True, torch.float32),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_bfloat16_weights_are_computed_in_the_faster_format(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, dtype: str, fast: bool, computed: torch.dtype
) -> None:
    monkeypatch.setattr(pretrained, "fast_bf16", lambda device_type: fast)
    stored = small_model(vocab_size=TOKENIZER_SIZE).to(torch.bfloat16)
    save_pretrained(stored, tmp_path / "model", tokenizer)
    model, _ = load_with_tokenizer(tmp_path / "model", TorchCpu(HardwareConfig("torch_cpu")), dtype=dtype)
    assert model.dtype == computed
    assert {parameter.dtype for parameter in model.parameters()} == {computed}
    assert torch.equal(model.lm_head.weight.float(), stored.lm_head.weight.float())
    assert model(IDS).logits.dtype == computed


def test_deterministic_models_depend_on_no_measurement(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrained, "fast_bf16", lambda device_type: True)
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE).to(torch.bfloat16), tmp_path / "model", tokenizer)
    hardware = TorchCpu(HardwareConfig("torch_cpu"))
    assert load_with_tokenizer(tmp_path / "model", hardware, deterministic=True)[0].dtype == torch.float32
    assert "dtype=auto is fp32: deterministic results depend on no measurement" in capsys.readouterr().err
    stored = load_with_tokenizer(tmp_path / "model", hardware, deterministic=True, dtype="stored")[0]
    assert stored.dtype == torch.bfloat16


def test_float32_weights_stay_where_bfloat16_is_faster(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "fast_bf16", lambda device_type: True)
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "model", tokenizer)
    model, _ = load_with_tokenizer(tmp_path / "model", TorchCpu(HardwareConfig("torch_cpu")))
    assert model.dtype == torch.float32


def test_find_checkpoint_takes_a_model_or_the_last_of_a_run(tmp_path: Path, saved: Path) -> None:
    assert find_checkpoint(saved) == saved
    for step in ("step-00000009", "step-00000100"):
        shutil.copytree(saved, tmp_path / "run" / "checkpoints" / step)
    assert find_checkpoint(tmp_path / "run").name == "step-00000100"
    with pytest.raises(CheckpointError, match="neither a model"):
        find_checkpoint(tmp_path)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type='lama' must be one of arcforge, deepseek_v3"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"extra": 1}, "unknown field extra"),
        ({"model__hiden_size": 32}, "unknown field model.hiden_size; did you mean 'hidden_size'"),
        ({"attention__heads": 2}, "unknown field attention.heads"),
        ({"model__hidden_size": "wide"}, "hidden_size='wide'"),
        ({"model__mtp": {"depth": 1}}, "depth"),
        ({"model__num_experts_per_tok": 9}, "num_experts_per_tok=9"),
        ({"model": None}, "the section 'model' is missing"),
        ({"attention": {"name": "dsa"}}, "pip install ./packages/attention"),
        ({"attention": {"name": "refrence"}}, "did you mean 'reference'"),
        ({"attention": []}, "attention"),
    ],
)
def test_bad_config_is_named(
    saved: Path, changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = arcforge_core.registry()
    without = {key: value for key, value in registry.claims.items() if key != ("attention", "dsa")}
    monkeypatch.setattr(registry, "claims", without)
    edit_config(saved, **changes)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(saved)
    assert message in str(caught.value)
    assert str(saved / CONFIG) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_config_that_is_no_object(saved: Path, text: str) -> None:
    (saved / CONFIG).write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_pretrained(saved)


def test_missing_folder_and_files_are_named(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.config\.json is missing"):
        load_pretrained(tmp_path / "nowhere")
    (saved / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load_pretrained(saved)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_truncated_weights_are_named(saved: Path, keep: float) -> None:
    data = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or incomplete"):
        load_pretrained(saved)


def test_missing_extra_and_misshaped_tensors_are_named(saved: Path) -> None:
    state = load_file(saved / WEIGHTS)
    del state["lm_head.weight"]
    state["surplus"] = torch.zeros(1)
    state["model.norm.weight"] = torch.zeros(7)
    save_file(state, saved / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(saved)
    for part in ("lm_head.weight is missing", "surplus is not part", "model.norm.weight is [7], the model's is [32]"):
        assert part in str(caught.value)


def test_check_state_does_not_list_hundreds(saved: Path) -> None:
    model = small_model()
    with pytest.raises(CheckpointError, match=f"and {len(state_of(model)) - 8} more"):
        check_state(model, {}, "nothing")


def test_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="not replaced"):
        save_pretrained(small_model(), tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="not replaced"):
        save_pretrained(small_model(), tmp_path / "file")
    (tmp_path / "empty").mkdir()
    save_pretrained(small_model(), tmp_path / "empty")
    assert load_pretrained(tmp_path / "empty")


# ---- faults while saving ---------------------------------------------------------------------------------------------


@contextmanager
def full_disk_at(monkeypatch: pytest.MonkeyPatch, function: str, number: int) -> Iterator[list[int]]:
    """Lets call `number` of an `os` function fail as on a full disk; yields the calls so far."""
    original, calls = getattr(os, function), [0]

    def fail(*args: object) -> object:
        calls[0] += 1
        if calls[0] == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        yield calls


def count_calls(monkeypatch: pytest.MonkeyPatch, function: str, folder: Path, tokenizer: Tokenizer) -> int:
    save_pretrained(small_model(), folder, tokenizer)
    with full_disk_at(monkeypatch, function, 0) as calls:
        save_pretrained(small_model(), folder, tokenizer)
    return calls[0]


def assert_old_survives(folder: Path, old: CausalLM) -> None:
    assert os.listdir(folder.parent) == [folder.name]
    assert torch.equal(load_pretrained(folder, ops=REFERENCE)(IDS).logits, old(IDS).logits)


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_old_checkpoint_survives_a_fault_at_every_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str, tokenizer: Tokenizer
) -> None:
    total = count_calls(monkeypatch, function, tmp_path / "count" / "model", tokenizer)
    assert total >= 2  # both renames; every file, the folder and its parent
    old, folder = small_model(seed=0), tmp_path / "here" / "model"
    save_pretrained(old, folder)
    for number in range(1, total + 1):
        with (
            full_disk_at(monkeypatch, function, number),
            pytest.raises(CheckpointError, match=r"cannot write .*model: No space left"),
        ):
            save_pretrained(small_model(seed=1), folder, tokenizer)
        assert_old_survives(folder, old)


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_first_save_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str) -> None:
    with full_disk_at(monkeypatch, function, 1), pytest.raises(CheckpointError):
        save_pretrained(small_model(), tmp_path / "model")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("limit", [10, 5_000, 50_000])
def test_old_checkpoint_survives_files_that_cannot_grow(tmp_path: Path, limit: int) -> None:
    old, folder = small_model(seed=0), tmp_path / "model"
    save_pretrained(old, folder)
    assert (folder / WEIGHTS).stat().st_size > limit
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # real writes fail, in Python and in safetensors
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            save_pretrained(small_model(seed=1), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_old_survives(folder, old)


def test_an_interrupt_leaves_the_old_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, folder = small_model(seed=0), tmp_path / "model"
    save_pretrained(old, folder)

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_pretrained(small_model(seed=1), folder)
    assert_old_survives(folder, old)


def test_leftovers_of_a_killed_save_are_told_and_cleared(tmp_path: Path, saved: Path) -> None:
    os.rename(saved, tmp_path / ".model.previous")  # as after a kill between the two renames
    (tmp_path / ".model.partial").mkdir()
    with pytest.raises(CheckpointError, match=r"left the previous checkpoint in .*\.model\.previous"):
        load_pretrained(saved)
    save_pretrained(small_model(seed=1), saved)
    assert_old_survives(saved, small_model(seed=1))


def test_segments_of_a_loaded_model_are_independent(saved: Path) -> None:
    model = load_pretrained(saved)
    batch = SequenceBatch.build([2, 3])
    both = model(torch.tensor([1, 2, 3, 4, 5]), batch).logits
    assert torch.allclose(both[2:], model(torch.tensor([[3, 4, 5]])).logits[0], atol=1e-5)

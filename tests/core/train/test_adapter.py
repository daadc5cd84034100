"""Runs that train adapters: the base stays, checkpoints are small, sittings equal one run, all commands open them."""

import copy
import csv
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from arcforge_core import load_pretrained, save_pretrained
from arcforge_core.checkpoint.adapter import ADAPTER_WEIGHTS, weights_sha256
from arcforge_core.checkpoint.convert import convert
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.checkpoint.start import start_from
from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.tokenizer import train_tokenizer
from arcforge_core.train import run as run_module
from arcforge_core.train.adapter import adapt
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.run import train
from arcforge_core.train.state import checkpoints
from support.runs import tiny_run, write_corpus

SMALL = (
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.intermediate_size=48", "model.moe_intermediate_size=16",
    "model.mtp.depths=1", "model.mtp.fraction=0.5", "model.router_bias_rate=0.01",
    "trainer.sequence_length=32", "trainer.micro_batch_tokens=64", "trainer.accumulate=2", "trainer.max_steps=4",
    "trainer.samples=0", "trainer.eval_every=4", "trainer.eval_tokens=128", "trainer.log_every=1",
)  # fmt: skip
LORA = ("adapter=lora", "adapter.rank=4")
RARELY_EXPERTS = r"adapter.targets=[\.o_proj,shared_experts,\.gate_proj]"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *a: 1e9)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model of the runs' sizes with random weights."""
    config = tiny_run(tmp_path, *SMALL)
    torch.manual_seed(3)
    model = build_model(config.model, config.attention, Ops(None))
    texts = [path.read_text() for path in sorted(write_corpus(tmp_path / "corpus").iterdir())]
    save_pretrained(model, tmp_path / "base", train_tokenizer(texts, config.model.vocab_size))
    return tmp_path / "base"


def lora_run(tmp_path: Path, base: Path, *overrides: str) -> TrainConfig:
    return tiny_run(tmp_path, *SMALL, *LORA, f"init={base}", *overrides)


def test_adapters_alone_are_trained_and_saved(tmp_path: Path, base: Path) -> None:
    before = weights_sha256(base)
    result = train(lora_run(tmp_path, base))
    assert result.figures["steps"] == 4 and float(result.figures["bits_per_byte"]) > 0
    last = checkpoints(result.dir)[-1]
    names = {path.name for path in last.iterdir()}
    assert "adapter_model.safetensors" in names and not {"config.json", "model.safetensors"} & names
    saved = torch.load(last / "training_state.pt", weights_only=True)
    moments = sum(v["exp_avg"].numel() for v in saved["optimizer"]["state"].values())
    adapters = load_file(last / ADAPTER_WEIGHTS)
    assert moments == sum(tensor.numel() for tensor in adapters.values())
    assert weights_sha256(base) == before
    assert all(tensor.any() for name, tensor in adapters.items() if "mtp" not in name and ".lora_B" in name)
    ours, theirs = load_pretrained(last).state_dict(), load_pretrained(base).state_dict()
    stems = {n.removeprefix("base_model.model.").split(".lora_")[0] for n in adapters}
    moved = {name.removesuffix(".weight") for name in ours if not torch.equal(ours[name], theirs[name])}
    assert moved and moved <= stems, "what has no adapter, router biases included, is as it was"


@pytest.mark.nightly(reason="three training runs")
def test_sittings_equal_one_run(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, whose random states are resumed too."""
    config = lora_run(tmp_path, base, "adapter.dropout=0.2", RARELY_EXPERTS, "trainer.checkpoint_async=true")
    whole = train(copy.deepcopy(config))
    original, stop = LanguageModelModule.training_step, {2}

    def training_step(module, batch, batch_idx):  # type: ignore[no-untyped-def]
        if module.progress.step + 1 in stop:
            stop.clear()
            os.kill(os.getpid(), signal.SIGINT)
        original(module, batch, batch_idx)

    monkeypatch.setattr(LanguageModelModule, "training_step", training_step)
    result = train(copy.deepcopy(config))
    assert result.figures["status"] == "interrupted"
    config.resume = "latest"
    result = train(config)
    assert result.figures["status"] == "finished"
    here, there = (load_file(checkpoints(r.dir)[-1] / ADAPTER_WEIGHTS) for r in (result, whole))
    assert [name for name in there if not torch.equal(here[name], there[name])] == []
    states = [torch.load(checkpoints(r.dir)[-1] / "training_state.pt", weights_only=True) for r in (result, whole)]
    first, second = (state["optimizer"]["state"] for state in states)
    assert all(torch.equal(first[n]["exp_avg"], second[n]["exp_avg"]) for n in second)
    rows = [csv.DictReader((r.dir / "metrics.csv").read_text().splitlines()) for r in (result, whole)]
    losses = [[row["loss"] for row in of_run] for of_run in rows]
    assert losses[0] == losses[1]


def test_a_run_is_opened_as_the_merged_model(tmp_path: Path, base: Path) -> None:
    """By name of the run: to convert, to start from, and with adapters on top."""
    config = lora_run(tmp_path, base, "trainer.max_steps=2")
    first = train(copy.deepcopy(config))
    merged = load_pretrained(find_checkpoint(first.dir))
    convert(first.dir, tmp_path / "merged", to="arcforge")
    fresh = build_model(config.model, config.attention, Ops(None))
    start_from(fresh, str(first.dir))
    for found in (load_pretrained(tmp_path / "merged"), fresh):
        for name, tensor in merged.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], tensor)
    config.init = str(first.dir)
    second = train(config)
    assert not torch.equal(
        load_pretrained(find_checkpoint(second.dir)).model.layers[0].self_attn.o_proj.weight,
        merged.model.layers[0].self_attn.o_proj.weight,
    )


def test_a_narrow_base_stays_narrow_where_no_bit_is_lost(tmp_path: Path, base: Path) -> None:
    config = lora_run(tmp_path, base)
    save_pretrained(load_pretrained(base, torch.bfloat16), tmp_path / "half")
    for folder, expected in ((base, torch.float32), (tmp_path / "half", torch.bfloat16)):
        config.init = str(folder)
        model = build_model(config.model, config.attention, Ops(None))
        model.set_compute_dtype(torch.bfloat16)
        adapt(model, config)
        assert model.model.layers[0].self_attn.o_proj.weight.dtype == expected == model.lm_head.weight.dtype
        assert model.model.layers[0].self_attn.o_proj.lora.A.dtype == torch.float32
        assert model.model.norm.weight.dtype == torch.float32


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("adapter=lora",), r"init=None: adapter=lora trains on top of a checkpoint"),
        (("adapter.rank=4",), r"adapter\.rank=4: only has an effect with adapter=lora"),
        ((*LORA, "adapter.rank=0"), r"adapter\.rank=0: must be at least 1"),
        ((*LORA, "adapter.alpha=0"), r"adapter\.alpha=0\.0: must be greater than 0"),
        ((*LORA, "adapter.dropout=1"), r"adapter\.dropout=1\.0: must be between 0 and 0\.9"),
        ((*LORA, "adapter.targets=[]"), r"adapter\.targets=\[\]: must name at least one layer"),
        ((*LORA, "adapter.targets=['(']"), r"adapter\.targets\[0\]='\('.*must be a regular expression"),
        ((*LORA, "adapter.name=dora"), r"adapter\.name='dora': must be one of none, lora"),
        ((*LORA, "trainer.trainable=[norm]"), r"trainer\.trainable=.*adapter=lora trains adapters only"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tiny_run(tmp_path, *SMALL, *overrides))


def test_a_base_that_is_another_model_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.rope_theta='500\.0': must be [\d.]+ as in .*base: an adapter is put"
    ):
        train(lora_run(tmp_path, base, "model.rope_theta=500"))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        train(lora_run(tmp_path, base, "model.intermediate_size=40"))
    config = lora_run(tmp_path, base, "model.mtp.depths=0")
    model = build_model(config.model, config.attention, Ops(None))
    assert adapt(model, config).left, "an MTP module may be left out"
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path / "without", small_tokenizer())
    with pytest.raises(ConfigError, match=r"init='.*without': has no mtp\."):
        train(lora_run(tmp_path, tmp_path / "without"))


def test_a_full_run_is_not_resumed_with_adapters_nor_with_another_rank(tmp_path: Path, base: Path) -> None:
    config = lora_run(tmp_path, base, "trainer.max_steps=1")
    train(copy.deepcopy(config))
    config.resume, config.adapter.rank = "latest", 8
    with pytest.raises(CheckpointError, match=r"adapter\.rank was 4, now 8"):
        train(config)

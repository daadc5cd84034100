"""The two stages of DSA as a run: what is frozen, what learns, what is logged; rates of the paper."""

import csv
import json

import pytest
import torch

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.errors import ConfigError
from arcforge_core.train import run as run_module
from arcforge_core.train.run import train
from support.runs import tiny_overrides


def run_of(tmp_path, name, *overrides):
    config = compose([*tiny_overrides(tmp_path), f"name={name}", "model.mtp.depths=1", "trainer.samples=0", *overrides])
    return train(config).dir


def weights(folder):
    return load_pretrained(find_checkpoint(folder)).state_dict()


def column(folder, name):
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")  # seconds of drawing
        patch.setattr(run_module, "matmul_rate", lambda *args: 1e11)
        return run_stages(tmp_path_factory)


def run_stages(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("stages")
    dense = run_of(tmp_path, "dense", "attention=mla")
    warm = ["attention=dsa", "attention.indexer_training=dense", r"trainer.trainable=[\.indexer\.]"]
    warmup = run_of(tmp_path, "warmup", *warm, f"init={dense}", "trainer.max_steps=12")
    sparse = run_of(tmp_path, "sparse", "attention=dsa", "attention.indexer_training=sparse", f"init={warmup}")
    return dense, warmup, sparse


def test_warm_up_trains_the_indexer_and_leaves_every_other_bit(stages):
    dense, warmup = (weights(folder) for folder in stages[:2])
    for name, tensor in dense.items():
        assert torch.equal(tensor, warmup[name]), name  # biases of routers included
    new = warmup.keys() - dense.keys()
    assert new and all(".indexer." in name for name in new)
    assert column(stages[1], "indexer_loss")[-1] < column(stages[1], "indexer_loss")[0]


def test_the_sparse_stage_trains_both(stages):
    before, after = (weights(folder) for folder in stages[1:])
    for name in ("model.layers.1.self_attn.indexer.wk.weight", "model.layers.1.self_attn.kv_b_proj.weight"):
        assert not torch.equal(before[name], after[name]), name


def test_recall_is_logged_and_lies_between_nothing_and_all(stages):
    for folder in stages[1:]:
        assert all(0 < share <= 1 for share in column(folder, "indexer_recall"))
    assert "indexer_loss" in json.loads((stages[2] / "summary.json").read_text())


def test_a_run_starts_with_the_weights_and_the_tokenizer(stages, capsys):
    """The first loss of warm-up is the dense model's, whose attention it has."""
    assert abs(column(stages[1], "loss")[0] - column(stages[0], "loss")[-1]) < 1.0 < column(stages[0], "loss")[0] - 1.0
    assert (find_checkpoint(stages[1]) / "tokenizer.json").read_bytes() == (
        find_checkpoint(stages[0]) / "tokenizer.json"
    ).read_bytes()


def test_an_expression_that_fits_no_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="matches no parameter"):
        run_of(tmp_path, "bad", "attention=mla", r"trainer.trainable=[\.indexer\.]")
    with pytest.raises(ConfigError, match="regular expression"):
        compose(["trainer.trainable=['(']"])

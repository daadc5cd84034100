"""Starting from weights: copied, new and refused tensors, and the printed folder."""

import pytest
import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.checkpoint.start import plan_start, start_from
from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.files.find import tokenizer_of
from arcforge_core.files.rundir import point_name
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config, small_model, small_tokenizer


@pytest.fixture
def saved(tmp_path):
    model = small_model(seed=1)
    save_pretrained(model, tmp_path / "model", small_tokenizer())
    return model, str(tmp_path / "model")


def test_the_same_model_takes_everything(saved):
    model, folder = saved
    ours = small_model(seed=2)
    start = start_from(ours, folder)
    assert start.new == start.left == [] and "new" not in str(start)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name


def test_a_name_is_printed_as_the_folder_that_it_leads_to(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    point_name(tmp_path / "outputs", "base", tmp_path / "model")
    start = start_from(small_model(seed=2), "base")
    assert str(start).startswith("starting from model: ")


def test_an_mtp_module_may_come_or_go(saved, tmp_path):
    model, folder = saved
    without = small_model(seed=2, mtp=MtpConfig(depths=0))
    start = start_from(without, folder)
    assert start.left and all(name.startswith("mtp.") for name in start.left)
    assert torch.equal(without.lm_head.weight, model.lm_head.weight)
    save_pretrained(without, tmp_path / "without")
    again = small_model(seed=3)
    before = again.mtp.eh_proj.weight.clone()
    start = start_from(again, str(tmp_path / "without"))
    assert "mtp.eh_proj.weight" in start.new and "eh_proj.weight" in str(start)
    assert torch.equal(again.mtp.eh_proj.weight, before)


def test_other_sizes_are_refused_and_nothing_is_copied(saved):
    ours = small_model(seed=2, intermediate_size=40)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\..* is \[48, 32\], the model's is \[40, 32\]"):
        start_from(ours, saved[1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.state_dict().items())


def test_no_checkpoint_is_an_error(saved):
    with pytest.raises(CheckpointError, match="neither a model"):
        start_from(small_model(), saved[1] + "-absent")


def test_the_tokenizer_comes_along(saved, tmp_path):
    assert tokenizer_of(saved[1]) == saved[1]
    save_pretrained(saved[0], tmp_path / "bare")
    assert tokenizer_of(str(tmp_path / "bare")) is None


def test_what_is_not_in_the_weights_may_change_and_is_told(saved):
    """Context extension: other rotary frequencies and more positions need no other tensors."""
    ours = small_model(seed=2, rope_theta=1e4, max_position_embeddings=4096)
    start = start_from(ours, saved[1])
    assert start.new == start.left == []
    assert start.changed == [
        ("model.max_position_embeddings", "128", "4096"),
        ("model.rope_theta", "1000000.0", "10000.0"),
    ]
    told = "changed: model.max_position_embeddings 128 -> 4096, model.rope_theta 1000000.0 -> 10000.0"
    assert str(start).endswith(told)
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in saved[0].state_dict().items())


def test_a_start_can_be_planned_from_shapes_alone(saved):
    model, _ = saved
    shapes = {name: tensor.shape for name, tensor in state_of(model).items()}
    with meta_device():
        ours = build_model(small_config(mtp=MtpConfig(depths=0)), ReferenceAttentionConfig(), Ops(None))
    start = plan_start(ours, model.config, model.attention, shapes, "stage base")
    assert start.left and start.changed == [("model.mtp.depths", "1", "0")] and start.where == "stage base"
    assert all(tensor.is_meta for tensor in ours.state_dict().values())

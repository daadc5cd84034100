"""Starting from weights: what is taken, what is new, what is refused."""

import pytest
import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.checkpoint.start import start_from, tokenizer_of
from arcforge_core.config.schema import MtpConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.testing.small_models import small_model, small_tokenizer


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

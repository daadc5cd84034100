import pytest
import torch

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import checksum, next_version, replace_weights
from arcforge_core.testing.small_models import small_model


def test_a_checksum_is_of_names_types_shapes_and_bytes() -> None:
    state = {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.tensor(3)}
    others = [
        {**state, "a": torch.arange(6.0).view(2, 3)},
        {**state, "a": torch.arange(6.0) + 1e-6},
        {**state, "b": torch.ones(2, dtype=torch.float16)},
        {"x": state["a"], "b": state["b"], "c": state["c"]},
        {**state, "c": torch.tensor(4)},
    ]
    assert len({checksum(each) for each in (state, *others)}) == 6
    turned = {name: state[name] for name in "cba"}
    turned["a"] = torch.arange(12.0)[::2] / 2  # other strides, the same values
    assert checksum(turned) == checksum(state)


def test_versions_rise() -> None:
    assert (next_version(3, None), next_version(3, 9)) == (4, 9)
    with pytest.raises(ConfigError, match=r"version=3.*above the current version, 3"):
        next_version(3, 3)


def test_parameters_stay_where_they_are_and_take_what_fits() -> None:
    model = small_model()
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    state = {name: tensor.double() for name, tensor in small_model(seed=1).state_dict().items()}
    replace_weights(model, state, "the update", checksum(state))
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == places[name]
        torch.testing.assert_close(tensor.double(), state[name])
    with pytest.raises(CheckpointError, match=r"the update: lm_head\.weight is not finite"):
        replace_weights(model, {**state, "lm_head.weight": state["lm_head.weight"] / 0}, "the update")


def test_what_the_models_dtype_cannot_hold_is_refused() -> None:
    model = small_model().half()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    name = "lm_head.weight"
    before = model.state_dict()[name].clone()
    with pytest.raises(CheckpointError, match=r"not finite in torch\.float16"):
        replace_weights(model, {**state, name: torch.full(before.shape, 1e6)}, "the update")
    with pytest.raises(CheckpointError, match=r"is torch\.int64, the model's is torch\.float16"):
        replace_weights(model, {**state, name: torch.ones(before.shape, dtype=torch.int64)}, "the update")
    assert torch.equal(model.state_dict()[name], before)

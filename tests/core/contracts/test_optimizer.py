import pytest
import torch
from torch import nn

from arcforge_core.contracts.optimizer import ParameterRole, collect_roles


class Labelled(nn.Linear):
    def parameter_roles(self):
        return {"weight": ParameterRole("head_matrix", num_heads=2)}


class Mislabelled(nn.Linear):
    def parameter_roles(self):
        return {"wieght": ParameterRole("matrix")}


def test_declared_roles_win_over_the_default_rule():
    model = nn.ModuleDict({"a": Labelled(3, 4), "b": nn.Linear(4, 5), "c": nn.LayerNorm(5)})
    model.register_parameter("temperature", nn.Parameter(torch.tensor(1.0)))
    found = {item.name: item for item in collect_roles(model)}
    assert {name: item.role.role for name, item in found.items()} == {
        "a.weight": "head_matrix", "a.bias": "norm", "b.weight": "matrix", "b.bias": "norm",
        "c.weight": "norm", "c.bias": "norm", "temperature": "norm",
    }  # fmt: skip
    assert found["a.weight"].role.num_heads == 2
    assert found["a.weight"].parameter is model["a"].weight


def test_a_module_labels_its_own_parameters_at_the_top():
    assert [item.role.role for item in collect_roles(Labelled(2, 2, bias=False))] == ["head_matrix"]


def test_a_shared_parameter_appears_once_with_its_first_role():
    model = nn.ModuleDict({"first": nn.Linear(3, 3, bias=False), "second": Labelled(3, 3, bias=False)})
    model["second"].weight = model["first"].weight
    (item,) = collect_roles(model)
    assert item.name == "first.weight" and item.role.role == "matrix"


def test_roles_of_absent_parameters_and_unknown_roles_are_refused():
    with pytest.raises(ValueError, match="wieght"):
        collect_roles(Mislabelled(2, 2))
    with pytest.raises(ValueError, match="'matrx' is not one of"):
        ParameterRole("matrx")

import pytest
import torch
from torch import nn

from arcforge_core.configs import ConstantScheduleConfig, TorchAdamWConfig
from arcforge_core.contracts.optimizer import ROLES, ParameterRole, RoledParameter
from arcforge_core.train.optimizer import adamw_groups, constant_schedule, torch_adamw, trainable, warm_up


def roled(role: str, *shape: int, requires_grad: bool = True) -> RoledParameter:
    parameter = nn.Parameter(torch.randn(*shape), requires_grad=requires_grad)
    return RoledParameter(f"the_{role}", parameter, ParameterRole(role))


def test_only_matrices_are_decayed():
    parameters = [roled(role, 4, 4) for role in ROLES]
    groups = adamw_groups(parameters, 1e-3, 0.1, extra_key=1)
    decay = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert decay == {
        "the_head": 0.1, "the_matrix": 0.1, "the_head_matrix": 0.1, "the_router": 0.1, "the_expert": 0.1,
        "the_embedding": 0.0, "the_norm": 0.0, "the_scalar": 0.0,
    }  # fmt: skip
    assert all(g["lr"] == g["base_lr"] == 1e-3 and g["extra_key"] == 1 for g in groups)
    assert [len(g["params"]) for g in groups] == [len(g["names"]) for g in groups]


def test_empty_groups_are_left_out():
    assert len(adamw_groups([roled("norm", 4)], 1e-3, 0.1)) == 1


def test_frozen_parameters_are_left_out_and_nothing_to_train_is_an_error():
    frozen, free = roled("matrix", 2, 2, requires_grad=False), roled("matrix", 2, 2)
    assert trainable([frozen, free]) == [free]
    with pytest.raises(ValueError, match="none of 1 parameters requires a gradient"):
        trainable([frozen])


def test_torch_adamw_equals_torch_with_the_same_groups():
    torch.manual_seed(0)
    parameters = [roled("matrix", 5, 7), roled("norm", 7)]
    copies = [item.parameter.detach().clone().requires_grad_() for item in parameters]
    config = TorchAdamWConfig(lr=3e-3, weight_decay=0.2, beta1=0.8, beta2=0.9, eps=1e-6)
    ours = torch_adamw(config, parameters)
    theirs = torch.optim.AdamW(
        [{"params": copies[0], "weight_decay": 0.2}, {"params": copies[1], "weight_decay": 0.0}],
        lr=3e-3, betas=(0.8, 0.9), eps=1e-6,
    )  # fmt: skip
    for _ in range(3):
        for item, copy in zip(parameters, copies, strict=True):
            copy.grad = item.parameter.grad = torch.randn_like(copy)
        ours.step()
        theirs.step()
    for item, copy in zip(parameters, copies, strict=True):
        assert torch.equal(item.parameter, copy)


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.7, 1.0)])
def test_warm_up_is_linear_then_one(progress, expected):
    assert warm_up(progress, 0.1) == pytest.approx(expected)


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert warm_up(0.0, 0.0) == 1.0


def test_constant_schedule_rises_to_final_and_stays():
    factor = constant_schedule(ConstantScheduleConfig(warmup=0.2, final=0.5))
    assert [factor(p) for p in (0.0, 0.1, 0.2, 1.0)] == pytest.approx([0.0, 0.25, 0.5, 0.5])

import torch
from torch import nn

from arcforge_core.configs import TorchAdamWConfig
from arcforge_core.contracts.optimizer import ParameterRole, RoledParameter
from arcforge_core.train.optimizer import torch_adamw
from arcforge_optim.adamw import fused_adamw
from arcforge_optim.configs import AdamWConfig


def parameters() -> list[RoledParameter]:
    torch.manual_seed(0)
    roles = ["embedding", "matrix", "norm"]
    return [RoledParameter(r, nn.Parameter(torch.randn(6, 8)), ParameterRole(r)) for r in roles]


def test_fused_adamw_follows_torch_adamw():
    ours, theirs = parameters(), parameters()
    fields = {"lr": 3e-3, "weight_decay": 0.2, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6}
    fused, plain = fused_adamw(AdamWConfig(**fields), ours), torch_adamw(TorchAdamWConfig(**fields), theirs)
    assert fused.defaults["fused"] and not plain.defaults["fused"]
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.parameter.grad = b.parameter.grad = torch.randn(6, 8)
        fused.step()
        plain.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.parameter, b.parameter, atol=1e-6, rtol=1e-6)


def test_groups_carry_names_base_rate_and_decay():
    groups = fused_adamw(AdamWConfig(), parameters()).param_groups
    assert [(g["names"], g["base_lr"], g["weight_decay"]) for g in groups] == [
        (["matrix"], 1e-3, 0.1),
        (["embedding", "norm"], 1e-3, 0.0),
    ]

import pytest
import torch
from torch import nn

from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_optim import build_optimizer
from arcforge_optim.muon_split import MuonSplit


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.norm = nn.LayerNorm(8)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return {"up.weight": ParameterRole("head_matrix", num_heads=2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.norm(x))


def test_builds_from_the_roles_of_a_model():
    optimizer = build_optimizer("muon_split", Model(), lr=1e-2, adamw_lr=1e-3)
    assert isinstance(optimizer, MuonSplit)
    assert optimizer.chunks[0].pieces[0].shape == (8, 8)
    assert {g["base_lr"] for g in optimizer.param_groups} == {1e-2, 1e-3}


@pytest.mark.parametrize("name", ["adamw", "muon", "muon_split", "torch_adamw"])
def test_every_optimizer_learns(name):
    torch.manual_seed(0)
    model, x, target = Model(), torch.randn(32, 8), torch.randn(32, 16)
    optimizer = build_optimizer(name, model, lr=0.02)
    losses = []
    for _ in range(50):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_unknown_fields_names_and_values_are_refused():
    with pytest.raises(ConfigError, match=r"optimizer.momentun=0.9: .*did you mean 'momentum'"):
        build_optimizer("muon", Model(), momentun=0.9)
    with pytest.raises(ConfigError, match=r"optimizer.lr='fast'"):
        build_optimizer("muon", Model(), lr="fast")
    with pytest.raises(ConfigError, match=r"optimizer.lr=-1"):
        build_optimizer("muon", Model(), lr=-1)
    with pytest.raises(UnknownComponentError, match="did you mean 'muon'"):
        build_optimizer("muonn", Model())

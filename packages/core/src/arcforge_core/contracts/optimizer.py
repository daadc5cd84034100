"""Parameter roles: the model declares a role for each parameter, and optimizers are built from the roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import nn, optim

if TYPE_CHECKING:
    from arcforge_core.config.schema import OptimizerConfig

ROLES = ("embedding", "head", "matrix", "head_matrix", "router", "expert", "norm", "scalar")


@dataclass(frozen=True)
class ParameterRole:
    """The role of a parameter.

    A weight of shape [..., rows, cols] has ``rows == num_heads * sum(parts)``: for each head, the rows of each
    part. The parts are separate matrices; leading axes (experts) are a batch of them.

    Attributes:
        role: one of `ROLES`. ``head_matrix`` is a per-head up-projection, which Muon Split cuts by head.
        num_heads: groups of rows, 1 if there are none.
        parts: rows of each separate matrix inside one group; empty means a single matrix. ``kv_b_proj`` of MLA has
            ``(qk_nope_head_dim, v_head_dim)``, a fused ``gate_up_proj`` has ``(f, f)``.
        rope_rows: trailing rows of each group that are rotary (of ``q_b_proj``: ``qk_rope_head_dim``); they belong to
            the last part.
    """

    role: str
    num_heads: int = 1
    parts: tuple[int, ...] = ()
    rope_rows: int = 0

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")


@dataclass(frozen=True)
class RoledParameter:
    """A parameter with its name and role."""

    name: str
    parameter: nn.Parameter
    role: ParameterRole


class OptimizerFactory(Protocol):
    """An optimizer component's target."""

    def __call__(self, config: OptimizerConfig, parameters: list[RoledParameter]) -> optim.Optimizer:
        """Builds the optimizer.

        Every param group has ``base_lr`` (the trainer sets ``lr = base_lr * schedule``) and ``names``. Together the
        groups hold every parameter that requires a gradient exactly once. ``state_dict`` is plain data, from which a
        new optimizer continues bit for bit.
        """


def collect_roles(model: nn.Module) -> list[RoledParameter]:
    """Returns every parameter of `model` once with its role.

    Modules name the roles of their own parameters in ``parameter_roles()``; any other parameter is a ``norm`` if it has
    fewer than two axes and a ``matrix`` otherwise.
    """
    roles: dict[str, ParameterRole] = {}
    for prefix, module in model.named_modules():
        declared: Mapping[str, ParameterRole] = getattr(module, "parameter_roles", dict)()
        for local, role in declared.items():
            roles[f"{prefix}.{local}" if prefix else local] = role
    # a tied head names the role of a parameter that the embedding owns
    unknown = roles.keys() - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if unknown:
        raise ValueError(f"roles for parameters that do not exist: {sorted(unknown)}")
    default = {True: ParameterRole("norm"), False: ParameterRole("matrix")}
    return [RoledParameter(name, p, roles.get(name, default[p.ndim < 2])) for name, p in model.named_parameters()]

"""Muon on the matrices of a model and AdamW on the rest, one optimizer object driven by parameter roles.

Spec section 2. Shapes: B matrices of M rows and N columns; G groups of R rows inside a matrix, C = N columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from arcforge_core.contracts.optimizer import RoledParameter
from arcforge_core.errors import ConfigError
from arcforge_core.ops import Ops, default_ops
from arcforge_core.ops.hardware import capabilities_of
from arcforge_core.train.optimizer import adamw_groups, parameter_group, trainable
from arcforge_optim.configs import COEFFICIENTS, MuonConfig
from arcforge_optim.matrices import Matrices, chunks, cut
from arcforge_optim.newton_schulz import bind_newton_schulz, iteration_dtype

CHUNK_ELEMENTS = 1 << 20
"""Maximum elements of one ``newton_schulz`` call (but at least one matrix), to fit in cache between passes."""
MORE_ON_DEVICES = 32
"""Times as many on other devices than a CPU: a GPU needs several matrices at a time to occupy all its cores."""


@dataclass(frozen=True)
class Chunk:
    """Matrices of one shape that share one ``newton_schulz`` call."""

    orthogonalize: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    """Dtype of the iteration."""
    scale: float
    """Factor on the learning rate."""
    pieces: list[Matrices]


class Muon(torch.optim.Optimizer):
    """Muon (momentum, then Newton-Schulz) on matrices, AdamW on embeddings, norms and scalars.

    Parts of fused weights (gate and up; keys and values) and experts are separate matrices, heads are not.
    Matrices of the same shape are orthogonalised together. State exists from the start for every parameter, so that
    it is equal on all ranks; a parameter without gradient is skipped, as in torch. ``p.grad`` is never changed.

    Args:
        config: see `MuonConfig`.
        parameters: the model's, from `collect_roles`; those that require no gradient are skipped.
        ops: source of ``newton_schulz``; default: the ops of this machine's hardware.

    Raises:
        ConfigError: a parameter has lower precision than float32.
        ValueError: no parameter requires a gradient, or one does not fit its role.
    """

    def __init__(self, config: MuonConfig, parameters: list[RoledParameter], ops: Ops | None = None) -> None:
        self.config = config
        parameters = trainable(parameters)
        for item in parameters:
            if item.parameter.dtype not in (torch.float32, torch.float64):
                accepted = f"{item.name} is {item.parameter.dtype}; weights must be float32 (compute may be bf16)"
                raise ConfigError("optimizer.name", config.name, accepted)
        muon_roles = {"matrix", "head_matrix", "expert"}
        muon_roles |= {role for role in ("head", "router") if getattr(config, role) == "muon"}
        matrices = [item for item in parameters if item.role.role in muon_roles]
        others = [item for item in parameters if item.role.role not in muon_roles]
        groups = [parameter_group(matrices, config.lr, config.weight_decay, rule="muon")] if matrices else []
        adamw_lr = config.lr if config.adamw_lr is None else config.adamw_lr
        fused = all(capabilities_of(item.parameter.device.type).fused_adamw for item in others)
        groups += adamw_groups(others, adamw_lr, config.weight_decay, rule="adamw", fused=fused)
        self.chunks = self._plan(matrices, ops or default_ops())
        super().__init__(groups, {"lr": config.lr})
        self.reset_state()

    def cut(self, item: RoledParameter) -> list[Matrices]:
        """Returns the matrices of a parameter; heads stay together."""
        return cut(item)

    def _plan(self, parameters: list[RoledParameter], ops: Ops) -> list[Chunk]:
        """Groups all matrices by shape and device and splits each group into chunks."""
        by_shape: dict[tuple[tuple[int, int], torch.device], list[Matrices]] = {}
        for item in parameters:
            for piece in self.cut(item):
                by_shape.setdefault((piece.shape, item.parameter.device), []).append(piece)
        plan = []
        steps = COEFFICIENTS[self.config.coefficients]
        for (shape, device), pieces in by_shape.items():
            dtype = iteration_dtype(self.config.ns_dtype, device, ops.deterministic)
            orthogonalize = bind_newton_schulz(ops, shape, dtype, device, steps)
            elements = CHUNK_ELEMENTS if device.type == "cpu" else MORE_ON_DEVICES * CHUNK_ELEMENTS
            limit = max(1, elements // math.prod(shape))
            plan += [Chunk(orthogonalize, dtype, self._scale(*shape), run) for run in chunks(pieces, limit)]
        return plan

    def _scale(self, rows: int, columns: int) -> float:
        if self.config.scale == "rms":
            return self.config.update_rms * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))

    def reset_state(self) -> None:
        """Sets momenta, averages and step counts to zero, as at the start."""
        for group in self.param_groups:
            for p in group["params"]:
                if group["rule"] == "muon":
                    self.state[p] = {"momentum_buffer": torch.zeros_like(p)}
                else:
                    device = p.device if group["fused"] else torch.device("cpu")
                    step = torch.zeros((), dtype=torch.float32, device=device)
                    averages = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                    self.state[p] = {"step": step, **averages}

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["rule"] == "muon":
                for chunk in self.chunks:
                    self._update_matrices(chunk, group["lr"], group["weight_decay"])
            else:
                self._update_adamw(group)
        return loss

    def _update_matrices(self, chunk: Chunk, lr: float, weight_decay: float) -> None:
        pieces = [piece for piece in chunk.pieces if piece.parameter.grad is not None]
        if not pieces:
            return
        counts = [len(piece.batch) for piece in pieces]
        shape = (sum(counts), *pieces[0].shape)
        update_BMN = torch.empty(shape, dtype=chunk.dtype, device=pieces[0].parameter.device)
        for piece, part_BMN in zip(pieces, update_BMN.split(counts), strict=True):
            self._average(piece, part_BMN)
        update_BMN = chunk.orthogonalize(update_BMN).contiguous()
        for piece, part_BMN in zip(pieces, update_BMN.split(counts), strict=True):
            weight_BGRC = piece.view(piece.parameter)
            weight_BGRC.mul_(1 - lr * weight_decay)
            weight_BGRC.add_(part_BMN.view(weight_BGRC.shape), alpha=-lr * chunk.scale)

    def _average(self, piece: Matrices, out_BMN: Tensor) -> None:
        """Adds the gradient to the momentum and writes the matrices to orthogonalise."""
        p, beta = piece.parameter, self.config.momentum
        assert p.grad is not None
        grad = piece.view(p.grad.contiguous())
        momentum = piece.view(self.state[p]["momentum_buffer"])
        ema = self.config.momentum_style == "ema"
        if ema:
            momentum.lerp_(grad, 1 - beta)
        else:
            momentum.mul_(beta).add_(grad)
        out = out_BMN.view(momentum.shape)
        if not self.config.nesterov:
            out.copy_(momentum)
        elif ema and out.dtype == grad.dtype:  # no intermediate copy: these passes are memory-bound
            torch.lerp(grad, momentum, beta, out=out)
        else:
            out.copy_(grad.lerp(momentum, beta) if ema else grad.add(momentum, alpha=beta))

    def _update_adamw(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        states = [self.state[p] for p in params]
        adamw(
            params,
            [p.grad for p in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.config.eps,
            maximize=False,
        )

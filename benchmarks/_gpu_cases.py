"""Timed calls of the Triton kernels that work on rows and matrices, beside their peers.

Shapes: T tokens, D hidden, H heads, R rotated width, W vocabulary, B matrices of M x N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from _gpu_clock import TUNED, Job, compiled, device, dtype, with_gradients
from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda.backend import Cuda
from arcforge_hw.torch_ops import gated_delta_rule as torch_delta
from arcforge_hw.torch_ops import linear_cross_entropy as torch_cross_entropy
from arcforge_hw.torch_ops import newton_schulz as torch_newton_schulz

OWN = "arcforge"
"""Peers of this name's kind are our own operators without Triton: shown, and never the best peer."""


@dataclass
class Case:
    """One call, timed beside others that compute the same.

    Attributes:
        shape: in words.
        ours: the job.
        peers: makers of each peer's job; they may raise.
        flops, bytes: work that no implementation does without.
        tolerance: how far a peer's result may differ from ours.
    """

    shape: str
    ours: Job
    peers: Mapping[str, Callable[[], Job]]
    flops: float = 0.0
    bytes: float = 0.0
    tolerance: float = 2e-2
    notes: list[str] = field(default_factory=list)


def normal(*shape: int, scale: float = 1.0, as_type: torch.dtype | None = None) -> Tensor:
    """Returns normal draws on the device."""
    return (torch.randn(*shape, device=device()) * scale).to(as_type or dtype())


def size(whole: tuple[int, ...], small: tuple[int, ...], quick: bool) -> tuple[int, ...]:
    """Returns the sizes of a case."""
    return small if quick else whole


def rms_norm(quick: bool, gradients: bool) -> Case:
    """Rows of GLM-5's hidden size."""
    from arcforge_hw.cuda.rows import rms_norm as ours

    tokens, width = size((16384, 6144), (8, 64), quick)
    leaves, values = (normal(tokens, width), normal(width)), tokens * width

    def eager(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (width,), weight, 1e-5)

    def fla() -> Job:
        from fla.modules.norm.layernorm import rms_norm as theirs

        return both(lambda x, weight: theirs(x, weight, None, eps=1e-5))

    def both(fn: Callable[..., Tensor]) -> Job:
        return with_gradients(fn, leaves) if gradients else lambda: fn(*leaves)

    return Case(
        f"[{tokens}, {width}]",
        both(lambda x, weight: ours(x, weight, 1e-5)),
        {"eager": lambda: both(eager), "compile": lambda: both(compiled(eager, TUNED)), "fla": fla},
        bytes=(5 if gradients else 2) * values * leaves[0].element_size(),
    )


def rope(quick: bool) -> Case:
    """The rotated part of all heads' queries, rows of a wider tensor."""
    from arcforge_hw.cuda.rows import rope as ours

    tokens, heads, nope, width = size((8192, 64, 192, 64), (4, 2, 8, 8), quick)
    x_THR = normal(tokens, heads, nope + width)[..., nope:]
    angles_TF = torch.arange(tokens, device=device())[:, None] * 1e6 ** -torch.linspace(0, 1, width // 2).to(device())
    tables = angles_TF.cos(), angles_TF.sin()

    def fla() -> Job:
        from fla.modules.rotary.ops import rotary_embedding

        cos_TF, sin_TF = (table.to(dtype()) for table in tables)
        return lambda: rotary_embedding(x_THR[None], cos_TF, sin_TF, interleaved=True)[0]

    return Case(
        f"[{tokens}, {heads}, {width}] of {nope + width}",
        lambda: ours(x_THR, *tables),
        {
            "eager": lambda: lambda: reference.rope(x_THR, *tables),
            "compile": lambda: _given(compiled(reference.rope, TUNED), x_THR, *tables),
            "fla": fla,
        },
        bytes=2.0 * tokens * heads * width * x_THR.element_size(),
    )


def _given(fn: Callable[..., Any], *args: Any) -> Job:
    return lambda: fn(*args)


def swiglu(quick: bool, gradients: bool) -> Case:
    """Rows of GLM-5's dense layers."""
    from arcforge_hw.cuda.rows import swiglu as ours

    tokens, width = size((8192, 12288), (8, 64), quick)
    leaves = normal(tokens, width), normal(tokens, width)

    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    def fla() -> Job:
        from fla.modules.activations.ops import swiglu as theirs

        return both(theirs)

    def both(fn: Callable[..., Tensor]) -> Job:
        return with_gradients(fn, leaves) if gradients else lambda: fn(*leaves)

    return Case(
        f"[{tokens}, {width}]",
        both(ours),
        {"eager": lambda: both(eager), "compile": lambda: both(compiled(eager, TUNED)), "fla": fla},
        bytes=(8.0 if gradients else 3.0) * leaves[0].nbytes,
    )


def linear_cross_entropy(quick: bool, narrow: bool) -> Case:
    """Loss and both gradients, with GLM-5's head or that of a model of a billion parameters."""
    from arcforge_hw.cuda.linear_cross_entropy import linear_cross_entropy as ours

    whole = (16384, 1536, 32768) if narrow else (4096, 6144, 154880)
    tokens, width, vocab = size(whole, (8, 16, 40), quick)
    leaves = normal(tokens, width), normal(vocab, width, scale=width**-0.5)
    target_T = torch.randint(vocab, (tokens,), device=device())
    rest = target_T, torch.full((tokens,), 1.0 / tokens, device=device())

    def eager(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), target_T)

    def fla() -> Job:
        from fla.modules.fused_linear_cross_entropy.ops import fused_linear_cross_entropy_loss

        return with_gradients(lambda x, weight: fused_linear_cross_entropy_loss(x, target_T, weight), leaves)

    return Case(
        f"[{tokens}, {width}] x [{vocab}, {width}], loss and gradients",
        with_gradients(ours, leaves, rest),
        {
            "eager": lambda: with_gradients(eager, leaves),
            "compile": lambda: with_gradients(compiled(eager), leaves),
            "fla": fla,
            f"{OWN} torch": lambda: with_gradients(torch_cross_entropy.linear_cross_entropy, leaves, rest),
        },
        flops=6.0 * tokens * width * vocab,
    )


def newton_schulz(quick: bool, whole: tuple[int, int, int]) -> Case:
    """Five steps on matrices in bfloat16."""
    from arcforge_hw.cuda.newton_schulz import newton_schulz as ours
    from arcforge_hw.cuda.newton_schulz import symmetric_flops

    steps = [(3.4445, -4.7750, 2.0315)] * 5
    batch, rows, columns = size(whole, (1, 20, 40), quick)
    x_BMN = normal(batch, rows, columns)

    def torch_muon() -> Job:
        from torch.optim._muon import _zeropower_via_newtonschulz as theirs

        return lambda: torch.stack([theirs(x_MN, steps[0], 5, 1e-7) for x_MN in x_BMN]).to(x_BMN.dtype)

    def compiled_muon() -> Job:
        fn = compiled(reference.newton_schulz)
        return lambda: fn(x_BMN, steps)

    return Case(
        f"[{batch}, {rows}, {columns}], 5 steps",
        lambda: ours(x_BMN, steps),
        {
            "eager": lambda: lambda: reference.newton_schulz(x_BMN, steps),
            "compile": compiled_muon,
            "torch.optim.Muon": torch_muon,
            f"{OWN} torch": lambda: lambda: torch_newton_schulz.newton_schulz(x_BMN, steps),
        },
        flops=float(batch * symmetric_flops(rows, columns)),
        tolerance=5e-2,
    )


def gated_delta_rule(quick: bool, gradients: bool) -> Case:
    """One long sequence; ours is what the dispatcher selects on this machine."""
    tokens, heads, width = size((8192, 32, 128), (70, 2, 16), quick)
    q, k, v = (F.normalize(normal(tokens, heads, width).float(), dim=-1).to(dtype()) for _ in range(3))
    g, beta = -0.1 * torch.rand(tokens, heads, device=device()), torch.rand(tokens, heads, device=device())
    state, lengths = torch.zeros(1, heads, width, width, device=device()), cumulative([tokens])
    sizes = {"heads": heads, "key_dim": width, "value_dim": width}
    call = OpCall("gated_delta_rule", device(), dtype(), gradients, sizes)
    kernel = Ops(Cuda(CudaConfig())).kernel(call)
    rest = g, beta, state, lengths, width**-0.5

    def both(fn: Callable[..., Any]) -> Job:
        job = with_gradients(lambda *x: fn(*x, *rest)[0], (q, k, v)) if gradients else lambda: fn(q, k, v, *rest)[0]
        return job if gradients else torch.no_grad()(job)

    def fla() -> Job:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        def theirs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor]:
            given = {"q": q[None], "k": k[None], "v": v[None], "g": g[None], "beta": beta[None], "scale": width**-0.5}
            return (chunk_gated_delta_rule(**given, initial_state=state, output_final_state=True)[0][0],)

        return both(theirs)

    return Case(
        f"[{tokens}, {heads}, {width}]" + ", gradients" * gradients,
        both(torch_delta.gated_delta_rule if kernel is None else kernel.function),
        {"fla": fla, f"{OWN} torch": lambda: both(torch_delta.gated_delta_rule)},
        flops=(3.0 if gradients else 1.0) * 6 * tokens * heads * width * width,
        bytes=(3.0 if gradients else 1.0) * 4 * q.nbytes,
        notes=[f"ours is {'the reference' if kernel is None else kernel.name}"],
    )


CASES: dict[str, Callable[[bool], Case]] = {
    "rms_norm": lambda quick: rms_norm(quick, False),
    "rms_norm gradients": lambda quick: rms_norm(quick, True),
    "rope": rope,
    "swiglu": lambda quick: swiglu(quick, False),
    "swiglu gradients": lambda quick: swiglu(quick, True),
    "linear_cross_entropy glm5": lambda quick: linear_cross_entropy(quick, False),
    "linear_cross_entropy 1b": lambda quick: linear_cross_entropy(quick, True),
    "newton_schulz experts": lambda quick: newton_schulz(quick, (4, 2048, 6144)),
    "newton_schulz heads": lambda quick: newton_schulz(quick, (64, 256, 2048)),
    "gated_delta_rule": lambda quick: gated_delta_rule(quick, False),
    "gated_delta_rule gradients": lambda quick: gated_delta_rule(quick, True),
}
"""Makers of the cases."""

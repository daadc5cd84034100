"""The gated delta rule of flash-linear-attention (``fla-core``): Triton chunks, or token by token for few tokens.

Its layout has a leading batch axis of size 1: q and k [1, T, H, K], v [1, T, H, V], g (logarithms of the decays)
and beta [1, T, H], states [N, H, K, V] in fp32, cumulative lengths on the device (``fla/ops/gated_delta_rule`` of 0.6).

Shapes: T tokens, N segments, H heads, K key size, V value size.
"""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict

OLDEST = (0, 6)
"""Oldest release whose arguments were checked."""
MISCOMPILED = (3, 4, 0), (3, 7, 1)
"""From the first of these releases of Triton up to the second, products with a transposed accumulator are wrong on
Hopper; fla rejects its backward pass there (fla-org/flash-linear-attention#640)."""
FEW = 64
"""Maximum tokens of a segment for which recurrent steps are faster than chunks (the threshold of fla's own layer)."""


def _release(distribution: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(distribution).split("+")[0].split(".")[:3] if part.isdigit())


@functools.cache
def missing_fla() -> str:
    """Returns the reason why fla cannot be used here; empty if it can."""
    if not find_spec("fla"):
        return "fla is not installed: pip install fla-core"
    try:
        found = _release("fla-core")
    except PackageNotFoundError:
        return "the distribution fla-core is missing, so fla's version is unknown"
    if found < OLDEST:
        return f"fla-core {version('fla-core')} is older than {'.'.join(map(str, OLDEST))}"
    return ""


def miscompiled() -> str:
    """Returns the reason why gradients would be wrong here; empty if they are correct."""
    first, fixed = MISCOMPILED
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    if hopper and first <= _release("triton") < fixed:
        return f"Triton {version('triton')} miscompiles fla's backward pass for Hopper: use 3.7.1"
    return ""


def supports(call: OpCall) -> Verdict:
    """Supports bfloat16: fla multiplies float32 with less precision than `Kernel.tolerance` allows."""
    if reason := missing_fla():
        return Verdict(False, reason)
    if call.dtype != torch.bfloat16:
        return Verdict(False, f"fla's products are precise enough for bfloat16, not for {call.dtype}")
    if (size := call.sizes.get("key_dim", 0)) > 256:
        return Verdict(False, f"fla's kernels need keys of at most 256 values, not key_dim={size}")
    if call.needs_grad and (reason := miscompiled()):
        return Verdict(False, reason)
    return YES


@functools.lru_cache(maxsize=4)
def device_lengths(cu_query: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns the lengths on fla's device; one tensor for all layers, because fla caches its plans by its identity."""
    return torch.tensor(cu_query, dtype=torch.int64, device=device)


def gated_delta_rule(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `arcforge_core.ops.reference.gated_delta_rule`."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    given = (q_THK, k_THK, v_THV, g_TH, beta_TH, state_NHKV)
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    few = not differentiable and int(cu_query.diff().max()) <= FEW  # the recurrence has no backward pass
    out_1THV, after_NHKV = (fused_recurrent_gated_delta_rule if few else chunk_gated_delta_rule)(
        q=q_THK[None],
        k=k_THK[None],
        v=v_THV[None],
        g=g_TH[None],
        beta=beta_TH[None],
        scale=scale,
        initial_state=state_NHKV,
        output_final_state=True,
        cu_seqlens=device_lengths(tuple(cu_query.tolist()), q_THK.device),
    )
    return out_1THV[0], after_NHKV

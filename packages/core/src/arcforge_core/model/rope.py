"""Rotary tables, computed once per step and shared by all layers. Shapes: T tokens, F = dim / 2 frequencies."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from arcforge_core.config.schema import RopeScalingConfig

_TABLES: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
"""Tables of all positions up to a limit, by their parameters and device."""


def rope_tables(
    positions_T: Tensor, dim: int, theta: float, scaling: RopeScalingConfig | None = None, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns fp32 (cos_TF, sin_TF) of positions; angles are float64, because positions reach 202,752.

    Pair f rotates by ``position * theta ** (-2 f / dim)``, and more slowly where `scaling` extends the context. The
    host computes them, because most accelerators have no float64. With a limit, tables are computed once and gathered
    from: on the host of the positions up to a power of two, on another device of all.

    Args:
        positions_T: positions, on any device.
        dim: rotated width.
        theta: base of the frequencies.
        scaling: of the frequencies.
        limit: all positions are below it. Without it, positions of a device are copied to the host.
    """
    on_host = positions_T.device.type == "cpu"
    if limit is None or (on_host and torch.compiler.is_compiling()):
        cos_TF, sin_TF = _host_tables(positions_T.cpu(), dim, theta, scaling)
        return cos_TF.to(positions_T.device), sin_TF.to(positions_T.device)
    if on_host:  # reading the highest position waits for nothing there
        limit = min(limit, 1 << int(positions_T.max()).bit_length())
    key = (dim, theta, None if scaling is None else dataclasses.astuple(scaling), positions_T.device)
    if key not in _TABLES or len(_TABLES[key][0]) < limit:
        with torch.inference_mode(False), torch.no_grad():  # they serve training too
            tables = _host_tables(torch.arange(limit, device="cpu"), dim, theta, scaling)
            _TABLES[key] = (tables[0].to(positions_T.device), tables[1].to(positions_T.device))
    cos_PF, sin_PF = _TABLES[key]
    return cos_PF.index_select(0, positions_T), sin_PF.index_select(0, positions_T)


def _host_tables(
    positions_T: Tensor, dim: int, theta: float, scaling: RopeScalingConfig | None
) -> tuple[Tensor, Tensor]:
    exponent_F = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    frequency_F = theta**-exponent_F
    if scaling is None or scaling.type == "default":
        angle_TF = positions_T.to(torch.float64)[:, None] * frequency_F
        return angle_TF.cos().float(), angle_TF.sin().float()
    kept_F = _kept_llama3(frequency_F, scaling) if scaling.type == "llama3" else _kept_yarn(dim, theta, scaling)
    frequency_F = frequency_F * (kept_F + (1 - kept_F) / scaling.factor)
    angle_TF = positions_T.to(torch.float64)[:, None] * frequency_F
    factor = attention_factor(scaling)
    return (angle_TF.cos() * factor).float(), (angle_TF.sin() * factor).float()


def _kept_llama3(frequency_F: Tensor, scaling: RopeScalingConfig) -> Tensor:
    """Returns the share of each frequency that is not divided, a ramp over its rotations in the original context."""
    turns_F = scaling.original_max_position_embeddings * frequency_F / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns_F - low) / (high - low)).clamp(0, 1)


def _kept_yarn(dim: int, theta: float, scaling: RopeScalingConfig) -> Tensor:
    """As `_kept_llama3`; YaRN's ramp is over the pair's index, between integers (arXiv 2309.00071, 3.2)."""

    def pair(turns: float) -> float:
        return dim * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), dim - 1)
    width = (high - low) or 0.001
    return 1 - ((torch.arange(dim // 2, dtype=torch.float64, device="cpu") - low) / width).clamp(0, 1)


def attention_factor(scaling: RopeScalingConfig) -> float:
    """Returns the factor on rotated queries and keys that keeps YaRN's softmax sharp over more keys."""
    if scaling.type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def softmax_factor(scaling: RopeScalingConfig) -> float:
    """Returns the factor on MLA's softmax scale.

    DeepSeek-V3 scales the scores of whole heads by ``mscale_all_dim``, not only those of the rotated part; its released
    config sets mscale to the same value, which makes `attention_factor` 1.
    """
    return _mscale(scaling.factor, scaling.mscale_all_dim) ** 2 if scaling.type == "yarn" else 1.0


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0

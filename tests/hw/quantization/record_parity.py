"""Records what msModelSlim and compressed-tensors compute on fixed inputs, as data that tests compare ours with.

In an environment of its own, because both bring versions of their own:

    pip install --no-deps msmodelslim==26.1.0 compressed-tensors==0.20.0 && pip install easydict einops wcmatch scipy
    python tests/hw/quantization/record_parity.py

writes ``msmodelslim.json`` and ``compressed_tensors.json`` beside this file. Inputs are multiples of 2^-10, so that
JSON holds them exactly.

Flex AWQ is recorded for int4, as GLM-5's recipe uses it: with int8 weights, that version's search rounds activations
with a scale per channel (`ir/w8a8_dynamic.py` takes the extremes over dim 0), which the chip does not.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
T, K, N = 24, 16, 6
HEADS, VALUE_HEADS = 4, 2


def drawn(*shape: int, seed: int, spread: int = 0) -> Tensor:
    """Returns exact multiples of 2^-10; with `spread` columns differ in size by up to that power of e."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * torch.exp(spread * torch.randn(shape[-1], generator=generator))
    return (x * 1024).round() / 1024


def linear(weight: Tensor) -> nn.Linear:
    """Returns a layer without bias that has these weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return made


def smoothing() -> dict[str, Any]:
    """Returns the inputs of flex smooth and flex AWQ and the factors that each multiplies a layer's columns by."""
    from msmodelslim.core.quantizer.base import QConfig
    from msmodelslim.core.quantizer.linear import LinearQConfig
    from msmodelslim.processor.anti_outlier.common import (
        FlexAWQSSZConfig,
        FlexAWQSSZContext,
        FlexSmoothQuantConfig,
        FlexSmoothQuantContext,
    )
    from msmodelslim.processor.anti_outlier.common.subgraph_type import NormLinearSubgraph, OVSubgraph, UpDownSubgraph
    from msmodelslim.processor.anti_outlier.flex_smooth.api import flex_awq_ssz, flex_smooth_quant

    x_TK, first_NK, second_NK = drawn(T, K, seed=1, spread=1), drawn(N, K, seed=2, spread=1), drawn(N, K, seed=3)
    act = QConfig(dtype="int8", scope="per_token", symmetric=True, method="minmax")

    weight = QConfig(dtype="int4", scope="per_channel", symmetric=True, method="ssz", ext={"step": 10})
    config = FlexAWQSSZConfig(qconfig=LinearQConfig(act=act, weight=weight))
    awq = (flex_awq_ssz, config, FlexAWQSSZContext(version=1, tensors=[x_TK]))
    largest_K = x_TK.abs().amax(0)
    smooth = (flex_smooth_quant, FlexSmoothQuantConfig(), FlexSmoothQuantContext(1, largest_K, [x_TK]))
    factors: dict[str, list[float]] = {}
    for name, (apply, config, context) in {"flex_smooth": smooth, "flex_awq": awq}.items():
        down, other = linear(first_NK), linear(second_NK)
        apply(UpDownSubgraph(linear(torch.ones(K, 3)), down, linear(torch.ones(K, 3))), config, context)
        factors[f"{name} up-down"] = (down.weight / first_NK).amax(0).tolist()
        out, values = linear(first_NK), linear(torch.ones(K // HEADS * VALUE_HEADS, 3))
        apply(OVSubgraph(out, values, HEADS, VALUE_HEADS), config, context)
        factors[f"{name} ov"] = (1 / values.weight[:, 0]).tolist()
        both, norm = [linear(first_NK), other], nn.LayerNorm(K, bias=False)
        apply(NormLinearSubgraph(norm, both), config, context)
        factors[f"{name} norm-linear"] = (1 / norm.weight).tolist()
    inputs = {"x": x_TK.tolist(), "first": first_NK.tolist(), "second": second_NK.tolist()}
    return {"smoothing": {**inputs, "heads": HEADS, "value_heads": VALUE_HEADS, "factors": factors}}


def scales() -> dict[str, Any]:
    """Returns SSZ's scales and integers of 10 steps for the weight of the committed file."""
    from msmodelslim.core.quantizer.base import QConfig
    from msmodelslim.core.quantizer.impl.ssz import WeightPerChannelSsz
    from msmodelslim.ir.qal import QDType, QStorage

    weight_NK = torch.tensor(json.loads((HERE / "msmodelslim.json").read_text(encoding="utf-8"))["weight"])
    config = QConfig(dtype="int4", scope="per_channel", symmetric=True, method="ssz", ext={"step": 10})
    made = WeightPerChannelSsz(config)
    made.init_weight(QStorage(QDType.FLOAT, weight_NK))
    made.forward()
    integers = made.get_q_storage().value.to(torch.int8)
    return {
        "weight": weight_NK.tolist(),
        "scale": made.get_q_param().ext["scale"].tolist(),
        "integers": integers.tolist(),
    }


def rotations() -> dict[str, Any]:
    """Returns ramps turned by the rotations of seed 1234."""
    from msmodelslim.processor.quarot.common.quarot_utils import QuaRotMode, create_rot

    found = {}
    for name, mode, size in (
        ("hadamard_64", QuaRotMode.HADAMARD, 64),
        ("shifted_96", QuaRotMode.BLOCK_HADAMARD_SHIFTED, 96),
    ):
        ramp = torch.arange(1, size + 1, dtype=torch.float64) / size
        found[name] = (ramp @ create_rot(mode, size, seed=1234, dtype=torch.float32).double()).tolist()
    return found


def ascend() -> dict[str, Any]:
    """Returns int4 matrices as Ascend's files hold them, with their ``scale_bias``."""
    from msmodelslim.core.quant_service.modelslim_v1.save.utils.pack import process_scale, w4a8_pack_int4

    generator = torch.Generator().manual_seed(5)
    values_NK = torch.randint(-8, 8, (8, 32), generator=generator)
    scale_N1 = (torch.rand(8, 1, generator=generator) * 1024).round() / 1024 + 0.25
    wide_NK = (values_NK * scale_N1).float()
    return {
        "ascend": {
            "values": values_NK.tolist(),
            "scale": scale_N1.tolist(),
            "packed": w4a8_pack_int4(values_NK.to(torch.int8)).tolist(),
            "scale_bias of up_proj": process_scale("experts.0.up_proj", wide_NK, 16).tolist(),
            "scale_bias of down_proj": process_scale("experts.0.down_proj", wide_NK, 16).tolist(),
        }
    }


def compressed_tensors() -> dict[str, Any]:
    """Returns matrices quantised and packed by compressed-tensors: int8 by channel, int4 by channel and in groups."""
    from compressed_tensors.compressors import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize

    found = {}
    for name, bits, group in (("int8", 8, None), ("int4", 4, None), ("int4_group_32", 4, 32)):
        weight_NK = drawn(5, 96, seed=7)
        strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
        args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, **strategy)
        largest = weight_NK.unflatten(1, (-1, group or 96)).abs().amax(-1)
        scale_NG = largest / (2 ** (bits - 1) - 1)
        values_NK = quantize(weight_NK, scale_NG, torch.zeros_like(scale_NG), args, dtype=torch.int8)
        found[name] = {
            "weight": weight_NK.tolist(), "scale": scale_NG.tolist(), "values": values_NK.tolist(),
            "packed": pack_to_int32(values_NK, bits).tolist() if bits == 4 else None,
        }  # fmt: skip
    return found


def main() -> None:
    """Writes both files."""
    logging.disable(logging.WARNING)
    slim = {**scales(), **rotations(), **smoothing(), **ascend()}
    for name, found in (("msmodelslim", slim), ("compressed_tensors", compressed_tensors())):
        (HERE / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Scales, factors, rotations and packed integers equal other programs', recorded by `record_parity.py` beside this."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_core.checkpoint.packed import encode
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, quantise, unpack_int4
from arcforge_hw.quantization.rotations import random_hadamard, shifted_blocks
from arcforge_hw.quantization.rounding import ssz
from arcforge_hw.quantization.smoothing import Reader, search


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))


def test_ssz_and_rotations_equal_msmodelslims() -> None:
    """`WeightPerChannelSsz` of 10 steps, and `create_rot` of seed 1234 on a ramp."""
    known = recorded("msmodelslim")
    found = ssz(torch.tensor(known["weight"]), INT4, 10)
    assert (found.scale[:, 0] - torch.tensor(known["scale"])).abs().max() < 1e-6
    assert torch.equal(unpack_int4(found.values), torch.tensor(known["integers"], dtype=torch.int8))
    for name, make in (("hadamard_64", random_hadamard), ("shifted_96", shifted_blocks)):
        wanted = torch.tensor(known[name], dtype=torch.float64)
        ramp = torch.arange(1, len(wanted) + 1, dtype=torch.float64) / len(wanted)
        assert (ramp @ make(len(wanted), 1234) - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("place", ["up-down", "ov", "norm-linear"])
@pytest.mark.parametrize("rule", ["flex_smooth", "flex_awq"])
def test_smoothing_factors_equal_msmodelslims(rule: str, place: str) -> None:
    known = recorded("msmodelslim")["smoothing"]
    names = ("first", "second") if place == "norm-linear" else ("first",)
    x_TK, plain = torch.tensor(known["x"]), partial(ssz, form=INT4, steps=10)
    readers = [Reader(name, torch.tensor(known[name]), x_TK, plain) for name in names]
    groups = known["value_heads"] if place == "ov" else 1
    repeats = known["heads"] // groups if place == "ov" else 1
    found = search(readers, rule, 10, True, groups, repeats)
    wanted = torch.tensor(known["factors"][f"{rule} {place}"])
    assert found is not None and found.factors.shape == wanted.shape
    assert (found.factors / wanted - 1).abs().max() < 1e-6
    assert len(set(wanted.tolist())) == len(wanted)  # an exponent of 0 would make all of them 1


@pytest.mark.parametrize("name, form", [("int8", INT8), ("int4", INT4), ("int4_group_32", INT4_GROUP_32)])
def test_stored_integers_equal_compressed_tensors_bit_for_bit(name: str, form: Format) -> None:
    known = recorded("compressed_tensors")[name]
    stored = encode("x.weight", quantise(torch.tensor(known["weight"]), form))
    assert torch.equal(stored["x.weight_scale"], torch.tensor(known["scale"]))
    if form.bits == 8:
        assert torch.equal(stored["x.weight"], torch.tensor(known["values"], dtype=torch.int8))
    else:
        assert torch.equal(stored["x.weight_packed"], torch.tensor(known["packed"], dtype=torch.int32))

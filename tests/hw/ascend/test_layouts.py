"""Layouts of weights for torch_npu's operators keep every bit, and leave what has no place in them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.hardware import Weight
from arcforge_core.ops.quant import INT4, quantise, unpack_int4
from arcforge_hw.ascend import layouts
from arcforge_hw.ascend.backend import Ascend
from arcforge_hw.configs import AscendConfig


def named(layout, value, name="experts.gate_up_proj", op="quant_experts"):
    return Weight(name, layout, op, "", tuple(value.shape), value.dtype)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**16))
def test_int4_experts_and_scales_come_back_with_every_bit(experts, eights, pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(experts, 8 * eights, 2 * pairs, generator=generator)
    chip = Ascend(AscendConfig())
    for layout, value in zip((layouts.COLUMNS, layouts.BITS), quantise(weight, INT4), strict=True):
        prepared = chip.prepare_weight(named(layout, value), value)
        back = chip.restore_weight(named(layout, value), prepared)
        assert back.dtype == value.dtype and torch.equal(back, value)


def test_columns_are_packed_by_eight_and_their_sums_and_eightfold_scales_make_the_bias():
    packed, scale = quantise(torch.randn(2, 16, 6), INT4)
    (columns, sums), (bits, eightfold) = layouts.int4_columns(packed), layouts.scale_bits(scale)
    values = unpack_int4(packed)
    assert columns.dtype == torch.int32 and columns.shape == (2, 6, 2) and bits.shape == (2, 1, 16)
    nibbles = torch.stack([(columns >> (4 * n)) & 15 for n in range(8)], -1).flatten(-2)
    assert torch.equal(torch.where(nibbles > 7, nibbles - 16, nibbles), values.mT.int())
    torch.testing.assert_close(sums * eightfold, 8 * (values.float() * scale).sum(-1))
    assert torch.equal(bits[:, 0].int().view(torch.float32), scale[..., 0])


def test_int8_experts_groups_and_layers_that_others_read_stay_as_they_are():
    int8, grouped = torch.zeros(2, 8, 4, dtype=torch.int8), torch.ones(2, 8, 3)
    assert layouts.prepare(named(layouts.COLUMNS, int8), int8) is None
    assert layouts.prepare(named(layouts.BITS, grouped), grouped) is None
    matrix = torch.randn(4, 6)
    for name, turns in (("o_proj", False), ("kv_b_proj", False), ("q_b_proj", True), ("kv_a_proj_with_mqa", True)):
        weight = named(layouts.TURNED, matrix, f"model.layers.0.self_attn.{name}.weight", "linear")
        prepared = layouts.prepare(weight, matrix)
        assert (prepared is not None) == turns, name
        if prepared is not None:
            assert prepared.is_contiguous() and torch.equal(layouts.restore(weight, prepared), matrix)

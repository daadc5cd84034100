import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from arcforge_core.contracts.optimizer import ParameterRole, RoledParameter
from arcforge_optim.matrices import chunks, cut


def item(role: ParameterRole, *shape: int) -> RoledParameter:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return RoledParameter("w", nn.Parameter(values.view(shape)), role)


KV_B = item(ParameterRole("head_matrix", num_heads=3, parts=(4, 2)), 18, 5)


def test_whole_parts_take_their_rows_from_all_heads():
    keys, values = cut(KV_B)
    heads_HRC = KV_B.parameter.view(3, 6, 5)
    assert keys.shape == (12, 5) and values.shape == (6, 5)
    assert torch.equal(keys.view(KV_B.parameter), heads_HRC[None, :, :4])
    assert torch.equal(values.view(KV_B.parameter), heads_HRC[None, :, 4:])


def test_per_head_every_head_is_a_matrix():
    keys, values = cut(KV_B, per_head=True)
    assert keys.shape == (4, 5) and len(keys.batch) == 3
    assert torch.equal(values.view(KV_B.parameter)[:, 0], KV_B.parameter.view(3, 6, 5)[:, 4:])


def test_only_head_matrices_are_cut_by_head():
    grouped = item(ParameterRole("matrix", num_heads=3), 18, 5)
    (whole,) = cut(grouped, per_head=True)
    assert whole.shape == (18, 5)


def test_rotary_rows_stay_in_the_matrix_of_their_head():
    q_b = item(ParameterRole("head_matrix", num_heads=2, rope_rows=2), 12, 5)
    assert [m.shape for m in cut(q_b, per_head=True)] == [(6, 5)]


def test_experts_and_fused_parts_are_separate():
    gate, up = cut(item(ParameterRole("expert", parts=(2, 2)), 3, 4, 5))
    assert gate.shape == up.shape == (2, 5) and len(gate.batch) == len(up.batch) == 3


@pytest.mark.parametrize(
    ("role", "shape", "message"),
    [
        (ParameterRole("matrix"), (4,), "contiguous matrix"),
        (ParameterRole("head_matrix", num_heads=3), (4, 2), "4 rows are not 3 heads"),
        (ParameterRole("matrix", parts=(3, 2)), (4, 2), "rows are not 1 heads"),
        (ParameterRole("head_matrix", rope_rows=4), (4, 2), "4 rotary rows in a part of 4"),
    ],
)
def test_roles_that_do_not_fit_are_refused(role, shape, message):
    with pytest.raises(ValueError, match=f"w: .*{message}"):
        cut(item(role, *shape))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 9), st.booleans())
def test_chunks_cover_every_matrix_once(experts, limit, fused):
    parameters = [item(ParameterRole("expert", parts=(2, 2) if fused else ()), count, 4, 3) for count in experts]
    runs = list(chunks([m for p in parameters for m in cut(p)], limit))
    assert all(1 <= sum(len(m.batch) for m in run) <= limit for run in runs)
    assert all(sum(len(m.batch) for m in run) == limit for run in runs[:-1])
    for p in parameters:
        p.parameter.data.zero_()
    with torch.no_grad():
        for run in runs:
            for m in run:
                m.view(m.parameter).add_(1.0)
    assert all(torch.equal(p.parameter, torch.ones_like(p.parameter)) for p in parameters)

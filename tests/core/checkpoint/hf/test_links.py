import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.checkpoint.hf.links import RotatedRows, links
from arcforge_core.ops import reference
from arcforge_core.testing.small_models import small_model


@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_rows_go_to_pairs_and_back(heads, before, pairs, after, matrix):
    rows = RotatedRows(before + 2 * pairs + after, before, 2 * pairs)
    x = torch.randn(heads * rows.head, *([3] if matrix else []))
    assert torch.equal(rows.to_halves(rows.to_pairs(x)), x)
    head, paired = x[: rows.head], rows.to_pairs(x)[: rows.head]
    assert torch.equal(paired[:before], head[:before])
    assert torch.equal(paired[rows.head - after :], head[rows.head - after :])
    for pair in range(pairs):
        assert torch.equal(paired[before + 2 * pair], head[before + pair])
        assert torch.equal(paired[before + 2 * pair + 1], head[before + pairs + pair])


def test_scores_of_half_split_rotation_are_those_of_pairs():
    rows, angle_F = RotatedRows(8, 0, 8), torch.tensor([0.3, 0.7, 1.1, 2.0])
    cos, sin, (q, k) = angle_F.cos(), angle_F.sin(), torch.randn(2, 8)

    def halves(x):
        first, second = x.chunk(2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin))

    def pairs(x):
        return reference.rope(rows.to_pairs(x).view(1, 1, 8), cos[None], sin[None]).flatten()

    torch.testing.assert_close(halves(q) @ k, pairs(q) @ rows.to_pairs(k))


@pytest.mark.parametrize("stacked", [False, True])
def test_links_cover_every_tensor_and_are_inverses(stacked):
    state = small_model().state_dict()
    rotated = {"self_attn.q_b_proj": RotatedRows(16, 12, 4)}
    found = list(links({n: t.shape for n, t in state.items()}, 2, rotated, lambda name: stacked))
    assert [link.ours for link in found] == list(state)
    theirs = [name for link in found for name in link.theirs]
    assert len(theirs) == len(set(theirs)) and not any(name.startswith("mtp.") for name in theirs)
    for link in found:
        parts = link.split(state[link.ours])
        assert len(parts) == len(link.theirs)
        assert torch.equal(link.join(parts), state[link.ours])
    experts = [link for link in found if link.ours.endswith("experts.gate_up_proj")]
    assert len(experts) == 2 and all(len(link.theirs) == (1 if stacked else 8) for link in experts)


def test_experts_are_gate_then_up_of_each():
    state = small_model().state_dict()
    name = "model.layers.1.mlp.experts.gate_up_proj"
    [link] = [link for link in links({n: t.shape for n, t in state.items()}, 2, {}) if link.ours == name]
    parts = dict(zip(link.theirs, link.split(state[name]), strict=True))
    assert torch.equal(parts["model.layers.1.mlp.experts.2.gate_proj.weight"], state[name][2, :16])
    assert torch.equal(parts["model.layers.1.mlp.experts.2.up_proj.weight"], state[name][2, 16:])

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.schema import MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.mtp import shift_left
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.losses import MtpPlan, cross_entropy, plan_mtp
from support.models import segment_lengths, train_batch

DEPTHS = 3


def model_with_depths(depths: int = DEPTHS, **changes):
    return small_model(mtp=MtpConfig(depths=depths, fraction=1.0), **changes).double()


def run_depths(model, micro, modules=None) -> tuple[list[torch.Tensor], MtpPlan]:
    """Returns each depth's hidden states; `modules` runs them with modules of their own."""
    plan = plan_mtp(micro, DEPTHS, 1.0)
    assert plan is not None
    hidden_TD, rope, outs = model.hidden(micro.tokens_T, micro.batch).hidden_TD, model.rope(plan.batch), []
    for d, step in enumerate(plan.depths):
        module = model.mtp if modules is None else modules[d]
        hidden_TD = module.step(model.embed(step.next_tokens_T), hidden_TD, plan.batch, rope).x_TD
        outs.append(hidden_TD)
    return outs, plan


def test_three_depths_have_the_parameters_of_one():
    names = [[name for name, _ in model_with_depths(d).named_parameters()] for d in (0, 1, 3)]
    assert names[1] == names[2]
    assert {n.split(".")[0] for n in set(names[1]) - set(names[0])} == {"mtp"}


def test_parameters_are_named_as_in_the_checkpoint():
    mtp = model_with_depths().mtp
    own = {name: list(p.shape) for name, p in mtp.named_parameters() if name.split(".")[0] not in ("self_attn", "mlp")}
    assert own == {
        "enorm.weight": [32], "hnorm.weight": [32], "eh_proj.weight": [32, 64], "shared_head.norm.weight": [32],
        "input_layernorm.weight": [32], "post_attention_layernorm.weight": [32],
    }  # fmt: skip
    assert "experts.gate_up_proj" in dict(mtp.mlp.named_parameters())


def test_the_module_is_a_mixture_even_when_all_layers_are_dense():
    model = model_with_depths(first_k_dense_replace=2)
    assert hasattr(model.mtp.mlp, "experts")


def test_the_gradient_of_the_shared_module_is_the_sum_over_depths():
    model, micro = model_with_depths(), train_batch([6, 4], 64)
    copies = [copy.deepcopy(model.mtp) for _ in range(DEPTHS)]

    def backward(modules):
        outs, plan = run_depths(model, micro, modules)
        for out_TD, step in zip(outs, plan.depths, strict=True):
            cross_entropy(model, out_TD, step.targets_T, step.weights_T).backward(retain_graph=True)

    backward([model.mtp] * DEPTHS)
    backward(copies)
    for name, parameter in model.mtp.named_parameters():
        parts = [dict(c.named_parameters())[name].grad for c in copies]
        torch.testing.assert_close(parameter.grad, sum(parts), msg=name)
        if name == "eh_proj.weight":
            assert all(part.abs().sum() > 0 for part in parts)


def test_embedding_comes_first_and_hidden_second():
    model, batch = model_with_depths(), SequenceBatch.build([5])
    rope, D = model.rope(batch), model.config.hidden_size
    embedding_TD, hidden_TD, other_TD = (torch.randn(5, D, dtype=torch.float64) for _ in range(3))
    with torch.no_grad():
        model.mtp.eh_proj.weight[:, D:] = 0

    def step(embedding_TD, hidden_TD):
        return model.mtp.step(embedding_TD, hidden_TD, batch, rope).x_TD

    assert torch.equal(step(embedding_TD, hidden_TD), step(embedding_TD, other_TD))
    assert not torch.equal(step(embedding_TD, hidden_TD), step(other_TD, hidden_TD))
    # both inputs are normed, so their size does not matter
    torch.testing.assert_close(step(embedding_TD, hidden_TD), step(embedding_TD * 7, hidden_TD), rtol=1e-3, atol=1e-3)


def test_a_depth_hands_on_its_normed_output():
    model, batch = model_with_depths(), SequenceBatch.build([5])
    out_TD = model.mtp.step(*torch.randn(2, 5, 32, dtype=torch.float64), batch, model.rope(batch)).x_TD
    torch.testing.assert_close(out_TD.square().mean(-1), torch.ones(5, dtype=torch.float64), rtol=1e-3, atol=1e-3)


@settings(max_examples=10)
@given(st.integers(2, 7), st.data())
def test_depth_d_sees_the_tokens_up_to_d_places_ahead_and_no_others(length, data):
    """Token k changes depth d's state at place i exactly when i + d >= k; neighbours in the batch stay as they are."""
    model, micro = model_with_depths(), train_batch([3, length, 2], 64)
    document_T = torch.cat([micro.tokens_T[3 : 3 + length], micro.targets_T[2 + length : 3 + length]])
    k = data.draw(st.integers(0, length))
    document_T[k] = (document_T[k] + 1) % 64
    micro_after = train_batch([3, length, 2], 64)
    micro_after.tokens_T[3 : 3 + length] = document_T[:-1]
    micro_after.targets_T[3 : 3 + length] = document_T[1:]
    before, _ = run_depths(model, micro)
    after, _ = run_depths(model, micro_after)
    for d in range(1, DEPTHS + 1):
        changed = ((before[d - 1] - after[d - 1]).abs() > 1e-10).any(-1)  # another split rounds differently
        assert not changed[:3].any() and not changed[3 + length :].any()
        for i in range(length - d + 1):  # places whose token ahead exists
            assert bool(changed[3 + i]) == (i + d >= k), (d, i, k)


@given(segment_lengths())
def test_depth_d_at_place_i_reads_token_i_plus_d_and_predicts_the_next(lengths):
    micro = train_batch(lengths, 1000, unweighted=[0])
    plan, start = plan_mtp(micro, DEPTHS, 1.0), 0
    for n in lengths:
        document = [*micro.tokens_T[start : start + n].tolist(), int(micro.targets_T[start + n - 1])]
        for d, step in enumerate(plan.depths, 1):
            for i in range(n):
                weight = float(step.weights_T[start + i])
                if i + d + 1 > n:
                    assert weight == 0.0
                    continue
                assert weight == float(micro.weights_T[start + i + d])
                assert int(step.next_tokens_T[start + i]) == document[i + d]
                assert int(step.targets_T[start + i]) == document[i + d + 1]
        start += n


@given(segment_lengths())
def test_shift_left_stays_inside_each_segment(lengths):
    batch = SequenceBatch.build(lengths)
    x_T = torch.arange(batch.num_tokens) * 10
    shifted_T, valid_T = shift_left(x_T, batch)
    start = 0
    for n in lengths:
        values = x_T[start : start + n].tolist()
        assert shifted_T[start : start + n].tolist() == [*values[1:], values[-1]]
        assert valid_T[start : start + n].tolist() == [True] * (n - 1) + [False]
        start += n


@given(segment_lengths(8), st.floats(0.01, 1.0))
def test_a_fraction_takes_the_fewest_leading_whole_segments_that_reach_it(lengths, fraction):
    plan = plan_mtp(train_batch(lengths, 64), 1, fraction)
    taken = plan.batch.query_lengths()
    assert taken == lengths[: len(taken)]
    assert sum(taken) >= fraction * sum(lengths) > sum(taken[:-1])
    assert all(len(x_T) == sum(taken) for x_T in vars(plan.depths[0]).values())


def test_no_fraction_and_no_depths_plan_nothing():
    assert plan_mtp(train_batch([4], 64), 3, 0.0) is None
    assert plan_mtp(train_batch([4], 64), 0, 1.0) is None


def test_a_model_without_mtp_refuses_to_step():
    model, batch = model_with_depths(0), SequenceBatch.build([2])
    assert model.mtp is None
    with pytest.raises(ConfigError, match=r"model\.mtp\.depths=0"):
        model.mtp_step(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 32), batch, model.rope(batch))

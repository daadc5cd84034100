import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from arcforge_core.config.schema import MtpConfig
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.step import (
    NonFiniteError,
    StepBatch,
    accumulate_gradients,
    balance_routers,
    clip_gradients,
)
from support.models import segment_lengths, split, train_batch


def alone(values):
    return values, 1.0


def run(model, micros, reduce=alone):
    model.zero_grad()
    return accumulate_gradients(model, StepBatch(micros), lambda loss: loss.backward(), reduce)


def gradients(model):
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_same_gradients(actual, expected):
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], rtol=1e-7, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


def training_model():
    return small_model(mtp=MtpConfig(depths=2, fraction=1.0), balance_loss_weight=0.1).double()


# ---- accumulation ---------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(segment_lengths(6), st.lists(st.integers(1, 5)), st.data())
def test_micro_batches_of_any_split_equal_one_big_batch(lengths, cuts, data):
    unweighted = data.draw(st.lists(st.integers(0, sum(lengths) - 1), unique=True))
    model, big = training_model(), train_batch(lengths, 64, unweighted=unweighted)
    whole = run(model, [big])
    expected = gradients(model)
    parts = run(model, split(big, cuts))
    assert_same_gradients(gradients(model), expected)
    assert parts.losses.keys() == whole.losses.keys()
    for name, value in whole.losses.items():
        torch.testing.assert_close(parts.losses[name], value, msg=name)
    for layer, load_E in whole.expert_loads.items():
        assert torch.equal(parts.expert_loads[layer], load_E)


@settings(max_examples=10)
@given(segment_lengths(5), st.integers(1, 4))
def test_processes_that_average_their_gradients_equal_one_big_batch(lengths, cut):
    """Two ranks with other numbers of tokens, whose gradients are averaged as DistributedDataParallel does."""
    lengths = [*lengths, 3]
    model, big = training_model(), train_batch(lengths, 64, unweighted=[0])
    run(model, [big])
    expected = gradients(model)
    ranks, local = split(big, [min(cut, len(lengths) - 1)]), []
    for micro in ranks:
        run(model, [micro], lambda sums: (local.append(sums) or sums, 1.0))
    assert len(local) == 2
    averaged: dict[str, torch.Tensor] = {}
    for micro in ranks:
        run(model, [micro], lambda _: ([a + b for a, b in zip(*local, strict=True)], 2.0))
        for name, grad in gradients(model).items():
            averaged[name] = averaged.get(name, 0) + grad / 2
    assert_same_gradients(averaged, expected)


def test_gradients_are_added_to_those_that_are_there():
    model, micro = training_model(), train_batch([4, 3], 64)
    run(model, [micro])
    once = gradients(model)
    accumulate_gradients(model, StepBatch([micro]), lambda loss: loss.backward(), alone)
    assert_same_gradients(gradients(model), {name: 2 * grad for name, grad in once.items()})


def test_a_step_without_any_weight_leaves_only_balance():
    model = small_model(balance_loss_weight=0.0)
    result = run(model, [train_batch([3], 64, unweighted=range(3)), train_batch([2], 64, unweighted=range(2))])
    assert float(result.losses["loss"]) == 0.0 and not any(grad.any() for grad in gradients(model).values())


def test_a_step_batch_knows_its_tokens_and_cursor_and_moves():
    step = StepBatch([train_batch([3], 64), train_batch([2, 2], 64)])
    step.micros[1] = dataclasses.replace(step.micros[1], cursor=9)
    assert step.num_tokens == 7 and step.cursor == 9
    moved = step.to("meta")
    assert all(m.tokens_T.is_meta and m.batch.positions_T.is_meta for m in moved.micros)


# ---- what is not finite ---------------------------------------------------------------------------------------------


def test_a_loss_that_is_nan_is_named_before_its_backward_pass():
    model = small_model()
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NonFiniteError, match=r"^loss is nan$"):
        accumulate_gradients(model, StepBatch([train_batch([4], 64)]), lambda _: pytest.fail("backward"), alone)
    assert all(torch.equal(before[n], t) or "lm_head" in n for n, t in model.state_dict().items())


def test_an_infinite_mtp_loss_is_named_by_depth():
    model = small_model(mtp=MtpConfig(depths=2, fraction=1.0))
    with torch.no_grad():
        model.mtp.shared_head.norm.weight.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match=r"^mtp_loss_1 is (nan|inf)$"):
        run(model, [train_batch([5], 64)])


def test_a_gradient_that_is_not_finite_is_named():
    model = small_model()
    run(model, [train_batch([4], 64)])
    model.get_parameter("model.layers.1.mlp.gate.weight").grad[0, 0] = float("inf")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NonFiniteError, match=r"^the gradient of model\.layers\.1\.mlp\.gate\.weight is not finite$"):
        clip_gradients(model.named_parameters(), 1.0)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_norm_beyond_the_range_of_fp32_is_refused_though_each_gradient_is_finite():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.full((2,), 3e38)
    with pytest.raises(NonFiniteError, match="the gradient norm overflows"):
        clip_gradients([("p", parameter)], 1.0)


# ---- clipping -------------------------------------------------------------------------------------------------------


def with_gradients(seed=0, scale=1.0):
    torch.manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(2))]
    for parameter in parameters[:2]:
        parameter.grad = scale * torch.randn_like(parameter)
    return parameters


@given(st.floats(0.01, 100.0), st.floats(0.01, 10.0), st.integers(0, 9))
def test_clipping_equals_torch(limit, scale, seed):
    ours, theirs = with_gradients(seed, scale), with_gradients(seed, scale)
    norm = clip_gradients([(str(n), p) for n, p in enumerate(ours)], limit)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs, limit)))
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert torch.equal(mine.grad, other.grad)
    assert ours[2].grad is None


def test_a_limit_of_zero_only_measures():
    parameters = with_gradients(scale=100.0)
    before = [p.grad.clone() for p in parameters[:2]]
    assert clip_gradients([(str(n), p) for n, p in enumerate(parameters)], 0.0) > 100.0
    assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before, strict=False))


def test_no_gradients_have_no_norm():
    assert clip_gradients([("p", nn.Parameter(torch.zeros(2)))], 1.0) == 0.0


# ---- balance --------------------------------------------------------------------------------------------------------


def test_every_router_moves_by_its_own_load():
    model = small_model(num_hidden_layers=3)
    loads = {1: torch.tensor([9.0, 1, 5, 5]), 2: torch.tensor([1.0, 1, 1, 9]), 3: torch.tensor([4.0, 8, 4, 0])}
    balance_routers(model, loads, 0.01)
    mixtures = [*(layer.mlp for layer in model.model.layers[1:]), model.mtp.mlp]
    signs = [[-1.0, 1, 0, 0], [1.0, 1, 1, -1], [0.0, -1, 0, 1]]
    for mlp, sign in zip(mixtures, signs, strict=True):
        torch.testing.assert_close(mlp.gate.e_score_correction_bias, 0.01 * torch.tensor(sign))


def test_routers_without_tokens_and_a_rate_of_zero_move_nothing():
    model = small_model()
    balance_routers(model, {1: torch.tensor([9.0, 1, 5, 5])}, 0.0)
    balance_routers(model, {}, 0.1)
    assert not any(b.any() for b in model.buffers())

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.moe import DenseMLP, MoE, Router, expert_loads, sequence_balance_loss
from arcforge_core.testing.small_models import small_config
from support.models import model_configs, segment_lengths


def build(cls, seed=0, **changes):
    torch.manual_seed(seed)
    module = cls(small_config(**changes))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def one_segment(tokens: int) -> SequenceBatch:
    return SequenceBatch.build([tokens])


# ---- router ---------------------------------------------------------------------------------------------------------


def test_the_bias_changes_the_choice_and_nothing_else():
    router, x_TD = build(Router, n_routed_experts=6), torch.randn(50, 32)
    expert_TK, gate_TK, score_TE = router(x_TD)
    router.e_score_correction_bias[5] = 10.0
    biased_TK, biased_gate_TK, biased_score_TE = router(x_TD)
    assert not torch.equal(expert_TK, biased_TK) and (biased_TK == 5).any(-1).all()
    assert torch.equal(score_TE, biased_score_TE)
    chosen = score_TE.gather(1, biased_TK)
    torch.testing.assert_close(biased_gate_TK, 2.5 * chosen / chosen.sum(-1, keepdim=True))
    same = (expert_TK.sort(-1).values == biased_TK.sort(-1).values).all(-1)
    assert same.any() and not same.all()
    torch.testing.assert_close(gate_TK[same].sort(-1).values, biased_gate_TK[same].sort(-1).values)


def test_the_bias_gets_no_gradient_and_the_gates_do():
    router, x_TD = build(Router), torch.randn(5, 32)
    router(x_TD)[1].square().sum().backward()
    assert not router.e_score_correction_bias.requires_grad
    assert [name for name, _ in router.named_parameters()] == ["weight"] and router.weight.grad.abs().sum() > 0


@given(model_configs(), st.integers(0, 99))
def test_gates_sum_to_the_scale_over_distinct_experts(config, seed):
    torch.manual_seed(seed)
    router = Router(config)
    nn.init.normal_(router.weight)
    expert_TK, gate_TK, _ = router(torch.randn(9, config.hidden_size))
    torch.testing.assert_close(gate_TK.sum(-1), torch.full((9,), config.routed_scaling_factor))
    assert expert_TK.shape == (9, config.num_experts_per_tok) and expert_TK.dtype == torch.int64
    assert all(len(set(row)) == len(row) for row in expert_TK.tolist())


def test_the_choice_is_the_highest_scores():
    router, x_TD = build(Router, n_routed_experts=8, num_experts_per_tok=3), torch.randn(20, 32)
    expert_TK, _, score_TE = router(x_TD)
    assert torch.equal(expert_TK, score_TE.topk(3).indices)


def test_ties_go_to_the_lower_expert():
    router = build(Router, n_routed_experts=64, num_experts_per_tok=8)
    nn.init.zeros_(router.weight)
    assert router(torch.randn(3, 32))[0].tolist() == [list(range(8))] * 3
    router.e_score_correction_bias[[60, 40]] = 1.0
    assert router(torch.randn(1, 32))[0].tolist() == [[40, 60, *range(6)]]


def test_the_router_is_fp32_under_bf16_activations():
    router, x_TD = build(Router), torch.randn(40, 32).bfloat16()
    _, gate_TK, score_TE = router(x_TD)
    assert gate_TK.dtype == score_TE.dtype == torch.float32
    assert torch.equal(score_TE, F.linear(x_TD.float(), router.weight).sigmoid())


def test_a_float64_router_is_not_rounded_to_fp32():
    router, x_TD = build(Router).double(), torch.randn(4, 32, dtype=torch.float64)
    assert torch.equal(router(x_TD)[2], F.linear(x_TD, router.weight).sigmoid())
    assert router(x_TD)[1].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_bias_stays_fp32_when_the_model_is_cast(dtype):
    moe = build(MoE)
    moe.gate.balance(torch.tensor([0.0, 1.0, 2.0, 3.0]), 1e-3)
    before = moe.gate.e_score_correction_bias.clone()
    moe.to(dtype)
    assert moe.gate.weight.dtype == dtype and torch.equal(moe.gate.e_score_correction_bias, before)
    assert moe.to("meta").gate.e_score_correction_bias.is_meta
    assert moe.to_empty(device="cpu").gate.e_score_correction_bias.dtype == torch.float32
    assert "gate.e_score_correction_bias" in moe.state_dict()


def test_balance_moves_the_bias_towards_underloaded_experts():
    router = build(Router)
    router.balance(torch.tensor([0.0, 4.0, 2.0, 2.0]), 0.01)
    assert torch.equal(router.e_score_correction_bias, torch.tensor([0.01, -0.01, 0.0, 0.0]))
    router.balance(torch.tensor([8.0, 8.0, 8.0, 8.0]), 0.01)
    assert torch.equal(router.e_score_correction_bias, torch.tensor([0.01, -0.01, 0.0, 0.0]))


def test_balance_evens_a_skewed_router_out():
    moe, x_TD = build(MoE, n_routed_experts=8), torch.randn(256, 32)
    x_TD[:, 0] = 1.0
    with torch.no_grad():
        moe.gate.weight[:, 0] += torch.linspace(-1.5, 1.5, 8)
        loads = []
        for _ in range(400):
            load_E = moe(x_TD, one_segment(256))[2]
            loads.append(float(load_E.max() / load_E.mean()))
            moe.gate.balance(load_E, 0.005)
    assert loads[0] > 2.0 and max(loads[-20:]) < 1.25


# ---- experts --------------------------------------------------------------------------------------------------------


def token_by_token(moe: MoE, x_TD):
    expert_TK, gate_TK, _ = moe.gate(x_TD)
    rows = []
    for x_D, experts, gates in zip(x_TD, expert_TK.tolist(), gate_TK, strict=True):
        out_D = torch.zeros_like(x_D)
        for e, gate in zip(experts, gates, strict=True):
            gate_F, up_F = (moe.experts.gate_up_proj[e] @ x_D).chunk(2)
            out_D = out_D + gate * (moe.experts.down_proj[e] @ (F.silu(gate_F) * up_F))
        if moe.shared_experts is not None:
            shared = moe.shared_experts
            inner_F = F.silu(shared.gate_proj.weight @ x_D) * (shared.up_proj.weight @ x_D)
            out_D = out_D + shared.down_proj.weight @ inner_F
        rows.append(out_D)
    return torch.stack(rows)


@given(model_configs(), st.integers(1, 6), st.integers(0, 99))
def test_a_mixture_equals_a_loop_over_tokens(config, tokens, seed):
    torch.manual_seed(seed)
    moe = MoE(config).double()
    for parameter in moe.parameters():
        nn.init.normal_(parameter, std=0.5)
    x_TD = torch.randn(tokens, config.hidden_size, dtype=torch.float64)
    out_TD, _, load_E = moe(x_TD, one_segment(tokens))
    torch.testing.assert_close(out_TD, token_by_token(moe, x_TD))
    assert load_E.sum() == tokens * config.num_experts_per_tok and len(load_E) == config.n_routed_experts


def test_gradients_of_a_mixture_are_those_of_the_loop():
    moe = build(MoE).double()
    slow = copy.deepcopy(moe)
    x_TD = torch.randn(7, 32, dtype=torch.float64)
    moe(x_TD, one_segment(7))[0].square().sum().backward()
    token_by_token(slow, x_TD).square().sum().backward()
    for (name, ours), theirs in zip(moe.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def test_the_shared_expert_is_added_unscaled():
    moe, x_TD = build(MoE, routed_scaling_factor=7.0), torch.randn(5, 32)
    nn.init.zeros_(moe.experts.down_proj)
    assert torch.equal(moe(x_TD, one_segment(5))[0], moe.shared_experts(x_TD))


def test_shared_experts_can_be_several_or_none():
    assert build(MoE, n_shared_experts=0).shared_experts is None
    assert build(MoE, n_shared_experts=3).shared_experts.gate_proj.out_features == 3 * 16


def test_dense_mlp_is_swiglu():
    torch.manual_seed(0)
    mlp, x_TD = DenseMLP(5, 7), torch.randn(3, 5)
    inner = F.silu(x_TD @ mlp.gate_proj.weight.T) * (x_TD @ mlp.up_proj.weight.T)
    torch.testing.assert_close(mlp(x_TD), inner @ mlp.down_proj.weight.T)


def slow_choice(choice_E, n_group, topk_group, top_k):
    """The definition with Python's sorts: ties to the lower number."""
    size = len(choice_E) // n_group
    groups = [range(g * size, (g + 1) * size) for g in range(n_group)]
    worth = [sum(sorted((choice_E[e] for e in group), reverse=True)[:2]) for group in groups]
    best = sorted(range(n_group), key=lambda g: -worth[g])[:topk_group]
    allowed = sorted(e for g in best for e in groups[g])
    return sorted(allowed, key=lambda e: -choice_E[e])[:top_k]


@given(st.integers(1, 4), st.integers(2, 4), st.data())
def test_choice_within_groups_equals_a_slow_loop(n_group, size, data):
    topk_group = data.draw(st.integers(1, n_group))
    top_k = data.draw(st.integers(1, topk_group * size))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    router = build(
        Router, n_routed_experts=n_group * size, num_experts_per_tok=top_k, n_group=n_group, topk_group=topk_group
    )
    router.e_score_correction_bias.copy_(torch.randint(-1, 2, (n_group * size,)) * 0.25)
    with torch.no_grad():
        router.weight.copy_(torch.randint(-1, 2, router.weight.shape))  # scores that often tie
    expert_TK, gate_TK, score_TE = router(torch.randint(-1, 2, (9, 32)).float())
    for token, choice_E in enumerate((score_TE + router.e_score_correction_bias).tolist()):
        assert expert_TK[token].tolist() == slow_choice(choice_E, n_group, topk_group, top_k)
    assert torch.isfinite(gate_TK).all()


@pytest.mark.slow(reason="imports transformers")
@pytest.mark.parametrize(("n_group", "topk_group"), [(1, 1), (4, 2)])
@pytest.mark.parametrize("family", ["deepseek_v3.DeepseekV3", "glm_moe_dsa.GlmMoeDsa"])
def test_equals_the_mixture_of_transformers(family, n_group, topk_group):
    package, prefix = family.split(".")
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip(f"transformers.models.{package}.modeling_{package}")
    config = getattr(transformers, f"{prefix}Config")(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=12, num_local_experts=12,
        num_experts_per_tok=4, n_shared_experts=1, n_group=n_group, topk_group=topk_group, routed_scaling_factor=2.5,
        norm_topk_prob=True, experts_implementation="eager",
    )  # fmt: skip
    theirs = getattr(modeling, f"{prefix}MoE")(config)
    ours = build(MoE, n_routed_experts=12, num_experts_per_tok=4, n_group=n_group, topk_group=topk_group)
    ours.gate.e_score_correction_bias.normal_(std=0.2)
    theirs.load_state_dict(ours.state_dict())
    x_TD = torch.randn(1, 40, 32)
    out_TD = ours(x_TD[0], one_segment(40))[0]
    torch.testing.assert_close(out_TD, theirs(x_TD)[0], rtol=1e-5, atol=1e-5)
    assert ours.gate.e_score_correction_bias.abs().sum() > 0


# ---- balance loss ---------------------------------------------------------------------------------------------------


def slow_balance_loss(score_TE, expert_TK, lengths):
    total, start, experts, top_k = 0.0, 0, score_TE.shape[1], expert_TK.shape[1]
    for n in lengths:
        for e in range(experts):
            rows = range(start, start + n)
            fraction = experts / (top_k * n) * sum(e in expert_TK[t] for t in rows)
            mean_share = sum(float(score_TE[t, e] / score_TE[t].sum()) for t in rows) / n
            total += n * fraction * mean_share
        start += n
    return total / start


@given(segment_lengths(), st.integers(1, 3), st.integers(0, 99))
def test_balance_loss_equals_a_slow_loop(lengths, top_k, seed):
    torch.manual_seed(seed)
    score_TE = torch.rand(sum(lengths), 5, dtype=torch.float64) + 0.01
    expert_TK = score_TE.topk(top_k).indices
    loss = sequence_balance_loss(score_TE, expert_TK, SequenceBatch.build(lengths))
    assert float(loss) == pytest.approx(slow_balance_loss(score_TE, expert_TK, lengths), rel=1e-9)


def test_balance_loss_is_one_when_every_segment_is_uniform_and_more_when_skewed():
    uniform_TE = torch.full((12, 4), 0.5)
    expert_TK = torch.tensor([[0, 1], [2, 3]]).repeat(6, 1)
    batch = SequenceBatch.build([4, 2, 6])
    assert float(sequence_balance_loss(uniform_TE, expert_TK, batch)) == pytest.approx(1.0, abs=1e-6)
    skewed_TE = torch.tensor([0.9, 0.8, 0.1, 0.1]).repeat(12, 1)
    skewed = sequence_balance_loss(skewed_TE, torch.tensor([[0, 1]]).repeat(12, 1), batch)
    assert float(skewed) > 1.5


def test_loads_count_the_choices():
    expert_TK = torch.randint(5, (40, 2), generator=torch.Generator().manual_seed(0))
    loads_E = expert_loads(expert_TK, 7, SequenceBatch.build([30, 10]))
    assert loads_E.dtype == torch.float32
    assert loads_E.tolist() == [int((expert_TK == n).sum()) for n in range(7)]


def test_loads_and_the_balance_loss_do_not_wait_for_a_device():
    batch = SequenceBatch.build([4, 2])
    with FakeTensorMode(allow_non_fake_inputs=True):  # which has no values to wait for
        score_TE, expert_TK = torch.rand(6, 5), torch.zeros(6, 2, dtype=torch.int64)
        assert expert_loads(expert_TK, 5, batch).shape == (5,)
        assert sequence_balance_loss(score_TE, expert_TK, batch).shape == ()


@given(segment_lengths(), st.randoms())
def test_balance_loss_does_not_depend_on_the_order_of_packing(lengths, random):
    score_TE = torch.rand(sum(lengths), 5)
    expert_TK = score_TE.topk(2).indices
    order = list(range(len(lengths)))
    random.shuffle(order)
    parts = list(zip(score_TE.split(lengths), expert_TK.split(lengths), strict=True))
    shuffled = sequence_balance_loss(
        torch.cat([parts[n][0] for n in order]),
        torch.cat([parts[n][1] for n in order]),
        SequenceBatch.build([lengths[n] for n in order]),
    )
    torch.testing.assert_close(shuffled, sequence_balance_loss(score_TE, expert_TK, SequenceBatch.build(lengths)))


def test_balance_loss_pushes_shares_down_for_chosen_experts():
    score_TE = torch.full((6, 4), 0.5, requires_grad=True)
    sequence_balance_loss(score_TE, torch.zeros(6, 1, dtype=torch.int64), one_segment(6)).backward()
    assert (score_TE.grad[:, 0] > 0).all() and (score_TE.grad[:, 1:] < 0).all()

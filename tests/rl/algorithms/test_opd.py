"""Distillation from several teachers equals a scalar formula, with branches and tokens of an environment between."""

import dataclasses
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.errors import ConfigError
from arcforge_core.testing.traces import add_stream, make_traces, tokens_of
from arcforge_rl.algorithms.opd import Opd, coarse_divergence
from arcforge_rl.configs.algorithms import OpdConfig
from arcforge_rl.trainer.build import preset


def weights_by_formula(traces, balance):
    """Returns the weight of each token of a trace: equal prompts, or equal teachers."""
    groups, stages = defaultdict(list), defaultdict(float)
    for trace in traces:
        groups[trace.group_id].append(trace)
    of = {t.rollout_id: 1 / (len(groups) * len(groups[t.group_id]) * t.num_sampled) for t in traces}
    for trace in traces:
        stages[trace.stage] += of[trace.rollout_id] * trace.num_sampled
    if balance == "teachers":
        of = {t.rollout_id: of[t.rollout_id] / stages[t.stage] / len(stages) for t in traces}
    return of


def formula(logprob, start, old, rollout, teacher, reward):
    """Eq. 1 of one token with eq. 2's advantage: pop with beta 2, clip 0.2 and 0.28. `start` has no gradient."""
    ratio = math.exp(old - rollout)
    pop = ratio if 0.5 <= ratio <= 2.0 else 0.0
    advantage = (teacher - start) + reward
    r = math.exp(logprob - old)
    return -pop * min(r * advantage, min(max(r, 0.8), 1.28) * advantage)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**4),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    branches=st.integers(1, 3),
    balance=st.sampled_from(["prompts", "teachers"]),
    reward_weight=st.sampled_from([0.0, 0.7]),
    spread=st.sampled_from([0.0, 0.3]),
)
def test_loss_and_gradient_equal_the_formula(seed, sizes, branches, balance, reward_weight, spread):
    algorithm = Opd(OpdConfig(balance=balance, reward_weight=reward_weight), preset("icepop"))
    traces = make_traces(seed, sizes, branches)
    for number, trace in enumerate(traces):
        trace.stage = ("sft", "reasoning", "general")[number % 3]
    for number, name in enumerate(("old", "teacher")):
        add_stream(traces, name, seed + number)
    algorithm.score(traces)
    draw = torch.Generator().manual_seed(seed)
    leaves = {
        b.branch_id: (b.streams["old"] + spread * torch.randn(len(b.ids), generator=draw, dtype=torch.float64))
        .detach()
        .requires_grad_()
        for t in traces
        for b in t.branches
    }
    loss = sum(algorithm.loss(tokens_of(traces, leaves)).parts.values())
    loss.backward()
    weights, wanted = weights_by_formula(traces, balance), 0.0
    assert sum(weights[t.rollout_id] * t.num_sampled for t in traces) == pytest.approx(1.0)
    for trace in traces:
        for branch in trace.branches:
            current, stream = leaves[branch.branch_id], branch.streams
            for n, sampled in enumerate(branch.sampled):
                if not sampled:
                    assert current.grad[n] == 0.0
                    continue
                known = float(stream["old"][n]), branch.logprobs[n], float(stream["teacher"][n])
                reward, at, step = reward_weight * trace.reward, float(current[n].detach()), 1e-6
                up, down = (formula(at + d, at, *known, reward) for d in (step, -step))
                wanted += weights[trace.rollout_id] * formula(at, at, *known, reward)
                slope = weights[trace.rollout_id] * (up - down) / (2 * step)
                r = math.exp(at - known[0])
                if min(abs(r - 0.8), abs(r - 1.28)) > 1e-4:
                    assert float(current.grad[n]) == pytest.approx(slope, rel=1e-4, abs=1e-7)
    assert float(loss.detach()) == pytest.approx(wanted, rel=2e-5, abs=2e-6)


def test_long_replies_do_not_starve_a_teacher():
    traces = make_traces(0, (1, 1, 1, 1))
    for trace, stage in zip(traces, ("long", "long", "long", "short"), strict=True):
        trace.stage = stage
        add_stream([trace], "teacher", 1)
    shares = {}
    for mean in ("sequence", "token"):
        for balance in ("prompts", "teachers"):
            Opd(OpdConfig(balance=balance, mean=mean), preset("icepop")).score(traces)
            short = [b for t in traces if t.stage == "short" for b in t.branches]
            shares[mean, balance] = sum(float(b.streams["weights"][b.index_T].sum()) for b in short)
    assert shares["sequence", "prompts"] == pytest.approx(0.25)
    assert shares["sequence", "teachers"] == pytest.approx(0.5) == shares["token", "teachers"]


def divergence(policy, teacher, kept):
    """KL(policy | teacher) of one token's logits in which those outside `kept` are one class."""
    p, q = torch.softmax(policy, 0), torch.softmax(teacher, 0)
    total = sum(p[n] * torch.log(p[n] / q[n]) for n in kept)
    rest, teacher_rest = (sum(of[n] for n in range(len(of)) if n not in kept) for of in (p, q))
    return total + rest * torch.log(rest / teacher_rest)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**4), vocabulary=st.integers(3, 9), data=st.data())
def test_the_likeliest_tokens_give_an_exact_gradient(seed, vocabulary, data):
    """Loss and gradient of the logits equal those of autograd through the divergence of whole distributions."""
    top_k = data.draw(st.integers(1, vocabulary - 1))
    algorithm = Opd(OpdConfig(top_k=top_k), preset("icepop"))
    traces = make_traces(seed, [2, 1], 2)
    add_stream(traces, "old", seed)
    add_stream(traces, "teacher", seed + 1)
    algorithm.score(traces)
    current = {b.branch_id: b.streams["old"].double() for t in traces for b in t.branches}
    draw = torch.Generator().manual_seed(seed)
    count = sum(trace.num_sampled for trace in traces)
    policy, teacher = (torch.randn(count, vocabulary, generator=draw, dtype=torch.float64) for _ in range(2))
    policy.requires_grad_()
    tops, ids = teacher.log_softmax(-1).topk(top_k)
    tokens = tokens_of(traces, current, others_TK=policy.log_softmax(-1).gather(1, ids))
    tokens = dataclasses.replace(tokens, streams={**tokens.streams, "teacher_others": tops})
    found = algorithm.loss(tokens)
    assert float(found.parts["policy"]) == 0.0, "no reward counts"
    (got,) = torch.autograd.grad(found.parts["distillation"], policy)
    each = [divergence(policy[n], teacher[n], ids[n].tolist()) for n in range(count)]
    wanted = (tokens.weights_T * found.factor_T * torch.stack(each)).sum()
    (slope,) = torch.autograd.grad(wanted, policy)
    assert float(found.parts["distillation"].detach()) == pytest.approx(float(wanted.detach()), rel=1e-6, abs=1e-9)
    torch.testing.assert_close(got, slope, rtol=1e-6, atol=1e-9)


def test_a_coarse_divergence_is_at_most_the_whole_one_and_0_for_equal_models():
    draw = torch.Generator().manual_seed(3)
    policy, teacher = (torch.randn(50, 20, generator=draw).log_softmax(-1) for _ in range(2))
    whole = (policy.exp() * (policy - teacher)).sum(-1)
    before = torch.zeros(50)
    for top_k in (1, 4, 16, 20):
        ids = teacher.topk(top_k).indices
        found = coarse_divergence(policy.gather(1, ids), teacher.gather(1, ids))
        assert bool((found <= whole + 1e-5).all()) and bool((found >= before - 1e-5).all()), "finer classes tell more"
        assert float(coarse_divergence(teacher.gather(1, ids), teacher.gather(1, ids)).abs().max()) <= 1e-6
        before = found
    torch.testing.assert_close(before, whole, atol=2e-5, rtol=1e-4)


def conversation(sampled):
    """A trace of two branches in which the tokens at 1 are sampled."""
    parts = [
        Branch(f"{number}", list(range(len(bits))), [bit == "1" for bit in bits], [-1.0] * len(bits), [0] * len(bits))
        for number, bits in enumerate(sampled.split())
    ]
    return Trace("t", "g", "r", parts, {"reward": 0.0})


def test_replies_are_taught_one_by_one():
    """Counted over branches; a trace keeps its weight, and at the depth of the last reply all tokens have their own."""
    algorithm = Opd(OpdConfig(depth=1, depth_steps=10), preset("icepop"))
    wanted = {0: "0110000 0000", 9: "0110000 0000", 10: "0110110 0000", 29: "0110110 0100", 30: "0110110 0101"}
    for step, bits in wanted.items():
        trace, algorithm.step = conversation("0110110 0101"), step
        algorithm.score([trace])
        each = [branch.streams["weights"] * torch.tensor(branch.sampled) for branch in trace.branches]
        assert " ".join("".join("1" if w else "0" for w in part.tolist()) for part in each) == bits, step
        weights = torch.cat(each)
        assert float(weights.sum()) == pytest.approx(1.0)
        assert len(set(weights[weights > 0].tolist())) == 1


@pytest.mark.parametrize(("field", "value"), [("top_k", -1), ("depth", -1), ("depth_steps", 0)])
def test_numbers_have_a_least(field, value):
    with pytest.raises(ConfigError, match=rf"algorithm\.{field}={value}"):
        OpdConfig(**{field: value})


@pytest.mark.parametrize("field", ["balance", "ratios"])
def test_bad_options_are_named(field):
    with pytest.raises(ConfigError, match=rf"algorithm\.{field}='tokens'"):
        OpdConfig(**{field: "tokens"})

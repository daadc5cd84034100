import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.sampling import Sampler, adjust, filter_logits, finite_rows, next_tokens, sample
from arcforge_core.ops.likeliest import likeliest

logit_lists = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=20)  # eighths: many ties
sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.01, 10),
    top_k=st.integers(0, 25),
    top_p=st.floats(0.001, 1.0),
    min_p=st.floats(0.0, 1.0),
)


def naive_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """The definition, one token at a time."""
    scaled = [(x - max(logits)) / params.temperature for x in logits]
    probs = [math.exp(x) for x in scaled]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.top_k:
        order = order[: params.top_k]
    total = sum(probs[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if kept and (mass >= params.top_p or probs[i] < params.min_p * probs[order[0]]):
            break
        kept.append(i)
        mass += probs[i] / total
    total = sum(probs[i] for i in kept)
    return [probs[i] / total if i in kept else 0.0 for i in range(len(logits))]


@settings(max_examples=60, deadline=None)
@given(logits=logit_lists, params=sampling_params)
def test_filters_equal_their_definition(logits: list[float], params: SamplingParams) -> None:
    assume(boundary(logits, params) > 1e-9)  # where a cut falls on equality, rounding decides
    got = filter_logits(torch.tensor([logits]), [params])[0].softmax(-1)
    wanted = torch.tensor(naive_distribution(logits, params), dtype=torch.float64)
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-9)


def boundary(logits: list[float], params: SamplingParams) -> float:
    """Returns how close a cut of the definition comes to equality."""
    unlimited = naive_distribution(logits, replace(params, top_p=1.0, min_p=0.0))
    order = sorted((i for i, p in enumerate(unlimited) if p > 0), key=lambda i: (-logits[i], i))
    mass, closest = 0.0, math.inf
    for i in order:
        if params.top_p < 1.0:
            closest = min(closest, abs(mass - params.top_p))
        if i != order[0]:
            closest = min(closest, abs(unlimited[i] - params.min_p * unlimited[order[0]]))
        mass += unlimited[i]
    return closest


@settings(max_examples=50, deadline=None)
@given(logits=logit_lists, params=sampling_params)
def test_filters_keep_the_likeliest_and_nothing_less_likely_than_what_they_drop(
    logits: list[float], params: SamplingParams
) -> None:
    kept = filter_logits(torch.tensor([logits]), [params])[0].isfinite()
    assert kept[logits.index(max(logits))]
    if not kept.all():
        assert min(x for x, k in zip(logits, kept, strict=True) if k) >= max(
            x for x, k in zip(logits, kept, strict=True) if not k
        )


def test_ties_keep_the_lower_ids() -> None:
    kept = filter_logits(torch.zeros(1, 6), [SamplingParams(top_k=2)])[0].isfinite()
    assert kept.tolist() == [True, True, False, False, False, False]
    assert sample(torch.tensor([[0.0, 3.0, 3.0]]), [SamplingParams(temperature=0.0)], [torch.Generator()]) == [1]


def test_no_filter_keeps_even_the_faintest_token() -> None:
    logits_NV = torch.linspace(0, -700, 1000).repeat(2, 1)
    kept = filter_logits(logits_NV, [SamplingParams(), SamplingParams(top_k=5)]).isfinite()
    assert kept.sum(-1).tolist() == [1000, 5]
    assert filter_logits(logits_NV, [SamplingParams()] * 2).isfinite().all()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits_NV = torch.tensor([[1.0, 30.0, 29.0, -1e30]]).repeat(5, 1)
    assert sample(logits_NV, [params] * 5, [torch.Generator().manual_seed(s) for s in range(5)]) == [1] * 5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.3),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_follow_the_filtered_distribution(params: SamplingParams) -> None:
    logits = [0.3, -1.0, 1.2, 0.0, 0.9, -2.5, 1.1, -0.4]
    wanted = naive_distribution(logits, params)
    draws = 4000
    generators = [torch.Generator().manual_seed(seed) for seed in range(draws)]
    chosen = sample(torch.tensor(logits).repeat(draws, 1), [params] * draws, generators)
    counts = [chosen.count(i) for i in range(len(logits))]
    assert all(p > 0 or c == 0 for c, p in zip(counts, wanted, strict=True))
    chi_square = sum((c - draws * p) ** 2 / (draws * p) for c, p in zip(counts, wanted, strict=True) if p)
    assert chi_square < 26  # 7 degrees of freedom: 0.05% at most; the seed is fixed


def test_rows_are_sampled_with_their_own_parameters_and_generators() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(top_p=0.5), SamplingParams()]
    logits_NV = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))

    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in range(4)]

    alone = [sample(logits_NV[n : n + 1], [params[n]], [generators()[n]])[0] for n in range(4)]
    assert sample(logits_NV, params, generators()) == alone
    assert alone[:2] == logits_NV.argmax(-1).tolist()[:2]


@pytest.mark.parametrize(("draw", "wanted"), [(0.0, 1), (1.0 - 2**-53, 2)])
def test_extreme_draws_stay_inside_the_kept_tokens(monkeypatch: pytest.MonkeyPatch, draw: float, wanted: int) -> None:
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: torch.tensor([draw], dtype=torch.float64))
    logits_NV = torch.tensor([[-1e30, 1.0, 1.0, -1e30]])
    assert sample(logits_NV, [SamplingParams()], [torch.Generator()]) == [wanted]


@settings(max_examples=60, deadline=None)
@given(logits=logit_lists, params=st.lists(sampling_params, min_size=1, max_size=4), candidates=st.integers(1, 20))
def test_few_candidates_decide_as_all_do(logits: list[float], params: list[SamplingParams], candidates: int) -> None:
    """Ties at the last candidate included: eighths have many."""
    logits_NV = torch.tensor(logits).repeat(len(params), 1)
    assert torch.equal(filter_logits(logits_NV, params, candidates), filter_logits(logits_NV, params, len(logits)))


def test_rows_are_changed_alone_and_the_input_is_not() -> None:
    logits_NV = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    before_NV = logits_NV.clone()
    params = [SamplingParams(), SamplingParams(logit_bias={2: 1.5}), SamplingParams(frequency_penalty=2.0)]
    samplers = [Sampler(p, 0, [1], 9) for p in (*params, SamplingParams())]
    samplers[2].observe(4)
    samplers[2].observe(4)
    mask_V = torch.arange(9) < 3
    changed_NV = adjust(logits_NV, samplers, [None, None, None, mask_V])
    assert torch.equal(logits_NV, before_NV)
    assert torch.equal(changed_NV[0], logits_NV[0])
    assert (changed_NV - logits_NV)[1].tolist() == pytest.approx([0, 0, 1.5, 0, 0, 0, 0, 0, 0])
    assert (changed_NV - logits_NV)[2].tolist() == pytest.approx([0, 0, 0, 0, -4.0, 0, 0, 0, 0])
    assert changed_NV[3].isfinite().tolist() == mask_V.tolist()
    assert adjust(logits_NV, samplers[:1], [None]) is logits_NV


def test_tokens_come_with_log_probs_of_the_unchanged_logits() -> None:
    logits_NV = torch.tensor([[0.0, 1.0, 2.0]] * 2)
    samplers = [Sampler(SamplingParams(temperature=0.0, logit_bias={0: 9.0}, top_logprobs=k), 0, [], 3) for k in (2, 0)]
    tokens = next_tokens(logits_NV, samplers)
    logprobs = logits_NV[0].log_softmax(-1).tolist()
    assert [token.id for token in tokens] == [0, 0]
    assert tokens[0].logprob == pytest.approx(logprobs[0])
    assert tokens[0].top == [(2, pytest.approx(logprobs[2])), (1, pytest.approx(logprobs[1]))]
    assert tokens[1].top == []


def test_rows_that_are_not_finite_are_found() -> None:
    bad = float("nan"), float("inf"), -float("inf")
    logits_NV = torch.stack([torch.zeros(5), *(torch.tensor([0.0, value, 1, 2, 3]) for value in bad)])
    assert finite_rows(likeliest(logits_NV)) == [True, False, False, False]

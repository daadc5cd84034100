import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.generation import sampling
from arcforge_core.generation.sampling import Sampler, adjust, choose, filter_logits, finite_rows, next_tokens, sample
from arcforge_core.ops.reference import argmax_logprob, noise

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
    highest = max(logits)
    scaled = [(x - highest) / params.temperature for x in logits]
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
    assert sample(torch.tensor([[0.0, 3.0, 3.0]]), [SamplingParams(temperature=0.0)], [0], [0]) == [1]


def test_no_filter_keeps_even_the_faintest_token() -> None:
    logits_NV = torch.linspace(0, -700, 1000).repeat(2, 1)
    kept = filter_logits(logits_NV, [SamplingParams(), SamplingParams(top_k=5)]).isfinite()
    assert kept.sum(-1).tolist() == [1000, 5]
    assert filter_logits(logits_NV, [SamplingParams()] * 2).isfinite().all()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits_NV = torch.tensor([[1.0, 30.0, 29.0, -1e30]]).repeat(5, 1)
    assert sample(logits_NV, [params] * 5, range(5), [0] * 5) == [1] * 5


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
    seeds, places = [n // 40 for n in range(draws)], [n % 40 for n in range(draws)]
    chosen = sample(torch.tensor(logits).repeat(draws, 1), [params] * draws, seeds, places)
    counts = [chosen.count(i) for i in range(len(logits))]
    assert all(p > 0 or c == 0 for c, p in zip(counts, wanted, strict=True))
    chi_square = sum((c - draws * p) ** 2 / (draws * p) for c, p in zip(counts, wanted, strict=True) if p)
    assert chi_square < 26  # 7 degrees of freedom: 0.05% at most; the seed is fixed


def test_rows_are_sampled_with_their_own_parameters_seeds_and_places() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(top_p=0.5), SamplingParams()]
    logits_NV = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    seeds, places = [0, 1, 2, 3], [5, 0, 7, 2]
    alone = [sample(logits_NV[n : n + 1], [params[n]], [seeds[n]], [places[n]])[0] for n in range(4)]
    assert sample(logits_NV, params, seeds, places) == alone
    assert alone[:2] == logits_NV.argmax(-1).tolist()[:2]
    flat_NV = torch.zeros(3, 1000)
    assert len(set(sample(flat_NV, [SamplingParams()] * 3, [1, 1, 2], [0, 1, 0]))) == 3


def test_noise_is_a_function_of_seed_and_place_on_any_machine() -> None:
    assert noise(7, 3, 4).tolist() == pytest.approx(
        [0.8232507841420877, 1.79782570220904, 0.017853733207152323, 0.766459117317163], rel=1e-12
    )
    assert torch.equal(noise(7, 3, 4), noise(7, 3, 9)[:4])
    values = torch.cat([noise(2**63 - 1, place, 1000) for place in range(50)])
    assert len(values.unique()) == len(values)
    assert values.mean().item() == pytest.approx(1.0, abs=0.02)
    assert values.exp().reciprocal().sort().values.sub(torch.linspace(0, 1, len(values))).abs().max() < 0.01


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_extreme_draws_stay_inside_the_kept_tokens(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Noise that is as large and as small as can be."""

    class Stuck:
        def __init__(self, **_: object) -> None:
            pass

        def random_raw(self, size: int) -> np.ndarray:
            return np.full(size, bits, dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Stuck)
    logits_NV = torch.tensor([[-1e30, 1.0, 0.0, -1e30]])
    assert sample(logits_NV, [SamplingParams()], [0], [0]) == [1]


def test_two_distributions_mostly_draw_the_same_token() -> None:
    """At least as often as arXiv 2408.07978 proves, (1 - d) / (1 + d) for a total variation d."""
    generator = torch.Generator().manual_seed(0)
    first_V = torch.randn(30, generator=generator)
    second_V = first_V + 0.4 * torch.randn(30, generator=generator)
    draws = 4000
    pairs = [
        sample(torch.stack((first_V, second_V)), [SamplingParams()] * 2, [9, 9], [place] * 2) for place in range(draws)
    ]
    distance = (first_V.double().softmax(-1) - second_V.double().softmax(-1)).abs().sum().item() / 2
    same = sum(one == other for one, other in pairs) / draws
    assert 0.1 < distance < 0.3
    assert (1 - distance) / (1 + distance) - 0.02 < same <= 1 - distance + 0.02


def test_samplers_go_on_and_back() -> None:
    sampler = Sampler(SamplingParams(frequency_penalty=1.0, seed=3), 1, [0], 40)
    logits_NV = torch.zeros(3, 40)
    places = choose(logits_NV, [Sampler(SamplingParams(seed=4), 0, [0], 40)] * 3, ahead=[0, 1, 2])
    (first,) = choose(logits_NV[:1], [sampler])
    assert first == places[0]
    sampler.observe(5)
    assert choose(logits_NV[:1], [sampler])[0] == places[1] != 5
    assert adjust(logits_NV[:1], [sampler], [None])[0, 5] == -1.0
    sampler.forget(5)
    assert choose(logits_NV[:1], [sampler]) == [first]
    assert not adjust(logits_NV[:1], [sampler], [None]).any()


@pytest.mark.parametrize("bins", [1, 2, 7, 2048])
@settings(max_examples=40, deadline=None)
@given(logits=logit_lists, params=sampling_params)
def test_the_number_of_bins_decides_nothing(bins: int, logits: list[float], params: SamplingParams) -> None:
    """Ties in the last bin included: eighths have many."""
    assume(boundary(logits, params) > 1e-9)
    wanted = filter_logits(torch.tensor([logits]), [params])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BINS", bins)
        assert torch.equal(filter_logits(torch.tensor([logits]), [params]), wanted)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.1, 1.0, 8.0, 1e4])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_p=0.3),
        SamplingParams(top_p=0.9, temperature=0.7),
        SamplingParams(top_p=0.999, min_p=1e-4),
        SamplingParams(top_k=2500, top_p=0.9001),
        SamplingParams(top_k=40, top_p=0.95, min_p=0.02),
    ],
)
def test_large_vocabularies_are_cut_as_small_ones(params: SamplingParams, spread: float) -> None:
    logits_V = spread * torch.randn(5000, generator=torch.Generator().manual_seed(1)).mul(64).round().div(64)  # ties
    logits_V[7], logits_V[11] = -1e30, float("-inf")  # an outlier, and what a grammar has masked
    wanted = naive_distribution(logits_V.tolist(), params)
    got = filter_logits(logits_V[None], [params])[0]
    assert got.isfinite().tolist() == [p > 0 for p in wanted]
    torch.testing.assert_close(got.softmax(-1), torch.tensor(wanted, dtype=torch.float64), atol=1e-12, rtol=1e-9)


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


def test_penalties_are_those_of_their_definition() -> None:
    """Repetition counts the prompt and what was generated, the two others what was generated; one token at a time."""
    logits = [2.0, -2.0, 3.0, -3.0, 4.0, -4.0, 1.0]
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.125)
    prompt, generated = [0, 1, 4], [2, 3, 3, 4]
    sampler = Sampler(params, 0, prompt, 7)
    for token in generated:
        sampler.observe(token)
    wanted = []
    for token, logit in enumerate(logits):
        if token in prompt or token in generated:
            logit = logit / 1.5 if logit > 0 else logit * 1.5
        wanted.append(logit - 0.25 * generated.count(token) - 0.125 * (token in generated))
    assert adjust(torch.tensor([logits]), [sampler], [None])[0].tolist() == pytest.approx(wanted)


def test_tokens_come_with_log_probs_of_the_unchanged_logits() -> None:
    logits_NV = torch.tensor([[0.0, 1.0, 2.0]] * 2)
    samplers = [Sampler(SamplingParams(temperature=0.0, logit_bias={0: 9.0}, top_logprobs=k), 0, [], 3) for k in (2, 0)]
    tokens = next_tokens(logits_NV, samplers)
    logprobs = logits_NV[0].log_softmax(-1).tolist()
    assert [token.id for token in tokens] == [0, 0]
    assert tokens[0].logprob == pytest.approx(logprobs[0])
    assert tokens[0].top == [(2, pytest.approx(logprobs[2])), (1, pytest.approx(logprobs[1]))]
    assert tokens[1].top == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_drawing_leaves_the_logits_as_they_are(dtype: torch.dtype) -> None:
    logits_NV = (3 * torch.randn(40, 30, generator=torch.Generator().manual_seed(0))).to(dtype)
    before_NV = logits_NV.clone()
    params = SamplingParams(temperature=0.5, top_k=20, top_p=0.9, min_p=0.01)
    tokens = next_tokens(logits_NV, [Sampler(replace(params, seed=n), 0, [], 30) for n in range(40)])
    assert torch.equal(logits_NV, before_NV)
    wanted = before_NV.double().log_softmax(-1).gather(1, torch.tensor([[token.id] for token in tokens]))[:, 0]
    assert [token.logprob for token in tokens] == pytest.approx(wanted.tolist(), abs=1e-6)
    filter_logits(logits_NV, [params] * 40)
    assert torch.equal(logits_NV, before_NV)


def test_sampled_log_probs_are_those_of_the_scaled_distribution() -> None:
    """Rows with and without them in one batch, among the most likely tokens too."""
    temperatures = [0.3, 1.0, 2.5, 0.7]
    logits_NV = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=t, sampled_logprobs=t != 0.7, seed=n, top_logprobs=2 + n)
        for n, t in enumerate(temperatures)
    ]
    tokens = next_tokens(logits_NV, [Sampler(p, 0, [], 20) for p in params])
    for token, logits_V, p in zip(tokens, logits_NV.double().numpy(), params, strict=True):
        scaled_V = logits_V / (p.temperature if p.sampled_logprobs else 1.0)
        logprobs_V = scaled_V - np.log(np.exp(scaled_V).sum())
        assert token.logprob == pytest.approx(logprobs_V[token.id], abs=1e-6)
        order = np.argsort(-logprobs_V)[: p.top_logprobs].tolist()
        assert token.top == [(i, pytest.approx(logprobs_V[i], abs=1e-6)) for i in order]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1},
                                     {"logit_bias": {1: 1.0}}, {"presence_penalty": 1.0}])  # fmt: skip
def test_sampled_log_probs_are_refused_where_more_than_the_temperature_changes_them(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"sampled_logprobs=True: needs temperature > 0 and no"):
        SamplingParams(sampled_logprobs=True, **options)


def test_rows_that_are_not_finite_are_found() -> None:
    bad = float("nan"), float("inf"), -float("inf")
    logits_NV = torch.stack([torch.zeros(5), *(torch.tensor([0.0, value, 1, 2, 3]) for value in bad)])
    assert finite_rows(argmax_logprob(logits_NV)) == [True, False, False, False]

"""Drafts change how many tokens a step gives, and nothing else."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GdnConfig, GqaConfig, MlaConfig
from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.generation.recorded import Recorded
from arcforge_core.generation.sampling import Sampler, adjust, filter_logits
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import after_in_ring, ring_model, small_config, small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.drafting import Drafter
from arcforge_serving.engine.paged import PagedEngine
from support.serving_load import OneInFour

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
VARIANTS = {"mla": MlaConfig(), "dsa": DsaConfig(), "gqa": GqaConfig()}


def speculating(model, **options):
    sizes = {"page_size": 4, "draft_tokens": 3, "drafting": "always"}
    return PagedEngine(PagedEngineConfig(**{**sizes, **options}), model)


def simple(model, prompts, params):
    return SimpleEngine(SimpleEngineConfig(), model).generate(prompts, params)


def deterministic(attention, **changes):
    torch.manual_seed(0)
    ops = Ops(select_hardware("torch_cpu"), deterministic=True)
    return build_model(small_config(**changes), attention, ops).eval()


def ring(first, count):
    tokens = [first]
    for _ in range(count):
        tokens.append(after_in_ring(tokens[-1]))
    return tokens[1:]


# ---- what drafts give ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [1, 2, 3, 7])
def test_a_module_that_knows_gives_all_its_drafts(drafts):
    engine = speculating(ring_model(of_ahead=lambda token: token), draft_tokens=drafts)
    (output,) = engine.generate([[1, 2, 3]], replace(GREEDY, max_new_tokens=41))
    assert output.token_ids == ring(3, 41)
    stats = engine.stats()
    steps = -(-40 // (drafts + 1))  # the prompt's step gives one
    assert stats.steps == 1 + steps
    assert stats.accepted_by_position[0] == stats.drafts >= steps - 1
    assert stats.accepted_length == pytest.approx(1 + stats.draft_tokens / stats.drafts)
    assert stats.draft_tokens == sum(stats.accepted_by_position) <= steps * drafts


@pytest.mark.parametrize(("hidden", "accepted"), [(lambda token: token, 0), (after_in_ring, 3)])
def test_the_hidden_state_is_handed_from_draft_to_draft(hidden, accepted):
    engine = speculating(ring_model(of_hidden=hidden))
    (output,) = engine.generate([[1, 2, 3]], replace(GREEDY, max_new_tokens=41))
    assert output.token_ids == ring(3, 41)
    assert engine.stats().accepted_length == pytest.approx(1 + accepted)


def test_of_drafts_behind_a_wrong_one_none_counts():
    """The module errs after token 6 alone; statistics say at which places."""
    engine = speculating(ring_model(of_ahead=lambda token: (token + (token in (6, 9))) % 16))
    (output,) = engine.generate([[1]], replace(GREEDY, max_new_tokens=100))
    assert output.token_ids == ring(1, 100)
    stats = engine.stats()
    first, second, third = stats.accepted_by_position
    assert stats.drafts >= first >= second >= third > 0
    assert stats.drafts > third
    assert stats.accepted_length == 1 + (first + second + third) / stats.drafts


@pytest.mark.parametrize("change", [{}, {"stop_token_ids": (ring(3, 7)[-1],)}], ids=["length", "stop token"])
@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("most", [7, 12])
def test_nothing_is_drafted_that_no_step_will_check(monkeypatch, change, drafts, most):
    """Neither after the last token nor after a stop token; before, as many drafts as there are tokens to come."""
    made, draft = [], Drafter.draft

    def watched(drafter, step, hidden_TD, sampled):
        found = draft(drafter, step, hidden_TD, sampled)
        for segment, each, drafted in zip(step.sampling, sampled, found, strict=True):
            sequence = segment.sequence
            tokens = len(sequence.tokens) - sequence.prompt_length + len(each.tokens)
            stopped = each.tokens[-1].id in sequence.params.stop_token_ids
            made.append((len(drafted), 0 if stopped else max(min(drafts, most - tokens - 1), 0)))
            stops = [token.id in sequence.params.stop_token_ids for token in each.tokens]
            assert not any(stops[:-1]), "drafts after an accepted stop token count as accepted"
        return found

    monkeypatch.setattr(Drafter, "draft", watched)
    engine = speculating(ring_model(of_ahead=lambda token: token), draft_tokens=drafts, cache_tokens=4096)
    (output,) = engine.generate([[1, 2, 3]], replace(GREEDY, max_new_tokens=most, **change))
    assert output.token_ids == ring(3, 7 if change else most)
    assert [count for count, _ in made] == [wanted for _, wanted in made] and made[0][0] > 0


# ---- outputs are what they are without drafts -----------------------------------------------------------------------

ENDS = {
    "a stop id among accepted drafts": {"stop_token_ids": (ring(3, 7)[-1],)},
    "should_stop among accepted drafts": {"should_stop": lambda ids: len(ids) == 7},
    "the length among accepted drafts": {"max_new_tokens": 7},
    "a grammar": {"matcher": partial(OneInFour, 16, 7)},
    "penalties": {"frequency_penalty": 0.3, "presence_penalty": 0.2, "repetition_penalty": 1.1},
    "a bias": {"logit_bias": {3: 5.0}},
    "log-probs": {"top_logprobs": 3, "prompt_logprobs": True},
}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("change", ENDS)
def test_tokens_that_come_together_are_handled_one_by_one(change, temperature):
    model = ring_model(of_ahead=lambda token: token, sharpness=1.5)
    params = replace(GREEDY, **{"max_new_tokens": 20, "temperature": temperature, **ENDS[change]})
    (wanted,) = simple(model, [[1, 2, 3]], params)
    engine = speculating(model)
    (output,) = engine.generate([[1, 2, 3]], params)
    assert (output.token_ids, output.finish_reason) == (wanted.token_ids, wanted.finish_reason)
    assert [[token for token, _ in top] for top in output.top_logprobs] == [
        [token for token, _ in top] for top in wanted.top_logprobs
    ]
    assert output.prompt_logprobs == pytest.approx(wanted.prompt_logprobs, abs=1e-5)
    assert output.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
    assert engine.stats().drafts > 0
    assert engine.stats().generated_tokens == len(wanted.token_ids)
    engine.check()


def test_should_stop_sees_each_token_in_turn():
    asked = []
    engine = speculating(ring_model(of_ahead=lambda token: token))
    engine.generate([[3]], replace(GREEDY, should_stop=lambda ids: asked.append(list(ids)) or len(ids) == 6))
    assert asked == [ring(3, n) for n in range(1, 7)]


def test_a_grammar_that_fails_ends_its_own_request():
    class Fails(OneInFour):
        def accept(self, token):
            super().accept(token)
            if self.given == 3:
                raise RuntimeError("cannot be followed")

    engine = speculating(ring_model(of_ahead=lambda token: token))
    bad, good = (engine.submit([1, 2], p)[0] for p in (replace(GREEDY, matcher=lambda: Fails(16, 9)), GREEDY))
    while engine.step():
        pass
    with pytest.raises(RuntimeError, match="cannot be followed"):
        bad.result(0)
    assert good.result(0).token_ids == ring(2, 12)
    engine.check()


def test_drafts_fit_the_grammar_where_the_first_one_is_made():
    """The module expects what the grammar forbids: the first draft is one that it allows, and is often right."""
    model = ring_model(of_ahead=lambda token: token, sharpness=0.01)  # the grammar decides
    engine = speculating(model, draft_tokens=1)
    params = replace(GREEDY, matcher=partial(OneInFour, 16, 12), logit_bias=dict.fromkeys((4, 5, 6, 7), 1.0))
    (output,) = engine.generate([[1]], params)
    assert output.token_ids == [4, 5, 6, 7] * 3
    assert engine.stats().accepted_length == 2.0


@pytest.mark.parametrize("name", VARIANTS)
def test_sampled_outputs_are_the_same_bits_with_and_without_drafts(name):
    """And so of all numbers of drafts, in whatever company: noise is of seed and place."""
    model = deterministic(VARIANTS[name], vocab_size=8)
    prompts = [[n % 8 for n in range(length)] for length in (1, 7, 17)]
    params = SamplingParams(max_new_tokens=12, seed=5, temperature=0.9, top_p=0.95)
    wanted = simple(model, prompts, params)
    for drafts, budget in ((1, 64), (3, 6)):
        engine = speculating(model, draft_tokens=drafts, max_batch_tokens=budget, max_running=5)
        assert engine.generate(prompts, params) == wanted
        assert engine.stats().drafts > engine.stats().accepted_by_position[0] > 0


FILTERS = [
    {},
    {"temperature": 0.6, "top_k": 5},
    {"top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.3, "frequency_penalty": 0.8, "repetition_penalty": 1.3, "logit_bias": {2: 1.0}},
    {"matcher": partial(OneInFour, 8, 3)},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_exact_distribution(filters):
    """Of all continuations of three tokens, enumerated with the full forward: the drafts must not show."""
    torch.manual_seed(0)
    model = build_model(small_config(vocab_size=8, initializer_range=0.15), GqaConfig(), Ops(None)).eval()
    prompt, count = [1, 5], 800
    params = SamplingParams(max_new_tokens=3, n=count, **filters)
    engine = speculating(model, max_running=200)
    outputs = engine.generate([prompt], params)
    assert engine.stats().accepted_by_position[0] > 50
    assert engine.stats().drafts - engine.stats().accepted_by_position[0] > 50
    expected = exact(model, prompt, params)
    counts = dict.fromkeys(expected, 0)
    for output in outputs:
        counts[tuple(output.token_ids)] += 1
    assert all(p > 0 or counts[ids] == 0 for ids, p in expected.items())
    likely = {ids for ids, p in expected.items() if p * count >= 5}
    rare = 1 - sum(expected[ids] for ids in likely), count - sum(counts[ids] for ids in likely)
    cells = [(expected[ids], counts[ids]) for ids in likely] + ([rare] if rare[0] * count >= 1 else [])
    chi_square = sum((seen - count * p) ** 2 / (count * p) for p, seen in cells)
    freedom = len(cells) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5  # four standard deviations; the seed is fixed


def exact(model, prompt, params):
    """The probability of every continuation."""
    found = {(): 1.0}
    for length in range(params.max_new_tokens):
        longer = {}
        starts = [ids for ids, p in found.items() if p > 0]
        with torch.no_grad():
            logits_NV = model(torch.tensor([[*prompt, *ids] for ids in starts])).logits[:, -1].float()
        for row_V, ids in zip(logits_NV, starts, strict=True):
            sampler = Sampler(params, 0, prompt, 8)
            for token in ids:
                sampler.observe(token)
            mask = None if params.matcher is None else torch.arange(8) % 4 == length % 4
            kept = filter_logits(adjust(row_V[None], [sampler], [mask]), [params])[0].softmax(-1).tolist()
            longer |= {(*ids, token): found[ids] * p for token, p in enumerate(kept)}
        found = longer
    return found


# ---- the module's entries --------------------------------------------------------------------------------------------


def module_entries(engine, sequence):
    """The module's entries of a running sequence, by name, of the positions whose next token is known."""
    size = engine.store.page_size
    positions = torch.arange(min(sequence.cached, len(sequence.tokens) - 1))
    rows = torch.tensor(sequence.pages)[positions // size] * size + positions % size
    return {name: values[rows] for name, values in engine.store.mtp.entries.items()}


@torch.no_grad()
def fresh_entries(model, tokens):
    """Returns the entries that one prefill of all tokens computes."""
    cache = PagedCache([*model.cache_spec()], [len(tokens)], dtype=model.dtype, mtp=model.mtp_cache_spec())
    ids, batch = torch.tensor(tokens), cache.batch([0], [len(tokens)])
    hidden_TD = model.hidden(ids, batch, cache).hidden_TD
    Recorded(model, cache).write_cache(ids.roll(-1), hidden_TD, batch)
    return {name: values[: len(tokens) - 1] for name, values in cache.mtp.entries.items()}


def assert_in_step(engine):
    """Every running sequence's module entries are those of a fresh prefill, to the bit."""
    for sequence in engine.scheduler.running:
        found = module_entries(engine, sequence)
        wanted = fresh_entries(engine.model, sequence.tokens)
        for name, values in found.items():
            assert torch.equal(values, wanted[name][: len(values)]), f"{name} of {sequence.tokens}"


@pytest.mark.parametrize("drafting", ["always", "auto"])
@pytest.mark.parametrize("name", VARIANTS)
def test_entries_are_those_of_a_fresh_prefill_whatever_happens(name, drafting):
    """Prompts in parts, found prefixes, another token after a shared page, preemption, drafts taken and refused."""
    model = deterministic(VARIANTS[name], vocab_size=8)
    sizes = {"cache_tokens": 60, "max_batch_tokens": 13, "max_running": 4, "tier_mb": 1}
    engine = speculating(model, drafting=drafting, **sizes)
    stem = [n * 3 % 8 for n in range(16)]
    prompts = [[*stem, 1, 2], [*stem, 2, 2, 5], [*stem, 1, 2], stem[:9], [*stem, 7, *stem]]
    params = SamplingParams(max_new_tokens=10, temperature=0.8)
    streams = [engine.submit(prompt, params)[0] for prompt in prompts]
    for step in itertools.count():
        if not engine.step():
            break
        engine.check(checksums=True)
        assert_in_step(engine)
        if step % 9 == 8:
            engine.preempt(1)
        if step == 20:
            streams += [engine.submit(prompt, params)[0] for prompt in prompts]
    assert sum(stream.result(0).cached_tokens for stream in streams) > 0
    assert engine.stats().preemptions > 0 and engine.stats().evicted_pages > 0
    engine.check()
    engine.close()


def test_a_page_is_found_only_with_the_token_behind_it():
    """The module's last entry of a page is of the next page's first token."""
    engine = speculating(deterministic(MlaConfig()))
    stem = [n % 64 for n in range(12)]
    engine.generate([[*stem, 1, 1]], replace(GREEDY, max_new_tokens=2))
    same, other = engine.generate([[*stem, 1, 9], [*stem, 2, 9]], replace(GREEDY, max_new_tokens=2))
    assert (same.cached_tokens, other.cached_tokens) == (12, 8)
    plain = speculating(deterministic(MlaConfig()), draft_tokens=0)
    plain.generate([[*stem, 1, 1]], replace(GREEDY, max_new_tokens=2))
    assert plain.generate([[*stem, 2, 9]], replace(GREEDY, max_new_tokens=2))[0].cached_tokens == 12


def test_acceptance_is_the_same_behind_a_prefix_from_memory_and_from_the_second_tier():
    model = deterministic(DsaConfig(), vocab_size=8)
    engine = speculating(model, cache_tokens=64, tier_mb=1, max_batch_tokens=64)
    prompt, params = [n * 5 % 8 for n in range(30)], SamplingParams(max_new_tokens=20, temperature=0.7, seed=3)
    seen, outputs = [engine.stats().accepted_by_position], []
    for kind in ("fresh", "found", "restored"):
        if kind == "restored":
            engine.generate([[n] * 40 for n in range(8)], replace(params, max_new_tokens=1))  # pushes it out
        before = engine.stats()
        outputs += engine.generate([prompt], params)
        after = engine.stats()
        seen.append([b - a for a, b in zip(before.accepted_by_position, after.accepted_by_position, strict=True)])
    assert [o.cached_tokens for o in outputs] == [0, 28, 28]
    assert engine.stats().restored_pages > 0
    assert seen[1] == seen[2] == seen[3]
    assert sum(seen[1]) > 3
    engine.close()


def test_shared_pages_never_change():
    """Drafts are written after the shared part."""
    engine = speculating(deterministic(MlaConfig(), vocab_size=8), page_size=2)
    streams = [engine.submit([n, 1, 2, 3], SamplingParams(max_new_tokens=30, seed=n))[0] for n in range(4)]
    while engine.step():
        engine.check(checksums=True)
    assert all(stream.done for stream in streams)
    assert engine.stats().drafts > engine.stats().accepted_by_position[0]


# ---- where there is nothing to draft with ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: small_model(mtp=MtpConfig(depths=0)), "no MTP module"),
        (lambda: deterministic(GdnConfig(pattern="LF")), "keeps a state per sequence"),
    ],
)
def test_models_that_cannot_draft(model, why):
    model = model()
    with pytest.raises(ConfigError, match=rf"engine\.draft_tokens=2: must be 0.*{why}"):
        speculating(model, draft_tokens=2)
    engine = speculating(model, draft_tokens=None)
    assert why in engine.stats().speculation
    assert engine.generate([[1, 2]], GREEDY)[0].token_ids == simple(model, [[1, 2]], GREEDY)[0].token_ids
    assert engine.stats().drafts == 0 and engine.store.mtp is None


def test_what_is_asked_for_is_said():
    assert speculating(small_model(), draft_tokens=0).stats().speculation == "off: engine.draft_tokens=0"
    engine = speculating(small_model(), draft_tokens=None)
    assert engine.stats().speculation == "on" and engine.driver.speculation.most == 3
    assert engine.stats().accepted_length == 1.0
    for options, field in (({"draft_tokens": 9}, "draft_tokens=9"), ({"drafting": "never"}, "drafting='?never")):
        with pytest.raises(ConfigError, match=rf"engine\.{field}"):
            PagedEngineConfig(**options)


# ---- entries that are put off ----------------------------------------------------------------------------------------


def is_in_step(engine):
    try:
        assert_in_step(engine)
    except AssertionError:
        return False
    return True


def deciding(engine, *drafts):
    """Makes the engine draft these numbers of tokens in its next steps, and none later."""
    plan = list(drafts)
    engine.driver.speculation.choose = lambda sequences: plan.pop(0) if plan else 0


@pytest.mark.parametrize("then", ["a step that drafts", "a prompt"])
def test_entries_that_were_put_off_are_there_when_they_are_read(then):
    engine = speculating(deterministic(MlaConfig()), overlap=False)
    deciding(engine, *[0] * 6, *([3] if then == "a step that drafts" else []))
    engine.submit([1, 2, 3], replace(GREEDY, max_new_tokens=20))
    for _ in range(6):
        engine.step()
    assert not is_in_step(engine)
    if then == "a prompt":
        engine.submit([4, 5, 6, 7], GREEDY)
    engine.step()
    assert is_in_step(engine)


def test_entries_that_were_put_off_go_to_the_second_tier_with_their_page():
    model = deterministic(MlaConfig())
    engine = speculating(model, overlap=False, tier_mb=1, cache_tokens=48, max_batch_tokens=64)
    deciding(engine)
    prompt, params = [1, 2, 3, 4, 5], replace(GREEDY, max_new_tokens=20)
    (output,) = engine.generate([prompt], params)  # its entries are put off, and its pages shared
    engine.generate([[n] * 44 for n in (7, 8)], replace(GREEDY, max_new_tokens=1))  # which go for others
    engine.submit([*prompt, *output.token_ids, 9], params)
    engine.step()
    assert engine.stats().restored_pages > 3
    (sequence,) = engine.scheduler.running
    assert sequence.reused >= 20
    assert is_in_step(engine)
    engine.close()

"""The conformance suite of engines. Shapes: S length, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import checksum
from arcforge_core.model.causal_lm import CausalLM

PROMPTS = ([1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12], [13] * 5, [14, 15])
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=12, temperature=1.0, seed=3)
NEAR_TIE = 1e-5


class EngineSuite:
    """Conformance of an `Engine`.

    A subclass provides two fixtures: ``model``, a float32 `CausalLM` of 64 ids and at least 64 positions, and
    ``engine``, a new engine with it.
    """

    def test_greedy_equals_argmax_without_cache(self, engine: Engine, model: CausalLM) -> None:
        """Each token is the most likely one after all previous tokens, recomputed from the start, up to near-ties."""
        for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, GREEDY), strict=True):
            assert len(output.token_ids) == GREEDY.max_new_tokens
            logits_SV = continuation_logits(model, prompt, output.token_ids)
            best_S = logits_SV.max(-1).values
            chosen_S = logits_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            assert bool((best_S - chosen_S <= NEAR_TIE * best_S.abs()).all())

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, replace(SAMPLED, temperature=0.5, top_k=4, top_p=0.8)])
    def test_logprobs_are_the_models(self, engine: Engine, model: CausalLM, params: SamplingParams) -> None:
        """Log-probs are those of the full forward pass at temperature 1, for any sampling parameters."""
        for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            logprobs_SV = continuation_logits(model, prompt, output.token_ids).log_softmax(-1)
            wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED])
    def test_results_are_independent_of_the_batch(self, engine: Engine, params: SamplingParams) -> None:
        """A ragged batch gives each prompt's own result, in the order of the prompts."""
        together = engine.generate(PROMPTS, params)
        alone = [engine.generate([prompt], params)[0] for prompt in PROMPTS]
        assert [o.token_ids for o in together] == [o.token_ids for o in alone]
        backwards = engine.generate(PROMPTS[::-1], params)
        assert [o.token_ids for o in backwards[::-1]] == [o.token_ids for o in together]

    def test_many_prompts(self, engine: Engine) -> None:
        """More prompts than fit in a batch are all answered."""
        prompts = [PROMPTS[n % len(PROMPTS)] for n in range(40)]
        outputs = engine.generate(prompts, GREEDY)
        assert [o.token_ids for o in outputs] == [outputs[n % len(PROMPTS)].token_ids for n in range(40)]

    def test_no_prompts(self, engine: Engine) -> None:
        """No prompts give no outputs."""
        assert engine.generate([], GREEDY) == []

    def test_seed_determines_the_sample(self, engine: Engine) -> None:
        """The same seed gives the same tokens, another seed different ones."""
        first, again = (texts(engine.generate(PROMPTS, SAMPLED)) for _ in range(2))
        other = texts(engine.generate(PROMPTS, replace(SAMPLED, seed=4)))
        assert first == again
        assert first != other

    def test_parameters_per_prompt(self, engine: Engine) -> None:
        """Each prompt is sampled with its own parameters."""
        params = [replace(GREEDY, max_new_tokens=n + 1) for n in range(len(PROMPTS))]
        outputs = engine.generate(PROMPTS, params)
        wanted = engine.generate(PROMPTS, GREEDY)
        assert texts(outputs) == [o.token_ids[: n + 1] for n, o in enumerate(wanted)]

    def test_stop_token_ends_the_sequence(self, engine: Engine) -> None:
        """The stop token is the last one; other sequences continue; the finish reason distinguishes both."""
        plain = engine.generate(PROMPTS, GREEDY)
        stop = plain[0].token_ids[3]
        outputs = engine.generate(PROMPTS, replace(GREEDY, stop_token_ids=(stop,)))
        for output, whole in zip(outputs, plain, strict=True):
            ids = whole.token_ids
            end = ids.index(stop) + 1 if stop in ids else len(ids)
            assert output.token_ids == ids[:end]
            assert output.finish_reason == ("stop" if stop in ids else "length")
            assert len(output.logprobs) == end

    def test_no_end_before_the_least_length(self, engine: Engine) -> None:
        """Stop tokens are not among the first ``min_new_tokens``, and `should_stop` has no effect there."""
        (plain,) = engine.generate([PROMPTS[1]], GREEDY)
        stop = plain.token_ids[2]
        held = replace(GREEDY, stop_token_ids=(stop,), min_new_tokens=5, should_stop=lambda ids: len(ids) in (4, 7))
        (output,) = engine.generate([PROMPTS[1]], held)
        assert output.token_ids[:2] == plain.token_ids[:2]
        assert stop not in output.token_ids[:5]
        assert output.finish_reason == "stop"
        assert len(output.token_ids) == 6 if output.token_ids[5] == stop else 7
        with pytest.raises(ConfigError, match="min_new_tokens"):
            replace(GREEDY, min_new_tokens=GREEDY.max_new_tokens + 1)

    def test_should_stop_is_called_after_each_token(self, engine: Engine) -> None:
        """It receives all ids of its own sequence so far, and ends only that sequence."""
        (plain,) = engine.generate([PROMPTS[1]], GREEDY)
        asked: list[list[int]] = []

        def should_stop(token_ids: Sequence[int]) -> bool:
            asked.append(list(token_ids))
            return len(token_ids) == 5

        ended, other = engine.generate([PROMPTS[1]] * 2, [replace(GREEDY, should_stop=should_stop), GREEDY])
        assert asked == [plain.token_ids[:n] for n in range(1, 6)]
        assert (ended.token_ids, ended.finish_reason) == (plain.token_ids[:5], "stop")
        assert (other.token_ids, other.finish_reason) == (plain.token_ids, "length")

    def test_full_context_is_usable(self, engine: Engine, model: CausalLM) -> None:
        """Prompt and output may fill all positions, but not exceed them."""
        limit = model.config.max_position_embeddings
        prompt = [1] * (limit - 4)
        assert len(engine.generate([prompt], replace(GREEDY, max_new_tokens=4))[0].token_ids) == 4
        with pytest.raises(ConfigError, match="max_new_tokens=5"):
            engine.generate([prompt], replace(GREEDY, max_new_tokens=5))

    @pytest.mark.parametrize("bad", [[], [-1], [10**6]])
    def test_bad_prompt_is_refused(self, engine: Engine, bad: list[int]) -> None:
        """An empty prompt and ids outside the vocabulary raise an error."""
        with pytest.raises(ConfigError, match="prompt"):
            engine.generate([[1, 2], bad], GREEDY)

    def test_bad_parameters_are_refused(self, engine: Engine) -> None:
        """A stop id outside the vocabulary, and a number of parameters that differs from that of the prompts."""
        with pytest.raises(ConfigError, match="stop_token_ids"):
            engine.generate([[1]], replace(GREEDY, stop_token_ids=(10**6,)))
        with pytest.raises(ConfigError, match="params"):
            engine.generate([[1], [2]], [GREEDY])

    def test_n_sequences_have_different_seeds(self, engine: Engine) -> None:
        """They follow one another, and equal the sequences of those seeds alone."""
        params = [replace(SAMPLED, n=2), replace(SAMPLED, n=3, seed=9)]
        outputs = engine.generate(PROMPTS[:2], params)
        alone = [(0, 3), (0, 4), (1, 9), (1, 10), (1, 11)]
        wanted = [engine.generate([PROMPTS[n]], replace(SAMPLED, seed=seed))[0] for n, seed in alone]
        assert texts(outputs) == texts(wanted)

    @pytest.mark.parametrize(
        "changes",
        [
            {"presence_penalty": 3.0},
            {"frequency_penalty": 1.5},
            {"repetition_penalty": 2.0},
            {"logit_bias": {7: 4.0, 8: 3.5, 9: -50.0}},
            {"presence_penalty": -1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3, "logit_bias": {3: 2.0}},
        ],
    )
    def test_penalties_and_biases(self, engine: Engine, model: CausalLM, changes: dict[str, Any]) -> None:
        """Greedy tokens are the most likely ones of the modified logits; the log-probs are the model's."""
        params = replace(GREEDY, **changes)
        outputs = engine.generate(PROMPTS, params)
        assert texts(outputs) != texts(engine.generate(PROMPTS, GREEDY))
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            logits_SV = continuation_logits(model, prompt, output.token_ids)
            for position, (token, logprob) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
                changed = penalised(logits_SV[position].tolist(), params, prompt, output.token_ids[:position])
                assert max(changed) - changed[token] <= NEAR_TIE * abs(max(changed))
                assert logprob == pytest.approx(float(logits_SV[position].log_softmax(-1)[token]), abs=1e-5)

    def test_top_and_prompt_logprobs(self, engine: Engine, model: CausalLM) -> None:
        """The most likely tokens of every position, and the prompt's log-probs, match those of one forward pass."""
        params = replace(GREEDY, top_logprobs=3, prompt_logprobs=True)
        for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            with torch.inference_mode():
                logprobs_SV = model(torch.tensor([[*prompt, *output.token_ids]])).logits[0].float().log_softmax(-1)
            assert len(output.prompt_logprobs) == len(output.prompt_top_logprobs) == len(prompt) - 1
            assert len(output.top_logprobs) == len(output.token_ids)
            tops = [*output.prompt_top_logprobs, *output.top_logprobs]
            given = [*output.prompt_logprobs, *output.logprobs]
            targets = [*prompt[1:], *output.token_ids]
            for row_V, target, logprob, top in zip(logprobs_SV, targets, given, tops, strict=False):
                assert logprob == pytest.approx(float(row_V[target]), abs=1e-5)
                assert [value for _, value in top] == pytest.approx(row_V.topk(3).values.tolist(), abs=1e-5)
                assert [float(row_V[token]) for token, _ in top] == pytest.approx([v for _, v in top], abs=1e-5)
        assert engine.generate(PROMPTS, GREEDY)[0].top_logprobs == []

    def test_matcher_restricts_the_tokens(self, engine: Engine) -> None:
        """Each sequence has one; it is queried before each token and receives the token; it may end the sequence."""
        params = replace(SAMPLED, matcher=CountsDown, n=2)
        outputs = engine.generate([*PROMPTS], [params, GREEDY, params, GREEDY, params])
        constrained = [*outputs[:2], *outputs[3:5], *outputs[6:]]
        assert all([t % 4 for t in o.token_ids] == [3, 2, 1, 0] for o in constrained)
        assert {o.finish_reason for o in constrained} == {"stop"}
        assert {o.finish_reason for o in (outputs[2], outputs[5])} == {"length"}

    def test_bad_sampling_fields_are_refused(self, engine: Engine) -> None:
        """A bias of an id outside the vocabulary; `SamplingParams` itself rejects values that no model supports."""
        with pytest.raises(ConfigError, match="logit_bias"):
            engine.generate([[1]], replace(GREEDY, logit_bias={10**6: 1.0}))

    def test_weight_update_counts_and_takes_effect(self, engine: Engine, model: CausalLM) -> None:
        """Outputs carry the version, tokens and log-probs of the new weights."""
        before = engine.generate(PROMPTS, GREEDY)
        engine.update_weights(flipped(model))  # id i now has the logit of id V - 1 - i
        after = engine.generate(PROMPTS, GREEDY)
        last = model.config.vocab_size - 1
        assert [o.weight_version for o in (*before, *after)] == [0] * len(PROMPTS) + [1] * len(PROMPTS)
        assert [o.weight_versions for o in after] == [[(1, GREEDY.max_new_tokens)]] * len(PROMPTS)
        assert [o.token_ids[0] for o in after] == [last - o.token_ids[0] for o in before]
        for prompt, output in zip(PROMPTS, after, strict=True):
            logprobs_SV = continuation_logits(model, prompt, output.token_ids).log_softmax(-1)
            wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)

    def test_weight_updates_clear_the_cache(self, engine: Engine, model: CausalLM) -> None:
        """A long prompt that was answered before an update afterwards gives the result of the new weights alone."""
        prompt = [n % 32 for n in range(model.config.max_position_embeddings // 2)]
        engine.generate([prompt], GREEDY)
        state = {name: value * 1.25 if "norm" in name else value for name, value in model.state_dict().items()}
        engine.update_weights(state)
        (output,) = engine.generate([prompt], GREEDY)
        logprobs_SV = continuation_logits(model, prompt, output.token_ids).log_softmax(-1)
        wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)

    def test_versions_and_checksums_of_updates(self, engine: Engine, model: CausalLM) -> None:
        """A version may be given but must increase; tensors with a different checksum are rejected."""
        state = flipped(model)
        engine.update_weights(state, version=7, checksum=checksum(state))
        assert engine.weight_version == 7
        assert engine.generate([[1]], GREEDY)[0].weight_version == 7
        before = engine.generate(PROMPTS, GREEDY)
        with pytest.raises(ConfigError, match="version=7"):
            engine.update_weights(state, version=7)
        engine.update_weights(state, version=3, reset=True)
        assert engine.generate([[1]], GREEDY)[0].weight_version == engine.weight_version == 3
        engine.update_weights(state, version=7)
        with pytest.raises(CheckpointError, match="checksum"):
            engine.update_weights(flipped(model), checksum=checksum(state))
        assert engine.weight_version == 7
        for output, wanted in zip(engine.generate(PROMPTS, GREEDY), before, strict=True):
            assert_same(output, wanted)

    @pytest.mark.parametrize("fault", ["shape", "not finite", "missing"])
    def test_refused_weights_change_nothing(self, engine: Engine, model: CausalLM, fault: str) -> None:
        """A rejected update does not change weights and version."""
        before = engine.generate(PROMPTS, GREEDY)
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        if fault == "shape":
            state["model.norm.weight"] = torch.zeros(1)
        elif fault == "not finite":
            state["model.norm.weight"][-1] = float("nan")
        else:
            del state["model.norm.weight"]
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
            engine.update_weights(state)
        for output, wanted in zip(engine.generate(PROMPTS, GREEDY), before, strict=True):
            assert_same(output, wanted)


class CountsDown:
    """A `Matcher` of four tokens, equal to 3, 2, 1 and 0 modulo 4, for at least 64 ids."""

    def __init__(self) -> None:
        self.left = 4

    def allowed(self) -> Tensor:
        """Returns a mask of 64 ids."""
        return torch.arange(64) % 4 == self.left - 1

    def accept(self, token: int) -> None:
        assert token % 4 == self.left - 1
        self.left -= 1

    @property
    def finished(self) -> bool:
        """Whether it has accepted four tokens."""
        return self.left == 0


def penalised(
    logits: list[float], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> list[float]:
    """Returns the penalised logits by definition, one token at a time."""
    changed = []
    for token, logit in enumerate(logits):
        logit += params.logit_bias.get(token, 0.0)
        if token in prompt or token in generated:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * generated.count(token)
        logit -= params.presence_penalty * (token in generated)
        changed.append(logit)
    return changed


def assert_same(output: GenerationOutput, wanted: GenerationOutput) -> None:
    """Asserts that two outputs are equal, log-probs up to rounding: they depend on what was cached."""
    for name in ("token_ids", "finish_reason", "weight_version", "weight_versions"):
        assert getattr(output, name) == getattr(wanted, name), name
    assert output.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
    assert [[token for token, _ in top] for top in output.top_logprobs] == [
        [token for token, _ in top] for top in wanted.top_logprobs
    ]


def flipped(model: CausalLM) -> dict[str, Tensor]:
    """Returns the state with the head's rows in reverse order."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["lm_head.weight"] = state["lm_head.weight"].flip(0)
    return state


def continuation_logits(model: CausalLM, prompt: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Returns the logits [S, V] of each generated token, from one forward pass without a cache."""
    with torch.inference_mode():
        logits_SV: Tensor = model(torch.tensor([[*prompt, *token_ids]])).logits[0].float()
    return logits_SV[len(prompt) - 1 : -1]


def texts(outputs: Sequence[GenerationOutput]) -> list[list[int]]:
    """Returns the generated ids."""
    return [output.token_ids for output in outputs]

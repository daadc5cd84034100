"""What every engine must hold. Shapes: S length, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM

PROMPTS = ([1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12], [13] * 5, [14, 15])
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=12, temperature=1.0, seed=3)
NEAR_TIE = 1e-5


class EngineSuite:
    """Conformance of an `Engine`.

    A subclass gives two fixtures: ``model``, a float32 `CausalLM` of at least 32 ids and 64 positions, and ``engine``,
    a fresh engine around it.
    """

    def test_greedy_equals_argmax_without_cache(self, engine: Engine, model: CausalLM) -> None:
        """Each token is the likeliest after all tokens before it, recomputed from the start; near-ties aside."""
        for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, GREEDY), strict=True):
            assert len(output.token_ids) == GREEDY.max_new_tokens
            logits_SV = continuation_logits(model, prompt, output.token_ids)
            best_S = logits_SV.max(-1).values
            chosen_S = logits_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            assert bool((best_S - chosen_S <= NEAR_TIE * best_S.abs()).all())

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, replace(SAMPLED, temperature=0.5, top_k=4, top_p=0.8)])
    def test_logprobs_are_the_models(self, engine: Engine, model: CausalLM, params: SamplingParams) -> None:
        """Log-probs are the full forward's at temperature 1, however the tokens were drawn."""
        for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            logprobs_SV = continuation_logits(model, prompt, output.token_ids).log_softmax(-1)
            wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED])
    def test_batch_mates_change_nothing(self, engine: Engine, params: SamplingParams) -> None:
        """A ragged batch gives what each prompt gives alone, in the order of the prompts."""
        together = engine.generate(PROMPTS, params)
        alone = [engine.generate([prompt], params)[0] for prompt in PROMPTS]
        assert [o.token_ids for o in together] == [o.token_ids for o in alone]
        backwards = engine.generate(PROMPTS[::-1], params)
        assert [o.token_ids for o in backwards[::-1]] == [o.token_ids for o in together]

    def test_many_prompts(self, engine: Engine) -> None:
        """More prompts than a batch holds are all answered."""
        prompts = [PROMPTS[n % len(PROMPTS)] for n in range(40)]
        outputs = engine.generate(prompts, GREEDY)
        assert [o.token_ids for o in outputs] == [outputs[n % len(PROMPTS)].token_ids for n in range(40)]

    def test_no_prompts(self, engine: Engine) -> None:
        """Nothing asked, nothing answered."""
        assert engine.generate([], GREEDY) == []

    def test_seed_decides(self, engine: Engine) -> None:
        """The same seed gives the same tokens, another seed others."""
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
        """The stop token is the last one; others go on; the reason says which of both it was."""
        plain = engine.generate(PROMPTS, GREEDY)
        stop = plain[0].token_ids[3]
        outputs = engine.generate(PROMPTS, replace(GREEDY, stop_token_ids=(stop,)))
        for output, whole in zip(outputs, plain, strict=True):
            ids = whole.token_ids
            end = ids.index(stop) + 1 if stop in ids else len(ids)
            assert output.token_ids == ids[:end]
            assert output.finish_reason == ("stop" if stop in ids else "length")
            assert len(output.logprobs) == end

    def test_should_stop_is_asked_after_each_token(self, engine: Engine) -> None:
        """It sees all ids so far, of its own sequence alone, and ends that one only."""
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
        """Prompt and output may fill all positions, and no more."""
        limit = model.config.max_position_embeddings
        prompt = [1] * (limit - 4)
        assert len(engine.generate([prompt], replace(GREEDY, max_new_tokens=4))[0].token_ids) == 4
        with pytest.raises(ConfigError, match="max_new_tokens=5"):
            engine.generate([prompt], replace(GREEDY, max_new_tokens=5))

    @pytest.mark.parametrize("bad", [[], [-1], [10**6]])
    def test_bad_prompt_is_refused(self, engine: Engine, bad: list[int]) -> None:
        """An empty prompt and ids outside the vocabulary are the caller's error."""
        with pytest.raises(ConfigError, match="prompt"):
            engine.generate([[1, 2], bad], GREEDY)

    def test_bad_parameters_are_refused(self, engine: Engine) -> None:
        """A stop id outside the vocabulary, and parameters that do not match the prompts in number."""
        with pytest.raises(ConfigError, match="stop_token_ids"):
            engine.generate([[1]], replace(GREEDY, stop_token_ids=(10**6,)))
        with pytest.raises(ConfigError, match="params"):
            engine.generate([[1], [2]], [GREEDY])

    def test_weight_update_counts_and_takes_effect(self, engine: Engine, model: CausalLM) -> None:
        """Outputs carry the version, and come from the new weights."""
        before = engine.generate(PROMPTS, GREEDY)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        state["lm_head.weight"] = state["lm_head.weight"].flip(0)  # id i now has the logit of id V - 1 - i
        engine.update_weights(state)
        after = engine.generate(PROMPTS, GREEDY)
        last = model.config.vocab_size - 1
        assert [o.weight_version for o in (*before, *after)] == [0] * len(PROMPTS) + [1] * len(PROMPTS)
        assert [o.token_ids[0] for o in after] == [last - o.token_ids[0] for o in before]

    def test_weights_that_do_not_fit_change_nothing(self, engine: Engine, model: CausalLM) -> None:
        """A refused update leaves weights and version as they were."""
        before = engine.generate(PROMPTS, GREEDY)
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        state["model.norm.weight"] = torch.zeros(1)
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
            engine.update_weights(state)
        assert engine.generate(PROMPTS, GREEDY) == before


def continuation_logits(model: CausalLM, prompt: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Returns the logits [S, V] that each generated token was drawn from, of one forward pass without a cache."""
    with torch.inference_mode():
        logits_SV: Tensor = model(torch.tensor([[*prompt, *token_ids]])).logits[0].float()
    return logits_SV[len(prompt) - 1 : -1]


def texts(outputs: Sequence[GenerationOutput]) -> list[list[int]]:
    """Returns the generated ids."""
    return [output.token_ids for output in outputs]

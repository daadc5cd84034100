"""The experts that the engine reports are those that computed the entries: prefixes, preemptions, drafts, updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from support.experts import routed

PARAMS = SamplingParams(max_new_tokens=10, seed=3, experts_from=0)
PROMPT = list(range(2, 15))


def model_of(**changes: Any) -> CausalLM:
    return small_model(num_hidden_layers=3, n_routed_experts=8, **changes)


def engine_of(model: CausalLM, **options: Any) -> PagedEngine:
    return PagedEngine(PagedEngineConfig(**{"page_size": 4, "record_experts": True, **options}), model)


def check(model: CausalLM, engine: PagedEngine, prompt: Sequence[int], params: SamplingParams = PARAMS) -> Any:
    """Generates, and compares the experts with those of the whole sequence; returns the output."""
    (output,) = engine.generate([prompt], params)
    ids = [*prompt, *output.token_ids]
    assert output.experts is not None and output.experts.dtype == np.uint8
    np.testing.assert_array_equal(output.experts, routed(model, ids[:-1])[params.experts_from or 0 :])
    return output


@pytest.mark.parametrize(
    "options",
    [{}, {"max_batch_tokens": 5, "max_running": 5}, {"overlap": True}, {"prefix_cache": False}],
    ids=["whole prompt", "in parts", "overlap", "no prefixes"],
)
def test_every_position_but_the_last_has_its_experts(options: dict[str, Any]) -> None:
    model = model_of()
    engine = engine_of(model, **options)
    output = check(model, engine, PROMPT)
    assert output.experts.shape == (len(PROMPT) + 9, 2, 2)
    assert len({tuple(row) for row in output.experts[:, 0]}) > 3, "tokens differ"
    engine.close()


def test_a_prefix_has_the_experts_that_computed_it_and_a_turn_reports_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    engine = engine_of(model)
    first = check(model, engine, PROMPT)
    ids = [*PROMPT, *first.token_ids]
    again = check(model, engine, [*ids, 40, 41], replace(PARAMS, experts_from=len(first.experts)))
    assert again.cached_tokens == 20 and len(again.experts) == len(ids) + 2 + 9 - len(first.experts)
    whole = check(model, engine, [*ids, 40, 41])
    np.testing.assert_array_equal(whole.experts[: len(first.experts)], first.experts)


def test_preempted_and_restored_sequences(tmp_path: Any) -> None:
    model = model_of()
    engine = engine_of(model, cache_tokens=64, tier_mb=1, tier_dir=str(tmp_path))
    streams = engine.submit(PROMPT, PARAMS)
    for _ in range(4):
        engine.step()
    engine.preempt(1)
    for n in range(3):  # others take the pages
        engine.generate([[20 + n] * 30], replace(PARAMS, experts_from=None))
    output = streams[0].result(10)
    np.testing.assert_array_equal(output.experts, routed(model, [*PROMPT, *output.token_ids][:-1]))
    check(model, engine, PROMPT)
    assert engine.stats().restored_pages > 0
    engine.close()


def test_drafts_that_were_not_accepted_leave_no_experts() -> None:
    model = model_of(mtp=MtpConfig(depths=1))
    engine = engine_of(model, draft_tokens=3, drafting="always")
    for seed in range(6):
        output = check(model, engine, PROMPT[seed:], replace(PARAMS, seed=seed, temperature=0.3, max_new_tokens=25))
        assert output.drafted_tokens > output.accepted_tokens
    assert engine.stats().accepted_by_position[0] > 0, "some were accepted, too"


def test_after_an_update_earlier_positions_keep_their_experts() -> None:
    """The entries of these positions were computed with the old experts; the new tokens read them."""
    model = model_of()
    old = routed(model, PROMPT)
    engine = engine_of(model)
    (stream,) = engine.submit(PROMPT, PARAMS)
    for _ in range(4):
        engine.step()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in state:
        if name.endswith("gate.e_score_correction_bias"):
            state[name] = torch.tensor([0.0, 0, 0, 0, 0, 0, 9, 9])
    engine.update_weights(state)
    while not stream.done:
        engine.step()
    experts = stream.result(0).experts
    np.testing.assert_array_equal(experts[: len(PROMPT)], old)
    assert (experts[-3:] >= 6).all(), "the new weights choose these alone"


def test_many_experts_take_two_bytes_each() -> None:
    engine = engine_of(small_model(n_routed_experts=300))
    assert engine.generate([PROMPT], PARAMS)[0].experts.dtype == np.int16  # type: ignore[union-attr]
    plain = PagedEngine(PagedEngineConfig(page_size=4), small_model(n_routed_experts=300))
    assert engine.store.page_bytes - plain.store.page_bytes == 4 * 2 * 2  # tokens, experts, bytes; one layer
    assert engine.generate([PROMPT], replace(PARAMS, experts_from=None))[0].experts is None


def test_who_cannot_report_says_so() -> None:
    with pytest.raises(ConfigError, match=r"experts_from=0: needs engine\.record_experts=true"):
        engine_of(model_of(), record_experts=False).generate([PROMPT], PARAMS)
    with pytest.raises(ConfigError, match=r"experts_from=13: must be less than 13, the length of the prompt"):
        engine_of(model_of()).generate([PROMPT], replace(PARAMS, experts_from=13))
    with pytest.raises(ConfigError, match=r"experts_from=0: engine=simple records no experts"):
        SimpleEngine(SimpleEngineConfig(), model_of()).generate([PROMPT], PARAMS)
    with pytest.raises(ConfigError, match=r"engine\.record_experts=True: this model has no experts"):
        engine_of(small_model(first_k_dense_replace=2))
    with pytest.raises(ConfigError, match=r"experts_from=-1: must be at least 0"):
        SamplingParams(experts_from=-1)

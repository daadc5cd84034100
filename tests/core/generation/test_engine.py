import pytest
import torch

from arcforge_core.config.schema import EngineConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.generation import engine as module
from arcforge_core.generation.engine import SimpleEngine, build_engine
from arcforge_core.testing.small_models import small_model

GREEDY = SamplingParams(max_new_tokens=6, temperature=0.0)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batch_size_changes_nothing_but_the_batches(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    model, sizes = small_model(), []
    original = module.generate

    def count(model: object, prompts: list[list[int]], *rest: object) -> object:
        sizes.append(len(prompts))
        return original(model, prompts, *rest)

    monkeypatch.setattr(module, "generate", count)
    prompts = [[n, n + 1] for n in range(7)]
    outputs = SimpleEngine(SimpleEngineConfig(), model, size).generate(prompts, GREEDY)
    assert [o.token_ids for o in outputs] == [model.generate([p], 6)[0, 2:].tolist() for p in prompts]
    assert max(sizes) == min(size, 7)
    assert sum(sizes) == 7


def test_a_bad_prompt_in_a_later_batch_stops_all_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "generate", lambda *args: pytest.fail("work was started"))
    engine = SimpleEngine(SimpleEngineConfig(), small_model(), batch_size=1)
    with pytest.raises(ConfigError, match="prompt"):
        engine.generate([[1], [2], []], GREEDY)


def test_updates_reach_a_tied_head() -> None:
    model = small_model(tie_word_embeddings=True)
    engine = SimpleEngine(SimpleEngineConfig(), model)
    donor = small_model(seed=1, tie_word_embeddings=True)
    state = donor.state_dict()
    del state["lm_head.weight"]  # as a checkpoint stores it
    engine.update_weights(state)
    assert engine.weight_version == 1
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids).logits, donor(ids).logits)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(UnknownComponentError, match="did you mean 'simple'"):
        build_engine(EngineConfig("simpel"), small_model())

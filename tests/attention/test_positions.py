"""The last positions of the longest context, 202,752: layers, models after a long past, and what comes after it."""

import numpy as np
import pytest
import torch

from arcforge_core import registry
from arcforge_core.config.compose import compose
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.data.tokens.packing import best_fit_rows, cut
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.model.rope import rope_tables
from arcforge_core.testing.attention_suite import build_layer, close, inputs
from arcforge_core.testing.small_models import small_config

LIMIT = 202_752
VARIANTS = {
    "reference": {},
    "gqa": {},
    "mla": {},
    "dsa": {},
    "swa": {"window": 5},
    "gdn": {"pattern": "FL"},
    "simple_gdn": {"pattern": "LF"},
}


def config_of(name):
    return registry().get("attention", name).load_schema()(**VARIANTS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_layer_gives_the_same_at_the_last_positions_as_at_the_first(name):
    """Rotary positions act by their distance, so an error in large angles would show."""
    model = small_config(num_attention_heads=4, num_key_value_heads=2, index_n_heads=4, qk_rope_head_dim=8)
    layer, x_TD, batch = build_layer(config_of(name), model), inputs(20, model), SequenceBatch.build([20])
    outs = [
        layer(x_TD, batch, rope=rope_tables(batch.positions_T + first, model.qk_rope_head_dim, model.rope_theta)).out_TD
        for first in (0, LIMIT - 20)
    ]
    close(outs[1], outs[0], 1e-5)
    assert not torch.equal(outs[1], outs[0]), "the angles were the same"


@pytest.fixture
def behind_a_long_past():
    """Builds a model and a cache that holds a past; returns a function that reads tokens after it."""

    def build(name, new, past=LIMIT - 6):
        torch.manual_seed(0)
        model = build_model(small_config(max_position_embeddings=LIMIT), config_of(name)).eval()
        cache = model.new_cache([LIMIT + 1])
        for layer in cache.layers:
            for entry in (*layer.entries.values(), *layer.states.values()):
                entry.normal_(std=0.3)
        cache.lengths = [past]
        batches = []
        with torch.no_grad():
            logits = []
            for tokens_T in torch.arange(sum(new)).split(new):
                batches.append(cache.batch([0], [len(tokens_T)]))
                logits.append(model(tokens_T, batches[-1], cache).logits)
        return torch.cat(logits), batches

    return build


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_behind_a_past_reach_the_last_position(name, behind_a_long_past):
    """A chunk and single tokens, which take other ways through attention, read the same cache to the same logits."""
    whole_TV, [chunk] = behind_a_long_past(name, [6])
    single_TV, steps = behind_a_long_past(name, [1] * 6)
    assert chunk.plan.chunk is not None and all(step.plan.decode is not None for step in steps)
    assert chunk.positions_T.tolist() == [int(step.positions_T) for step in steps] == list(range(LIMIT - 6, LIMIT))
    assert bool(whole_TV.isfinite().all())
    close(single_TV, whole_TV, 1e-4)


def test_a_packed_batch_of_the_longest_documents():
    lengths = [p.length for row in best_fit_rows(cut(np.array([LIMIT + 5, 3, LIMIT]), LIMIT), LIMIT) for p in row]
    assert sorted(lengths) == [3, 5, LIMIT, LIMIT]
    batch = SequenceBatch.build([LIMIT, LIMIT, 5, 3])
    assert batch.positions_T[[LIMIT - 1, 2 * LIMIT - 1, -1]].tolist() == [LIMIT - 1, LIMIT - 1, 2]
    assert batch.cu_query.tolist() == [0, LIMIT, 2 * LIMIT, 2 * LIMIT + 5, 2 * LIMIT + 8]


def test_one_position_more_is_refused(behind_a_long_past):
    with pytest.raises(ConfigError, match=r"=202753: .* at most 202752 positions \(model\.max_position_embeddings\)"):
        behind_a_long_past("mla", [7])
    long = ("model=glm5", "trainer.sequence_length=202753", "trainer.micro_batch_tokens=202753")
    with pytest.raises(ConfigError, match=r"trainer\.sequence_length=202753: .* max_position_embeddings=202752"):
        compose(long)
    assert compose([argument.replace("202753", "202752") for argument in long]).trainer.sequence_length == LIMIT

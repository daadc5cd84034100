"""Sliding windows: which keys are seen, patterns, what is cached, generation with mixed layers."""

import pytest
import torch

from arcforge_attention.configs import GqaConfig, SwaConfig, SwaPatternConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model, check_model
from arcforge_core.model.params import cache_bytes
from arcforge_core.testing.attention_suite import build_layer, close, inputs, new_cache, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, num_key_value_heads=2)
PRINTED = "SFSSFFSSSFFFFSSFSFFFFFFSFSFSSFSSFSFSSFSSS"
"""The pattern as the paper prints it (spec 3.5)."""


@pytest.mark.parametrize("window", [1, 3])
def test_a_query_sees_its_window_and_nothing_before(window):
    layer, batch = build_layer(SwaConfig(window=window), MODEL), SequenceBatch.build([12])
    x_TD = inputs(12, MODEL)
    before_TD = run(layer, x_TD, batch, MODEL).out_TD
    x_TD[4] += 1.0
    changed_T = (run(layer, x_TD, batch, MODEL).out_TD - before_TD).abs().amax(-1) > 1e-6
    assert changed_T.nonzero().flatten().tolist() == list(range(4, 4 + window))


def test_a_window_over_everything_is_full_attention():
    full, swa = build_layer(GqaConfig(), MODEL), build_layer(SwaConfig(window=30), MODEL)
    batch = SequenceBatch.build([9, 21])
    close(run(swa, inputs(30, MODEL), batch, MODEL).out_TD, run(full, inputs(30, MODEL), batch, MODEL).out_TD, 1e-6)


def test_decoding_reads_the_window_alone(monkeypatch):
    layer = build_layer(SwaConfig(window=4), MODEL)
    cache = new_cache(layer, [20])
    run(layer, inputs(15, MODEL), cache.batch([0], [15]), MODEL, cache)
    entries, seen = cache.layers[0], []
    read = entries.read
    monkeypatch.setattr(entries, "read", lambda *args: seen.append(read(*args)) or seen[-1])
    run(layer, inputs(2, MODEL), cache.batch([0], [2]), MODEL, cache)
    assert [len(value_S) for value_S in seen] == [5, 5]


def test_layers_alternate_and_the_mtp_module_is_like_the_last():
    model = build_model(small_config(num_hidden_layers=4), SwaConfig(window=7))
    assert [layer.self_attn.window for layer in model.model.layers] == [7, None, 7, None]
    assert model.mtp.self_attn.window is None


def test_the_printed_pattern_has_a_letter_too_many_for_its_model():
    sizes = small_config(num_hidden_layers=40)
    with pytest.raises(ConfigError, match=r"41 letters.*num_hidden_layers=40"):
        check_model(sizes, SwaPatternConfig(pattern=PRINTED))
    check_model(sizes, SwaPatternConfig(pattern=PRINTED[:40]))


@pytest.mark.parametrize(
    ("make", "field", "told"),
    [
        (lambda: SwaConfig(window=0), "attention.window", "at least 1"),
        (lambda: SwaConfig(pattern=""), "attention.pattern", "letters F"),
        (lambda: SwaConfig(pattern="SX"), "attention.pattern", "letters F"),
        (lambda: check_model(MODEL, SwaConfig(pattern="SFS")), "attention.pattern", "num_hidden_layers=2"),
        (lambda: check_model(MODEL, SwaPatternConfig()), "attention.pattern", "num_hidden_layers=2"),
        (lambda: check_model(MODEL, SwaPatternConfig(pattern="S")), "attention.pattern", "num_hidden_layers=2"),
    ],
)
def test_bad_options_are_refused_by_name(make, field, told):
    with pytest.raises(ConfigError, match=told) as error:
        make()
    assert error.value.field == field


def test_cached_bytes_stop_growing_in_windows():
    full, mixed = (build_model(MODEL, attention) for attention in (GqaConfig(), SwaConfig(window=16)))
    assert cache_bytes(full, 16) == cache_bytes(mixed, 16)
    assert cache_bytes(mixed, 160) == cache_bytes(full, 160) * (160 + 16) // 320


def test_a_mixed_model_generates_as_it_reads():
    torch.manual_seed(0)
    model = build_model(small_config(num_hidden_layers=4), SwaConfig(window=5)).eval()
    ids = model.generate([[1, 2, 3, 4, 5, 6, 7], [9, 8]], max_new_tokens=12)
    for row, prompt in zip(ids, (7, 2), strict=True):
        row = row[row >= 0][None]
        wanted = model(row).logits.argmax(-1)[0, prompt - 1 : -1]
        assert row[0, prompt:].tolist() == wanted.tolist()

"""Layers of several variants in one model: built, trained, cached, generated, saved, refused."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GdnConfig, GqaConfig, MlaConfig, SimpleGdnConfig, SwaConfig
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.config.compose import compose
from arcforge_core.configs import PatternConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model, check_model
from arcforge_core.testing.small_models import small_config
from arcforge_core.train.step import StepBatch, accumulate_gradients
from support.models import train_batch

MODEL = small_config(num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, index_topk=6)
KINDS = {
    "G": GqaConfig(),
    "S": SwaConfig(pattern="S", window=5),
    "L": GdnConfig(pattern="L"),
    "I": SimpleGdnConfig(pattern="L"),
    "M": MlaConfig(),
    "D": DsaConfig(indexer_training="sparse"),
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model(MODEL, PatternConfig(pattern="GSLIMD", kinds=KINDS)).eval()


def test_layers_are_what_the_letters_say(model):
    names = [type(layer.self_attn).__name__ for layer in model.model.layers]
    assert names == ["GQA", "SWA", "GatedDeltaNet", "SimpleGatedDeltaNet", "MLA", "DSA"]
    assert type(model.mtp.self_attn).__name__ == "DSA"


def test_packed_documents_are_read_as_single_ones(model):
    lengths, tokens_T = (9, 1, 17), torch.arange(27) % 60
    packed_TV = model(tokens_T, SequenceBatch.build(lengths)).logits
    single = [model(part[None]).logits[0] for part in tokens_T.split(lengths)]
    torch.testing.assert_close(packed_TV, torch.cat(single), rtol=1e-4, atol=1e-4)


def test_generates_as_it_reads(model):
    ids = model.generate([[1, 2, 3, 4, 5, 6, 7], [9, 8]], max_new_tokens=12)
    for row, prompt in zip(ids, (7, 2), strict=True):
        row = row[row >= 0][None]
        assert row[0, prompt:].tolist() == model(row).logits.argmax(-1)[0, prompt - 1 : -1].tolist()


def test_every_layer_learns(model):
    step = StepBatch([train_batch([20, 13], 64)])
    result = accumulate_gradients(model.train(), step, lambda loss: loss.backward(), lambda sums: (sums, 1.0))
    assert "indexer_loss" in result.losses
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name


def test_is_saved_and_loaded(model, tmp_path):
    save_pretrained(model, tmp_path / "mixed")
    loaded = load_pretrained(tmp_path / "mixed")
    assert loaded.attention == model.attention
    ids = torch.arange(30)[None]
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_on_the_command_line():
    kinds = ["+attention@attention.kinds.S=swa", "+attention@attention.kinds.G=gqa", "attention.kinds.S.pattern=S"]
    sizes = ["model=tiny", "model.num_hidden_layers=4", "attention.kinds.S.window=9"]
    config = compose(["attention=pattern", "attention.pattern=SG", *kinds, *sizes])
    model = build_model(config.model, config.attention)
    assert [getattr(layer.self_attn, "window", None) for layer in model.model.layers] == [9, None, 9, None]


@pytest.mark.parametrize(("ours", "other"), [("G", "M"), ("G", "L"), ("L", "G"), ("L", "I"), ("M", "D"), ("D", "M")])
def test_a_cache_of_another_variant_is_refused(ours, other):
    model, stranger = (build_model(MODEL, PatternConfig(pattern=k, kinds={k: KINDS[k]})).eval() for k in (ours, other))
    cache = stranger.new_cache([8])
    with torch.no_grad(), pytest.raises(ValueError, match="this cache holds"):
        model(torch.arange(5), cache.batch([0], [5]), cache)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: PatternConfig(pattern="GX", kinds={"G": GqaConfig()}), "letter X has no variant.*there are G"),
        (lambda: PatternConfig(pattern="G", kinds={"G": GqaConfig(), "M": MlaConfig()}), "not in attention.pattern"),
        (lambda: PatternConfig(pattern="G", kinds={"GG": GqaConfig()}), "single letters"),
        (lambda: PatternConfig(pattern="G", kinds={"G": PatternConfig()}), "not a pattern again"),
        (lambda: check_model(MODEL, PatternConfig()), "num_hidden_layers=6"),
        (
            lambda: check_model(MODEL, PatternConfig(pattern="GGGG", kinds={"G": GqaConfig()})),
            "4 letters.*num_hidden_layers=6",
        ),
    ],
)
def test_bad_patterns_are_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        make()

import pytest
import torch

from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.model import causal_lm
from arcforge_core.model.build import build_model, check_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config


def test_impossible_sizes_are_refused_before_any_weight_is_made(monkeypatch):
    monkeypatch.setattr(causal_lm.CausalLM, "__init__", lambda *_: pytest.fail("built"))
    config = small_config(num_attention_heads=3, num_key_value_heads=2)
    with pytest.raises(ConfigError, match=r"model\.num_key_value_heads=2.*num_attention_heads=3"):
        build_model(config, ReferenceAttentionConfig(form="gqa"))
    check_model(config, ReferenceAttentionConfig(form="mla"))


def test_an_unknown_attention_is_refused_with_what_there_is():
    with pytest.raises(UnknownComponentError, match=r"'referense'.*did you mean 'reference'"):
        check_model(small_config(), ReferenceAttentionConfig(name="referense"))


def test_the_meta_device_makes_shapes_without_values():
    with torch.device("meta"):
        model = build_model(small_config(), ReferenceAttentionConfig(), Ops(None))
    assert all(t.is_meta for t in model.state_dict().values())
    assert model.device.type == "meta"


def test_both_forms_of_the_reference_run():
    for form in ("mla", "gqa"):
        model = build_model(small_config(), ReferenceAttentionConfig(form=form), Ops(None))
        assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.shape == (1, 3, 64)

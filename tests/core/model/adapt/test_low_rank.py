"""Weight updates of adapters alone: the receiver merges them into its own base, which stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch

from arcforge_core.config.schema import AdapterConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.generation.weights import checksum
from arcforge_core.model.adapt.lora import Adapter, attach, named_adapters
from arcforge_core.model.adapt.low_rank import BASE, low_rank_state
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import small_model


def adapted(base: CausalLM, seed: int = 0, targets: str = "self_attn|mlp") -> CausalLM:
    """Returns a copy with adapters that change its outputs."""
    model = copy.deepcopy(base)
    attach(model, Adapter(AdapterConfig("lora", rank=2, alpha=3.0, targets=[targets]), "base", "sha", {}))
    move(model, seed)
    return model


def move(model: CausalLM, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, low in named_adapters(model):
        low.B.data.normal_(generator=generator)


def same(engine: SimpleEngine, wanted: CausalLM, exactly: bool = False) -> None:
    tolerance = {"atol": 0.0, "rtol": 0.0} if exactly else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(state_of(engine.model), state_of(wanted), **tolerance)


def engine_of(model: CausalLM) -> SimpleEngine:
    return SimpleEngine(SimpleEngineConfig(), copy.deepcopy(model))


def test_updates_do_not_add_up_and_leave_the_base() -> None:
    base = small_model()
    engine, policy = engine_of(base), adapted(base)
    for seed in range(3):
        move(policy, seed)
        state = low_rank_state(policy)
        engine.update_weights(state, checksum=checksum(state))
        same(engine, policy)
    assert sum(t.nbytes for t in state.values()) < sum(t.nbytes for t in state_of(base).values())
    assert not {name for name in state if name in base.state_dict()}, "adapters alone"
    for _, low in named_adapters(policy):
        low.B.data.zero_()
    engine.update_weights(low_rank_state(policy))
    same(engine, base, exactly=True)


def test_layers_that_the_next_adapters_leave_out_are_the_bases_again() -> None:
    base = small_model()
    engine = engine_of(base)
    engine.update_weights(low_rank_state(adapted(base)))
    other = adapted(base, 5, "self_attn")
    engine.update_weights(low_rank_state(other))
    same(engine, other)


def test_another_base_is_refused_and_may_come_along() -> None:
    policy, engine = adapted(small_model(1)), engine_of(small_model())
    with pytest.raises(CheckpointError, match="adapters are of another base"):
        engine.update_weights(low_rank_state(policy))
    same(engine, small_model(), exactly=True)
    assert engine.weight_version == 0
    engine.update_weights(low_rank_state(policy, with_base=True))
    same(engine, policy)
    engine.update_weights(low_rank_state(policy))
    same(engine, policy)
    engine.update_weights(state_of(policy))  # merged weights are a base of their own
    with pytest.raises(CheckpointError, match="adapters are of another base"):
        engine.update_weights(low_rank_state(policy))


def test_the_dtype_of_the_base_does_not_matter() -> None:
    base = small_model()
    engine = engine_of(base.to(torch.bfloat16))
    engine.update_weights(low_rank_state(adapted(small_model())))
    assert engine.model.dtype == torch.bfloat16


@pytest.mark.parametrize("fault", ["missing", "shape", "unknown", "nan", "checksum"])
def test_what_does_not_fit_is_refused(fault: str) -> None:
    base = small_model()
    engine, state = engine_of(base), low_rank_state(adapted(base))
    name = next(name for name in state if name.endswith("_B"))
    given, said = None, {"missing": "has no", "shape": "the model's", "unknown": "not part of", "nan": "not finite"}
    if fault == "missing":
        del state[name]
    elif fault == "shape":
        state[name] = state[name][:-1]
    elif fault == "unknown":
        state |= {"other.lora_A": torch.zeros(2, 2), "other.lora_B": torch.zeros(2, 2)}
    elif fault == "nan":
        state[name] = state[name].clone().fill_(float("nan"))
    else:
        given = "0" * 64
    assert BASE in state
    with pytest.raises(CheckpointError, match=said.get(fault, "the checksum of the tensors")):
        engine.update_weights(state, checksum=given)
    same(engine, base, exactly=True)

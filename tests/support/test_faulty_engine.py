"""The faulty engine: the errors that are asked for, the same again, and none where none is."""

import statistics
from typing import Any

import pytest
import torch

from arcforge_core.config.compose import compose_config
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.generation.engine import build_engine
from arcforge_core.model.adapt.state import state_of
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_model
from support.faulty_engine import FaultyEngine, FaultyEngineConfig, inner_config, misread, perturbed, registered

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6]]
PARAMS = [SamplingParams(6, seed=seed, n=2) for seed in (7, 30)]


def outputs(**faults: Any) -> list[Any]:
    return FaultyEngine(FaultyEngineConfig(**faults), small_model()).generate(PROMPTS, PARAMS)


def test_without_faults_it_is_the_engine() -> None:
    simple = registry().get("engine", "simple")
    assert outputs() == build_engine(simple.load_schema()(), small_model()).generate(PROMPTS, PARAMS)


def test_errors_of_log_probs_have_the_spread_that_is_asked_for() -> None:
    found = misread([-1.0] * 400, 0.2, 5)
    assert found == misread([-1.0] * 400, 0.2, 5) != misread([-1.0] * 400, 0.2, 6)
    assert statistics.mean(found) == pytest.approx(-1.0, abs=0.05)
    assert statistics.stdev(found) == pytest.approx(0.2, abs=0.05)
    assert max(misread([-1.0] * 400, 9.0, 5)) == 0.0


def test_what_is_sampled_is_right_where_log_probs_are_not() -> None:
    right, wrong = outputs(), outputs(logprob_noise=0.5)
    assert [output.token_ids for output in wrong] == [output.token_ids for output in right]
    errors = [
        [ours - theirs for ours, theirs in zip(a.logprobs, b.logprobs, strict=True)]
        for a, b in zip(wrong, right, strict=True)
    ]
    assert all(any(error) for error in errors)
    assert len({errors[0][0], errors[1][0], errors[2][0], errors[3][0]}) == 4, "each sequence has its own seed"
    assert wrong == outputs(logprob_noise=0.5)


def test_noise_is_relative_and_that_of_the_weights() -> None:
    state = {"one": torch.full((100, 100), 2.0), "count": torch.arange(3)}
    found = perturbed(state, 0.1)
    assert torch.equal(found["count"], state["count"])
    assert float((found["one"] / 2.0 - 1.0).std()) == pytest.approx(0.1, rel=0.05)
    assert torch.equal(found["one"], perturbed(state, 0.1)["one"])
    other = perturbed({**state, "one": state["one"] * 1.5}, 0.1)
    assert not torch.equal(other["one"] / 1.5, found["one"])


def test_the_first_weights_and_updates_get_noise() -> None:
    model = small_model()
    clean = {name: tensor.clone() for name, tensor in state_of(model).items()}
    engine = FaultyEngine(FaultyEngineConfig(noise=0.1), model)
    first = perturbed(clean, 0.1)
    assert all(torch.equal(tensor, first[name]) for name, tensor in state_of(model).items())
    assert engine.weight_version == 1
    other = {name: tensor + 1 for name, tensor in clean.items()}
    engine.update_weights(other, version=5)
    assert engine.weight_version == 5
    second = perturbed(other, 0.1)
    assert all(torch.equal(tensor, second[name]) for name, tensor in state_of(model).items())


def test_options_are_those_of_the_engine() -> None:
    simple = registry().get("engine", "simple").load_schema()()
    assert inner_config(FaultyEngineConfig()) == simple
    changed: Any = inner_config(FaultyEngineConfig(options={"weights": "w8a8"}))
    assert changed.weights == "w8a8"
    with pytest.raises(ArcforgeError, match="weight"):
        inner_config(FaultyEngineConfig(options={"weight": "w8a8"}))
    with pytest.raises(ArcforgeError, match="no engine 'none'"):
        inner_config(FaultyEngineConfig(of="none"))
    for name, value in (("noise", -1), ("logprob_noise", -1), ("topk_bits", 25), ("topk_bits", 0)):
        with pytest.raises(ConfigError, match=rf"engine\.{name}={value}"):
            FaultyEngineConfig(**{name: value})


def test_it_is_a_component_only_where_it_was_registered() -> None:
    rl = pytest.importorskip("arcforge_rl.configs.learning")
    options = ["engine=faulty", "engine.noise=0.5", "init=x", "environment=copy", "trainer.max_steps=1"]
    with registered():
        assert compose_config("rl", rl.RlConfig, options).engine == FaultyEngineConfig(noise=0.5)
    with pytest.raises(ConfigError, match="engine='faulty': accepted: "):
        compose_config("rl", rl.RlConfig, options)
    assert "faulty" not in registry().names("engine")

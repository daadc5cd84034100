"""Faults on purpose: ``engine=faulty`` is another engine whose weights, log-probs or selection are wrong.

Negative controls for the corrections of reinforcement learning. `register` adds the component to this process::

    engine=faulty engine.of=paged +engine.options.max_running=512 engine.logprob_noise=4 trainer.max_gap=100
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from arcforge_core.config import compose, fields
from arcforge_core.config.schema import EngineConfig, check_at_least, check_between
from arcforge_core.config.validate import explain
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.data.split import key_hash
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import build_engine
from arcforge_core.generation.weights import checksum
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Component
from support.unstable_selection import UnstableSelection

TARGET = f"{__name__}:FaultyEngine"
SUMMARY = "Another engine with injected faults"
FAULTY = Component(
    "engine", "faulty", TARGET, f"{TARGET}Config", "Another engine with injected faults", "tests", "tests"
)


@dataclass
class FaultyEngineConfig(EngineConfig):
    """Which engine, and its faults; without any it is that engine."""

    name: str = "faulty"
    of: str = "simple"
    """The engine that generates."""
    options: dict[str, Any] = field(default_factory=dict)
    """Its options, in place of its defaults."""
    noise: float = 0.0
    """Standard deviation of relative noise on every weight."""
    logprob_noise: float = 0.0
    """Standard deviation of an error in the reported log-probs, in nats; sampling is correct."""
    topk_bits: int | None = None
    """DSA's indexer compares this many significant bits of its scores and breaks ties at random."""

    def __post_init__(self) -> None:
        check_at_least("engine.noise", self.noise, 0.0)
        check_at_least("engine.logprob_noise", self.logprob_noise, 0.0)
        if self.topk_bits is not None:
            check_between("engine.topk_bits", self.topk_bits, 1, 24)


class FaultyEngine:
    """Generates with another engine; implements `contracts.engine.Engine`.

    All draws depend on the weights and on the requests' seeds alone: a resumed run has the faults of an uninterrupted
    one.
    """

    def __init__(self, config: FaultyEngineConfig, model: CausalLM) -> None:
        self.config = config
        self.selection = None
        inner = inner_config(config)
        if config.topk_bits is not None:
            check_selects(model, inner, config.topk_bits)
            self.selection = UnstableSelection(model.ops.hardware, model.ops.deterministic, config.topk_bits)
            model.ops = self.selection
            model.rebind()
        clean = {name: tensor.detach() for name, tensor in state_of(model).items()}
        self.engine = build_engine(inner, model)
        if config.noise:
            self.update_weights(clean)

    @property
    def weight_version(self) -> int:
        return self.engine.weight_version

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates; see the contract."""
        per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        seeds = [param.seed + n for param in per_prompt for n in range(param.n)]
        if self.selection is not None:
            self.selection.reseed(f"{seeds}")
        outputs = self.engine.generate(prompts, per_prompt)
        if not self.config.logprob_noise:
            return outputs
        return [
            replace(output, logprobs=misread(output.logprobs, self.config.logprob_noise, seed))
            for output, seed in zip(outputs, seeds, strict=True)
        ]

    def update_weights(
        self, state: Mapping[str, Tensor], *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """Loads a state dict with noise; see the contract."""
        noisy = perturbed(state, self.config.noise) if self.config.noise else state
        self.engine.update_weights(noisy, version=version, checksum=None if self.config.noise else checksum)


def inner_config(config: FaultyEngineConfig) -> EngineConfig:
    """Returns the configuration of the engine that generates.

    Raises:
        UnknownComponentError: no installed package brings it.
        ConfigError: an option that it does not have.
    """
    node = OmegaConf.structured(registry().get("engine", config.of).load_schema())
    try:
        inner: Any = OmegaConf.to_object(OmegaConf.merge(node, {"name": config.of, **config.options}))
    except OmegaConfBaseException as error:
        raise explain(error, "engine.options") from error
    return inner


def check_selects(model: CausalLM, inner: EngineConfig, bits: int) -> None:
    """Raises `ConfigError` unless the engine computes the model in this process, and that has an indexer."""
    if not any(".indexer." in name for name, _ in model.named_parameters()):
        accepted = f"must be null: attention={model.attention.name} has no indexer, which selects keys (dsa has one)"
        raise ConfigError("engine.topk_bits", bits, accepted)
    if hasattr(inner, "url"):
        raise ConfigError("engine.topk_bits", bits, f"must be null with engine.of={inner.name}: it is another process")


def perturbed(state: Mapping[str, Tensor], noise: float) -> dict[str, Tensor]:
    """Returns weights multiplied by 1 + `noise` times a normal draw, seeded by the weights themselves."""
    generator = torch.Generator().manual_seed(key_hash(checksum(state)) >> 1)

    def off(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        factor = 1.0 + noise * torch.randn(tensor.shape, generator=generator)
        return tensor * factor.to(tensor)

    return {name: off(tensor) for name, tensor in state.items()}


def misread(logprobs: Sequence[float], noise: float, seed: int) -> list[float]:
    """Returns log-probs with normal errors, none above 0."""
    draw = random.Random(seed)
    return [min(logprob + draw.gauss(0.0, noise), 0.0) for logprob in logprobs]


def register() -> None:
    """Adds ``engine=faulty`` to this process, before its first configuration is composed."""
    registry().register(FAULTY)


def _forget() -> None:
    """Drops the options and the fields of the engines that were registered before."""
    compose.store_components.cache_clear()
    fields._all_paths.cache_clear()


@contextmanager
def registered() -> Iterator[None]:
    """Has ``engine=faulty`` inside the block, whatever was composed before."""
    _forget()
    register()
    try:
        yield
    finally:
        del registry().claims["engine", "faulty"]
        compose.ConfigStore.instance().repo["engine"].pop("faulty.yaml", None)
        _forget()

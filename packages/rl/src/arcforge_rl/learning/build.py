"""Algorithm and correction of a run."""

from __future__ import annotations

from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from arcforge_core.contracts.algorithm import Algorithm
from arcforge_core.registry import registry
from arcforge_rl.configs_algorithms import BoundsConfig
from arcforge_rl.configs_learning import OwnCorrectionConfig, RlConfig

OWN = ("icepop", "double_sided")
"""Algorithms whose correction has their name."""


def correction_of(config: RlConfig) -> BoundsConfig:
    """Returns the bounds of a run's correction; `own` are those of the preset with the algorithm's name."""
    correction = config.correction
    if isinstance(correction, OwnCorrectionConfig):
        return preset(config.algorithm.name if config.algorithm.name in OWN else "none")
    assert isinstance(correction, BoundsConfig)
    return correction


def preset(name: str) -> BoundsConfig:
    """Returns ``correction=<name>``."""
    text = resources.files("arcforge_rl.conf").joinpath("correction", f"{name}.yaml").read_text(encoding="utf-8")
    fields: Any = OmegaConf.to_container(OmegaConf.create(text))
    del fields["defaults"]
    return BoundsConfig(**fields)


def build_algorithm(config: RlConfig) -> Algorithm:
    """Builds the algorithm around its correction.

    Raises:
        ConfigError: they do not go together.
    """
    algorithm: Algorithm = (
        registry().get("algorithm", config.algorithm.name).load()(config.algorithm, correction_of(config))
    )
    return algorithm

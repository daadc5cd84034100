"""Builds the algorithm and the correction of a run."""

from __future__ import annotations

from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import Algorithm
from arcforge_core.contracts.environment import Environment
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.algorithms import BoundsConfig
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.configs.learning import OwnCorrectionConfig, RlConfig
from arcforge_rl.rewards.hybrid import Hybrid
from arcforge_rl.rewards.spec import ROOT

OWN = {"icepop": "icepop", "double_sided": "double_sided", "opd": "icepop"}
"""Preset of ``correction=own`` by algorithm; `opd` is eq. 1 with other advantages, so pop belongs to it too."""


def correction_of(config: RlConfig) -> CorrectionConfig:
    """Returns the options of a run's correction; `own` takes the algorithm's preset, see `OWN`."""
    if isinstance(config.correction, OwnCorrectionConfig):
        return preset(OWN.get(config.algorithm.name, "none"))
    return config.correction


def preset(name: str) -> BoundsConfig:
    """Returns ``correction=<name>``."""
    text = resources.files("arcforge_rl.conf").joinpath("correction", f"{name}.yaml").read_text(encoding="utf-8")
    fields: Any = OmegaConf.to_container(OmegaConf.create(text))
    del fields["defaults"]
    return BoundsConfig(**fields)


def build_algorithm(config: RlConfig) -> Algorithm:
    """Builds the algorithm around its correction.

    Raises:
        ConfigError: they are incompatible, or the algorithm compares rollouts of a task and there is only one per task.
    """
    algorithm: Algorithm = (
        registry().get("algorithm", config.algorithm.name).load()(config.algorithm, correction_of(config))
    )
    if config.rollout.group_size == 1 and getattr(algorithm, "compares", False):
        accepted = f"must be at least 2: algorithm={config.algorithm.name} compares the rollouts of a task"
        raise ConfigError("rollout.group_size", 1, accepted)
    check_corrected(config)
    return algorithm


def check_corrected(config: RlConfig) -> None:
    """Refuses stale rollouts without a correction, unless that is asked for.

    Raises:
        ConfigError: the correction only measures.
    """
    collection, correction = config.collection, correction_of(config)
    if not isinstance(collection, AsynchronousConfig) or not collection.can_be_stale or collection.allow_uncorrected:
        return
    if getattr(correction, "action", "") == "none":
        accepted = "only measures, and collection=async trains on stale rollouts: take correction=double_sided, tis or "
        raise ConfigError("correction", correction.name, f"{accepted}icepop, or collection.allow_uncorrected=true")


def decouple(algorithm: Algorithm, config: RlConfig, environment: Environment) -> None:
    """Gives the algorithm the weights of the reward's components if ``algorithm.components=decoupled``.

    Raises:
        ConfigError: there is no hybrid reward, or its components do not simply add up.
    """
    if getattr(config.algorithm, "components", "summed") == "summed":
        return
    if not isinstance(environment, Hybrid):
        raise ConfigError("algorithm.components", "decoupled", "needs components: rewards=FILE (docs/general_rl.md)")
    root = environment.spec.combinations[ROOT]
    if root.aggregation not in ("weighted-mean", "weighted-sum") or root.gates or root.vetoes or root.cap is not None:
        accepted = f"needs a {root.where} that is a weighted-mean or weighted-sum without gates, vetoes and cap"
        raise ConfigError("algorithm.components", "decoupled", accepted)
    algorithm.components = root.weights  # type: ignore[attr-defined]  # of `PolicyGradient`


def drops_equal(config: RlConfig, algorithm: Algorithm) -> tuple[str, ...]:
    """Returns the rewards by which a group is replaced if it is equal in all of them: none where equal groups give a
    gradient or have one rollout."""
    teaches = config.rollout.group_size == 1 or getattr(algorithm, "equal_teaches", False)
    if not config.rollout.drop_equal or teaches:
        return ()
    return tuple(getattr(algorithm, "components", None) or (ROOT,))

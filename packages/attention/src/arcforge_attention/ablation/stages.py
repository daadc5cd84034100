"""The training runs of one variant of the ablation: a dense base, then the same number of further steps for each."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from arcforge_attention.configs import AblationConfig, DsaConfig
from arcforge_core.config.schema import AttentionConfig, OptimizerConfig, TrainConfig
from arcforge_core.configs import ConstantScheduleConfig
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry

DENSE = ("gqa", "mla")
"""Attention variants of a base."""
OTHER_DATA = 1_000_003
"""Added to the seed of the runs after the base, so that they read rows in another order."""
INDEXER = r"\.indexer\."
FURTHER_RATE = 0.1
"""Learning rates of the further steps, as a share of the base's peak rates."""
WARMUP_SHARE = 0.3
"""DSA: share of the further steps in which only the indexer learns."""
WARMUP_RATE = 4.0
"""DSA: learning rates of these, as a share of the base's peak rates."""


def dense_attention(attention: AttentionConfig) -> AttentionConfig:
    """Returns the dense variant that this one starts from, with the options they share.

    Raises:
        ConfigError: it has no dense variant.
    """
    accepted = (attention.name, *getattr(registry().get("attention", attention.name).load(), "starts_from", ()))
    for name in DENSE:
        if name in accepted:
            schema = registry().get("attention", name).load_schema()
            shared = {f.name for f in dataclasses.fields(schema)} - {"name"}
            options: dict[str, Any] = {k: v for k, v in dataclasses.asdict(attention).items() if k in shared}
            base: AttentionConfig = schema(**options)
            return base
    raise ConfigError("attention", attention.name, f"must be {' or '.join(DENSE)}, or start from one of them")


def base_run(config: AblationConfig) -> TrainConfig:
    """Returns the run that trains the dense base."""
    attention = dense_attention(config.attention)
    return run_of(
        config,
        name=f"base-{attention.name}-{config.seed}",
        attention=attention,
        trainer=replace(config.trainer, max_steps=config.ablation.base_steps, minutes=None, max_tokens=None),
    )


def further_runs(config: AblationConfig) -> list[TrainConfig]:
    """Returns the runs that follow the base, each of which starts from the one before; `init` is left open."""
    options, attention = config.ablation, config.attention
    if not isinstance(attention, DsaConfig):
        return [further_run(config, "further", attention, options.further_steps, FURTHER_RATE)]
    warmup = round(WARMUP_SHARE * options.further_steps)
    dense, sparse = (replace(attention, indexer_training=stage) for stage in ("dense", "sparse"))
    first = further_run(config, "warmup", dense, warmup, WARMUP_RATE)
    first.trainer = replace(first.trainer, trainable=[INDEXER])
    return [first, further_run(config, "sparse", sparse, options.further_steps - warmup, FURTHER_RATE)]


def further_run(config: AblationConfig, stage: str, attention: AttentionConfig, steps: int, rate: float) -> TrainConfig:
    """Returns one run after the base, at a constant share of the base's peak rates."""
    return run_of(
        config,
        name=f"{stage}-{attention.name}-{config.seed}",
        attention=attention,
        optimizer=scaled_rates(config.optimizer, rate),
        schedule=ConstantScheduleConfig(warmup=0.0),
        seed=config.seed + OTHER_DATA,
        trainer=replace(config.trainer, max_steps=steps, minutes=None, max_tokens=None),
    )


def scaled_rates(optimizer: OptimizerConfig, factor: float) -> OptimizerConfig:
    """Returns an optimizer's options with every learning rate multiplied by `factor`."""
    rates = {name: getattr(optimizer, name, None) for name in ("lr", "adamw_lr")}
    return replace(optimizer, **{name: factor * rate for name, rate in rates.items() if rate is not None})


def run_of(config: AblationConfig, **changes: Any) -> TrainConfig:
    """Returns the configuration of one training run of the ablation."""
    return TrainConfig(**{f.name: getattr(config, f.name) for f in dataclasses.fields(TrainConfig)} | changes)

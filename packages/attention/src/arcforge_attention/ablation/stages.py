"""The training runs of one variant of the ablation: a dense base, then as many further steps as every other variant."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from arcforge_attention.configs import AblationConfig, DsaConfig
from arcforge_core.config.schema import AttentionConfig, OptimizerConfig, TrainConfig
from arcforge_core.configs import ConstantScheduleConfig, OneRunConfig
from arcforge_core.errors import ConfigError
from arcforge_core.registry import registry

DENSE = ("gqa", "mla")
"""What a base attends with."""
OTHER_DATA = 1_000_003
"""Added to the seed of what follows the base, so that it reads rows in another order."""
INDEXER = r"\.indexer\."


def dense_attention(attention: AttentionConfig) -> AttentionConfig:
    """Returns the dense variant that this one starts from, with the options that the two share.

    Raises:
        ConfigError: it can start from none.
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


def base_run(config: TrainConfig) -> TrainConfig:
    """Returns the run that trains the dense base."""
    procedure = procedure_of(config)
    attention = dense_attention(config.attention)
    return replace(
        config,
        name=f"base-{attention.name}-{config.seed}",
        attention=attention,
        procedure=OneRunConfig(),
        trainer=replace(config.trainer, max_steps=procedure.base_steps, minutes=None),
    )


def further_runs(config: TrainConfig) -> list[TrainConfig]:
    """Returns the runs that follow the base, each of which starts from the one before; `init` is left open."""
    procedure, attention = procedure_of(config), config.attention
    if not isinstance(attention, DsaConfig):
        return [further_run(config, "further", attention, procedure.further_steps, procedure.further_rate)]
    warmup = round(procedure.warmup_share * procedure.further_steps)
    dense, sparse = (replace(attention, indexer_training=stage) for stage in ("dense", "sparse"))
    first = further_run(config, "warmup", dense, warmup, procedure.warmup_rate)
    first.trainer = replace(first.trainer, trainable=[INDEXER])
    return [first, further_run(config, "sparse", sparse, procedure.further_steps - warmup, procedure.further_rate)]


def further_run(config: TrainConfig, stage: str, attention: AttentionConfig, steps: int, rate: float) -> TrainConfig:
    """Returns one run after the base, at a constant share of the base's peak rates."""
    return replace(
        config,
        name=f"{stage}-{attention.name}-{config.seed}",
        attention=attention,
        procedure=OneRunConfig(),
        optimizer=scaled_rates(config.optimizer, rate),
        schedule=ConstantScheduleConfig(warmup=0.0),
        seed=config.seed + OTHER_DATA,
        trainer=replace(config.trainer, max_steps=steps, minutes=None),
    )


def scaled_rates(optimizer: OptimizerConfig, factor: float) -> OptimizerConfig:
    """Returns an optimizer's options with every learning rate times `factor`."""
    rates = {name: getattr(optimizer, name, None) for name in ("lr", "adamw_lr")}
    return replace(optimizer, **{name: factor * rate for name, rate in rates.items() if rate is not None})


def procedure_of(config: TrainConfig) -> AblationConfig:
    """Returns the ablation's own options."""
    assert isinstance(config.procedure, AblationConfig)
    return config.procedure

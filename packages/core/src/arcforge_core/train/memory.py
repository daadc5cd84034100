"""Refuses a run whose tensors cannot fit the device, before data are read or weights are allocated."""

from __future__ import annotations

from arcforge_core.checkpoint.sections import meta_model
from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import ConfigError

FULL, FROZEN = 12, 2
"""Bytes of a parameter, at least: weight, gradient and one moment in float32; a frozen weight in bfloat16."""
ACTIVATION = 2
"""Bytes of a value of the residual stream, of which each layer keeps one vector per token for the backward pass."""
GIB = 2**30


def check_memory(config: TrainConfig, device: str, capacity: int | None) -> None:
    """Compares a lower bound of the memory that a run needs with the device's capacity.

    Args:
        config: the run.
        device: its name, for the error.
        capacity: bytes; None is unknown and accepts everything.

    Raises:
        ConfigError: the model, or a micro-batch beside it, does not fit.
    """
    if capacity is None:
        return
    count = sum(p.numel() for p in meta_model(config.model, config.attention, "model").parameters())
    frozen = config.adapter.name != "none" or bool(config.trainer.trainable)
    model = count * (FROZEN if frozen else FULL)
    tokens = config.trainer.micro_batch_tokens
    batch = tokens * config.model.hidden_size * config.model.num_hidden_layers * ACTIVATION
    limit = f"{device} has {capacity / GIB:,.1f} GiB"
    if model > capacity:
        text = f"its {count / 1e9:,.1f}G parameters take at least {model / GIB:,.0f} GiB in training; {limit}"
        raise ConfigError("model.name", config.model.name, text)
    if model + batch > capacity:
        text = f"with the model it takes at least {(model + batch) / GIB:,.0f} GiB; {limit}"
        raise ConfigError("trainer.micro_batch_tokens", tokens, text)

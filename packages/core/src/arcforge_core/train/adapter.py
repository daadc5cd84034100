"""Training adapters beside the frozen weights of a checkpoint."""

from __future__ import annotations

import torch

from arcforge_core.checkpoint.adapter import links_of, weights_sha256
from arcforge_core.checkpoint.pretrained import Checkpoint, find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.start import Start, start_at, take
from arcforge_core.config.schema import AdapterConfig, TrainConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model.adapt.lora import Adapter, attach, find_targets, named_adapters
from arcforge_core.model.causal_lm import CausalLM

OF_TRAINING = ("model.name", "model.router_bias_rate", "model.balance_loss_weight", "model.initializer_range")
"""Settings that may differ from the base's, as may ``model.mtp.*``: an adapter does not record them."""


def require_init(config: TrainConfig) -> str:
    """Returns ``config.init``, the base.

    Raises:
        ConfigError: no base is named.
    """
    if config.init is None:
        accepted = f"adapter={config.adapter.name} trains on top of a checkpoint, which must be named"
        raise ConfigError("init", None, accepted)
    return config.init


def check_adapter(config: TrainConfig, model: CausalLM, start: Start | None) -> None:
    """Checks that adapters can be trained and later attached to the base again; the model may be on the meta device.

    Raises:
        ConfigError: there is no base, the model has other tensors or settings than the base, or a target cannot be
            adapted.
    """
    if start is None:
        require_init(config)
        return
    find_targets(model, config.adapter)
    gone = [name for name in start.left if not name.startswith("mtp.")]
    for names, fault in ((start.new, "has no"), (gone, "is a model with")):
        if names:
            raise ConfigError("init", start.where, f"{fault} {names[0]}: an adapter is put on the base as it is")
    for name, was, now in start.changed:
        if name not in OF_TRAINING and not name.startswith("model.mtp."):
            accepted = f"must be {was} as in {start.where}: an adapter is put on the base as it is"
            raise ConfigError(name, now, accepted)


def adapt(model: CausalLM, config: TrainConfig) -> Start:
    """Loads the base into the model, freezes it and attaches adapters.

    Raises:
        ConfigError: as `check_adapter`.
        CheckpointError: as `start_from`.
    """
    checkpoint = open_checkpoint(find_checkpoint(require_init(config), "init"))
    start = start_at(model, checkpoint)
    check_adapter(config, model, start)
    take(model, checkpoint, start)
    put_on(model, config.adapter, checkpoint)
    return start


def put_on(model: CausalLM, config: AdapterConfig, checkpoint: Checkpoint) -> None:
    """Freezes a model that has the weights of a checkpoint, and attaches adapters.

    Raises:
        ConfigError: see `find_targets`.
    """
    base, links = str(checkpoint.path.resolve()), links_of(checkpoint.state)
    attach(model, Adapter(config, base, weights_sha256(checkpoint.path), links))
    narrow(model)


@torch.no_grad()
def narrow(model: CausalLM) -> None:
    """Stores frozen matrices in the compute dtype where that is lossless, so that no step has to cast them."""
    for parameter in {*(model.get_parameter(name) for name, _ in named_adapters(model)), model.lm_head.weight}:
        narrowed = parameter.to(model.dtype)
        if parameter.dtype != model.dtype and torch.equal(narrowed.to(parameter.dtype), parameter):
            parameter.data = narrowed

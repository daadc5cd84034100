"""Initialises a run from a checkpoint's weights, of the same attention variant or of one that it can start from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from arcforge_core.checkpoint.pretrained import Checkpoint, find_checkpoint, open_checkpoint
from arcforge_core.config.compare import differences, flatten
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model.adapt.state import check_shapes, state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry


@dataclass(frozen=True)
class Start:
    """How a checkpoint's tensors map to a model's.

    Attributes:
        where: the checkpoint.
        taken: names of the tensors that the model copies.
        new: names of the model's tensors that the checkpoint lacks; they keep their initial values.
        left: names of the checkpoint's tensors that the model lacks.
        changed: (field, was, now) of the sizes and settings that differ between checkpoint and model.
    """

    where: str
    taken: list[str]
    new: list[str]
    left: list[str]
    changed: list[tuple[str, str, str]]

    def __str__(self) -> str:
        text = f"starting from {self.where}: {len(self.taken)} tensors"
        for what, names in (("new", self.new), ("left out", self.left)):
            if names:
                text += f"; {what}: {', '.join(_without_layers(names))}"
        if self.changed:
            text += f"; changed: {', '.join(f'{name} {was} -> {now}' for name, was, now in self.changed)}"
        return text


def _without_layers(names: Iterable[str]) -> list[str]:
    """Returns names without their layer prefix, e.g. ``self_attn.indexer.wk.weight``."""
    return sorted({re.sub(r"^(model\.layers\.\d+|mtp)\.", "", name) for name in names})


def start_from(model: CausalLM, init: str) -> Start:
    """Copies a checkpoint's weights into a model.

    From another variant, copies the attention's tensors of equal name and shape; an MTP module on only one side is
    new or left out. All other tensors must exist on both sides, with the same shape.

    Args:
        model: keeps its dtypes and devices.
        init: see `find_checkpoint`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its sizes are not the model's; nothing is copied.
        ConfigError: the model's variant cannot start from that of the checkpoint.
    """
    checkpoint = open_checkpoint(find_checkpoint(init, "init"))
    start = start_at(model, checkpoint)
    take(model, checkpoint, start)
    return start


def start_at(model: CausalLM, checkpoint: Checkpoint) -> Start:
    """Plans `start_from` for an opened checkpoint, named without links: a run's name may lead elsewhere tomorrow."""
    folder = checkpoint.path.resolve()
    where = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return plan_start(model, checkpoint.config, checkpoint.attention, checkpoint.state.shapes, str(where))


def take(model: CausalLM, checkpoint: Checkpoint, start: Start) -> None:
    """Copies the tensors in ``start.taken``."""
    model.load_state_dict({name: checkpoint.state[name] for name in start.taken}, strict=False)


def plan_start(
    model: CausalLM,
    config: ModelConfig,
    attention: AttentionConfig,
    found: Mapping[str, torch.Size],
    where: str,
) -> Start:
    """Plans `start_from`; the model may be on the meta device.

    Args:
        model: the model to initialise.
        config, attention, found: the checkpoint's configuration and the shapes of its tensors.
        where: its name in messages.

    Raises:
        CheckpointError, ConfigError: as in `start_from`.
    """
    _check_variant(model, attention, where)
    wanted = {name: tensor.shape for name, tensor in state_of(model).items()}
    other = attention.name != model.attention.name
    mtp = (model.mtp is None) != (config.mtp.depths == 0)

    def may_differ(name: str) -> bool:
        return (other and ".self_attn." in name) or (mtp and name.startswith("mtp."))

    new = [name for name, shape in wanted.items() if found.get(name) != shape and may_differ(name)]
    left = [name for name, shape in found.items() if wanted.get(name) != shape and may_differ(name)]
    check_shapes(
        {name: shape for name, shape in wanted.items() if name not in new},
        {name: shape for name, shape in found.items() if name not in left},
        where,
    )
    taken = [name for name in found if name in wanted and name not in new]
    before, now = _settings(config, attention), _settings(model.config, model.attention)
    return Start(where, taken, new, left, differences(before, now, skip=("model.name",)))


def _settings(config: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
    return flatten({"model": asdict(config), "attention": {"name": attention.name}})


def _check_variant(model: CausalLM, attention: AttentionConfig, where: str) -> None:
    source, target = attention.name, model.attention.name
    accepted = getattr(registry().get("attention", target).load(), "starts_from", ())
    if source != target and source not in accepted:
        names = ", ".join((target, *accepted))
        raise ConfigError("init", where, f"its attention is {source}; attention={target} can start from {names}")

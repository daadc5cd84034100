"""Starting a run from a checkpoint's weights, of the same attention variant or of one that this one can start from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.checkpoint.pretrained import Checkpoint, find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.sections import check_shapes, state_of
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.registry import registry


@dataclass(frozen=True)
class Start:
    """What became of a checkpoint's tensors.

    Attributes:
        path: the checkpoint.
        taken: names of the tensors that were copied.
        new: names of the model's tensors that it does not have; they keep their initial values.
        left: names of its tensors that the model does not have.
    """

    path: Path
    taken: list[str]
    new: list[str]
    left: list[str]

    def __str__(self) -> str:
        text = f"starting from {self.path}: {len(self.taken)} tensors"
        for what, names in (("new", self.new), ("left out", self.left)):
            if names:
                text += f"; {what}: {', '.join(_without_layers(names))}"
        return text


def _without_layers(names: Iterable[str]) -> list[str]:
    """Returns what names have in common over the layers, e.g. ``self_attn.indexer.wk.weight``."""
    return sorted({re.sub(r"^(model\.layers\.\d+|mtp)\.", "", name) for name in names})


def tokenizer_of(init: str) -> str | None:
    """Returns the folder of a checkpoint's tokenizer; None when it has none.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    folder = find_checkpoint(init)
    return str(folder) if (folder / "tokenizer.json").is_file() else None


def start_from(model: CausalLM, init: str) -> Start:
    """Copies a checkpoint's weights into a model.

    Of another variant the attention's tensors of equal name and shape are taken; an MTP module that only one side has
    is new or left out. Everything else must be there on both sides, in the same shape.

    Args:
        model: keeps its dtypes and devices.
        init: see `find_checkpoint`.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or its sizes are not the model's; nothing was copied.
        ConfigError: the model's variant cannot start from that of the checkpoint.
    """
    checkpoint = open_checkpoint(find_checkpoint(init))
    _check_variant(model, checkpoint, init)
    wanted, found = {n: t.shape for n, t in state_of(model).items()}, checkpoint.state.shapes
    other = checkpoint.attention.name != model.attention.name
    mtp = (model.mtp is None) != (checkpoint.config.mtp.depths == 0)

    def may_differ(name: str) -> bool:
        return (other and ".self_attn." in name) or (mtp and name.startswith("mtp."))

    new = [name for name, shape in wanted.items() if found.get(name) != shape and may_differ(name)]
    left = [name for name, shape in found.items() if wanted.get(name) != shape and may_differ(name)]
    check_shapes(
        {name: shape for name, shape in wanted.items() if name not in new},
        {name: shape for name, shape in found.items() if name not in left},
        str(checkpoint.path),
    )
    taken = [name for name in found if name in wanted and name not in new]
    model.load_state_dict({name: checkpoint.state[name] for name in taken}, strict=False)
    return Start(checkpoint.path, taken, new, left)


def _check_variant(model: CausalLM, checkpoint: Checkpoint, init: str) -> None:
    source, target = checkpoint.attention.name, model.attention.name
    accepted = getattr(registry().get("attention", target).load(), "starts_from", ())
    if source != target and source not in accepted:
        names = ", ".join((target, *accepted))
        raise ConfigError("init", init, f"its attention is {source}; attention={target} can start from {names}")

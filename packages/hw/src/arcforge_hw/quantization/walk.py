"""Runs calibration text through a transformed model, one layer in memory, and keeps what its matrices read.

Shapes: T tokens of a row, N tokens of all rows, D hidden, K inputs of a matrix, E experts, C a token's experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.adapt.quantised import PROJECTIONS
from arcforge_core.model.block import Block
from arcforge_core.model.meta import meta_device
from arcforge_core.model.moe import Experts
from arcforge_core.model.norm import Linear
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import bind_ops, default_ops
from arcforge_core.train.processes import part, place, whole
from arcforge_hw.quantization.text import Row
from arcforge_hw.quantization.transform import EMBEDDING, TransformedState

EXPERTS, CHOSEN = "mlp.experts", "experts of each token"


@dataclass
class LayerInputs:
    """Inputs of a layer's matrices, in float32.

    Attributes:
        linear: [N, K] by name of the projection in the layer, e.g. ``self_attn.o_proj``; of `EXPERTS`, all tokens.
        chosen_NC: experts of each token, int64; None in a dense layer.
    """

    linear: dict[str, Tensor] = field(default_factory=dict)
    chosen_NC: Tensor | None = None


class Walk:
    """The hidden states of calibration text before every layer, on disk; a killed walk resumes at any layer.

    The file of a layer is complete when it exists. A file that is missing is computed from the last one before it.
    Of several processes each runs its part of the rows, and all get the inputs of all rows, in their order.

    Args:
        state: the model's tensors; a layer is computed with those at the time of the call.
        model, attention: its configuration.
        folder: for the hidden states.
        rows: the text, the same for all processes, at least one for each.
    """

    def __init__(
        self,
        state: TransformedState,
        model: ModelConfig,
        attention: AttentionConfig,
        folder: Path,
        rows: Sequence[Row],
    ) -> None:
        self.state, self.model, self.attention, self.folder = state, model, attention, folder
        self.rows = part(rows)

    @torch.no_grad()
    def layer(self, index: int) -> LayerInputs:
        """Runs a layer on every row, writes the hidden states after it, and returns what its matrices read."""
        after, inputs = self._through(index)
        self._write(index + 1, after)
        joined = {name: torch.cat(whole(parts)) for name, parts in inputs.items()}
        chosen_NC = joined.pop(CHOSEN, None)
        return LayerInputs(joined, chosen_NC)

    @torch.no_grad()
    def before(self, index: int) -> list[dict[str, Any]]:
        """Returns the hidden states before a layer: for each row of this process ``x_TD``, ``lengths`` and ``more`` for
        the layer."""
        if self._path(index).is_file():
            found: list[dict[str, Any]] = torch.load(self._path(index), weights_only=True)
            return found
        if index == 0:
            table_VD = self.state.unrounded(EMBEDDING).float()
            return [{"x_TD": table_VD[tokens_T], "lengths": lengths, "more": {}} for tokens_T, lengths in self.rows]
        return self._through(index - 1)[0]

    def leave(self, index: int) -> None:
        """Removes the hidden states before a layer."""
        self._path(index).unlink(missing_ok=True)

    def _through(self, index: int) -> tuple[list[dict[str, Any]], dict[str, list[Tensor]]]:
        """Returns the records after a layer and its inputs; always recorded, because fused ops round differently."""
        records, block, inputs = self.before(index), self._block(index), dict[str, list[Tensor]]()
        with _recording(block, inputs):
            return [self._run(block, record) for record in records], inputs

    def _block(self, index: int) -> Block:
        with meta_device():
            block = Block(self.model, self.attention, index)
        prefix = f"model.layers.{index}."
        names = [name for name in self.state.shapes if name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): self.state.unrounded(name).float() for name in names}
        block.load_state_dict(tensors, assign=True)
        bind_ops(block, default_ops().binder(torch.float32, "cpu", needs_grad=False))
        return block.eval()

    def _run(self, block: Block, record: Mapping[str, Any]) -> dict[str, Any]:
        batch, config = SequenceBatch.build(record["lengths"]), self.model
        limit = config.max_position_embeddings
        rope = rope_tables(batch.positions_T, config.qk_rope_head_dim, config.rope_theta, config.rope_scaling, limit)
        out = block(record["x_TD"], batch, rope, None, **record["more"])
        return {"x_TD": out.x_TD, "lengths": record["lengths"], "more": out.to_next_layer}

    def _path(self, index: int) -> Path:
        rank, count = place()
        return self.folder / f"hidden-{index:05d}{'' if count == 1 else f'-{rank + 1}-of-{count}'}.pt"

    def _write(self, index: int, records: list[dict[str, Any]]) -> None:
        partial = self._path(index).with_suffix(".partial")
        try:
            torch.save(records, partial)
        except RuntimeError as error:  # torch's writer hides the system's reason
            raise OSError(f"{partial.name}: {error}") from error
        partial.rename(self._path(index))


@contextmanager
def _recording(block: nn.Module, inputs: dict[str, list[Tensor]]) -> Iterator[None]:
    """Appends the inputs of a block's projections and experts to `inputs` while it is open."""

    def keeper(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs.setdefault(name, []).append(args[0].flatten(0, -2))
            if len(args) > 1:
                inputs.setdefault(CHOSEN, []).append(args[1])

        return keep

    wanted = re.compile(rf"(.+\.)?({'|'.join(PROJECTIONS)})")
    hooks = [
        module.register_forward_pre_hook(keeper(name))
        for name, module in block.named_modules()
        if isinstance(module, Experts) or (isinstance(module, Linear) and wanted.fullmatch(name))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

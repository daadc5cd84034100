"""A model's tensors with norms folded, residual stream rotated and channels smoothed; the function stays the same.

Every tensor depends on itself, on one gain, on the rotations and on smoothing factors, so tensors are made one at a
time from shards, and an update of the weights passes through the same code.

Folded: a gain moves into all that reads its norm. Rotated: the residual stream, MLA's latents, the values of each head;
never what RoPE turns. Smoothed: factors s divide a channel where it is written and multiply it where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from arcforge_core.checkpoint.shards import LazyState
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError
from arcforge_hw.quantization.rotations import Rotations, form_of

LAYER = re.compile(r"(model\.layers\.\d+|mtp)\.(.+)")
READERS = {
    "input_layernorm": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_a_proj",
        "self_attn.kv_a_proj_with_mqa", "self_attn.indexer.wk", "self_attn.indexer.weights_proj",
    ),
    "self_attn.q_a_layernorm": ("self_attn.q_b_proj", "self_attn.indexer.wq_b"),
    "self_attn.kv_a_layernorm": ("self_attn.kv_b_proj",),
    "post_attention_layernorm": (
        "mlp.gate_proj", "mlp.up_proj", "mlp.gate", "mlp.experts.gate_up_proj",
        "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj",
    ),
}  # fmt: skip
"""Norms and all that reads their output, by name in a layer."""
NORM_OF = {reader: norm for norm, readers in READERS.items() for reader in readers}
WRITERS = ("self_attn.o_proj", "mlp.down_proj", "mlp.experts.down_proj", "mlp.shared_experts.down_proj")
"""Layers that write into the residual stream."""
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
MTP_NORMS = ("mtp.enorm.weight", "mtp.hnorm.weight", "mtp.shared_head.norm.weight")
PIECE = 2**16
"""Values of an embedding or a head that are changed together, and of a matrix that are rounded together."""
MTP_ROT, MTP_HEAD_ROT = "mtp.rot.weight", "mtp.shared_head.rot.weight"


@dataclass(frozen=True)
class Transform:
    """The changes between an ordinary state dict and the one that is quantised.

    Attributes:
        config, attention: the original model.
        seed: of the rotations; None rotates and folds nothing.
        factors: smoothing factors by the place of their channels: ``LAYER.input_layernorm``,
            ``LAYER.post_attention_layernorm`` [D], ``LAYER.self_attn.q_a_layernorm`` [Q], ``LAYER.self_attn.value``
            [heads * V], ``LAYER.mlp.up``, ``LAYER.mlp.shared_experts.up`` [F], ``LAYER.mlp.experts.up`` [E, F].
        untied: a tied head becomes a matrix of its own without rotations too, so that it can be quantised.
    """

    config: ModelConfig
    attention: AttentionConfig
    seed: int | None = 1234
    factors: dict[str, Tensor] = field(default_factory=dict)
    untied: bool = False

    def __post_init__(self) -> None:
        form_of(self.attention)

    @property
    def rotations(self) -> Rotations | None:
        """Returns the rotations; None without."""
        return None if self.seed is None else Rotations(self.config, form_of(self.attention), self.seed)

    @property
    def transformed(self) -> ModelConfig:
        """Returns the sizes of the transformed model: a tied head is untied, an MTP module has its two rotations."""
        if self.seed is None:
            return replace(self.config, tie_word_embeddings=self.config.tie_word_embeddings and not self.untied)
        mtp = replace(self.config.mtp, rotated=self.config.mtp.depths > 0)
        return replace(self.config, tie_word_embeddings=False, mtp=mtp)

    def of(self, state: LazyState | Mapping[str, Tensor]) -> TransformedState:
        """Returns the transformed tensors of a state dict under its names, computed on access."""
        return TransformedState(self, state)


class TransformedState(Mapping[str, Tensor]):
    """The tensors of `Transform.of`; each keeps the dtype that it has in the original state.

    Attributes:
        shapes: of every tensor.

    Raises:
        ConfigError: on access to the MTP module's rotation, if the final norm has a gain of 0, which has no inverse.
    """

    def __init__(self, transform: Transform, state: LazyState | Mapping[str, Tensor]) -> None:
        self.transform, self.state = transform, state
        self.config, self.rotations = transform.config, transform.rotations
        shapes = dict(getattr(state, "shapes", None) or {name: state[name].shape for name in state})  # type: ignore[union-attr]
        if self.config.tie_word_embeddings and not transform.transformed.tie_word_embeddings:
            shapes[HEAD] = shapes[EMBEDDING]
        if self.rotations is not None and self.config.mtp.depths:
            square = torch.Size([self.config.hidden_size] * 2)
            shapes |= {MTP_ROT: square, MTP_HEAD_ROT: square}
        self.shapes: dict[str, torch.Size] = shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> Tensor:
        return self._made(name)

    def unrounded(self, name: str) -> Tensor:
        """Returns a tensor in float32 or wider: bfloat16 would round it a first time before the integers do."""
        return self._made(name, torch.float32)

    def _made(self, name: str, least: torch.dtype | None = None) -> Tensor:
        if self.rotations is not None and name in (MTP_ROT, MTP_HEAD_ROT):
            return self.between_bases(name).to(_wider(self.state[NORM].dtype, least))
        tied = name == HEAD and self.config.tie_word_embeddings
        tensor = self.state[EMBEDDING if tied else name]
        if not tensor.is_floating_point() or name.endswith("e_score_correction_bias"):
            return tensor
        made = torch.empty(tensor.shape, dtype=_wider(tensor.dtype, least))
        for where, expert in _pieces(name, tensor):
            wide = tensor[where].double()
            if self.rotations is not None:
                wide = self._rotated(name, wide, self.rotations)
            made[where] = self._smoothed(name, wide, expert)
        return made

    # ---- folds and rotations -----------------------------------------------------------------------------------------

    def _rotated(self, name: str, x: Tensor, turns: Rotations) -> Tensor:
        if name == EMBEDDING:
            return x @ turns.hidden
        if name == HEAD:
            return (x * self._gain(NORM)) @ turns.hidden
        if name == "mtp.eh_proj.weight":
            parts = [
                (half * self._gain(norm)) @ turns.hidden
                for half, norm in zip(x.chunk(2, dim=1), MTP_NORMS, strict=False)
            ]
            return turns.hidden.T @ torch.cat(parts, dim=1)
        if name == NORM or name in MTP_NORMS:
            return torch.ones_like(x)
        found = LAYER.fullmatch(name)
        if found is None:
            return x
        layer, local = found[1], found[2]
        stem, _, kind = local.rpartition(".")
        if kind == "weight" and stem in READERS:
            return torch.ones_like(x)
        part = local if local.startswith("mlp.experts.") else stem
        if kind != "bias" and part in NORM_OF:
            norm = NORM_OF[part]
            right = {"self_attn.q_a_layernorm": "query", "self_attn.kv_a_layernorm": "latent"}.get(norm, "hidden")
            x = (x * self._gain(f"{layer}.{norm}.weight")) @ getattr(turns, right)
        return self._turn_outputs(part, x, turns)

    def _turn_outputs(self, part: str, x: Tensor, turns: Rotations) -> Tensor:
        if part == "self_attn.o_proj":
            size = len(turns.value)
            x = (x.unflatten(-1, (-1, size)) @ turns.value).flatten(-2)
        if part in WRITERS:
            return turns.hidden.T @ x
        if part == "self_attn.q_a_proj":
            return turns.query.T @ x
        if part == "self_attn.kv_a_proj_with_mqa":
            latent, rope = x.split((self.config.kv_lora_rank, self.config.qk_rope_head_dim))
            return torch.cat((turns.latent.T @ latent, rope))
        if part in ("self_attn.kv_b_proj", "self_attn.v_proj"):
            nope = self.config.qk_nope_head_dim if part == "self_attn.kv_b_proj" else 0
            heads = x.unflatten(0, (-1, nope + len(turns.value)))
            turned = torch.einsum("vw,hv...->hw...", turns.value, heads[:, nope:])
            return torch.cat((heads[:, :nope], turned), dim=1).flatten(0, 1)
        return x

    def _gain(self, norm: str) -> Tensor:
        return self.state[norm].double()

    def between_bases(self, name: str) -> Tensor:
        """Returns ``R^T diag(g) R``: g restores the final norm's gain, or replaces it by that of the MTP's own norm."""
        assert self.rotations is not None
        final, turn = self._gain(NORM), self.rotations.hidden
        if name == MTP_HEAD_ROT:
            if bool((final == 0).any()):
                raise ConfigError("quantizer.rotate", True, f"{NORM} has a gain of 0, which the MTP module must undo")
            final = self._gain(MTP_NORMS[2]) / final
        return turn.T @ (final[:, None] * turn)

    # ---- smoothing ---------------------------------------------------------------------------------------------------

    def _smoothed(self, name: str, x: Tensor, expert: int | None) -> Tensor:
        found = LAYER.fullmatch(name)
        if found is None or not self.transform.factors:
            return x
        layer, local = found[1], found[2]
        stem, _, kind = local.rpartition(".")
        part = local if local.startswith("mlp.experts.") else stem
        if part in NORM_OF and kind != "bias" and (s := self._factors(f"{layer}.{NORM_OF[part]}")) is not None:
            x = x * s
        if part in READERS and (s := self._factors(f"{layer}.{part}")) is not None:
            return x / s
        mlp = part.rpartition(".")[0]
        up = self._factors(f"{layer}.{mlp}.up") if part.startswith("mlp.") else None
        if up is not None and expert is not None:
            up = up[expert]
        if up is not None and part.endswith("down_proj"):
            return x * up
        if up is not None and part.endswith("gate_up_proj"):
            gate, above = x.chunk(2, dim=-2)
            return torch.cat((gate, above / up[:, None]), dim=-2)
        if up is not None and part.endswith(".up_proj"):
            return x / up[:, None]
        return self._smoothed_values(layer, part, x)

    def _smoothed_values(self, layer: str, part: str, x: Tensor) -> Tensor:
        values = self._factors(f"{layer}.self_attn.value")
        if values is None:
            return x
        if part == "self_attn.o_proj":
            size = self.config.head_dim if form_of(self.transform.attention) == "gqa" else self.config.v_head_dim
            repeats = x.shape[1] // len(values)
            smoothed: Tensor = x * values.view(-1, size).repeat_interleave(repeats, dim=0).flatten()
            return smoothed
        if part == "self_attn.v_proj":
            return x / (values if x.ndim == 1 else values[:, None])
        if part == "self_attn.kv_b_proj":
            heads = x.unflatten(0, (self.config.num_attention_heads, -1)).clone()
            heads[:, self.config.qk_nope_head_dim :] /= values.view(len(heads), -1, 1)
            flat: Tensor = heads.flatten(0, 1)
            return flat
        return x

    def _factors(self, place: str) -> Tensor | None:
        found = self.transform.factors.get(place)
        return None if found is None else found.double()


def _pieces(name: str, tensor: Tensor) -> Iterator[tuple[int | slice, int | None]]:
    """Yields indices of the parts of a tensor that change apart, with the expert's number: float64 is large."""
    if tensor.ndim == 3:
        yield from ((expert, expert) for expert in range(len(tensor)))
        return
    rows = max(1, PIECE // tensor.shape[-1]) if name in (EMBEDDING, HEAD) else max(1, len(tensor))
    yield from ((slice(start, start + rows), None) for start in range(0, len(tensor), rows))


def _wider(dtype: torch.dtype, least: torch.dtype | None) -> torch.dtype:
    return dtype if least is None else torch.promote_types(dtype, least)

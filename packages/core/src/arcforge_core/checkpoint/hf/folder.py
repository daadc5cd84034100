"""A Hugging Face directory of a supported architecture, opened lazily and written shard by shard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcforge_core.checkpoint import packed_ascend
from arcforge_core.checkpoint.hf.architecture import TRAINING, Architecture, Translated
from arcforge_core.checkpoint.hf.deepseek_v3 import DeepseekV3
from arcforge_core.checkpoint.hf.glm4_moe import Glm4Moe
from arcforge_core.checkpoint.hf.glm4_moe_lite import Glm4MoeLite
from arcforge_core.checkpoint.hf.glm_moe_dsa import GlmMoeDsa
from arcforge_core.checkpoint.hf.links import MTP_OWN_HEAD, links
from arcforge_core.checkpoint.hf.llama import Llama
from arcforge_core.checkpoint.packed import METHOD, QUANTISED, PackedShards
from arcforge_core.checkpoint.sections import meta_model, refuse_unknown, typed, typed_attention
from arcforge_core.checkpoint.shards import SHARD_BYTES, LazyState, ShardReader, ShardWriter
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.checkpoint import Link
from arcforge_core.errors import CheckpointError, nearest
from arcforge_core.files.find import CONFIG
from arcforge_core.model.adapt.state import check_shapes, state_of
from arcforge_core.ops.quant import Format, Quantised
from arcforge_core.plugins.loader import registry
from arcforge_core.version import __version__

if TYPE_CHECKING:
    from arcforge_core.tokenizer.tokenizer import Tokenizer

ARCHITECTURES: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (DeepseekV3(), Glm4Moe(), Glm4MoeLite(), GlmMoeDsa(), Llama())
}
OWN = "arcforge"
"""The section of config.json that transformers ignores."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "page.json",
)  # fmt: skip
"""Files of a directory for tokenization, chat and generation settings, and what its page offers; copied unchanged."""


@dataclass(frozen=True)
class LinkedState(Mapping[str, Tensor]):
    """Tensors under arcforge's names, converted from the files' tensors on access.

    Attributes:
        shapes: of every tensor, without reading it.
    """

    shapes: dict[str, torch.Size]
    links: dict[str, Link]
    shards: LazyState

    def __getitem__(self, name: str) -> Tensor:
        link = self.links[name]
        return link.join([self.shards[part] for part in link.theirs])

    def quantised(self, name: str) -> tuple[Quantised, Format] | None:
        """Returns the stored integers of a tensor and their format; None if it is stored as floats."""
        link = self.links[name]
        if not isinstance(self.shards, PackedShards) or not self.shards.is_packed(link.theirs[0]):
            return None
        parts = [self.shards.quantised(part) for part in link.theirs]
        values = Quantised(*(link.join([part[field] for part, _ in parts]) for field in (0, 1)))
        return values, parts[0][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.links)

    def __len__(self) -> int:
        return len(self.links)


Layout = tuple[ModelConfig, AttentionConfig, Callable[[Mapping[str, Tensor]], LazyState]]
"""A directory's model, and a function that checks the stored tensors against the model's state dict and returns them
under our names; none is read yet."""

# ---- reading ---------------------------------------------------------------------------------------------------------


def find_architecture(name: object, where: str) -> Architecture:
    """Returns the architecture with this ``model_type``.

    Raises:
        CheckpointError: the name is unknown; suggests the nearest.
    """
    if name not in ARCHITECTURES:
        known = ", ".join((OWN, *ARCHITECTURES))
        raise CheckpointError(f"{where}: model_type={name!r} must be one of {known}{nearest(str(name), ARCHITECTURES)}")
    return ARCHITECTURES[str(name)]


def hf_layout(directory: Path, config: Mapping[str, Any]) -> Layout:
    """Returns the layout of a directory of a known architecture whose config.json has been read.

    Raises:
        CheckpointError: an unknown architecture, a configuration that our model cannot hold, or damaged files; each
            is named. `arrange` raises it for missing, surplus or mis-shaped tensors.
    """
    where = str(directory / CONFIG)
    architecture = find_architecture(config.get("model_type"), where)
    packed = config.get(QUANTISED)
    method = packed.get("quant_method") if isinstance(packed, dict) else None
    if method in (METHOD, packed_ascend.METHOD):  # others are refused by name
        config = {name: value for name, value in config.items() if name != QUANTISED}
    translated, own = architecture.read(config, where), _own_section(config, architecture, where)
    shards: LazyState = ShardReader(directory)
    mtp = f"model.layers.{translated.model['num_hidden_layers']}."
    if method == packed_ascend.METHOD:
        shards = packed_ascend.AscendShards(shards, where, packed_ascend.read_description(directory), mtp)
    elif packed is not None:
        shards = PackedShards(shards, packed, where)
    values = {**translated.model, **own["model"]}
    if not any(name.startswith(mtp) for name in shards.shapes):  # config.json says 1 even where the module was dropped
        values["mtp"] = {**values["mtp"], "depths": 0}
    if method == packed_ascend.METHOD and values["tie_word_embeddings"] and _untied(shards):
        values["tie_word_embeddings"] = False  # msModelSlim copies config.json, and turns embedding and head apart
    model_config = typed(ModelConfig, values, "model", where)
    rotated = architecture.rotated(config, model_config)

    def arrange(state: Mapping[str, Tensor]) -> LazyState:
        shapes = {name: tensor.shape for name, tensor in state.items()}
        found = list(links(shapes, model_config.num_hidden_layers, rotated, shards.shapes.__contains__))
        ignored = _ignored(shards, model_config, mtp)
        stored = {name: shape for name, shape in shards.shapes.items() if name not in ignored}
        check_shapes(dict(_parts(found, state)), stored, str(directory))
        return LinkedState(shapes, {link.ours: link for link in found}, shards)

    return model_config, _attention(translated, own["attention"], where), arrange


def _untied(shards: LazyState) -> bool:
    """Returns whether a head of its own is stored."""
    names = "lm_head.weight", "model.embed_tokens.weight"
    return all(name in shards.shapes for name in names) and not torch.equal(*(shards[name] for name in names))


def _own_section(config: Mapping[str, Any], architecture: Architecture, where: str) -> dict[str, Any]:
    """Returns the ``arcforge`` section; it must not override the fields in transformers' terms."""
    own = {"model": {}, "attention": {}, **(config.get(OWN) or {})}
    refuse_unknown(own, ("version", "model", "attention"), f"{OWN}.", where)
    refuse_unknown(own["model"], (*architecture.unused, *TRAINING), f"{OWN}.model.", where)
    return own


def _attention(translated: Translated, own: Mapping[str, Any], where: str) -> AttentionConfig:
    """Builds the attention's config: the saved one, else the architecture's variant, else core's plain one."""
    variant, options = translated.variant, translated.attention
    name = own.get("name", variant)
    if name == variant and name not in registry().names("attention") and variant != "dsa" and not any(options.values()):
        name = "reference"
    if name == "reference":
        return typed_attention({"name": name, "form": variant}, where)
    return typed_attention({"name": name, **own, **options}, where)


def _parts(found: Iterable[Link], state: Mapping[str, Tensor]) -> Iterator[tuple[str, torch.Size]]:
    """Yields name and shape of every tensor in the files."""
    for link in found:
        for name, part in zip(link.theirs, link.split(state[link.ours]), strict=True):
            yield name, part.shape


def _ignored(shards: LazyState, config: ModelConfig, mtp: str) -> set[str]:
    """Returns the names of redundant tensors.

    Raises:
        CheckpointError: the MTP module has its own embedding or head.
    """
    ignored = {name for name, shape in shards.shapes.items() if name.endswith("rotary_emb.inv_freq") or 0 in shape}
    if config.tie_word_embeddings:
        ignored.add("lm_head.weight")
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    for copy, main in zip(MTP_OWN_HEAD, ("model.embed_tokens.weight", head), strict=True):
        if mtp + copy in shards.shapes:
            if main in shards.shapes and not torch.equal(shards[mtp + copy], shards[main]):
                raise CheckpointError(f"{mtp}{copy} differs from {main}: the MTP module must share the main model's")
            ignored.add(mtp + copy)
    return ignored


# ---- writing ---------------------------------------------------------------------------------------------------------


def default_architecture(config: ModelConfig, attention: AttentionConfig) -> str:
    """Returns the architecture for a model; for MLA DeepSeek-V3's, which most programs support.

    Raises:
        CheckpointError: no architecture has the attention variant.
    """
    variant = _variant(attention)
    if variant == "mla":
        return DeepseekV3.model_type
    if variant == "dsa":
        return GlmMoeDsa.model_type
    if variant != "gqa":
        raise CheckpointError(f"attention={variant}: must be gqa, mla or dsa for an architecture of transformers")
    plain = not (getattr(attention, "bias", False) or getattr(attention, "qk_norm", False) or config.mtp.depths)
    dense = config.first_k_dense_replace == config.num_hidden_layers
    return Llama.model_type if plain and dense and config.qk_rope_head_dim == config.head_dim else Glm4Moe.model_type


def _variant(attention: AttentionConfig) -> str:
    return str(getattr(attention, "form", "mla")) if attention.name == "reference" else attention.name


def write_hf(
    folder: Path,
    config: ModelConfig,
    attention: AttentionConfig,
    state: Mapping[str, Tensor],
    *,
    architecture: str | None = None,
    tokenizer: Tokenizer | Path | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    track: Callable[[Sequence[Link]], Iterable[Link]] = iter,
) -> None:
    """Writes a checkpoint into an existing directory; tensors are taken from `state` one at a time.

    Args:
        folder: target directory.
        config: sizes of the model.
        attention: its attention.
        state: its tensors under arcforge's names, without a tied head.
        architecture: ``model_type``; `default_architecture` when None.
        tokenizer: a tokenizer, or a directory whose tokenizer files, template and generation settings are copied.
        max_shard_bytes: maximum size of a file.
        track: wraps the loop, to show progress.

    Raises:
        CheckpointError: an unknown architecture, or one for another attention.
        ConfigError: a field that the architecture cannot express.
        OSError: a file cannot be written.
    """
    chosen = find_architecture(architecture or default_architecture(config, attention), "architecture")
    if _variant(attention) != chosen.variant:
        fitting = ", ".join(name for name, a in ARCHITECTURES.items() if a.variant == _variant(attention)) or "none"
        raise CheckpointError(
            f"architecture {chosen.model_type} has attention {chosen.variant}, the model {_variant(attention)}; "
            f"architectures with the latter: {fitting}"
        )
    written = chosen.write(config, attention)
    shapes = {name: tensor.shape for name, tensor in state_of(meta_model(config, attention, "the model")).items()}
    every = list(links(shapes, config.num_hidden_layers, chosen.rotated(written, config)))
    writer, dtype = ShardWriter(folder, max_shard_bytes), None
    for link in track(every):
        tensor = state[link.ours]
        dtype = dtype or tensor.dtype  # the embedding's comes first
        for name, part in zip(link.theirs, link.split(tensor), strict=True):
            writer.add(name, part)
    writer.close()
    own = {"version": __version__, **chosen.own_section(config, attention)}
    written |= {"dtype": str(dtype).removeprefix("torch."), **write_tokenizer(tokenizer, folder), OWN: own}
    (folder / CONFIG).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def write_tokenizer(tokenizer: Tokenizer | Path | None, folder: Path) -> dict[str, Any]:
    """Writes or copies a tokenizer and returns config.json's token ids, which are null without a tokenizer."""
    if isinstance(tokenizer, Path):
        copy_beside(tokenizer, folder)
        # an adapter has no config.json beside its tokenizer
        known = json.loads((tokenizer / CONFIG).read_text(encoding="utf-8")) if (tokenizer / CONFIG).is_file() else {}
        if any(name in known for name in TOKEN_IDS):
            return {name: known.get(name) for name in TOKEN_IDS}
        from arcforge_core.tokenizer.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(tokenizer) if (tokenizer / "tokenizer.json").is_file() else None
    elif tokenizer is not None:
        tokenizer.save(folder)
    if tokenizer is None:
        return dict.fromkeys(TOKEN_IDS)
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.eos_id}


def copy_beside(source: Path, folder: Path) -> None:
    """Copies the files for tokenization, chat and generation settings."""
    for name in BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)

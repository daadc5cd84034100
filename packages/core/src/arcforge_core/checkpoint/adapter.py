"""Adapters in PEFT's format: ``adapter_config.json``, which names the base, and ``adapter_model.safetensors``.

Tensors have the names and row order of the base's own files, so that PEFT applies them to the model that
transformers loads from the base. If the files hold experts one by one, so does the adapter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from arcforge_core.checkpoint.hf.folder import LinkedState, copy_beside
from arcforge_core.checkpoint.shards import LazyState, save_tensors
from arcforge_core.contracts.checkpoint import Link
from arcforge_core.errors import CheckpointError
from arcforge_core.files.checksums import file_sha256
from arcforge_core.files.find import ADAPTER_CONFIG, is_adapter
from arcforge_core.model.adapt.lora import adapter_of, merged, named_adapters, scale_of

if TYPE_CHECKING:
    from arcforge_core.model.causal_lm import CausalLM
    from arcforge_core.tokenizer.tokenizer import Tokenizer

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
BASE_SHA256 = "base_sha256"
"""Entry of the weights' metadata: identifies the base weights that the adapter was trained on."""

UNSUPPORTED = (
    "use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
    "target_parameters", "trainable_token_indices", "lora_bias", "alora_invocation_tokens",
)  # fmt: skip
"""Fields of PEFT's config that change the meaning of the tensors; all are off in adapters written here."""


def weights_sha256(folder: Path) -> str:
    """Returns a hash of a checkpoint's weight files, including their names."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256("".join(f"{file_sha256(path)}  {path.name}\n" for path in files).encode()).hexdigest()


def links_of(state: LazyState) -> Mapping[str, Link]:
    """Returns the mapping from a state's tensors to those in its files; {} if they are stored as in memory."""
    return state.links if isinstance(state, LinkedState) else {}


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_adapter(model: CausalLM, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes a model's adapter into an existing directory; the base is named, not copied.

    Raises:
        OSError: a file cannot be written.
    """
    adapter = adapter_of(model)
    assert adapter is not None
    tensors: dict[str, Tensor] = {}
    for name, low in named_adapters(model):
        link = adapter.links.get(name)
        theirs = (name,) if link is None else link.theirs
        b_parts = [low.B.detach()] if link is None else link.split(low.B.detach())
        for part, a, b in zip(theirs, _split_a(low.A.detach(), b_parts), b_parts, strict=True):
            stem = PREFIX + part.removesuffix(".weight")
            # a copy: tensors of one file must not share memory
            tensors |= {stem + A: a.clone().contiguous(), stem + B: b.clone().contiguous()}
    save_tensors(tensors, folder / ADAPTER_WEIGHTS, {BASE_SHA256: adapter.sha256})
    config = adapter.config
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.rslora,
        "target_modules": sorted(name.removeprefix(PREFIX).removesuffix(A) for name in tensors if name.endswith(A)),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    copy_beside(Path(adapter.base), folder)  # generation settings
    if tokenizer is not None:
        tokenizer.save(folder)


def _split_a(a: Tensor, b_parts: list[Tensor]) -> list[Tensor]:
    """Returns the A of each part of B: an expert's gate and up matrices share one."""
    if a.ndim == b_parts[0].ndim:
        return [a]
    copies = len(b_parts) // len(a)
    return [one for one in a for _ in range(copies)]


def _join_a(parts: list[Tensor], like: Tensor) -> Tensor:
    """The inverse of `_split_a`."""
    return parts[0] if parts[0].ndim == like.ndim else torch.stack(parts[:: len(parts) // len(like)])


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter's directory.

    Attributes:
        folder: its location.
        base: directory of its base.
        sha256: hash of the base's weights at training time; None if written by another program.
        scale: factor on ``B A``.
        pairs: A and B by the stem of the base's tensor, e.g. ``model.layers.0.self_attn.q_proj``.
    """

    folder: Path
    base: Path
    sha256: str | None
    scale: float
    pairs: dict[str, tuple[Tensor, Tensor]]


def read_adapter(folder: Path) -> AdapterFiles:
    """Reads an adapter without opening its base.

    Raises:
        CheckpointError: a file is missing or damaged, or has PEFT options that change the meaning of the tensors.
    """
    config = _config(folder)
    base = Path(config["base_model_name_or_path"])
    base = base if base.is_absolute() else (folder / base).resolve()
    path = folder / ADAPTER_WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            known = (file.metadata() or {}).get(BASE_SHA256)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error
    pairs = {}
    for stem in sorted({name.removeprefix(PREFIX).removesuffix(A).removesuffix(B) for name in tensors}):
        pair = tensors.pop(PREFIX + stem + A, None), tensors.pop(PREFIX + stem + B, None)
        if pair[0] is None or pair[1] is None:
            raise CheckpointError(f"{path}: {stem} is not a pair of LoRA matrices")
        pairs[stem] = (pair[0], pair[1])
    scale = scale_of(config["r"], config["lora_alpha"], bool(config.get("use_rslora")))
    return AdapterFiles(folder, base, known, scale, pairs)


def check_base(adapter: AdapterFiles) -> None:
    """Checks that the base exists and has the weights that the adapter was trained on.

    Raises:
        CheckpointError: the base is missing, or has other weights.
    """
    folder, base = adapter.folder, adapter.base
    if not base.is_dir():
        raise CheckpointError(
            f"{folder} is an adapter, but its base {base} does not exist: correct base_model_name_or_path in "
            f"{folder / ADAPTER_CONFIG}"
        )
    if adapter.sha256 is not None and weights_sha256(base) != adapter.sha256:
        raise CheckpointError(f"{folder} was trained on other weights than those in {base}")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind, rank, alpha = config["peft_type"], config["r"], config["lora_alpha"]
        base = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error!r}") from error
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type={kind!r}: must be LORA")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float) and isinstance(base, str)):
        raise CheckpointError(f"{path}: r, lora_alpha or base_model_name_or_path is missing or invalid")
    for name in UNSUPPORTED:
        if config.get(name):
            raise CheckpointError(f"{path}: {name}={config[name]!r} is not supported")
    if config.get("bias", "none") != "none":
        raise CheckpointError(f"{path}: bias={config['bias']!r} must be 'none'")
    return config


class AdaptedTensors(Mapping[str, Tensor]):
    """The tensors of a base's files with an adapter merged into them on reading.

    Args:
        tensors: those of the base.
        adapter: the adapter to merge.
        dtype: dtype of merged tensors; None: the base's.

    Raises:
        CheckpointError: the adapter has a tensor that the base lacks, or one of another shape.
    """

    def __init__(self, tensors: LazyState, adapter: AdapterFiles, dtype: torch.dtype | None) -> None:
        self.tensors, self.shapes, self.dtype, self.scale = tensors, tensors.shapes, dtype, adapter.scale
        self.pairs: dict[str, tuple[Tensor, Tensor]] = {}
        for stem, (a, b) in adapter.pairs.items():
            name = next((n for n in (f"{stem}.weight", stem) if n in self.shapes), None)
            if name is None:
                raise CheckpointError(f"{adapter.folder} adapts {stem}, which {adapter.base} does not have")
            if (*b.shape[:-1], a.shape[-1]) != tuple(self.shapes[name]) or a.shape[-2] != b.shape[-1]:
                shapes = f"{list(b.shape)} x {list(a.shape)}"
                raise CheckpointError(f"{adapter.folder}: {stem} is {shapes}, the base's {list(self.shapes[name])}")
            self.pairs[name] = (a, b)

    def __getitem__(self, name: str) -> Tensor:
        weight = self.tensors[name]
        if name not in self.pairs:
            return weight
        return merged(weight, *self.pairs[name], self.scale).to(self.dtype or weight.dtype)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def adapted(state: LazyState, adapter: AdapterFiles, dtype: torch.dtype | None) -> LazyState:
    if isinstance(state, LinkedState):
        return LinkedState(state.shapes, state.links, AdaptedTensors(state.shards, adapter, dtype))
    return AdaptedTensors(state, adapter, dtype)


@torch.no_grad()
def load_adapter(model: CausalLM, folder: Path) -> None:
    """Copies an adapter's tensors into an adapted model.

    Raises:
        CheckpointError: it is missing or damaged, or has other layers, another rank or another base; the model is
            unchanged.
    """
    adapter = adapter_of(model)
    assert adapter is not None
    if not is_adapter(folder):
        raise CheckpointError(f"{folder} contains no adapter ({ADAPTER_CONFIG})")
    found = read_adapter(folder)
    if found.sha256 != adapter.sha256:
        raise CheckpointError(f"{folder} was trained on {found.base}, which has other weights than {adapter.base}")
    pairs, staged = dict(found.pairs), []
    for name, low in named_adapters(model):
        link = adapter.links.get(name)
        theirs = (name,) if link is None else link.theirs
        parts = [pairs.pop(part.removesuffix(".weight"), None) for part in theirs]
        if None in parts:
            raise CheckpointError(f"{folder} has no adapter for {name}")
        whole = [part for part in parts if part is not None]
        a = _join_a([pair[0] for pair in whole], low.A)
        b = whole[0][1] if link is None else link.join([pair[1] for pair in whole])
        if (a.shape, b.shape) != (low.A.shape, low.B.shape):
            raise CheckpointError(f"{folder}: {name} has rank {a.shape[-2]}, the model's adapter {low.A.shape[-2]}")
        staged += [(low.A, a), (low.B, b)]
    if pairs:
        raise CheckpointError(f"{folder} adapts {min(pairs)}, which has no adapter in the model")
    for place, tensor in staged:
        place.copy_(tensor)

"""A model as a Hugging Face directory: config.json, safetensors, tokenizer.

`save_pretrained` writes arcforge's own format, which also keeps all training settings; `export_hf` in
`arcforge_core.checkpoint.hf` writes the architectures of transformers. `load_pretrained` reads both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcforge_core.checkpoint.adapter import adapted, check_base, load_adapter, read_adapter
from arcforge_core.checkpoint.hf.folder import OWN, Layout, LinkedState, hf_layout
from arcforge_core.checkpoint.int8 import UnpackedState
from arcforge_core.checkpoint.packed import METHOD, QUANTISED, read_rounds
from arcforge_core.checkpoint.sections import meta_model, read_json, refuse_unknown, typed, typed_attention
from arcforge_core.checkpoint.shards import WEIGHTS, LazyState, ShardReader, save_tensors
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.console.progress import say
from arcforge_core.errors import CheckpointError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG, find_checkpoint, is_adapter
from arcforge_core.model.adapt.lora import adapter_of
from arcforge_core.model.adapt.quantised import install_quantised, prepare_updates, quantised_state
from arcforge_core.model.adapt.state import check_shapes, check_state, state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.compat import fast_bf16, measured, why_precision
from arcforge_core.ops.dispatch import Ops, default_ops
from arcforge_core.ops.quant import Format, Quantised
from arcforge_core.plugins.loader import registry
from arcforge_core.version import __version__

if TYPE_CHECKING:
    from arcforge_core.contracts.hardware import Hardware
    from arcforge_core.tokenizer.tokenizer import Tokenizer

__all__ = [
    "CONFIG", "WEIGHTS", "Checkpoint", "check_state", "find_checkpoint", "load_pretrained", "load_weights",
    "load_with_tokenizer", "open_checkpoint", "own_config", "save_pretrained", "state_of", "write_pretrained",
]  # fmt: skip

FIELDS = ("model_type", "architectures", "arcforge_version", "model", "attention")


@dataclass(frozen=True)
class Checkpoint:
    """An opened directory.

    Attributes:
        path: the directory.
        architecture: its ``model_type``; `OWN` for one written by `save_pretrained`.
        config, attention: the model's configuration.
        state: its tensors, with names and shapes checked.
    """

    path: Path
    architecture: str
    config: ModelConfig
    attention: AttentionConfig
    state: LazyState


def save_pretrained(model: CausalLM, directory: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the model atomically; an existing checkpoint stays until the new one is on disk.

    Raises:
        CheckpointError: the directory contains something else, or cannot be written (full disk, permissions).
    """
    with replacing(directory, marker=CONFIG) as folder:
        write_pretrained(model, folder, tokenizer)


def write_pretrained(model: CausalLM, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the model's files into an existing directory, for callers that add files of their own.

    Raises:
        OSError: a file cannot be written; `replacing` turns it into a `CheckpointError`.
    """
    config = own_config(model.config, model.attention)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tensors(state_of(model), folder / WEIGHTS)
    if tokenizer is not None:
        tokenizer.save(folder)


def own_config(config: ModelConfig, attention: AttentionConfig) -> dict[str, object]:
    """Returns config.json in arcforge's own format."""
    return {
        "model_type": OWN,
        "architectures": [CausalLM.__name__],
        "arcforge_version": __version__,
        "model": asdict(config),
        "attention": asdict(attention),
    }


def open_checkpoint(directory: str | Path, dtype: torch.dtype | None = None) -> Checkpoint:
    """Reads the configuration and checks the tensors' names and shapes without reading a model's tensors.

    Args:
        directory: a model, or an adapter, which gives its base with the adapter merged in on reading.
        dtype: dtype of merged tensors; None: the base's.

    Raises:
        CheckpointError: the directory is missing, damaged, of another model type, or needs a component that is not
            installed (names its wheel); an adapter's base is missing or has other weights.
    """
    directory = Path(directory)
    if is_adapter(directory):
        adapter = read_adapter(directory)
        check_base(adapter)
        base = open_checkpoint(adapter.base)
        return replace(base, path=directory, state=adapted(base.state, adapter, dtype))
    json_config = read_json(directory)
    kind = str(json_config.get("model_type"))
    config, attention, arrange = (own_layout if kind == OWN else hf_layout)(directory, json_config)
    state = state_of(meta_model(config, attention, str(directory / CONFIG)))
    return Checkpoint(directory, kind, config, attention, arrange(state))


def own_layout(directory: Path, json_config: Mapping[str, Any]) -> Layout:
    """Returns the layout of a directory that `save_pretrained` wrote."""
    where = f"{directory / CONFIG}, written by arcforge {json_config.get('arcforge_version')}"
    refuse_unknown(json_config, FIELDS, "", where)
    config = typed(ModelConfig, json_config.get("model"), "model", where)
    attention = typed_attention(json_config.get("attention"), where)

    def arrange(state: Mapping[str, Tensor]) -> LazyState:
        stored = UnpackedState(ShardReader(directory), str(directory))
        check_shapes({name: tensor.shape for name, tensor in state.items()}, stored.shapes, str(directory))
        return stored

    return config, attention, arrange


def load_pretrained(directory: str | Path, dtype: torch.dtype | None = None, ops: Ops | None = None) -> CausalLM:
    """Loads a model in eval mode.

    Args:
        directory: written by `save_pretrained` or `export_hf`, or a transformers directory with an architecture in
            `arcforge_core.checkpoint.hf.ARCHITECTURES`.
        dtype: dtype of the parameters; None keeps the stored ones. Buffers (the router bias) stay float32.
        ops: source of kernels; `default_ops()` when None.

    Raises:
        CheckpointError: as in `open_checkpoint`.
    """
    checkpoint = open_checkpoint(directory, dtype)
    model = meta_model(checkpoint.config, checkpoint.attention, str(checkpoint.path / CONFIG), ops or default_ops())
    wanted = {name: buffer.dtype for name, buffer in model.named_buffers()}
    if dtype is not None:
        wanted |= {name: dtype for name, _ in model.named_parameters()}
    state = {}
    stored = _stored_integers(checkpoint)
    if stored:
        install_quantised(model, stored, read_rounds(checkpoint.path))
    for name in checkpoint.state.shapes.keys() - stored.keys():
        tensor = checkpoint.state[name]
        # a copy: a mapped tensor has the file's alignment, which would make kernels round differently
        state[name] = tensor.to(wanted.get(name, tensor.dtype), copy=True)
    model.load_state_dict(state, strict=False, assign=True)  # open_checkpoint was stricter; a tied head is absent
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise CheckpointError(f"attention {model.attention.name!r} omits {', '.join(lost)} from its state dict")
    model.rebind()
    if stored:
        _pass_updates(model, checkpoint)
    return model.eval()


def _stored_integers(checkpoint: Checkpoint) -> dict[str, tuple[Quantised, Format]]:
    """Returns the integers of a quantised checkpoint by name of the weight; copies, as of every mapped tensor."""
    if not isinstance(checkpoint.state, LinkedState):
        return {}
    found = {name: checkpoint.state.quantised(name) for name in checkpoint.state.shapes}
    return {name: (Quantised(*(x.clone() for x in q[0])), q[1]) for name, q in found.items() if q is not None}


def _pass_updates(model: CausalLM, checkpoint: Checkpoint) -> None:
    """Passes updates of the original model's weights through what the checkpoint's quantizer did to them."""
    packed = read_json(checkpoint.path)[QUANTISED]
    section = packed.get(OWN)
    if section is None:
        state = quantised_state(model)
        if packed["quant_method"] != METHOD and state is not None:
            prepare_updates(model, state.shapes, partial(_no_updates, checkpoint.path))
        return
    arrival = registry().get("quantizer", str(section.get("quantizer"))).load().arrival
    original, prepare = arrival(checkpoint.path, section, checkpoint.config, checkpoint.attention)
    shapes = {name: x.shape for name, x in state_of(meta_model(original, checkpoint.attention, "update")).items()}
    prepare_updates(model, shapes, prepare)


def _no_updates(folder: Path, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Refuses an update: another program's folds and rotations are not known."""
    raise CheckpointError(f"{folder} was quantised by another program, so it takes no updates: use arcforge-quantize")


def load_weights(model: CausalLM, directory: str | Path) -> None:
    """Copies a checkpoint's weights into an existing model; keeps its dtypes and devices.

    A model with adapters loads those of a directory written by `write_adapter` and keeps its frozen weights.

    Raises:
        CheckpointError: the weights are missing, damaged or do not fit; the model is unchanged.
    """
    if adapter_of(model) is not None:
        load_adapter(model, Path(directory))
        return
    state = open_checkpoint(directory).state
    check_shapes({name: t.shape for name, t in state_of(model).items()}, state.shapes, str(directory))
    loaded = {name: state[name] for name in state.shapes}
    model.load_state_dict(loaded, strict=False)  # a tied head is stored once


def load_with_tokenizer(
    checkpoint: str | Path, hardware: Hardware, deterministic: bool = False, dtype: str = "auto"
) -> tuple[CausalLM, Tokenizer]:
    """Loads a model onto its device, and the tokenizer beside it.

    Args:
        checkpoint: see `find_checkpoint`.
        hardware: provides the kernels and the device.
        deterministic: whether results are independent of the batch; see `Ops`.
        dtype: of the parameters, a name in `config.checks.INFERENCE_DTYPES`. ``auto`` keeps the stored ones, but
            computes bfloat16 in float32, which holds every value of it, on a processor that is faster so.

    Raises:
        CheckpointError: as in `load_pretrained`; or the tokenizer is missing, or its ids exceed the model's vocabulary.
    """
    from arcforge_core.tokenizer.tokenizer import Tokenizer

    folder = find_checkpoint(checkpoint)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json; save_pretrained(model, folder, tokenizer) writes it")
    tokenizer = Tokenizer.load(folder)
    ops = Ops(hardware, deterministic)
    model = load_pretrained(folder, None if dtype in ("auto", "stored") else getattr(torch, dtype), ops)
    device = hardware.identity.device
    fixed = deterministic and measured(device)
    if dtype == "auto" and model.dtype == torch.bfloat16 and (fixed or not fast_bf16(device)):
        say(f"the weights are computed in float32: dtype=auto is {why_precision(device, deterministic)}")
        model = model.to(torch.float32)
        model.rebind()
    model = model.to(hardware.identity.device)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model only {model.config.vocab_size}"
        )
    return model, tokenizer

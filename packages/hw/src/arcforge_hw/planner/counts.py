"""Counts the products, bytes and cache of a forward pass, from the model on the meta device.

A layer has three parts: attention, feed-forward (dense or shared experts, router included) and routed experts. Products
are of one token, bytes of the stored weights, so that quantised weights count as they are stored. Work between products
is counted in `between`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import Attention, StateEntry
from arcforge_core.model.adapt.quantised import MODES, quantise_model, quantised_state
from arcforge_core.model.block import Block
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.model.params import FlopsPerToken, cache_bytes, training_flops_per_token
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.planner.between import Between, between_products

TILE = 128
"""Queries of a prompt that read the cached keys together."""
SCORE = 4
"""Bytes of a key's score."""


@dataclass
class Weights:
    """Weights that a token passes together.

    Attributes:
        values: how many.
        bytes: as stored, scales included.
        flops: forward, of one token, by the number format that multiplies: ``bf16`` (or the model's) and ``int8``.
        through: bytes of one token's inputs and outputs of all products.
        products: how many matrix products.
    """

    values: int = 0
    bytes: int = 0
    flops: dict[str, float] = field(default_factory=dict)
    through: int = 0
    products: int = 0


@dataclass(frozen=True)
class Core:
    """The attention of one layer without its weights: FLOPs and bytes of one query.

    Attributes:
        prompt: FLOPs of a query that sees this many keys, none of them cached before.
        decode: the same with a cache, which MLA reads in absorbed form.
        read: bytes of the cache that a decoded query reads.
        chosen: bytes of a query's scores from which keys are selected, written and read once.
        split: whether tensor parallelism divides the cache; MLA's latent is the same for all heads.
    """

    prompt: Callable[[float], float]
    decode: Callable[[float], float]
    read: Callable[[float], float]
    chosen: Callable[[float], float]
    split: bool


@dataclass(frozen=True, eq=False)
class LayerCount:
    """One decoder layer; `expert` is one routed expert's, None in a dense layer. Equal layers are one object."""

    attention: Weights
    mlp: Weights
    expert: Weights | None
    core: Core
    between: Between


@dataclass(frozen=True)
class ModelCount:
    """A model in one number format.

    Attributes:
        config: sizes.
        weights: the mode of `quantise_model`, or ``none``.
        wide: the format of all that stays unquantised: ``bf16`` or ``fp32``.
        width: bytes of an activation.
        layers: without the MTP module.
        head, embedding, mtp: the rest of the weights.
        cache: bytes of one sequence by its tokens.
        training: FLOPs of a token by the mean of the keys that it sees.
        values: all, with and without the MTP module.
    """

    config: ModelConfig
    weights: str
    wide: str
    width: int
    layers: tuple[LayerCount, ...]
    head: Weights
    embedding: Weights
    mtp: Weights
    cache: Callable[[int], int]
    training: Callable[[float], FlopsPerToken]
    values: tuple[int, int]

    @cached_property
    def bytes(self) -> int:
        """All weights once."""
        experts = self.config.n_routed_experts
        every = [self.head, self.embedding, self.mtp]
        for layer in self.layers:
            every += [layer.attention, layer.mlp]
        return sum(part.bytes for part in every) + experts * sum(x.expert.bytes for x in self.layers if x.expert)

    @property
    def formats(self) -> str:
        """The format of floats and the mode of weights, as in ``fp32 w8a8``; `Machine.fits` has them as names."""
        return f"{self.wide} {self.weights}"

    @cached_property
    def rounds(self) -> bool:
        """Whether activations are rounded to int8."""
        return self.weights in MODES and MODES[self.weights].rounds


def count_model(
    config: ModelConfig, attention: AttentionConfig, weights: str = "none", dtype: torch.dtype = torch.bfloat16
) -> ModelCount:
    """Counts a model, with weights quantised as serving does it.

    Raises:
        ConfigError: `weights` is not a mode of `quantise_model`, or does not fit the model.
    """
    wide = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    with meta_device():
        plain = stored = build_model(config, attention, Ops(None)).to(dtype).eval()
        if weights != "none":
            stored = build_model(config, attention, Ops(None)).to(dtype).eval()
            quantise_model(stored, weights)
    state = quantised_state(stored)
    rounded = set(state.forms) if state is not None and MODES[weights].rounds else set()
    held = _bytes_of(stored)

    def gather(names: Iterable[str]) -> Weights:
        return _gather(plain, list(names), held, rounded, wide, dtype.itemsize)

    names = [name for name in plain.state_dict(keep_vars=True) if not name.startswith("mtp.")]
    tied = config.tie_word_embeddings
    known: dict[object, LayerCount] = {}
    layers = []
    for index, layer in enumerate(plain.model.layers):
        prefix = f"model.layers.{index}."
        own = [name for name in names if name.startswith(prefix)]
        held_sizes = tuple((name.removeprefix(prefix), held[name]) for name in own)
        attention_layer: Attention = layer.self_attn  # type: ignore[assignment]
        kind = (held_sizes, attention_layer.cache_spec())
        if kind not in known:
            experts = [name for name in own if ".experts." in name]
            attends = [name for name in own if ".self_attn." in name]
            rest = [name for name in own if name not in {*experts, *attends}]
            expert = _one_of(gather(experts), config.n_routed_experts) if experts else None
            inside = {name.removeprefix(prefix) for name in own if name in rounded}
            between = between_products(cast(Block, layer), config, dtype.itemsize, inside)
            core = _core(attention_layer, config, dtype)
            known[kind] = LayerCount(gather(attends), gather(rest), expert, core, between)
        layers.append(known[kind])
    embedding = gather(["model.embed_tokens.weight"])
    embedding.flops, embedding.products = {}, 0
    head = gather(["model.norm.weight", "lm_head.weight"])
    if tied:
        embedding.bytes = embedding.values = 0
    mtp = gather(name for name in plain.state_dict(keep_vars=True) if name.startswith("mtp."))
    distinct = {name for name in plain.state_dict() if not (tied and name == "lm_head.weight")}
    sizes = {name: tensor.numel() for name, tensor in plain.state_dict().items() if name in distinct}
    return ModelCount(
        config=config, weights=weights, wide=wide, width=dtype.itemsize,
        layers=tuple(layers), head=head, embedding=embedding, mtp=mtp,
        cache=lambda tokens: cache_bytes(plain, tokens, dtype),
        training=lambda keys: training_flops_per_token(plain, keys),
        values=(sum(sizes.values()), sum(n for name, n in sizes.items() if not name.startswith("mtp."))),
    )  # fmt: skip


def _bytes_of(stored: CausalLM) -> dict[str, int]:
    """Returns stored bytes by ordinary name, those of scales included."""
    held: dict[str, int] = {}
    for name, tensor in stored.state_dict().items():
        key = name.removesuffix("_scale")
        held[key] = held.get(key, 0) + tensor.nbytes
    return held


def _gather(
    plain: CausalLM, names: list[str], held: dict[str, int], rounded: set[str], wide: str, width: int
) -> Weights:
    total, state = Weights(), plain.state_dict()
    for name in names:
        tensor = state[name]
        total.values += tensor.numel()
        total.bytes += held[name]
        if tensor.ndim < 2:
            continue
        form = "int8" if name in rounded else wide
        total.flops[form] = total.flops.get(form, 0.0) + 2.0 * tensor.numel()
        total.through += width * sum(tensor.shape[-2:])
        total.products += 1
    return total


def _one_of(every: Weights, count: int) -> Weights:
    """Returns one expert's part of stacked weights."""
    flops = {form: value / count for form, value in every.flops.items()}
    return Weights(every.values // count, every.bytes // count, flops, every.through, every.products)


def _core(layer: Attention, config: ModelConfig, dtype: torch.dtype) -> Core:
    """Returns the attention of a layer from its cache and its count of training FLOPs."""
    entries = {entry.name: entry for entry in layer.cache_spec()}

    def training(keys: float) -> float:
        return float(layer.training_flops(torch.tensor([keys], dtype=torch.float64)).mean())

    latent = entries.get("latent")
    if latent is None:
        whole = [entry for entry in entries.values() if not isinstance(entry, StateEntry)]
        states = sum(2 * entry.num_bytes(dtype) for entry in entries.values() if isinstance(entry, StateEntry))
        return Core(
            prompt=lambda keys: training(keys) / 3, decode=lambda keys: training(keys) / 3,
            read=lambda keys: states + sum(entry.num_bytes(dtype, int(keys)) for entry in whole),
            chosen=lambda keys: 0.0, split=True,
        )  # fmt: skip
    per_key, topk = training(1.0), config.index_topk
    slope = (training(4.0 * topk) - training(2.0 * topk)) / (2.0 * topk)
    selects = slope < per_key  # else a key more costs as much as any other
    absorbed = 2.0 * config.num_attention_heads * (latent.shape[0] + config.kv_lora_rank)
    index_key = entries.get("index_key")

    def attended(keys: float) -> float:
        return min(keys, topk) if selects else keys

    def scored(keys: float) -> float:
        return slope * keys if selects and keys > topk else 0.0

    def read(keys: float) -> float:
        scores = index_key.num_bytes(dtype) * keys if index_key is not None and keys > topk else 0.0
        return latent.num_bytes(dtype) * attended(keys) + scores

    def prompt(keys: float) -> float:
        # beyond top-k the kernels read the latents in absorbed form
        return absorbed * topk + scored(keys) if selects and keys > topk else per_key / 3 * keys

    def chosen(keys: float) -> float:
        return 2.0 * SCORE * keys if selects and keys > topk else 0.0

    return Core(prompt, lambda keys: absorbed * attended(keys) + scored(keys), read, chosen, split=False)

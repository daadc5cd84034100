"""Wrong calls of torch_npu's operators as data: each is one change to a right call of a kernel, and must not pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Change = Callable[[list[Any], dict[str, Any]], None]


@dataclass(frozen=True)
class Mutation:
    """One wrong call.

    Attributes:
        case: name of the case, of `kernel_checks.CASES`.
        op: the operator whose calls change.
        kind: name, order, dtype, layout, lengths, indices, or meaning.
        what: the change in words.
        change: applied to arguments and keyword arguments of each call.
    """

    case: str
    op: str
    kind: str
    what: str
    change: Change

    @property
    def name(self) -> str:
        return f"{self.case}: {self.op.removeprefix('npu_')}, {self.kind}: {self.what}"


def rename(old: str, new: str) -> Change:
    return lambda args, given: given.update({new: given.pop(old)})


def drop(name: str) -> Change:
    return lambda args, given: given.pop(name)


def put(name: str, value: Any) -> Change:
    return lambda args, given: given.update({name: value})


def of(place: int | str, function: Callable[[Any], Any]) -> Change:
    """Changes one argument by a function; a list of tensors has one, which it changes."""

    def change(args: list[Any], given: dict[str, Any]) -> None:
        where: Any = args if isinstance(place, int) else given
        value = where[place]
        of_list = isinstance(value, list) and isinstance(value[0], torch.Tensor)
        where[place] = [function(value[0])] if of_list else function(value)

    return change


def swap(one: int | str, two: int | str) -> Change:
    def change(args: list[Any], given: dict[str, Any]) -> None:
        left: Any = args if isinstance(one, int) else given
        right: Any = args if isinstance(two, int) else given
        left[one], right[two] = right[two], left[one]

    return change


def to(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda x: x.to(dtype)


def lengths(sums: Any) -> Any:
    """Lengths for prefix sums."""
    if isinstance(sums, list):
        return [b - a for a, b in zip([0, *sums], sums, strict=False)]
    return torch.cat((sums[:1], sums.diff()))


def sums(lengths: Any) -> Any:
    """Prefix sums for lengths."""
    return lengths.cumsum(0).to(lengths.dtype)


def invalid_first(indices: Any) -> Any:
    return indices.flip(-1)


def heads_first(x: Any) -> Any:
    return x.transpose(0, 1).contiguous()


SELECT, ATTEND, LOSS = (
    "npu_lightning_indexer",
    "npu_sparse_flash_attention",
    "npu_sparse_lightning_indexer_grad_kl_loss",
)
DENSE, PROLOGUE = "npu_fusion_attention", "npu_mla_prolog_v3"
PRODUCT, CHOOSE, ROUTE = "npu_grouped_matmul", "npu_moe_gating_top_k", "npu_moe_init_routing_v2"
BACK, LINEAR = "npu_moe_token_unpermute", "npu_quant_matmul"
QUERIES, KEYS = "actual_seq_lengths_query", "actual_seq_lengths_key"

MUTATIONS = [
    Mutation("topk", SELECT, "name", "topk for sparse_count", rename("sparse_count", "topk")),
    Mutation("topk", SELECT, "name", "lengths of kv", rename(KEYS, "actual_seq_lengths_kv")),
    Mutation("topk", SELECT, "order", "key before query", swap(0, 1)),
    Mutation("topk", SELECT, "order", "weights before key", swap(1, 2)),
    Mutation("topk", SELECT, "dtype", "float32 queries", of(0, to(torch.float32))),
    Mutation("topk", SELECT, "dtype", "int64 lengths", of(QUERIES, to(torch.int64))),
    Mutation("topk", SELECT, "layout", "heads before tokens", of(0, heads_first)),
    Mutation("topk", SELECT, "layout", "BSND", put("layout_query", "BSND")),
    Mutation("topk", SELECT, "layout", "keys in pages", put("layout_key", "PA_BSND")),
    Mutation("topk", SELECT, "lengths", "for sums of queries", of(QUERIES, lengths)),
    Mutation("topk", SELECT, "lengths", "for sums of keys", of(KEYS, lengths)),
    Mutation("topk", SELECT, "lengths", "none of queries", drop(QUERIES)),
    Mutation("topk", SELECT, "meaning", "keys of the future", put("sparse_mode", 0)),
    Mutation("topk in pages", SELECT, "lengths", "sums for lengths of keys", of(KEYS, sums)),
    Mutation("topk in pages", SELECT, "dtype", "int64 table", of("block_table", to(torch.int64))),
    Mutation("topk in pages", SELECT, "layout", "heads before blocks' rows", of(1, lambda x: x.transpose(1, 2))),
    Mutation("topk in pages", SELECT, "layout", "table by page", of("block_table", lambda x: x.flip(0).contiguous())),
    Mutation("attend", ATTEND, "order", "key before query", swap(0, 1)),
    Mutation("attend", ATTEND, "order", "rotated parts", swap("query_rope", "key_rope")),
    Mutation("attend", ATTEND, "name", "k_rope", rename("key_rope", "k_rope")),
    Mutation("attend", ATTEND, "name", "lengths of keys", rename("actual_seq_lengths_kv", KEYS)),
    Mutation("attend", ATTEND, "dtype", "int64 indices", of(3, to(torch.int64))),
    Mutation("attend", ATTEND, "dtype", "float16 keys", of(1, to(torch.float16))),
    Mutation("attend", ATTEND, "layout", "a value of its own", of(2, torch.clone)),
    Mutation("attend", ATTEND, "layout", "BSND", put("layout_kv", "BSND")),
    Mutation("attend", ATTEND, "layout", "indices without heads", of(3, lambda x: x[:, 0])),
    Mutation("attend", ATTEND, "lengths", "for sums of queries", of(QUERIES, lengths)),
    Mutation("attend", ATTEND, "lengths", "for sums of keys", of("actual_seq_lengths_kv", lengths)),
    Mutation("attend", ATTEND, "indices", "invalid first", of(3, invalid_first)),
    Mutation("attend", ATTEND, "indices", "padding is 0", of(3, lambda x: x.clamp(min=0))),
    Mutation("attend", ATTEND, "meaning", "default mode", drop("attention_mode")),
    Mutation("attend", ATTEND, "meaning", "no scale", of(4, lambda x: 1.0)),
    Mutation("learn", ATTEND, "meaning", "no statistics for the gradient", put("return_softmax_lse", False)),
    Mutation("loss", LOSS, "order", "sums before maxima", swap(6, 7)),
    Mutation("loss", LOSS, "order", "index queries before queries", swap(0, 2)),
    Mutation("loss", LOSS, "name", "kvlen", rename("actual_seq_klen", "actual_seq_kvlen")),
    Mutation("loss", LOSS, "dtype", "float16 weights", of(4, to(torch.float16))),
    Mutation("loss", LOSS, "layout", "too few columns", of(5, lambda x: x[..., :6].contiguous())),
    Mutation("loss", LOSS, "lengths", "for sums of queries", of("actual_seq_qlen", lengths)),
    Mutation("loss", LOSS, "lengths", "for sums of keys", of("actual_seq_klen", lengths)),
    Mutation("loss", LOSS, "indices", "invalid first", of(5, invalid_first)),
    Mutation("loss", ATTEND, "meaning", "statistics without a scale", of(4, lambda x: 1.0)),
    Mutation("dense", DENSE, "lengths", "for sums of queries", of("actual_seq_qlen", lengths)),
    Mutation("dense", DENSE, "lengths", "for sums of keys", of("actual_seq_kvlen", lengths)),
    Mutation("dense", DENSE, "order", "values before keys", swap(1, 2)),
    Mutation("dense", DENSE, "name", "kv_heads", put("kv_heads", 2)),
    Mutation("dense", DENSE, "layout", "a mask the other way", of("atten_mask", lambda x: x.mT.contiguous())),
    Mutation("dense", DENSE, "meaning", "aligned top-left", put("sparse_mode", 2)),
    Mutation("prologue", PROLOGUE, "order", "sines and cosines", swap(7, 8)),
    Mutation("prologue", PROLOGUE, "order", "norms", swap(5, 6)),
    Mutation("prologue", PROLOGUE, "layout", "weights not turned", of(1, lambda x: x.mT.contiguous())),
    Mutation("prologue", PROLOGUE, "layout", "rows of a cache without blocks", of(9, lambda x: x.flatten(0, 1))),
    Mutation("prologue", PROLOGUE, "dtype", "int32 rows", of("cache_index", to(torch.int32))),
    Mutation("prologue", PROLOGUE, "name", "slots", rename("cache_index", "slots")),
    Mutation("prologue", PROLOGUE, "indices", "rows in reverse", of("cache_index", lambda x: x.flip(0))),
    Mutation("prologue", PROLOGUE, "meaning", "another epsilon", put("rmsnorm_epsilon_ckv", 1.0)),
    Mutation("experts", PRODUCT, "lengths", "sizes for sums", put("group_list_type", 0)),
    Mutation("experts", PRODUCT, "dtype", "int32 groups", of("group_list", to(torch.int32))),
    Mutation("experts", PRODUCT, "layout", "weights not turned", of(1, lambda x: x.mT)),
    Mutation("experts", PRODUCT, "name", "group_lists", rename("group_list", "group_lists")),
    Mutation("experts", PRODUCT, "order", "weights before rows", swap(0, 1)),
    Mutation("experts", PRODUCT, "meaning", "several results", put("split_item", 0)),
    Mutation("experts", PRODUCT, "meaning", "groups of the other axis", of("group_type", lambda x: 2 - x)),
    Mutation("experts", BACK, "dtype", "float32 gates", of(2, to(torch.float32))),
    Mutation("experts", BACK, "order", "gates before places", swap(1, 2)),
    Mutation("experts", BACK, "indices", "choices of rows", of(1, lambda x: x.argsort().int())),
    Mutation("moe", CHOOSE, "meaning", "softmax", drop("norm_type")),
    Mutation("moe", CHOOSE, "meaning", "no factor", drop("routed_scaling_factor")),
    Mutation("moe", CHOOSE, "dtype", "bias in bfloat16", of("bias", to(torch.bfloat16))),
    Mutation("moe", ROUTE, "lengths", "sums for sizes", put("expert_tokens_num_type", 0)),
    Mutation("moe", ROUTE, "indices", "choices of rows", put("row_idx_type", 1)),
    Mutation("moe", ROUTE, "dtype", "int64 experts", of(1, to(torch.int64))),
    Mutation("moe", ROUTE, "name", "num_experts", rename("expert_num", "num_experts")),
    Mutation("w8a8", LINEAR, "layout", "weights not turned", of(1, lambda x: x.mT)),
    Mutation("w8a8", LINEAR, "order", "scales", swap(2, "pertoken_scale")),
    Mutation("w8a8", LINEAR, "dtype", "int8 results", drop("output_dtype")),
    Mutation("w8a8", LINEAR, "name", "per_token_scale", rename("pertoken_scale", "per_token_scale")),
    Mutation("w4a8", PRODUCT, "meaning", "no shift", drop("bias")),
    Mutation("w4a8", PRODUCT, "dtype", "scales as numbers", of("scale", lambda x: x.int().view(torch.float32))),
    Mutation("w4a8", PRODUCT, "dtype", "shift in bfloat16", of("bias", to(torch.bfloat16))),
    Mutation("w4a8", PRODUCT, "layout", "packed rows", of(1, lambda x: x.mT)),
    Mutation("w4a8", "npu_swiglu_quant", "meaning", "the gate is right", drop("activate_left")),
    Mutation("norm", "npu_rms_norm", "dtype", "float32 weight", of(1, to(torch.float32))),
    Mutation("norm", "npu_rms_norm", "order", "weight before rows", swap(0, 1)),
    Mutation("rotate", "npu_rotary_mul", "meaning", "halves", of(3, lambda mode: "half")),
    Mutation("rotate", "npu_rotary_mul", "order", "sines before cosines", swap(1, 2)),
    Mutation("rotate", "npu_rotary_mul", "layout", "heads before tokens", of(0, heads_first)),
    Mutation(
        "swiglu", "npu_swiglu", "meaning", "the gate is right", of(0, lambda x: torch.cat(x.chunk(2, -1)[::-1], -1))
    ),
]

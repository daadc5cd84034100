"""The specification of every op: its meaning, fixed sizes, outputs, accuracy and test cases, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from arcforge_core.contracts.op_names import OP_NAMES
from arcforge_core.ops import reference

SAME, WIDE, INDEX, RECORDS = "same", "wide", "index", "records"
"""Dtypes of an output: that of the activations; fp32 or wider; int64; int8."""

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-10}
"""Relative error allowed against float64, by dtype; integers are always exact."""

ATTENTION, FUSED, QUANTISED = ("attention_inputs", "fused_inputs", "quant_inputs")
"""Modules of `arcforge_core.testing` that draw cases."""


@dataclass(frozen=True)
class OpSpec:
    """One op.

    Attributes:
        name: also the reference's.
        sizes: names of the fixed sizes that a module passes when it binds the op, in this order.
        outputs: dtype of each output.
        cases_in: module whose function ``{name}_cases(generator)`` draws calls; a name without a dot is one of
            `arcforge_core.testing`. A plugin's module may also have ``{name}_large(generator)`` for a large one.
        jumps: whether intermediate results are rounded to integers or choose experts, so that an error in the last bit
            changes one result in a million visibly.
        tolerance: see `TOLERANCE`.
        defined_in: module whose function of the op's name is the reference.
        weights: arguments that kernels may take in a layout of their own (`contracts.hardware.PreparesWeights`).
        writes: arguments that the op changes in place, as a part of its result.
    """

    name: str
    sizes: tuple[str, ...]
    outputs: tuple[str, ...] = (SAME,)
    cases_in: str = "op_inputs"
    jumps: bool = False
    tolerance: Mapping[torch.dtype, float] = field(default_factory=lambda: TOLERANCE)
    defined_in: str = reference.__name__
    weights: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def reference(self) -> Callable[..., Any]:
        """The naive implementation, which defines the op."""
        function: Callable[..., Any] = getattr(import_module(self.defined_in), self.name)
        return function

    @property
    def cases(self) -> Callable[[torch.Generator], list[Any]]:
        """Draws the op's calls, `arcforge_core.testing.op_case.OpCase`, from a generator."""
        function: Callable[[torch.Generator], list[Any]] = getattr(self.cases_module, f"{self.name}_cases")
        return function

    @property
    def large(self) -> Callable[[torch.Generator], Any] | None:
        """Draws the large call of a plugin's op; None without one, and for core's ops, which have their own."""
        return getattr(self.cases_module, f"{self.name}_large", None)

    @property
    def cases_module(self) -> ModuleType:
        """The module of the cases, imported."""
        return import_module(self.cases_in if "." in self.cases_in else f"arcforge_core.testing.{self.cases_in}")

    def output_dtype(self, number: int, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype of an output of a call whose activations are `dtype`."""
        wide = torch.promote_types(dtype, torch.float32)
        return {SAME: dtype, WIDE: wide, INDEX: torch.int64, RECORDS: torch.int8}[self.outputs[number]]


KINDS = (SAME, WIDE, INDEX, RECORDS)


def _specs() -> dict[str, OpSpec]:
    heads, sparse = ("heads", "kv_heads", "key_dim", "value_dim"), ("heads", "key_dim", "latent_dim", "topk")
    moe = ("experts", "hidden", "width", "shared")
    scaled, quantised = ("weight", "scale_NG"), ("experts", "hidden", "width", "bits", "groups")
    experts = ("gate_up", "gate_up_scale_EFG", "down", "down_scale_EDG")
    projection = ("hidden", "query_latent", "latent", "heads", "nope", "rotary")
    specs = (
        OpSpec("rms_norm", ("width",)),
        OpSpec("rope", ("dim",)),
        OpSpec("linear", ("inputs", "outputs"), weights=("weight_NK",)),
        OpSpec("head_linear", ("heads",)),
        OpSpec("swiglu", ("width",)),
        OpSpec("attention_varlen", heads, cases_in=ATTENTION),
        OpSpec("window_attention", (*heads, "window"), cases_in=ATTENTION),
        OpSpec("attention_decode", heads, cases_in=ATTENTION),
        OpSpec("mla_decode", sparse[:3], cases_in=ATTENTION),
        OpSpec("indexer_topk", ("heads", "head_dim", "topk"), (INDEX,), ATTENTION),
        OpSpec("sparse_mla", sparse, cases_in=ATTENTION),
        OpSpec("selected_attention", (*heads, "topk"), cases_in=ATTENTION),
        OpSpec("indexer_kl", ("heads", "key_dim", "index_heads", "index_dim", "topk"), (WIDE,), ATTENTION),
        OpSpec("gated_delta_rule", ("heads", "key_dim", "value_dim"), (SAME, WIDE), ATTENTION),
        OpSpec("router_scores", ("width", "experts"), (WIDE,)),
        OpSpec("moe_experts", ("experts", "hidden", "width"), weights=("gate_up_EFD", "down_EDF")),
        OpSpec("linear_cross_entropy", ("width", "vocab"), (WIDE,)),
        OpSpec("argmax_logprob", ("vocab",), (INDEX, WIDE)),
        OpSpec("sample", ("vocab",), (INDEX,)),
        OpSpec("newton_schulz", ("rows", "columns")),
        OpSpec("hadamard", ("width",)),
        OpSpec("to_records", ("width",), (RECORDS,), QUANTISED),
        OpSpec("quant_linear", ("inputs", "outputs", "bits", "groups"), cases_in=QUANTISED, weights=scaled),
        OpSpec("quant_experts", quantised, cases_in=QUANTISED, jumps=True, weights=experts),
        OpSpec("mla_prolog", ("hidden", "latent"), (SAME, SAME), FUSED),
        OpSpec("mla_project", projection, (SAME, SAME, SAME), FUSED, weights=("q_a_QD", "q_b_JQ", "kv_a_CD")),
        OpSpec("mla_absorb", ("heads", "latent"), cases_in=FUSED),
        OpSpec("mla_epilog", ("heads", "latent"), cases_in=FUSED),
        OpSpec("mla_layer", projection, cases_in=FUSED, writes=("cache_RC",)),
        OpSpec("index_prolog", ("heads", "head_dim", "hidden"), (SAME, SAME, SAME), FUSED),
        OpSpec("mlp", ("hidden", "width"), cases_in=FUSED),
        OpSpec("quant_mlp", ("hidden", "width"), cases_in=QUANTISED, jumps=True),
        OpSpec("moe", moe, cases_in=FUSED, jumps=True, weights=("gate_up_EFD", "down_EDF")),
        OpSpec("quant_moe", (*moe, *quantised[3:]), cases_in=QUANTISED, jumps=True, weights=experts),
    )
    return {spec.name: spec for spec in specs}


SPECS: dict[str, OpSpec] = _specs()
"""All ops by name, in the order of `OP_NAMES`."""
assert tuple(SPECS) == OP_NAMES


def register_op(spec: OpSpec) -> None:
    """Adds a plugin's op: modules bind it, backends have kernels for it, and the conformance kit tests these.

    Call it where the module that binds the op, and the backend that has a kernel for it, are imported; the same spec
    may be registered repeatedly.

    Raises:
        ValueError: the name is core's or that of another spec; it is not that of the reference; the reference or the
            cases are missing; an output has no known dtype.
    """
    if SPECS.get(spec.name) == spec:
        return
    if spec.name in SPECS:
        owner = "core" if spec.name in OP_NAMES else SPECS[spec.name].defined_in
        raise ValueError(f"op {spec.name!r} is already that of {owner}")
    if unknown := sorted(set(spec.outputs) - set(KINDS)):
        raise ValueError(f"op {spec.name!r}: outputs {unknown} must be of {', '.join(KINDS)}")
    for module, function in ((spec.defined_in, spec.name), (spec.cases_in, f"{spec.name}_cases")):
        try:
            found = spec.reference if function == spec.name else spec.cases
        except (ImportError, AttributeError) as error:
            raise ValueError(f"op {spec.name!r}: {module} has no {function}: {error}") from error
        if found.__name__ != function:
            raise ValueError(f"op {spec.name!r}: the name of {module}.{function} is {found.__name__!r}")
    SPECS[spec.name] = spec

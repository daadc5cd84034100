"""Models whose large weights are stored as integers, for serving; the choice of weights is the W4A8 recipe of spec 15.

Shapes: T tokens, D hidden, K a token's experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig, check_weights
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.adapt.lora import adapter_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.model.moe import DenseMLP, Experts, MoE, Router
from arcforge_core.model.norm import Linear
from arcforge_core.ops import Fused, Ops, op, reference
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, Quantised, dequantise, quantise


@dataclass(frozen=True)
class Mode:
    """The formats of a model's weights.

    Attributes:
        linear, experts: formats of projections and of routed experts.
        head: format of the output projection; None leaves it unquantised.
        rounds: whether activations are rounded to int8 per token.
    """

    linear: Format
    experts: Format
    head: Format | None
    rounds: bool


MODES = {
    "w8a8": Mode(INT8, INT8, None, True),
    "w4a8": Mode(INT8, INT4, None, True),
    "int4": Mode(INT4_GROUP_32, INT4_GROUP_32, INT4_GROUP_32, False),
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_b_proj", "wq_b", "gate_proj", "up_proj", "down_proj")
"""Linear layers that are quantised; all others, norms, router, embedding and the MTP module stay unquantised."""


class _Integers(nn.Module):
    """Weights as buffers: integers under the parameter's name, their scales under that name with ``_scale``."""

    def __init__(self, form: Format, rounds: bool) -> None:
        super().__init__()
        self.form, self.rounds = form, rounds

    def keep(self, name: str, weight: Tensor) -> None:
        """Quantises a weight into buffers."""
        values, scale = quantise(weight, self.form)
        self.register_buffer(name, values)
        self.register_buffer(f"{name}_scale", scale.float())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Integers:
        """Moves the scales but never casts them."""
        kept = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        bits = {name: fn(x.view(torch.int32)) for name, x in kept.items() if x.is_floating_point()}
        super()._apply(fn, recurse)
        for name, moved in bits.items():
            self._buffers[name] = moved.view(torch.float32)
        return self


class QuantLinear(_Integers):
    """A `Linear` with integer weights."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, source: Linear, form: Format, rounds: bool) -> None:
        super().__init__(form, rounds)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.keep("weight", source.weight)
        self.bias = source.bias
        sizes = {"inputs": self.in_features, "outputs": self.out_features, "bits": form.bits}
        weights = {"weight": "weight", "scale_NG": "weight_scale"}
        self.quant_linear = op(reference.quant_linear, weights, **sizes, groups=self.weight_scale.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T (+ b) in x's dtype."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self.quant_linear(x, self.weight, self.weight_scale, bias, self.rounds)

    def full_weight(self, dtype: torch.dtype) -> Tensor:
        """Returns the matrix that the integers mean; see `Linear.full_weight`."""
        return dequantise(Quantised(self.weight, self.weight_scale), dtype)


class QuantExperts(_Integers):
    """`Experts` with integer weights."""

    weights: ClassVar[Mapping[str, str]] = {
        "gate_up": "gate_up_proj", "gate_up_scale_EFG": "gate_up_proj_scale", "down": "down_proj",
        "down_scale_EDG": "down_proj_scale",
    }  # fmt: skip
    """Attributes by argument of `reference.quant_experts`."""

    gate_up_proj: Tensor
    gate_up_proj_scale: Tensor
    down_proj: Tensor
    down_proj_scale: Tensor

    def __init__(self, source: Experts, form: Format, rounds: bool) -> None:
        super().__init__(form, rounds)
        experts, hidden, self.width = source.down_proj.shape
        self.keep("gate_up_proj", source.gate_up_proj)
        self.keep("down_proj", source.down_proj)
        sizes = {"experts": experts, "hidden": hidden, "width": self.width, "bits": form.bits, "groups": self.groups}
        self.quant_experts = op(reference.quant_experts, self.weights, **sizes)

    @property
    def groups(self) -> int:
        """Scales of a row of `gate_up_proj`."""
        return self.gate_up_proj_scale.shape[-1]

    def forward(self, x_TD: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
        """Returns the gated sum over each token's experts, [T, D]."""
        return self.quant_experts(
            x_TD, self.gate_up_proj, self.gate_up_proj_scale, self.down_proj, self.down_proj_scale, expert_TK, gate_TK,
            self.rounds,
        )  # fmt: skip


class QuantMLP(DenseMLP):
    """A `DenseMLP` whose projections are `QuantLinear`."""

    def __init__(self, source: DenseMLP) -> None:
        nn.Module.__init__(self)
        self.gate_proj, self.up_proj, self.down_proj = source.gate_proj, source.up_proj, source.down_proj
        hidden, width = source.gate_proj.in_features, source.gate_proj.out_features
        self.swiglu = op(reference.swiglu, width=width)
        self.fused = Fused("quant_mlp", self.projections, (QuantLinear,), hidden=hidden, width=width)

    @staticmethod
    def of(source: DenseMLP) -> tuple[nn.Module, ...]:
        """Returns the gate, up and down projections of a layer."""
        return source.gate_proj, source.up_proj, source.down_proj

    def _parts(self) -> tuple[QuantLinear, ...]:
        return self.of(self)  # type: ignore[return-value]

    def weights(self) -> list[Tensor]:
        """Returns weights and scales of the gate, up and down projections."""
        return [x for part in self._parts() for x in (part.weight, part.weight_scale)]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Returns [T, D]."""
        out_TD: Tensor
        if self.fused.serves(len(x_TD)):
            out_TD = self.fused(x_TD, *self.weights(), self._parts()[0].rounds)
            return out_TD
        out_TD = self.down_proj(self.swiglu(self.gate_proj(x_TD), self.up_proj(x_TD)))
        return out_TD


class QuantMoE(MoE):
    """A `MoE` whose experts, including the shared one, are quantised."""

    def __init__(self, source: MoE) -> None:
        nn.Module.__init__(self)
        self.gate, self.experts, self.shared_experts = source.gate, source.experts, source.shared_experts
        weights = {name: f"experts.{path}" for name, path in QuantExperts.weights.items()}
        experts, kinds = cast(QuantExperts, self.experts), (QuantMoE, Router, QuantExperts, QuantMLP, QuantLinear)
        self.fused = self.fusion("quant_moe", kinds, weights, bits=experts.form.bits, groups=experts.groups)

    def _fused(self, x_TD: Tensor) -> Tensor:
        gate, experts, shared = self.gate, cast(QuantExperts, self.experts), cast(QuantMLP, self.shared_experts)
        routed = (experts.gate_up_proj, experts.gate_up_proj_scale, experts.down_proj, experts.down_proj_scale)
        out_TD: Tensor = self.fused(
            x_TD, gate.weight, gate.e_score_correction_bias, *routed, *shared.weights(), gate.top_k, gate.scale,
            experts.rounds,
        )  # fmt: skip
        return out_TD


def _chosen(model: CausalLM, mode: Mode) -> Iterator[tuple[nn.Module, str, nn.Module, Format]]:
    """Yields (parent, path, module, format) of every module to quantise."""
    for path, module in list(model.named_modules()):
        parent_path, _, name = path.rpartition(".")
        if path.startswith("mtp."):
            continue
        form = None
        if isinstance(module, Experts):
            form = mode.experts
        elif path == "lm_head":
            form = mode.head
        elif isinstance(module, Linear) and name in PROJECTIONS:
            form = mode.linear
        if form is not None:
            yield model.get_submodule(parent_path), path, module, form


def check_quantised(config: ModelConfig, attention: AttentionConfig, weights: str) -> None:
    """Checks that a model of these sizes can be quantised, without building it.

    Raises:
        ConfigError: `weights` is not a mode, or a layer's width does not fit its format.
    """
    check_weights("engine.weights", weights)
    if weights == "none":
        return
    with meta_device():
        model = build_model(config, attention, Ops(None))
    for _, path, module, form in _chosen(model, MODES[weights]):
        for name, parameter in module.named_parameters():
            if parameter.ndim < 2:
                continue
            try:
                form.check(parameter.shape[-1])
            except ValueError as error:
                raise ConfigError("engine.weights", weights, f"{path}.{name}: {error}") from error


@torch.no_grad()
def quantise_model(model: CausalLM, weights: str) -> None:
    """Replaces a model's large weights by integers, in place; the original values are discarded.

    Ordinary state dicts still update the weights (`weights.replace_weights`). A quantised model can be neither trained
    nor saved.

    Args:
        model: on any device; a model already quantised in this mode is left unchanged.
        weights: a name in `MODES`, or ``none``, which does nothing.

    Raises:
        ConfigError: `weights` is not a mode, or the model is quantised in another mode, is in training, has adapters or
        has a width that does not fit its format.
    """
    check_weights("engine.weights", weights)
    state = quantised_state(model)
    if state is not None and weights == "none" and state.mode == STORED:
        return
    if state is not None and state.mode != weights:
        accepted = f"must be {'none' if state.mode == STORED else state.mode}: the model is already quantised"
        raise ConfigError("engine.weights", weights, accepted)
    if weights == "none" or state is not None:
        return
    check_quantised(model.config, model.attention, weights)
    if model.training:
        raise ConfigError("engine.weights", weights, "must be none in training mode, which needs the original weights")
    if adapter_of(model) is not None:
        raise ConfigError("engine.weights", weights, "must be none with adapters: merge them first (arcforge-convert)")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    mode = MODES[weights]
    forms = _replace(model, [(path, module, form) for _, path, module, form in _chosen(model, mode)], mode.rounds)
    model.__dict__[_STATE] = QuantisedState(weights, shapes, forms)
    model.rebind()


def _replace(model: CausalLM, chosen: Iterable[tuple[str, nn.Module, Format]], rounds: bool) -> dict[str, Format]:
    """Replaces modules by quantised ones and returns the formats by name of the weight."""
    forms: dict[str, Format] = {}
    for path, module, form in chosen:
        parent, _, name = path.rpartition(".")
        kept = (QuantExperts if isinstance(module, Experts) else QuantLinear)(module, form, rounds)  # type: ignore[arg-type]
        forms |= {f"{path}.{key}": form for key, parameter in module.named_parameters() if parameter.ndim > 1}
        setattr(model.get_submodule(parent), name, kept)
    for path, module in list(model.named_modules()):
        made: nn.Module | None = None
        if isinstance(module, DenseMLP) and all(isinstance(p, QuantLinear) for p in QuantMLP.of(module)):
            made = QuantMLP(module)
        elif isinstance(module, MoE) and type(module.experts) is not Experts:
            made = QuantMoE(module)
        if made is not None:
            setattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], made)
    return forms


@torch.no_grad()
def install_quantised(model: CausalLM, stored: Mapping[str, tuple[Quantised, Format]], rounds: bool) -> None:
    """Gives a model the integers of a quantised checkpoint, in place; ordinary updates are quantised on arrival.

    Args:
        model: on any device, also meta.
        stored: integers and their format by name of the weight.
        rounds: whether activations are rounded to int8 per token.

    Raises:
        CheckpointError: a name is not a weight that can be quantised, or only half of the experts' weights are.
    """
    paths = {name.removesuffix(".weight") if name.endswith(".weight") else name.rpartition(".")[0] for name in stored}
    chosen = []
    for path in sorted(paths):
        module = model.get_submodule(path)
        names = ("gate_up_proj", "down_proj") if isinstance(module, Experts) else ("weight",)
        given = {name: stored[f"{path}.{name}"][1] for name in names if f"{path}.{name}" in stored}
        formats: set[Format] = set()
        if isinstance(module, Linear | Experts):
            formats = {in_groups(form, getattr(module, name).shape[-1], given.values()) for name, form in given.items()}
        if len(formats) != 1 or len(given) != len(names):
            raise CheckpointError(f"{path} is quantised, but cannot be served so")
        chosen.append((path, module, formats.pop()))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    forms = _replace(model, chosen, rounds)
    integers = {name: values.values for name, (values, _) in stored.items()}
    scales = {f"{name}_scale": values.scale.float() for name, (values, _) in stored.items()}
    model.load_state_dict(integers | scales, strict=False, assign=True)
    model.__dict__[_STATE] = QuantisedState(STORED, shapes, forms)


def in_groups(form: Format, columns: int, formats: Iterable[Format]) -> Format:
    """Returns the format of a matrix, given those of a module's matrices.

    A row of one group has one scale, as a row without groups has: which of both it is, another matrix says.
    """
    one_group = form.group is None and any(other.group == columns for other in formats)
    return replace(form, group=columns) if one_group else form


STORED = "stored"
"""The mode of a model whose integers came from a checkpoint."""
_STATE = "quantised"
"""The attribute that marks a quantised model; the model code does not know about it."""


def prepare_updates(
    model: CausalLM,
    shapes: Mapping[str, torch.Size],
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> None:
    """Declares that updates of a quantised model have other `shapes` and pass `prepare` before they are rounded."""
    state = quantised_state(model)
    assert state is not None
    model.__dict__[_STATE] = replace(state, shapes=shapes, prepare=prepare)


def quantised_state(model: nn.Module) -> QuantisedState | None:
    """Returns the state that `quantise_model` set on a model; None if it is not quantised."""
    state: QuantisedState | None = vars(model).get(_STATE)
    return state


@dataclass(frozen=True)
class QuantisedState:
    """The quantisation of a model.

    Attributes:
        mode: name of the mode.
        shapes: shapes of the ordinary state dict, without a tied head.
        forms: formats by ordinary name.
        prepare: applied to an ordinary state dict before rounding, e.g. the rotations of a quantizer.
    """

    mode: str
    shapes: Mapping[str, torch.Size]
    forms: Mapping[str, Format]
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None

    def of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the model's state dict for an ordinary one."""
        stored: dict[str, Tensor] = {}
        state = state if self.prepare is None else self.prepare(state)
        tied = {} if "lm_head.weight" in state else {"lm_head.weight": state["model.embed_tokens.weight"]}
        for name, tensor in {**state, **tied}.items():
            if name in self.forms:
                stored[name], stored[f"{name}_scale"] = Quantised(*quantise(tensor, self.forms[name]))
            elif name in state:
                stored[name] = tensor
        return stored

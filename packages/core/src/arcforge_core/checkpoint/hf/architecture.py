"""The mapping between an architecture's config.json in transformers and arcforge's configuration.

Every field of `ModelConfig` has one of three kinds. *Carried*: config.json has it under the same name. *Unused*: it
does not change this architecture's logits (training settings, sizes of other attention variants), so it is stored in an
additional section, ``"arcforge"``, which transformers keeps and ignores. *Derived*: `read` and `write` translate it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from omegaconf import MISSING

from arcforge_core.checkpoint.hf.links import RotatedRows
from arcforge_core.checkpoint.hf.rope import read_rope, write_rope
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import CheckpointError, ConfigError

SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
MOE_SIZES = ("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")
MLA_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
INDEX_SIZES = ("index_n_heads", "index_head_dim", "index_topk")
GQA_SIZES = ("num_key_value_heads", "head_dim")

COMMON = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "initializer_range": 0.02}
MOE = {"n_shared_experts": 1, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1}
FIXED = {"hidden_act": "silu", "quantization_config": None}
FIXED_MOE = {"norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
RELEASED_MTP = {"depths": 1}
"""Releases contain one module; no file states the number of depths it was trained for."""
TRAINING = ("name", "router_bias_rate", "balance_loss_weight", "mtp")


@dataclass
class Translated:
    """A configuration in arcforge's terms: fields of the model section, the attention variant and its fields."""

    model: dict[str, Any]
    variant: str
    attention: dict[str, Any] = field(default_factory=dict)


class Architecture(ABC):
    """One ``model_type``.

    Attributes:
        model_type, class_name: as in config.json.
        variant: arcforge's attention: ``gqa``, ``mla`` or ``dsa``.
        sizes: required carried fields.
        defaults: optional carried fields with the defaults of transformers.
        fixed: fields that arcforge's model cannot vary, with the only supported value.
    """

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    variant: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Mapping[str, Any]]
    fixed: ClassVar[Mapping[str, Any]]
    unused: ClassVar[tuple[str, ...]]

    @abstractmethod
    def derive(self, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Adds the derived fields to `model` and returns the attention's."""

    @abstractmethod
    def describe(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns the fields of config.json that are not carried."""

    def rotated(self, config: Mapping[str, Any], model: ModelConfig) -> dict[str, RotatedRows]:
        """Returns the half-split projections, by name in a layer; {} if RoPE is interleaved, as in arcforge."""
        return {}

    def read(self, config: Mapping[str, Any], where: str) -> Translated:
        """Translates a config.json.

        Raises:
            CheckpointError: a field is missing or has an unsupported value.
        """
        for name, only in self.fixed.items():
            if (value := config.get(name, only)) != only:
                raise CheckpointError(f"{where}: {name}={value!r}: must be {only!r}")
        model: dict[str, Any] = {}
        for name in self.sizes:
            if config.get(name) is None:
                raise CheckpointError(
                    f"{where}: {name}={config.get(name)!r}: required by architecture {self.model_type}"
                )
            model[name] = config[name]
        for name, default in self.defaults.items():
            model[name] = default if config.get(name) is None else config[name]
        try:
            model |= read_rope(config)
            attention = self.derive(config, model)
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from error
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(
                f"{where}: a field does not have the type required by {self.model_type}: {error}"
            ) from error
        for name in (*self.unused, "router_bias_rate", "balance_loss_weight"):
            model.setdefault(name, _stand_in(name))
        model |= {"name": self.model_type, "mtp": RELEASED_MTP}
        return Translated(model, self.variant, attention)

    def write(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns the config.json of a model.

        Raises:
            ConfigError: the architecture cannot express a field's value.
        """
        config = {
            "architectures": [self.class_name],
            "model_type": self.model_type,
            **{name: getattr(model, name) for name in (*self.sizes, *self.defaults)},
            **{name: value for name, value in self.fixed.items() if value is not None},
            **write_rope(model),
            **self.describe(model, attention),
        }
        self._refuse_losses(config, model)
        return config

    def own_section(self, model: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
        """Returns the fields that transformers does not use."""
        values = asdict(model)
        return {
            "model": {name: values[name] for name in (*self.unused, *TRAINING)},
            "attention": asdict(attention),
        }

    def _refuse_losses(self, config: Mapping[str, Any], model: ModelConfig) -> None:
        """Reads the written config back and raises `ConfigError` if a relevant field differs."""
        back, values = self.read(config, self.model_type), asdict(model)
        for name in values.keys() - {*self.unused, *TRAINING}:
            if back.model[name] != values[name]:
                accepted = f"must be {back.model[name]!r} for architecture {self.model_type}"
                raise ConfigError(f"model.{name}", values[name], accepted)


def _stand_in(name: str) -> Any:
    """Returns a value for a field that the architecture does not use."""
    [own] = [f for f in fields(ModelConfig) if f.name == name]
    return 1 if own.default is MISSING else own.default


def dense_layers(config: Mapping[str, Any], layers: int, default: int) -> int:
    """Returns the number of leading dense layers, from ``mlp_layer_types`` or ``first_k_dense_replace``.

    Raises:
        ConfigError: dense layers among or after the sparse ones.
    """
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return min(int(config.get("first_k_dense_replace", default)), layers)
    dense = list(kinds).count("dense")
    if list(kinds) != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise ConfigError("mlp_layer_types", kinds, "must be leading dense layers followed by sparse ones")
    return dense

"""Schemas of ``arcforge-quantize``, torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from arcforge_core.config.checks import check_at_least, check_choice, check_minimums
from arcforge_core.config.schema import ComponentConfig, DataConfig, SuiteConfig
from arcforge_core.errors import ConfigError

WEIGHTS = ("w8a8", "w4a8", "int4")
ROUNDINGS = ("nearest", "ssz")
CALIBRATED_ROUNDINGS = (*ROUNDINGS, "gptq")
LAYOUTS = ("compressed-tensors", "ascend")
SMOOTHINGS = ("none", "migrate", "awq", "flex_smooth", "flex_awq", "flex")


@dataclass
class QuantizerConfig(ComponentConfig):
    """Base of quantizers' configs."""


@dataclass
class QuarotConfig(QuantizerConfig):
    """Folds, rotations and integers, without calibration text."""

    roundings: ClassVar[tuple[str, ...]] = ROUNDINGS
    """Accepted values of `rounding`."""

    name: str = "quarot"
    weights: str = "w4a8"
    """``w8a8``; ``w4a8``, routed experts in int4; ``int4``, groups of 32 with activations left as they are."""
    rotate: bool = True
    """Fold norms and rotate the residual stream, latents and values; the function stays the same."""
    seed: int = 1234
    """Of the rotations' signs."""
    rounding: str = "ssz"
    """``nearest``, scales from the largest value; ``ssz``, scales fitted to the least square error; with
    ``quantizer=calibrated`` also ``gptq``, scales of ``ssz`` and errors moved into the columns that follow."""
    steps: int = 10
    """Fits of ``ssz``."""
    keep: list[str] = field(default_factory=list)
    """Globs of further weights that stay floats, e.g. ``model.layers.0.*``; each must match."""

    def __post_init__(self) -> None:
        check_choice("quantizer.weights", self.weights, WEIGHTS)
        check_choice("quantizer.rounding", self.rounding, self.roundings)
        check_at_least("quantizer.steps", self.steps, 1)
        check_at_least("quantizer.seed", self.seed, 0)


@dataclass
class CalibratedConfig(QuarotConfig):
    """Folds, rotations, smoothing and integers, fitted to the layers' inputs on calibration text."""

    roundings: ClassVar[tuple[str, ...]] = CALIBRATED_ROUNDINGS

    name: str = "calibrated"
    smoothing: str = "awq"
    """``migrate``, factors ``sqrt(a / w)`` of each channel's largest activation and weight; ``awq``, the best of a grid
    of exponents, tried with the rounding itself; ``flex_smooth`` and ``flex_awq``, msModelSlim's rules of those names;
    ``flex``, its recipe for GLM-5, which uses both; ``none``."""
    grid: int = 10
    """Exponents of ``awq`` between 0 and 1."""
    rows: int = 32
    """Rows of calibration text, taken from the training side of ``data``."""
    sequence_length: int = 512
    """Tokens of a row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("quantizer.smoothing", self.smoothing, SMOOTHINGS)
        check_minimums(self, "quantizer", grid=1, rows=1, sequence_length=2)


@dataclass
class QuantizeConfig:
    """The root of ``arcforge-quantize``."""

    quantizer: QuantizerConfig = MISSING
    checkpoint: str | None = None
    """A run's folder, ``outputs/latest``, or a model's folder."""
    output: str | None = None
    """The directory to create, in the format of transformers; a killed command resumes."""
    data: DataConfig = MISSING
    """The corpus of quantizers that calibrate; they read its training side only."""
    layout: str = "compressed-tensors"
    """How integers are stored: ``compressed-tensors``, or ``ascend``, as msModelSlim writes and vllm-ascend reads."""

    def __post_init__(self) -> None:
        for name in ("checkpoint", "output"):
            if getattr(self, name) is None:
                raise ConfigError(name, None, f"must name a directory, e.g. {name}=outputs/{name}")
        check_choice("layout", self.layout, LAYOUTS)


METHODS: dict[str, dict[str, Any]] = {
    "nearest": {"rotate": False, "rounding": "nearest"},
    "ssz": {"rotate": False, "rounding": "ssz"},
    "quarot": {"rotate": True, "rounding": "ssz"},
    "migrate": {"rotate": False, "smoothing": "migrate", "rounding": "ssz"},
    "awq": {"rotate": False, "smoothing": "awq", "rounding": "ssz"},
    "gptq": {"rotate": False, "smoothing": "none", "rounding": "gptq"},
    "awq_gptq": {"rotate": False, "smoothing": "awq", "rounding": "gptq"},
    "flex": {"rotate": False, "smoothing": "flex", "rounding": "ssz"},
    "quarot_migrate": {"rotate": True, "smoothing": "migrate", "rounding": "ssz"},
    "quarot_awq": {"rotate": True, "smoothing": "awq", "rounding": "ssz"},
    "quarot_flex": {"rotate": True, "smoothing": "flex", "rounding": "ssz"},
    "quarot_awq_gptq": {"rotate": True, "smoothing": "awq", "rounding": "gptq"},
}
"""Options of the quantizers that ``suite=quantization`` compares; those with ``smoothing`` calibrate."""


@dataclass
class QuantizationSuiteConfig(SuiteConfig):
    """Ways to quantise a checkpoint, compared on held-out text."""

    name: str = "quantization"
    weights: list[str] = field(default_factory=lambda: ["w4a8"])
    """Presets to compare, see ``quantizer.weights``."""
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    """Rows of the table for each preset."""
    rows: int = 32
    """Rows of calibration text."""
    sequence_length: int = 512
    """Tokens of a row, of calibration and of held-out text."""
    max_tokens: int = 16384
    """Held-out tokens."""
    output: str | None = None
    """Folder of the report; an unfinished comparison in it resumes. None selects one below outputs/quantization."""

    def __post_init__(self) -> None:
        for name, accepted in (("weights", WEIGHTS), ("methods", tuple(METHODS))):
            if not getattr(self, name):
                raise ConfigError(f"suite.{name}", [], f"must name at least one of {', '.join(accepted)}")
            for value in getattr(self, name):
                check_choice(f"suite.{name}", value, accepted)
        check_minimums(self, "suite", rows=1, sequence_length=2, max_tokens=1)


def quantizer_of(method: str, weights: str, suite: QuantizationSuiteConfig) -> QuarotConfig:
    """Returns the quantizer of a row."""
    options = METHODS[method]
    if "smoothing" not in options:
        return QuarotConfig(weights=weights, **options)
    return CalibratedConfig(weights=weights, rows=suite.rows, sequence_length=suite.sequence_length, **options)

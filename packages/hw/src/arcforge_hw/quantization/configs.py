"""Schemas of ``arcforge-quantize``, torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from arcforge_core.config.checks import check_at_least, check_choice, check_minimums
from arcforge_core.config.schema import ComponentConfig, DataConfig
from arcforge_core.errors import ConfigError

WEIGHTS = ("w8a8", "w4a8", "int4")
ROUNDINGS = ("nearest", "ssz")
CALIBRATED_ROUNDINGS = (*ROUNDINGS, "gptq")
SMOOTHINGS = ("none", "migrate", "awq")


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
    of exponents, tried with the rounding itself; ``none``."""
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

    def __post_init__(self) -> None:
        for name in ("checkpoint", "output"):
            if getattr(self, name) is None:
                raise ConfigError(name, None, f"must name a directory, e.g. {name}=outputs/{name}")

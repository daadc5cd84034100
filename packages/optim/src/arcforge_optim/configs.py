"""Schemas of this package's components, and tables of accepted names; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import (
    OptimizerConfig,
    ScheduleConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
)
from arcforge_core.errors import ConfigError

COEFFICIENTS: dict[str, list[tuple[float, float, float]]] = {
    "kj": [(3.4445, -4.7750, 2.0315)] * 5,
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
}
"""Newton-Schulz steps ``aX + (bA + cA²)X`` by name. Singular values above 1e-2 of the Frobenius norm end in
[0.68, 1.13] with ``kj`` (K. Jordan's, the common choice) and in [0.98, 1.03] with ``quintic`` (YouJiacheng's)."""


@dataclass
class AdamWConfig(OptimizerConfig):
    """AdamW, one fused pass over each parameter if the device supports it."""

    name: str = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_at_least("optimizer.lr", self.lr, 0.0)
        super().__post_init__()
        check_adamw(self.beta1, self.beta2, self.eps)


@dataclass
class MuonConfig(OptimizerConfig):
    """Muon on whole matrices, AdamW on everything else (spec 2).

    With the ``rms`` scale an update has the size of an AdamW update, so typical AdamW rates apply.
    """

    name: str = "muon"
    lr: float = 5e-3
    """Peak rate of the matrices: an update changes a weight by about update_rms x lr. The default is for small models
    and short runs; GLM-5 pre-trains at 2e-4."""
    adamw_lr: float | None = 1e-2
    """Peak rate of the parameters that AdamW updates; None takes lr."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    """AdamW's epsilon."""
    momentum: float = 0.95
    momentum_style: str = "ema"
    """``ema`` averages gradients as torch.optim.Muon does; ``heavy_ball`` sums them. Updates have the same size
    and differ only by float rounding."""
    nesterov: bool = True
    coefficients: str = "kj"
    """Newton-Schulz polynomials: ``kj`` or ``quintic``."""
    ns_dtype: str = "auto"
    """Dtype of the Newton-Schulz iteration: ``bf16``, ``fp32``, or ``auto``, the faster of the two, except that it is
    ``fp32`` on CPUs with ``trainer.deterministic=true``."""
    scale: str = "rms"
    """``rms``: update_rms * sqrt(max(rows, columns)) of each matrix, so that every update has that root mean
    square; ``original``: sqrt(max(1, rows / columns))."""
    update_rms: float = 0.2
    """Root mean square of an update under scale=rms."""
    head: str = "adamw"
    """Optimizer of the output head: ``adamw`` or ``muon``."""
    router: str = "adamw"
    """Optimizer of the experts' routers: ``adamw`` or ``muon``."""

    def __post_init__(self) -> None:
        check_minimums(self, "optimizer", lr=0.0, adamw_lr=0.0)
        super().__post_init__()
        check_adamw(self.beta1, self.beta2, self.eps)
        check_fraction("optimizer.momentum", self.momentum)
        check_choice("optimizer.momentum_style", self.momentum_style, ("ema", "heavy_ball"))
        check_choice("optimizer.coefficients", self.coefficients, tuple(COEFFICIENTS))
        check_choice("optimizer.ns_dtype", self.ns_dtype, ("auto", "bf16", "fp32"))
        check_choice("optimizer.scale", self.scale, ("rms", "original"))
        check_choice("optimizer.head", self.head, ("adamw", "muon"))
        check_choice("optimizer.router", self.router, ("adamw", "muon"))
        if not self.update_rms > 0:
            raise ConfigError("optimizer.update_rms", self.update_rms, "must be greater than 0")
        if self.scale != "rms" and self.update_rms != MuonConfig.update_rms:
            raise ConfigError("optimizer.update_rms", self.update_rms, "has an effect with scale=rms only")


@dataclass
class MuonSplitConfig(MuonConfig):
    """Muon with the up-projections of attention split into one matrix per head (spec 2)."""

    name: str = "muon_split"


@dataclass
class CosineConfig(ScheduleConfig):
    """Linear warm-up, then half a cosine from the peak to `final`."""

    name: str = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup >= 1.0:
            raise ConfigError("schedule.warmup", self.warmup, "must be below 1: the decay follows it")


@dataclass
class WsdConfig(ScheduleConfig):
    """Warm-up, stable, decay: the peak rate is held until the last `decay` of the run."""

    name: str = "wsd"
    decay: float = 0.2
    """Fraction of the run over which the rate falls to `final`."""
    shape: str = "one_minus_sqrt"
    """Shape of the decay: ``linear`` or ``one_minus_sqrt``, which falls fastest at its start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("schedule.shape", self.shape, ("linear", "one_minus_sqrt"))
        if not 0.0 < self.decay <= 1.0:
            raise ConfigError("schedule.decay", self.decay, "must be above 0 and at most 1")
        if self.warmup + self.decay > 1.0:
            accepted = f"must not exceed 1 together with schedule.warmup={self.warmup:g}"
            raise ConfigError("schedule.decay", self.decay, accepted)


def check_adamw(beta1: float, beta2: float, eps: float) -> None:
    """Raises `ConfigError` for invalid AdamW values."""
    check_fraction("optimizer.beta1", beta1)
    check_fraction("optimizer.beta2", beta2)
    check_at_least("optimizer.eps", eps, 0.0)


def check_fraction(field: str, value: float) -> None:
    """Raises `ConfigError` unless 0 <= value < 1."""
    check_between(field, value, 0.0, 1.0)
    if value == 1.0:
        raise ConfigError(field, value, "must be below 1")

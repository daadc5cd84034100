"""Schema of ``arcforge-plan``, torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.checks import check_between, check_minimums, check_weights
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError

PROBES = 12
"""Models that are measured at most; see `arcforge_hw.planner.probes`."""
CLUSTER = re.compile(r"(?P<chip>[\w.-]+)(?::(?P<nodes>\d+)(?:x(?P<devices>\d+))?)?")
PRICE = re.compile(r"\s*(?P<amount>\d+(?:\.\d+)?)\s*(?P<currency>[A-Za-z]{3})\s*")
TOKENS = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmM]?)")


@dataclass
class PlanConfig:
    """The root of ``arcforge-plan``."""

    attention: AttentionConfig = MISSING
    model: ModelConfig = MISSING
    chip: str = "ascend_910c"
    """A chip of the data file or of `chips`."""
    nodes: int = 1
    """Servers."""
    devices: int | None = None
    """Devices per server; null takes the chip's own number."""
    beside: list[str] = field(default_factory=list)
    """Clusters to compare with: ``CHIP``, ``CHIP:NODES`` or ``CHIP:NODESxDEVICES``, e.g. ``nvidia_h200:1x2``."""
    chips: str | None = None
    """A file with further chips, as ``measure`` writes it."""
    assume: dict[str, Any] = field(default_factory=dict)
    """Numbers in place of the data's: a chip's field, ``matmul_efficiency``, ``bandwidth_efficiency``,
    ``link_efficiency``, ``latency_us``, ``call_us`` or ``reserve``, as in ``+assume.reserve=0.2``; below a chip's name
    for that chip alone, as in ``+assume.nvidia_h20.network=50``."""
    price: dict[str, str] = field(default_factory=dict)
    """Price of a device for an hour by chip, with a currency: ``+price.ascend_910c='15 CNY'``."""
    weights: str = "none"
    """``none`` for the model's own format, ``w8a8``, ``w4a8`` or ``int4``."""
    dtype: str = "bfloat16"
    """Of what stays unquantised: ``bfloat16`` or ``float32``."""
    context: str = "32k"
    """Tokens of a prompt; ``k`` is 1,000."""
    new_tokens: str = "1k"
    """Tokens generated for each prompt."""
    ttft_s: float | None = None
    """The longest time to the first token that a layout may need, in seconds; null for the highest throughput."""
    tpot_ms: float | None = 50.0
    """The longest time between two tokens of a sequence, in milliseconds; null for the highest throughput."""
    train_batch: str | None = None
    """Tokens of a training step; null plans none."""
    sequence: str = "4k"
    """Tokens of a sequence in training."""
    measure: str | None = None
    """A file to write with this machine's own rates, and with costs fitted to steps of models in `dtype` that are
    like `model` and small; then nothing else is done."""
    probes: int = PROBES
    """Models whose steps are measured for `measure`; 0 leaves costs out."""
    output: str | None = None
    """Folder of ``plan.json``; null creates one below outputs/plan."""

    def __post_init__(self) -> None:
        check_minimums(self, "", nodes=1, devices=1, ttft_s=1e-6, tpot_ms=1e-6)
        check_between("probes", self.probes, 0, PROBES)
        check_weights("weights", self.weights)
        if self.dtype not in ("bfloat16", "float32"):
            raise ConfigError("dtype", self.dtype, "must be bfloat16 or float32")
        for name in ("context", "new_tokens", "sequence", "train_batch"):
            if getattr(self, name) is not None:
                tokens_of(name, getattr(self, name))
        if self.train_batch is not None and tokens_of("train_batch", self.train_batch) < tokens_of(
            "sequence", self.sequence
        ):
            raise ConfigError(
                "train_batch", self.train_batch, f"must be at least one sequence of {self.sequence} tokens"
            )
        for index, cluster in enumerate(self.beside):
            cluster_of(f"beside[{index}]", cluster)
        currencies = {price_of(f"price.{chip}", price)[1] for chip, price in self.price.items()}
        if len(currencies) > 1:
            raise ConfigError(
                "price", dict(self.price), f"must be in one currency, not {', '.join(sorted(currencies))}"
            )


def tokens_of(name: str, text: str) -> int:
    """Returns the tokens that ``200k`` or ``4096`` means.

    Raises:
        ConfigError: it is no number, or not a whole positive one.
    """
    found = TOKENS.fullmatch(str(text).strip())
    number = float(found["number"]) * {"": 1, "k": 1000, "m": 1_000_000}[found["unit"].lower()] if found else 0.0
    if number < 1 or number != int(number):
        raise ConfigError(name, text, "must be a number of tokens, e.g. 4096, 200k or 4m")
    return int(number)


def cluster_of(name: str, text: str) -> tuple[str, int, int | None]:
    """Returns chip, nodes and devices per node (None for the chip's own) of ``CHIP:NODESxDEVICES``.

    Raises:
        ConfigError: it has another form, or a number is 0.
    """
    found = CLUSTER.fullmatch(text.strip())
    nodes = int(found["nodes"] or 1) if found else 0
    devices = int(found["devices"]) if found and found["devices"] else None
    if found is None or nodes < 1 or devices == 0:
        raise ConfigError(name, text, "must be CHIP, CHIP:NODES or CHIP:NODESxDEVICES, e.g. nvidia_h200:1x2")
    return found["chip"], nodes, devices


def price_of(name: str, text: str) -> tuple[float, str]:
    """Returns amount and currency of ``15 CNY``.

    Raises:
        ConfigError: the currency is missing, or there is no amount.
    """
    found = PRICE.fullmatch(str(text))
    if found is None:
        raise ConfigError(name, text, "must be an amount and a currency of three letters, e.g. 15 CNY")
    return float(found["amount"]), found["currency"].upper()

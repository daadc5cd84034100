"""Rates that a plan computes with: a chip's peaks times the reached share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arcforge_hw.planner.chip import FITTED, Chip
from arcforge_hw.planner.facts import Fact, derive
from arcforge_hw.planner.fit import Fit

ASSUMED = {
    "matmul_efficiency": 0.7,
    "bandwidth_efficiency": 0.7,
    "link_efficiency": 0.7,
    "latency_us": 10.0,
    "call_us": 0.0,
    "reserve": 0.1,
}
"""Used where neither the chip's data nor the command line has a number.

`latency_us` is one collective's start, `call_us` the host's time for each product, `reserve` the share of the memory
that activations and the runtime take.
"""
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Machine:
    """One device and its connections, in base units; a rate that nobody knows is None.

    Attributes:
        flops: FLOP/s by number format.
        bandwidth: bytes/s of memory.
        link, network: bytes/s to devices of the node and to other nodes, in one direction.
        memory: bytes for weights and caches.
        latency: seconds that a collective takes at least.
        call, expert: seconds of the host for each product, and for each routed expert that is read.
        facts: the numbers that all this was computed from, by name.
        stream: bytes/s of work between products; None: that of memory.
        fits: costs of measured steps by the model's formats, as in ``fp32 w8a8``, and by kind of step.
    """

    flops: Mapping[str, float | None]
    bandwidth: float | None
    link: float | None
    network: float | None
    memory: float | None
    latency: float
    call: float
    facts: Mapping[str, Fact]
    stream: float | None = None
    expert: float = 0.0
    fits: Mapping[str, Mapping[str, Fit]] = field(default_factory=dict)

    def fit(self, formats: str, kind: str) -> Fit | None:
        """Returns the costs of such steps; None without them."""
        return self.fits.get(formats, {}).get(kind)

    def needed(self, formats: str, forms: set[str], devices: int, nodes: int) -> tuple[Fact, ...]:
        """Returns the facts that a time rests on."""
        names = [*sorted(forms), "matmul_efficiency", "bandwidth", "bandwidth_efficiency", "call_us"]
        names = ["fits"] if formats in self.fits else names
        names += ["link", "link_efficiency", "latency_us"] if devices > 1 else []
        names += ["network"] if nodes > 1 else []
        return tuple(self.facts[name] for name in names)


def machine_of(chip: Chip, assumed: Mapping[str, float]) -> Machine:
    """Returns a chip's machine.

    Args:
        chip: its own efficiencies come first, unless `assumed` has them.
        assumed: of the command line, by the names of `ASSUMED`; a rate among them takes the place of fits.
    """
    facts = {name: getattr(chip, name) for name in ("memory", "bandwidth", "fp32", "bf16", "int8", "link", "network")}
    units = {"latency_us": "us", "call_us": "us"}
    for name, default in ASSUMED.items():
        own: Fact | None = getattr(chip, name, None)
        if name in assumed:
            facts[name] = Fact("assumed", f"assume.{name}={assumed[name]:g}", assumed[name], units.get(name, "share"))
        elif own is not None and own.value is not None:
            facts[name] = own
        else:
            source = "our assumption: no number for this chip"
            facts[name] = Fact("assumed", source, default, units.get(name, "share"))

    fits = {} if {*FITTED, "call_us"} & set(assumed) else chip.fits
    if fits:
        source = f"costs fitted to measured steps of {', '.join(fits)}"
        facts["fits"] = Fact("measured", source, len(fits), "formats")

    def rate(name: str, efficiency: str, scale: float) -> float | None:
        return derive("1/s", "peak times efficiency", lambda a, b: a * b * scale, facts[name], facts[efficiency]).value

    free = derive("B", "memory less reserve", lambda a, b: a * (1 - b) * GIGA, facts["memory"], facts["reserve"])
    return Machine(
        flops={name: rate(name, "matmul_efficiency", TERA) for name in ("fp32", "bf16", "int8")},
        bandwidth=rate("bandwidth", "bandwidth_efficiency", GIGA),
        link=rate("link", "link_efficiency", GIGA),
        network=rate("network", "link_efficiency", GIGA),
        memory=free.value,
        latency=facts["latency_us"].known * 1e-6,
        call=facts["call_us"].known * 1e-6,
        facts=facts,
        fits=fits,
    )

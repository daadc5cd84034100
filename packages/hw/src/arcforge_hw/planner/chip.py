"""Chips as data: ``chips.yaml`` and files of the user, e.g. one that ``arcforge plan measure=FILE`` wrote."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from arcforge_core.errors import ConfigError, nearest
from arcforge_hw.planner.facts import Fact
from arcforge_hw.planner.fit import COSTS, KINDS, Fit

NOT_FOUND = Fact("unknown", "no source found")


@dataclass(frozen=True)
class Chip:
    """A chip as torch sees it: a package of two dies is two devices. All numbers are of one device.

    Attributes:
        memory: GB.
        bandwidth: of that memory, GB/s.
        fp32, bf16, int8: dense products, TFLOPS or TOPS.
        link: to devices of the same node, GB/s in one direction.
        network: to other nodes, GB/s in one direction.
        devices_per_node: devices of a server.
        matmul_efficiency, bandwidth_efficiency: reached share of the peak.
        fits: costs of measured steps by a model's formats and by kind of step; see `Machine.fits`.
    """

    name: str
    memory: Fact = NOT_FOUND
    bandwidth: Fact = NOT_FOUND
    fp32: Fact = NOT_FOUND
    bf16: Fact = NOT_FOUND
    int8: Fact = NOT_FOUND
    link: Fact = NOT_FOUND
    network: Fact = NOT_FOUND
    devices_per_node: Fact = NOT_FOUND
    matmul_efficiency: Fact = NOT_FOUND
    bandwidth_efficiency: Fact = NOT_FOUND
    fits: Mapping[str, Mapping[str, Fit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, unit in UNITS.items():
            fact: Fact = getattr(self, name)
            if fact.unit not in (None, unit):
                raise ConfigError(f"{self.name}.{name}.unit", fact.unit, f"must be {unit}")
            if fact.value == 0:
                raise ConfigError(f"{self.name}.{name}.value", 0, "must be positive")
            if "efficiency" in name and (fact.value or 0) > 1:
                raise ConfigError(f"{self.name}.{name}.value", fact.value, "must be at most 1")

    def assuming(self, values: Mapping[str, float]) -> Chip:
        """Returns the chip with numbers of the command line in place of its own; a rate also in place of its fits.

        Raises:
            ConfigError: a name is not a field, or a value is impossible.
        """
        for name in values:
            if name not in UNITS:
                raise ConfigError("assume", name, f"must be one of {', '.join(UNITS)}{nearest(name, UNITS)}")
            if not 0 < values[name] < float("inf"):
                raise ConfigError(f"assume.{name}", values[name], "must be positive and finite")
        facts: dict[str, Any] = {
            name: Fact("assumed", f"assume.{name}={value:g}", value, UNITS[name]) for name, value in values.items()
        }
        return replace(self, **facts, fits={} if set(values) & FITTED else self.fits)


FITS = "fits"
FITTED = {"bandwidth", "fp32", "bf16", "int8", "matmul_efficiency", "bandwidth_efficiency"}
"""Numbers that fits take the place of."""
UNITS = {
    "memory": "GB",
    "bandwidth": "GB/s",
    "fp32": "TFLOPS",
    "bf16": "TFLOPS",
    "int8": "TOPS",
    "link": "GB/s",
    "network": "GB/s",
    "devices_per_node": "devices",
    "matmul_efficiency": "share",
    "bandwidth_efficiency": "share",
}
assert set(UNITS) == {each.name for each in fields(Chip)} - {"name", FITS}


@cache
def chips() -> dict[str, Chip]:
    """Returns the chips of the package's data file by name."""
    return _read(files("arcforge_hw.planner").joinpath("chips.yaml").read_text(encoding="utf-8"), "chips.yaml")


def chips_of(path: str | Path) -> dict[str, Chip]:
    """Returns the chips of a user's file in the same format.

    Raises:
        ConfigError: it cannot be read, or has another form.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise ConfigError("chips", str(path), f"cannot be read: {reason}") from error
    return _read(text, str(path))


def _read(text: str, where: str) -> dict[str, Chip]:
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("chips", where, f"must be YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or not all(isinstance(facts, dict) for facts in data.values()):
        raise ConfigError("chips", where, "must map names of chips to their numbers")
    found = {}
    for name, facts in data.items():
        fits = _fits(f"chips.{name}.{FITS}", facts.pop(FITS, {}))
        for key, fact in facts.items():
            if key not in UNITS:
                raise ConfigError(f"chips.{name}", key, f"must be one of {', '.join(UNITS)}{nearest(key, UNITS)}")
            if not isinstance(fact, dict) or set(fact) - {"value", "unit", "tier", "source", "grounds"}:
                raise ConfigError(f"chips.{name}.{key}", fact, "must have value, unit, tier and source")
            if not {"tier", "source"} <= set(fact):
                raise ConfigError(f"chips.{name}.{key}", fact, "a number needs a tier and a source")
        numbers: dict[str, Any] = {key: Fact(**fact) for key, fact in facts.items()}
        found[str(name)] = Chip(str(name), **numbers, fits=fits)
    return found


def _fits(place: str, given: Any) -> dict[str, dict[str, Fit]]:
    """Returns costs by a model's formats and kind of step."""
    found: dict[str, dict[str, Fit]] = {}
    for formats, kinds in _mapping(place, given).items():
        for kind, costs in _mapping(f"{place}.{formats}", kinds, KINDS).items():
            where = f"{place}.{formats}.{kind}"
            for name, cost in _mapping(where, costs, COSTS).items():
                if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < float("inf"):
                    raise ConfigError(f"{where}.{name}", cost, "must be seconds, finite and not negative")
            found.setdefault(str(formats), {})[kind] = Fit(costs)
    return found


def _mapping(place: str, given: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(place, given, "must map names to values")
    for name in given:
        if names is not None and name not in names:
            raise ConfigError(place, name, f"must be one of {', '.join(names)}{nearest(str(name), names)}")
    return given


def chip_named(name: str, more: Mapping[str, Chip] | None = None) -> Chip:
    """Returns a chip of the data file, or of `more`, which come first.

    Raises:
        ConfigError: no chip has this name.
    """
    known = {**chips(), **(more or {})}
    if name not in known:
        raise ConfigError("chip", name, f"must be one of {', '.join(known)}{nearest(name, known)}")
    return known[name]

"""Implements ``arcforge-plan``: numbers of one cluster, or of several beside each other, with their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError, nearest
from arcforge_core.files.rundir import create_run_dir, write_json
from arcforge_hw.planner.chip import UNITS, Chip, chip_named, chips, chips_of
from arcforge_hw.planner.cluster import Cluster, Numbers, Workload, model_numbers, numbers_of
from arcforge_hw.planner.configs import PlanConfig, cluster_of, price_of, tokens_of
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.facts import Fact
from arcforge_hw.planner.machine import ASSUMED, machine_of
from arcforge_hw.planner.measure import measure_machine
from arcforge_hw.planner.memory import check_positions

PLAN = "plan.json"
Planned = list[tuple[Cluster, Numbers, dict[str, str]]]
"""Clusters with their numbers and layouts."""


def run(config: PlanConfig) -> Result:
    """Plans, prints tables and writes ``plan.json``; returns the first cluster's known numbers.

    Raises:
        ConfigError: a chip, a size, a price or an assumption is impossible.
    """
    if config.measure is not None:
        like = (config.model, config.attention)
        return measure_machine(Path(config.measure), like, getattr(torch, config.dtype), config.probes)
    model, planned = plan(config)
    folder = create_run_dir(Path("outputs/plan"), config.model.name, config.output)
    _write(folder / PLAN, config, model, planned)
    _show(f"{config.model.name}, weights={config.weights}", [("", model, {})])
    _show("clusters", [(cluster.name, numbers, layouts) for cluster, numbers, layouts in planned])
    _sources(model, planned)
    say(f"{folder / PLAN} has every number with its unit, tier and source")
    _, numbers, layouts = planned[0]
    known = {name: fact.value for name, fact in {**model, **numbers}.items() if fact.value is not None}
    return Result(folder, {**known, "fits": layouts["fits"]})


def plan(config: PlanConfig) -> tuple[Numbers, Planned]:
    """Returns the model's numbers, and each cluster with its numbers and layouts.

    Raises:
        ConfigError: as `run`.
    """
    clusters = _clusters(config)
    work = Workload(
        context=tokens_of("context", config.context),
        new_tokens=tokens_of("new_tokens", config.new_tokens),
        ttft=config.ttft_s,
        tpot=None if config.tpot_ms is None else config.tpot_ms / 1000,
        batch=None if config.train_batch is None else tokens_of("train_batch", config.train_batch),
        sequence=tokens_of("sequence", config.sequence),
    )
    _check_lengths(work, config)
    count = count_model(config.model, config.attention, config.weights, getattr(torch, config.dtype))
    check_positions("context + new_tokens", work.context + work.new_tokens, count)
    planned = [(cluster, *numbers_of(cluster, count, work)) for cluster in clusters]
    return model_numbers(count, work.context), planned


def _check_lengths(work: Workload, config: PlanConfig) -> None:
    """Raises `ConfigError` for lengths that the model does not have, before it is built."""
    most = config.model.max_position_embeddings
    for field, tokens in (("context", work.context), ("sequence", work.sequence if work.batch else 1)):
        if tokens > most:
            raise ConfigError(field, tokens, f"must be at most the model's {most} positions")


def _clusters(config: PlanConfig) -> list[Cluster]:
    """Returns the cluster that was asked for and those beside it.

    Raises:
        ConfigError: a chip is unknown, or a price or an assumption is of none of them.
    """
    more = {} if config.chips is None else chips_of(config.chips)
    asked = [("chip", config.chip, config.nodes, config.devices)]
    asked += [(f"beside[{n}]", *cluster_of(f"beside[{n}]", text)) for n, text in enumerate(config.beside)]
    named = {chip: chip_named(chip, more) for _, chip, _, _ in asked}
    everywhere, by_chip = _assumptions(config.assume, {**chips(), **more}, named)
    for chip in config.price:
        if chip not in named:
            raise ConfigError("price", chip, f"must be a chip of this plan: {', '.join(named)}{nearest(chip, named)}")
    return [
        _cluster(named[chip], nodes, devices, {**everywhere, **by_chip.get(chip, {})}, config.price.get(chip))
        for _, chip, nodes, devices in asked
    ]


def _cluster(chip: Chip, nodes: int, devices: int | None, assumed: Mapping[str, float], price: str | None) -> Cluster:
    chip = chip.assuming({name: value for name, value in assumed.items() if name in UNITS})
    machine = machine_of(chip, {name: value for name, value in assumed.items() if name in ASSUMED})
    cost = Fact("unknown", f"price.{chip.name} was not given")
    if price is not None:
        amount, currency = price_of(f"price.{chip.name}", price)
        cost = Fact("assumed", f"price.{chip.name}={price}", amount, currency)
    size = f"{nodes} x {devices}" if devices else f"{nodes}"
    return Cluster(f"{chip.name}, nodes: {size}", chip, machine, nodes, devices, cost)


def _assumptions(
    given: Mapping[str, Any], known: Mapping[str, Chip], named: Mapping[str, Chip]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Returns the assumptions for all clusters, and those by chip.

    Raises:
        ConfigError: a name or a value is impossible, or a chip is not in this plan.
    """
    names = {*UNITS, *ASSUMED}
    by_chip: dict[str, dict[str, float]] = {}
    everywhere: dict[str, float] = {}
    for key, value in given.items():
        if isinstance(value, Mapping):
            if key not in named:
                raise ConfigError(
                    "assume", key, f"must be a chip of this plan: {', '.join(named)}{nearest(key, known)}"
                )
            by_chip[key] = {name: _number(f"assume.{key}.{name}", name, each, names) for name, each in value.items()}
        else:
            everywhere[key] = _number(f"assume.{key}", key, value, names)
    return everywhere, by_chip


def _number(place: str, name: str, value: object, names: set[str]) -> float:
    if name not in names:
        raise ConfigError(place, value, f"must be one of {', '.join(sorted(names))}{nearest(name, names)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(place, value, "must be a number that is not negative")
    if ("efficiency" in name and not 0 < value <= 1) or (name == "reserve" and value >= 1):
        raise ConfigError(place, value, "must be above 0 and at most 1" if name != "reserve" else "must be below 1")
    return float(value)


def _write(path: Path, config: PlanConfig, model: Numbers, planned: Planned) -> None:
    def plain(numbers: Mapping[str, Fact]) -> dict[str, Any]:
        return {name: {k: v for k, v in asdict(fact).items() if v is not None} for name, fact in numbers.items()}

    clusters = [
        {"cluster": cluster.name, "layouts": layouts, "numbers": plain(numbers), "inputs": plain(cluster.machine.facts)}
        for cluster, numbers, layouts in planned
    ]
    text = {name: getattr(config, name) for name in ("weights", "dtype", "context", "new_tokens", "train_batch")}
    write_json(path, json.loads(json.dumps({**text, "model": plain(model), "clusters": clusters})))


def _show(title: str, columns: list[tuple[str, Numbers, dict[str, str]]]) -> None:
    """Prints a table with a column of values and tiers per cluster."""
    table = Table("", *(name or "value" for name, _, _ in columns), title=title)
    for key in dict.fromkeys(key for _, _, layouts in columns for key in layouts):
        table.add_row(key, *(layouts.get(key, "") for _, _, layouts in columns))
    for key in columns[0][1]:
        table.add_row(key, *(_cell(numbers[key]) for _, numbers, _ in columns))
    Console(markup=False, highlight=False).print(table)


def _cell(fact: Fact) -> str:
    """Returns value, unit and tier."""
    if fact.value is None:
        return "unknown"
    value, unit = fact.value, fact.unit or ""
    if unit in ("B", "FLOP") and value >= 1e9:
        value, unit = value / 1e9, f"G{unit}"
    return f"{value:,.4g} {unit}  {fact.trust}" if value < 1000 else f"{value:,.0f} {unit}  {fact.trust}"


def _sources(model: Numbers, planned: Planned) -> None:
    """Prints where the inputs come from, and why something is unknown; numbers of one source share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}

    def add(chip: str, name: str, fact: Fact) -> None:
        value = "unknown" if fact.value is None else f"{fact.value:,.4g} {fact.unit}"
        names = rows.setdefault((chip, value, fact.trust, fact.source), [])
        if name not in names:
            names.append(name)

    for cluster, numbers, _ in planned:
        inputs = {**cluster.machine.facts, "devices_per_node": cluster.per_node, "price": cluster.price}
        for name, fact in inputs.items():
            add(cluster.chip.name, name, fact)
        for name, fact in numbers.items():
            if fact.value is None:
                add(cluster.chip.name, name, fact)
    for name, fact in model.items():
        add("model", name, fact)
    table = Table("of", "number", "value", "tier", "source", title="sources")
    for (chip, *shown), names in rows.items():
        table.add_row(chip, ", ".join(names), *shown)
    Console(markup=False, highlight=False).print(table)

"""Results of benchmarks in folders by processor and run: written by ``scripts/bench``, read for its page.

outputs/bench/PROCESSOR/TIME-COMMIT/run.json      commit, options, and how each benchmark ended
outputs/bench/PROCESSOR/TIME-COMMIT/NAME.json     what the benchmark wrote
outputs/bench/PROCESSOR/TIME-COMMIT/NAME.txt      what it printed
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _catalogue import BENCHMARKS, Benchmark, Reading
from _machine import named_processor
from _rounds import Ratio

RUN = "run.json"
FLOORS = ("floor", "floor_s", "dense floor")
SWEEPS = ("sweep", "settings_sweep", "sweeps")
UNKNOWN = Benchmark({})


@dataclass(frozen=True)
class Sweep:
    """Settings that were tried at one place of a benchmark.

    Attributes:
        place: where, such as ``prefill``.
        best: the fastest, or the fastest of each side.
        tried: seconds of each setting, or why it was left out; empty where nothing was swept.
    """

    place: str
    best: str
    tried: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of the benchmarks.

    Attributes:
        folder: of its files.
        about: ``run.json``: ``commit``, ``subject``, ``changed``, ``begun``, ``quick``, ``ended`` by benchmark.
        results: by benchmark, as it wrote them.
        unreadable: file name -> why it cannot be read.
    """

    folder: Path
    about: Mapping[str, Any]
    results: Mapping[str, Mapping[str, Any]]
    unreadable: Mapping[str, str]

    @property
    def machine(self) -> Mapping[str, Any]:
        """The notes of the first benchmark about the machine."""
        return next((found["machine"] for found in self.results.values() if "machine" in found), {})

    @property
    def processor(self) -> str:
        """As `_machine.processor`; older results may lack parts."""
        if "processor" in self.about:
            return str(self.about["processor"])
        found = named_processor(*(self.machine.get(name) for name in ("processor", "instructions", "threads")))
        return found or self.folder.parent.name

    @property
    def commit(self) -> str:
        """Eight digits of the commit, with a plus if the tree had changes."""
        return str(self.about.get("commit", "unknown"))[:8] + "+" * bool(self.about.get("changed"))


def slug(text: str) -> str:
    """Returns a name for a folder."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "unknown"


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Returns the runs in these folders and below, oldest first; each once."""
    files = {path.resolve() for folder in folders for path in sorted(folder.rglob(RUN))}
    runs = [read_run(path.parent) for path in sorted(files)]
    return sorted(runs, key=lambda run: (str(run.about.get("begun", "")), str(run.folder)))


def read_run(folder: Path) -> Run:
    """Returns the run of a folder; files that are damaged or no results are named in `Run.unreadable`."""
    found: dict[str, Mapping[str, Any]] = {}
    problems: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problems[path.name] = str(error)
            continue
        if isinstance(content, dict):
            found[path.stem] = content
        else:
            problems[path.name] = "is no object"
    about = found.pop(Path(RUN).stem, {})
    return Run(folder, about, found, problems)


def ratios(result: Mapping[str, Any]) -> dict[str, Ratio]:
    """Returns the finite ratios of a result, wherever they are in it; those below another place with its name."""
    found: dict[str, Ratio] = {}
    for place, content in objects(result):
        values, ranges = content.get("ratios"), content.get("ranges")
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, (int, float)) and math.isfinite(value):
                low, high = ranges.get(name, (value, value)) if isinstance(ranges, dict) else (value, value)
                found[named(place, name)] = Ratio(float(value), float(low), float(high))
    return found


def floors(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the floors of a result in words, by place."""
    found = {}
    for place, content in objects(result):
        for name in FLOORS:
            value = content.get(name)
            unit = "ms" if place.endswith("milliseconds") else "s"
            if isinstance(value, (int, float)):
                found[named(place, name.removesuffix("_s"))] = f"{value:.4g} {unit}"
            elif isinstance(value, dict):
                found[named(place, name)] = ", ".join(f"{key}: {each:.4g} {unit}" for key, each in value.items())
    return found


def sweeps(result: Mapping[str, Any]) -> list[Sweep]:
    """Returns the settings that a result says were the fastest, with what was tried."""
    found = []
    for place, content in objects(result):
        best = content.get("settings")
        tried: dict[str, Any] = {}
        for key in SWEEPS:
            for part in content[key] if isinstance(content.get(key), list) else [content.get(key)]:
                tried |= flat(part) if isinstance(part, dict) else {}
        if isinstance(best, dict):
            best = "; ".join(f"{side}: {of}" for side, of in best.items())
        if best or tried:
            found.append(Sweep(place, str(best or ""), tried))
    return found


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns the leaves of nested objects, with the names above them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, named(above, name)) if isinstance(value, dict) else {named(above, name): value}
    return found


def objects(content: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the object and those inside it, each with its place."""
    yield place, content
    for name, value in content.items():
        if isinstance(value, dict) and name not in ("machine", "ratios", "ranges", *SWEEPS):
            yield from objects(value, named(place, name))


def named(place: str, name: object) -> str:
    """Returns a place below another."""
    return f"{place}.{name}" if place else str(name)


def reading(benchmark: str, ratio: str) -> Reading | None:
    """Returns how to read a ratio; None for one that says nothing about speed."""
    return BENCHMARKS.get(benchmark, UNKNOWN).reading(ratio)


def latest(runs: Sequence[Run]) -> dict[tuple[str, str], tuple[Run, Ratio]]:
    """Returns the last value of each ratio by benchmark and name, with its run."""
    return {
        (benchmark, name): (run, found)
        for run in runs
        for benchmark, result in run.results.items()
        for name, found in ratios(result).items()
    }

"""Choices by measurement: made once for a processor and a torch version, kept in the user's cache, the same for all.

Times of short calls are measured, which other programs can disturb. All processes of a run decide alike because
the first one that writes the file decides, and the others read it. ``trainer.deterministic=true`` calls nothing that is
chosen here. ``ARCFORGE_CALIBRATION`` replaces measurements, as ``ARCFORGE_CALIBRATION=bf16=1e11,fp32=3e11``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.files.cache import cache_folder
from arcforge_core.ops.processor import processor_model, vector_instructions

VARIABLE = "ARCFORGE_CALIBRATION"
FIGURES = ("bf16", "fp32", "fp32_expert_rows", "fp32_rows", "int8", "int8_in_fp32", "pairs", "wide_pairs")
"""Those that ``ARCFORGE_CALIBRATION`` may set."""
SIZE = 512
"""Rows and columns of the measured products."""
SECONDS = 0.25
"""Time of a measurement of all dtypes, after one product of each."""


def forced() -> dict[str, float]:
    """Returns the figures that ``ARCFORGE_CALIBRATION`` sets.

    Raises:
        ConfigError: it is no list of figures.
    """
    found: dict[str, float] = {}
    for part in filter(None, (text.strip() for text in os.environ.get(VARIABLE, "").split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in FIGURES or not number >= 0:
            accepted = f"must be NAME=NUMBER,... with names of {', '.join(FIGURES)} and numbers of at least 0"
            raise ConfigError(VARIABLE, part, accepted)
        found[name] = number
    return found


def source_of(*names: str) -> str:
    """Returns where figures are from, for people: the variable if it sets all of them."""
    return VARIABLE if set(names) <= set(forced()) else "measured"


def calibrated(
    key: str, names: Sequence[str], measure: Callable[[], dict[str, float]], place: str = ""
) -> dict[str, float]:
    """Returns figures that were measured on this processor with this torch version, now if never before.

    Args:
        key: under which a file contains them.
        names: of the figures; those that ``ARCFORGE_CALIBRATION`` sets are not measured if it sets all of them.
        measure: measures them.
        place: further conditions that they depend on.

    Raises:
        ConfigError: see `forced`.
    """
    given = {name: value for name, value in forced().items() if name in names}
    if len(given) == len(names):
        return given
    of = ", ".join(filter(None, (processor_text(), f"torch {torch.__version__}", place)))
    path = cache_folder("processor") / f"{hashlib.sha256(f'{key}, {of}'.encode()).hexdigest()[:16]}.json"
    known = _read(path, of, key, names)
    if known is None:
        if path.exists():
            say(f"{path} is damaged or of another processor: {key} is measured again")
        known = measure()
        try:
            _write_once(path, of, key, names, known)
        except OSError:  # a cache that cannot be written only costs time
            return known | given
    return (_read(path, of, key, names) or known) | given


def processor_text() -> str:
    """Returns the processor, the instructions that it reports, and those that torch's kernels use.

    A hypervisor can hide instructions, so the same model may be another processor, with other figures.
    """
    digest = hashlib.sha256(" ".join(vector_instructions()).encode()).hexdigest()[:8]
    return f"{processor_model()}, {torch.backends.cpu.get_cpu_capability()} of instructions {digest}"


def product_rates() -> dict[str, float]:
    """Returns FLOP/s of square products in ``bf16`` and ``fp32``, of this number of threads."""
    return calibrated("flops", ("bf16", "fp32"), measure_rates, f"{torch.get_num_threads()} threads")


def measure_rates() -> dict[str, float]:
    """Measures `product_rates`."""
    factors = {
        name: torch.randn(SIZE, SIZE).to(dtype) for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    }
    calls = {name: partial(torch.mm, factor, factor) for name, factor in factors.items()}
    return {name: 2 * SIZE**3 / seconds for name, seconds in fastest(calls, SECONDS).items()}


def fastest(calls: Mapping[str, Callable[[], Any]], seconds: float, least: int = 1) -> dict[str, float]:
    """Returns the seconds of the fastest of each call: in turns, because other programs disturb this least.

    Args:
        calls: by name; each runs once before.
        seconds: how long all run together.
        least: how often each runs at least.
    """
    found = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < least:
        rounds += 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def _read(path: Path, of: str, key: str, names: Sequence[str]) -> dict[str, float] | None:
    """Returns the figures in a file, or None if it is missing, damaged or of another processor."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        figures = {name: float(content[key][name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = all(0 <= value < float("inf") for value in figures.values())
    return figures if sound and content.get("processor") == of else None


def _write_once(path: Path, of: str, key: str, names: Sequence[str], figures: dict[str, float]) -> None:
    """Writes a file atomically; one that another process has written meanwhile stays, unless it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", encoding="utf-8") as file:
        file.write(json.dumps({"processor": of, key: figures}))
        file.flush()
        if _read(path, of, key, names) is None:
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)

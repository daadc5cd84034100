"""Shows a comparison of quantisations as a table and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arcforge_core.report.html import card
from arcforge_core.report.html import table as html_table
from arcforge_core.report.page import Page, Section

FILE = "report.json"
FLOAT = "float"
"""The method of the row of the original model."""
HEAD = ("weights", "method", "MB", "bits/byte", "loss", "KL", "agrees", "s")


def cells(row: Mapping[str, Any]) -> list[str]:
    """Returns a row's cells under `HEAD`."""
    exact = row["method"] == FLOAT
    return [
        str(row["weights"]), str(row["method"]), f"{row['bytes'] / 1e6:.2f}", f"{row['bits_per_byte']:.4f}",
        f"{row['loss']:.4f}", "" if exact else f"{row['kl']:.5f}", "" if exact else f"{100 * row['agreement']:.1f}%",
        "" if exact else f"{row['seconds']:.0f}",
    ]  # fmt: skip


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Prints the table."""
    found = Table(*HEAD, title=title)
    for row in rows:
        found.add_row(*cells(row))
    Console(markup=False, highlight=False).print(found)


def write_page(rows: Sequence[Mapping[str, Any]], folder: Path, settings: Mapping[str, Any]) -> Path:
    """Writes ``quantization.html`` beside the report and returns it."""
    quantised = [row for row in rows if row["method"] != FLOAT]
    layers = ["weights", "method", *(f"layer {n}" for n in range(len(rows[0]["layers"])))]
    errors = [
        [escape(row["weights"]), escape(row["method"]), *(f"{x:.4f}" for x in row["layers"])] for row in quantised
    ]
    methods = [[escape(row["method"]), escape(_options(row["options"]))] for row in quantised]
    distinct = [list(pair) for pair in dict.fromkeys(tuple(pair) for pair in methods)]
    used = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in settings.items())
    return Page(
        kind="evaluation",
        title="Quantisation",
        subtitle="Held-out text. KL is the mean divergence from the original model, in nats per token; a token agrees "
        "if both models find the same one most likely.",
        sections=[
            Section("Methods", card("", html_table(HEAD, [[escape(c) for c in cells(row)] for row in rows], True))),
            Section("Error of the hidden states after each layer", card("", html_table(layers, errors))),
            Section(
                "Options of the methods", card("", html_table(["method", "options of arcforge-quantize"], distinct))
            ),
            Section("Settings", card("", f"<dl>{used}</dl>")),
        ],
        footer=f'<a href="{FILE}">{FILE}</a>',
    ).write(folder / "quantization.html")


def _options(options: Mapping[str, Any]) -> str:
    """Returns a method's options as typed."""
    name = "calibrated" if "smoothing" in options else "quarot"
    return " ".join([f"quantizer={name}", *(f"quantizer.{k}={str(v).lower()}" for k, v in options.items())])

"""Writes ``report.html`` of a run: a self-contained page from the run's files only.

Absent values are shown as missing; text from files is escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from arcforge_core.eval.python_functions import FunctionReport, FunctionSample
from arcforge_core.report.charts import chart_cards
from arcforge_core.report.files import Figure
from arcforge_core.report.html import (
    card,
    count,
    decimals,
    details,
    duration,
    missing,
    number,
    percent,
    table,
)
from arcforge_core.report.page import Page, Section, run_page
from arcforge_core.train.report.charts import CHARTS, experts_map
from arcforge_core.train.report.data import CONVERSATIONS, FILES, FUNCTIONS, SAMPLES, Run, TextSample, read_run
from arcforge_core.train.report.generation import generation_section
from arcforge_core.train.threads import busy_text

COMPRESSORS = {"gzip_bits_per_byte": "gzip -9", "xz_bits_per_byte": "xz -9e"}
FOOTER = "Every figure on this page was read from the files above; hover over one for its full value and source."


def write_report(run_dir: Path) -> Path:
    """Writes and returns ``run_dir/report.html``; any file of the run may be missing or damaged."""
    return page_of(read_run(run_dir)).write(run_dir / "report.html")


def page_of(run: Run) -> Page:
    """Returns the page of a run, without parts that its configuration did not ask for."""
    left_out = run.left_out
    headline = "\n".join([_quality(run), *([_functions_headline(run)] * (FUNCTIONS not in left_out)), _speed(run)])
    parts = {
        SAMPLES: Section("Samples", _samples(run)),
        FUNCTIONS: Section("Python functions", _functions(run)),
        CONVERSATIONS: Section("Conversations", _generation(run)),
    }
    return run_page(
        run,
        "training run",
        _subtitle(run),
        [
            Section("", headline, headline=True),
            Section("Curves", chart_cards(CHARTS, run)),
            Section("Expert load", _experts(run)),
            *(section for name, section in parts.items() if name not in left_out),
            Section("Corpus", _corpus(run)),
        ],
        {name: words for name, words in FILES.items() if name not in left_out},
        {name: problem for name, problem in run.problems.items() if name not in left_out},
        footer=FOOTER,
    )


# ---- sections ------------------------------------------------------------------------------------------------------


def _subtitle(run: Run) -> str:
    parameters, active = run.figure("parameters"), run.figure("active_parameters")
    return (
        f"{number(parameters, count)} parameters, {number(active, count)} active · "
        f"{number(run.figure('tokens'), count)} tokens in {number(run.figure('seconds'), duration)}"
    )


def _quality(run: Run) -> str:
    names = {"bits_per_byte": "this model", **COMPRESSORS}
    values = {name: run.number(name) for name in names}
    longest = max([v for v in values.values() if v is not None], default=1.0) or 1.0
    rows = []
    for series, (name, label) in enumerate(names.items()):
        width = 100 * (values[name] or 0.0) / longest
        bar = f'<span class="bar" style="width:{width:.1f}%;background:var(--series-{series})"></span>'
        rows.append(f"<span>{label}</span>{bar}<span>{number(run.figure(name), decimals)}</span>")
    return card(
        "Held-out text",
        f'<p class="value">{number(run.figure("bits_per_byte"), decimals)} <small>bits per byte</small></p>'
        f'<div class="bars">{"".join(rows)}</div>{_comparison(values)}',
    )


def _comparison(values: dict[str, float | None]) -> str:
    """Compares the model with the compressors in words."""
    model = values["bits_per_byte"]
    parts = []
    for name, label in COMPRESSORS.items():
        other = values[name]
        if model is not None and other is not None:
            parts.append(f"{abs(model - other):.3f} {'below' if model < other else 'above'} {label}")
    return f'<p class="note">{" · ".join(parts)}; lower is better</p>' if parts else ""


def _functions_headline(run: Run) -> str:
    rows = []
    for series, when in ((0, "after"), (5, "before")):
        report = run.functions.get(when)
        if report is None:
            rows.append(f"<span>{when}</span>{missing()}<span></span>")
            continue
        bar = f'<span class="bar" style="width:{100 * _share(report):.1f}%;background:var(--series-{series})"></span>'
        rows.append(f'<span>{when}</span><span class="track">{bar}</span><span>{_tally(report)}</span>')
    after = run.functions.get("after")
    figure = None if after is None else Figure(after.rate, "functions.json")
    return card(
        "Sampled Python functions",
        f'<p class="value">{number(figure, percent)} <small>parse</small></p><div class="bars">{"".join(rows)}</div>'
        '<p class="note">before and after training</p>',
    )


def _share(report: FunctionReport) -> float:
    return min(1.0, max(0.0, report.rate)) if math.isfinite(report.rate) else 0.0


def _tally(report: FunctionReport) -> str:
    return f"{sum(s.ok for s in report.samples)} of {len(report.samples)}"


def _speed(run: Run) -> str:
    rows = {
        "model FLOPs utilisation": number(run.figure("mfu"), percent),
        "training time": number(run.figure("seconds"), duration),
        "tokens": number(run.figure("tokens"), count),
        "parameters": number(run.figure("parameters"), count),
        "matrix products": number(run.figure("matmul_flops"), lambda v: f"{v / 1e9:,.0f} GFLOP/s"),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items())
    rate = number(run.figure("tokens_per_s"), lambda v: f"{v:,.0f}")
    busy = busy_text(run.summary)
    note = f'<p class="note">{escape(busy)}</p>' if busy else ""
    return card("Speed", f'<p class="value">{rate} <small>tokens/s</small></p><dl>{listed}</dl>{note}')


def _experts(run: Run) -> str:
    steps, loads = run.expert_loads()
    if not steps.size or not all(np.isfinite(load_ER).any() for load_ER in loads.values()):
        return card("", f"<p>{missing('experts.csv')}</p>")
    rows = []
    for layer, load_ER in loads.items():
        last_E = load_ER[:, np.isfinite(load_ER).any(axis=0)][:, -1]
        busiest, idlest = int(np.nanargmax(last_E)), int(np.nanargmin(last_E))
        cells = (f"{last_E[busiest]:.2f} (expert {busiest})", f"{last_E[idlest]:.2f} (expert {idlest})")
        rows.append([str(layer), str(load_ER.shape[0]), *cells])
    note = (
        "Tokens of each expert over the fair share (1 is even). A layer after the model's last one is the "
        f"prediction module. The table shows the last row, step {steps[-1]:.0f}."
    )
    listed = table(["layer", "experts", "busiest / fair share", "idlest / fair share"], rows)
    return card("", f'<p class="note">{note}</p>{experts_map(run)}{listed}')


def _samples(run: Run) -> str:
    before, after = run.samples.get("before", []), run.samples.get("after", [])
    if not before and not after:
        return card("", f"<p>{missing('samples.json')}</p>")
    cards = []
    for n in range(max(len(before), len(after))):
        sides = (("before training", before[n : n + 1]), ("after training", after[n : n + 1]))
        cells = [f"<div><h3>{label}</h3>{_sample(found)}</div>" for label, found in sides]
        cards.append(card("", f'<div class="pair">{"".join(cells)}</div>'))
    return f'<p class="note">The prompt, from held-out text, is muted.</p><div class="stack">{"".join(cards)}</div>'


def _sample(found: list[TextSample]) -> str:
    if not found:
        return f"<p>{missing()}</p>"
    return f'<pre><span class="given">{escape(found[0].prompt)}</span>{escape(found[0].text)}</pre>'


def _functions(run: Run) -> str:
    if not run.functions:
        return card("", f"<p>{missing('functions.json')}</p>")
    note = (
        '<p class="note">Each continues <code>def NAME(</code> with a name from held-out files. A text cut by the '
        "token limit is cut back to its last complete statement (the removed part is crossed out); the rest must parse "
        "as a whole.</p>"
    )
    groups = []
    for when, title in (("after", "After training"), ("before", "Before training")):
        report = run.functions.get(when)
        if report is None:
            groups.append(card(title, f"<p>{missing()}</p>"))
            continue
        items = f'<div class="functions">{"".join(_function(sample) for sample in _telling(report.samples))}</div>'
        if when == "before":
            items = f"<details><summary>{title}: {_tally(report)} parse</summary>{items}</details>"
            groups.append(card("", items))
        else:
            groups.append(card(title, f'<p class="note">{_tally(report)} parse</p>{items}'))
    return f'{note}<div class="stack">{"".join(groups)}</div>'


def _telling(samples: Sequence[FunctionSample]) -> list[FunctionSample]:
    """Returns those that parse, then the others."""
    return sorted(samples, key=lambda sample: not sample.ok)


def _function(sample: FunctionSample) -> str:
    mark = '<span class="ok">✓ parses</span>' if sample.ok else '<span class="failed">✗ fails</span>'
    kept = sample.cut if sample.text.startswith(sample.cut) else ""
    body, dropped = kept[len(sample.prompt) :], sample.text[len(kept) :]
    code = f'<span class="given">{escape(kept[: len(sample.prompt)])}</span>{escape(body)}'
    code += f'<span class="dropped">{escape(dropped)}</span>' if dropped else ""
    error = f'<p class="missing">{escape(sample.error)}</p>' if sample.error else ""
    summary = f"<summary>{mark} <code>{escape(sample.prompt)}</code></summary>"
    return f"<details>{summary}{error}<pre>{code}</pre></details>"


def _generation(run: Run) -> str:
    if not run.generation:
        return card("", f"<p>{missing('generation.json')}</p>")
    return generation_section(run.generation)


def _corpus(run: Run) -> str:
    if not run.corpus:
        return card("", f"<p>{missing('corpus.json')}</p>")
    rows = [
        [escape(split), escape(source), *(_cell(counts, name) for name in ("documents", "tokens", "bytes"))]
        for split, sources in _items(run.corpus.get("splits"))
        for source, counts in _items(sources)
    ]
    licences = [f"{escape(name)} ({escape(str(n))} documents)" for name, n in _items(run.corpus.get("licences"))]
    counts = table(["split", "source", "documents", "tokens", "bytes"], rows) if rows else missing("splits")
    listed = ", ".join(licences) or missing("licences")
    return card("", f"{counts}<p><br>Licences: {listed}</p>{details('corpus.json', json.dumps(run.corpus, indent=2))}")


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _cell(counts: Any, name: str) -> str:
    value = counts.get(name) if isinstance(counts, dict) else None
    return f"{value:,}" if isinstance(value, int) else missing()

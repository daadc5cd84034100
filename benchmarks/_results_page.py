"""The page of all benchmarks: ratios by processor, floors, settings that sweeps found, and history by commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from matplotlib.axes import Axes

from _results import Run, floors, latest, ratios, reading, sweeps
from _rounds import Ratio
from arcforge_core.report.charts import SERIES, chart_svg, legend_above
from arcforge_core.report.html import card, details, table
from arcforge_core.report.page import Page, Section

SHOWN = 8
"""Runs of a processor that the history shows."""
LOST = 0.03
"""Share of a ratio whose loss since the run before is marked."""
BUSY = 0.25
"""Load per core from which a run counts as one on a busy machine."""
STYLE = ".met { color: var(--good); } .missed { color: var(--bad); } td small { color: var(--muted); }"


def write_page(runs: Sequence[Run], path: Path) -> Path:
    """Writes the page of all runs, oldest first, and returns `path`."""
    by_processor: dict[str, list[Run]] = {}
    for run in runs:
        by_processor.setdefault(run.processor, []).append(run)
    found = {processor: latest(of) for processor, of in by_processor.items()}
    counted = [
        reading(*key).met(ratio.value)  # type: ignore[union-attr]
        for of in found.values()
        for key, (_, ratio) in of.items()
        if reading(*key) is not None
    ]
    met, missed = counted.count(True), counted.count(False)
    history = [
        Section(f"History: {processor}", commits(of) + curves(of, f"{number}"))
        for number, (processor, of) in enumerate(by_processor.items())
    ]
    return Page(
        kind="benchmarks",
        title="Ratios by processor",
        subtitle=f"{len(runs)} runs on {len(by_processor)} processors · {met} of {met + missed} targets met",
        sections=[
            Section("Ratios", card("", all_ratios(by_processor))),
            Section("Processors", card("", processors(by_processor))),
            Section("Floors", card("", all_floors(by_processor))),
            Section("Peers and settings", card("", settings(by_processor))),
            *history,
            Section("What failed", card("", failures(by_processor))),
        ],
        style=STYLE,
    ).write(path)


def all_ratios(by_processor: dict[str, list[Run]]) -> str:
    """Returns the table of the last value of each ratio, a column for each processor; missed targets first."""
    found = {processor: latest(runs) for processor, runs in by_processor.items()}
    rows = []
    for benchmark, name in sorted({key for of in found.values() for key in of}):
        read = reading(benchmark, name)
        cells, missed = [], False
        for of in found.values():
            if (benchmark, name) not in of:
                cells.append("")
                continue
            run, value = of[benchmark, name]
            state = None if read is None else read.met(value.value)
            missed |= state is False
            kind = "" if state is None else ' class="met"' if state else ' class="missed"'
            cells.append(f'<span{kind} title="{escape(run.commit)}">{shown(value)}</span>')
        asked = ""
        if read is not None and read.asked is not None:
            asked = f"{'at least' if read.better == 'more' else 'at most'} {read.asked:g}"
        of_what = "" if read is None else read.of
        better = "" if read is None else f"{read.better} is better"
        rows.append((not missed, [escape(benchmark), escape(name), of_what, better, asked, *cells]))
    head = ["benchmark", "ratio", "compared with", "", "asked", *map(escape, found)]
    note = '<p class="note">The last value of each ratio, with its range over whole rounds. Missed targets first.</p>'
    return note + table(head, [row for _, row in sorted(rows, key=lambda row: row[0])], sortable=True)


def shown(value: Ratio) -> str:
    """Returns a ratio as HTML, with its range if it has one."""
    spread = f" <small>{value.low:.2f} to {value.high:.2f}</small>" if value.low < value.high else ""
    return f"{value.value:.2f}{spread}"


def processors(by_processor: dict[str, list[Run]]) -> str:
    """Returns the table of machines as the last run of each found them."""
    rows = []
    for processor, runs in by_processor.items():
        machine = runs[-1].machine
        load, cores = (machine.get("load_average") or [0.0])[0], machine.get("cores") or 1
        busy = " (busy)" if load > BUSY * cores else ""
        rows.append([
            escape(processor), f"{cores}, {machine.get('threads', '?')} used",
            *(f"{machine[name]:,.0f}" if name in machine else "" for name in ("matmul_gflops", "matmul_gflops_bf16")),
            f"{machine['read_gb_per_s']:,.1f}" if "read_gb_per_s" in machine else "",
            f"{load:.1f}{busy}", escape(str((machine.get("versions") or {}).get("torch", ""))),
            details("chosen", "\n".join(map(str, machine.get("choices", [])))) if machine.get("choices") else "",
        ])  # fmt: skip
    head = ["processor", "cores", "GFLOP/s, fp32", "GFLOP/s, bf16", "GB/s", "load at the start", "torch", "calibration"]
    return table(head, rows)


def all_floors(by_processor: dict[str, list[Run]]) -> str:
    """Returns the floors of the last results that have any."""
    rows = []
    for processor, runs in by_processor.items():
        last = {(name, place): text for run in runs for name, result in run.results.items()
                for place, text in floors(result).items()}  # fmt: skip
        rows += [[escape(processor), escape(name), escape(place), escape(text)] for (name, place), text in last.items()]
    return table(["processor", "benchmark", "of", "floor"], rows) if rows else "<p>No result has a floor.</p>"


def settings(by_processor: dict[str, list[Run]]) -> str:
    """Returns the fastest settings that sweeps found, and all that they tried."""
    rows = []
    for processor, runs in by_processor.items():
        last = {(name, sweep.place): sweep for run in runs for name, result in run.results.items()
                for sweep in sweeps(result)}  # fmt: skip
        for (name, place), sweep in last.items():
            lines = [f"{setting}: {value if isinstance(value, str) else f'{value:.4g}'}"
                     for setting, value in sweep.tried.items()]  # fmt: skip
            tried = details(f"{len(lines)} tried", "\n".join(lines)) if lines else ""
            rows.append([escape(processor), escape(name), escape(place), escape(sweep.best), tried])
    head = ["processor", "benchmark", "of", "fastest settings", "sweep"]
    return table(head, rows) if rows else "<p>No result names settings.</p>"


def commits(runs: Sequence[Run]) -> str:
    """Returns the ratios of the last runs of a processor, a column for each; losses since the run before are marked."""
    last = runs[-SHOWN:]
    values = [{(name, ratio): found for name, result in run.results.items() for ratio, found in ratios(result).items()}
              for run in last]  # fmt: skip
    rows = []
    for key in sorted({key for of in values for key in of}):
        cells, before, read = [], None, reading(*key)
        for of in values:
            value = of.get(key)
            if value is None:
                cells.append("")
                continue
            worse = before is not None and read is not None and read.loss(before.value, value.value) >= LOST
            cells.append(f'<span class="missed">{shown(value)}</span>' if worse else shown(value))
            before = value
        rows.append([*map(escape, key), *cells])
    heads = [
        f'<span title="{escape(str(run.about.get("subject", "")))}">{escape(run.commit)}<br>'
        f"{escape(str(run.about.get('begun', ''))[:16])}{'' if run.about.get('quick', True) else '<br>whole'}</span>"
        for run in last
    ]
    note = f'<p class="note">Red: {LOST:.0%} worse than in the run before. A plus marks a tree with changes.</p>'
    return card("", note + table(["benchmark", "ratio", *heads], rows))


def curves(runs: Sequence[Run], name: str) -> str:
    """Returns a chart for each benchmark with two runs or more: its ratios over those of the first run."""
    charts = []
    for benchmark in dict.fromkeys(name for run in runs for name in run.results):
        lines: dict[str, list[tuple[int, float]]] = {}
        for number, run in enumerate(runs, 1):
            for ratio, found in ratios(run.results.get(benchmark, {})).items():
                if reading(benchmark, ratio) is not None:
                    lines.setdefault(ratio, []).append((number, found.value))
        if kept := {ratio: points for ratio, points in lines.items() if len(points) > 1 and points[0][1] > 0}:
            charts.append(card(benchmark, chart_svg(f"{benchmark}-{name}", benchmark, drawing(kept))))
    return f'<div class="grid">\n{"".join(charts)}\n</div>' if charts else ""


def drawing(lines: dict[str, list[tuple[int, float]]]) -> Callable[[Axes], None]:
    """Returns what draws ratios, each relative to its first value."""

    def draw(axes: Axes) -> None:
        for number, (label, points) in enumerate(lines.items()):
            axes.plot([x for x, _ in points], [y / points[0][1] for _, y in points], label=label, marker="o",
                      color=SERIES[number % len(SERIES)], linestyle="-" if number < len(SERIES) else "--")  # fmt: skip
        axes.set(xlabel="run", ylabel="relative to the first")
        axes.set_ylim(bottom=0)
        legend_above(axes)

    return draw


def failures(by_processor: dict[str, list[Run]]) -> str:
    """Returns the benchmarks of the last run of each processor that failed, and files that cannot be read."""
    rows = []
    for processor, runs in by_processor.items():
        run = runs[-1]
        ended = run.about.get("ended", {})
        rows += [[escape(processor), escape(name), escape(str(how))] for name, how in ended.items() if how]
        rows += [[escape(processor), escape(name), escape(why)]
                 for of in runs for name, why in of.unreadable.items()]  # fmt: skip
    return table(["processor", "benchmark", "how"], rows) if rows else "<p>Nothing in the last runs.</p>"

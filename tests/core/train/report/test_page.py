import csv
import html.parser
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

from arcforge_core.errors import DataError
from arcforge_core.report.charts import running_mean
from arcforge_core.report.html import count, duration
from arcforge_core.train.report import page as report
from arcforge_core.train.report.charts import CHARTS, plot_run_png
from arcforge_core.train.report.data import FILES, read_run
from arcforge_core.train.report.page import write_report
from support.page_checks import looked_at

VOID = {"meta", "link", "br", "img", "hr", "input"}
EXPERTS = 8


def write_csv(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_run(path: Path, steps: int = 900) -> Path:
    """Writes the files of a plausible finished run; the figures are made up."""
    path.mkdir(parents=True)
    rng = random.Random(0)
    metrics, evaluation, experts = [], [], []
    for step in [1, *range(10, steps + 1, 10)]:
        loss = 1.9 + 6.4 * math.exp(-step / 40) + 1.6 * math.exp(-step / 300) + rng.gauss(0, 0.06)
        row = {"step": step, "tokens": step * 4096, "seconds": step * 0.52, "progress": step / steps}
        row |= {"lr": 0.02 * min(1, step / 20) * min(1, (steps - step + 1) / (0.3 * steps)), "loss": loss}
        row |= {f"mtp_loss_{n}": loss + 0.5 * n + rng.gauss(0, 0.05) for n in (1, 2, 3)}
        row |= {"balance_loss": 1 + rng.random() * 0.1, "grad_norm": 0.3 + 4 * math.exp(-step / 30) + rng.random() / 9}
        metrics.append(row | {"tokens_per_s": 7900 + rng.gauss(0, 90), "mfu": 0.41 + rng.gauss(0, 0.005)})
        for layer in (1, 2, 3, 4):
            loads = [1 + rng.gauss(0, 0.1) + (2 * math.exp(-step / 50) if e == layer else 0) for e in range(EXPERTS)]
            shares = [{"expert": e, "share": load / sum(loads)} for e, load in enumerate(loads)]
            experts += [{"step": step, "layer": layer, **share} for share in shares]
    for step in [*range(100, steps, 100), steps]:
        bits = 1.77 + 2.2 * math.exp(-step / 170)
        row = {"step": step, "tokens": step * 4096, "seconds": step * 0.52 + 1, "loss": bits * 1.5}
        evaluation.append(row | {"bits_per_byte": bits, "num_bytes": 487014 if step == steps else 230000})
    write_csv(path / "metrics.csv", metrics)
    write_csv(path / "eval.csv", evaluation)
    write_csv(path / "experts.csv", experts)
    good = "def size(self):\n    total = 0\n    for item in self.items:\n        total += item.size\n    return total\n"
    texts = [(good + "    retu", good, ""), ("def size(self:\n    x", "def size(self:\n", "line 1: invalid syntax")]
    after = [{"prompt": "def size(", "text": t, "cut": c, "ok": not e, "error": e} for t, c, e in texts * 4]
    noise = {"text": "def size(\u0120qq <a>&", "cut": "", "ok": False, "error": "no function"}
    before = [{"prompt": "def size(", **noise}] * 8
    functions = {"before": {"rate": 0.0, "samples": before}, "after": {"rate": 0.5, "samples": after}}
    prompt = '"""Heap queues.\n\nUsage:\n'
    samples = {
        "before": [{"prompt": prompt, "text": "zq pe <script>alert('x')</script> & ~~"}] * 2,
        "after": [{"prompt": prompt, "text": 'heap = []\n"""\n\n__all__ = ["heappush"]\n\ndef heappush(h):\n    pass'}]
        * 2,
    }
    summary = {"status": "finished", "steps": steps, "tokens": steps * 4096, "seconds": 471.3, "parameters": 5931264}
    summary |= {"active_parameters": 3145728, "matmul_flops": 1.93e11, "tokens_per_s": 7912.4, "mfu": 0.4123}
    summary |= {"bits_per_byte": evaluation[-1]["bits_per_byte"], "gzip_bits_per_byte": 2.0134}
    summary |= {"xz_bits_per_byte": 1.8512, "functions_rate": 0.5, "functions_rate_before": 0.0}
    corpus = {
        "source": "stdlib",
        "splits": {
            "train": {"stdlib": {"documents": 761, "tokens": 2840576, "bytes": 11303155}},
            "heldout": {"stdlib": {"documents": 44, "tokens": 137877, "bytes": 487014}},
        },
        "licences": {"PSF-2.0": 805},
    }
    versions = {"arcforge-core": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "git": "abc1234"}
    contents = {"functions": functions, "samples": samples, "summary": summary, "corpus": corpus, "versions": versions}
    contents["generation"] = {"evaluations": [evaluation_at(step, step / steps) for step in (0, 300, steps)]}
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    (path / "config.yaml").write_text("name: mini\nmodel:\n  hidden_size: 256\n")
    return path


def evaluation_at(step: int, share: float) -> dict:
    """One evaluation by generation, with an answer right and one wrong."""
    figures = {"conversations": 10, "answers": 10, "exact": share, "exact_low": share / 2, "exact_high": 1.0}
    figures |= {"calls": 4, "calls_valid": share, "thinking_off": 1.0, "truncated": 0.1, "tokens": 12.5}
    called = [{"type": "function", "function": {"name": "lookup", "arguments": {"key": "<b>k</b>"}}}]
    messages = [
        {"role": "user", "content": "What is <i>k</i>?"},
        {"role": "assistant", "content": "", "reasoning_content": "I look it up.", "tool_calls": called},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    row = {"source": "lookup", "thinking": "interleaved", "messages": messages, "answers": [{"expected": "7"}]}
    samples = [row | {"verdict": "right"}, row | {"verdict": "wrong"}]
    return {"step": step, "figures": {"lookup": figures, "all": figures}, "rejected": 3, "samples": samples}


class Page(html.parser.HTMLParser):
    """Checks that tags balance, and keeps text and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A run with its report."""
    run = write_run(tmp_path_factory.mktemp("runs") / "2031-05-06" / "10-11-12-mini")
    write_report(run)
    return run


@pytest.fixture
def no_plots(monkeypatch):
    """Leaves the charts out where a test is about the rest, because they take most of the time."""
    monkeypatch.setattr("arcforge_core.report.charts.chart_svg", lambda name, title, draw: "<svg></svg>")
    monkeypatch.setattr(report, "experts_map", lambda run: "<svg></svg>")


def text_of(run_dir: Path) -> str:
    return (run_dir / "report.html").read_text(encoding="utf-8")


def test_a_complete_run_has_everything(complete):
    page = Page(text_of(complete))
    assert "missing" not in page.text
    assert "10-11-12-mini" in page.text and "2031-05-06" in page.text
    assert len([a for a in page.attributes if a[:2] == ("svg", "role")]) == len(CHARTS)
    assert text_of(complete).count('<div class="map">') == 1


def test_figures_are_those_of_the_files(complete):
    text = Page(text_of(complete)).text
    summary = json.loads((complete / "summary.json").read_text())
    for name in ("bits_per_byte", "gzip_bits_per_byte", "xz_bits_per_byte"):
        assert f"{summary[name]:.3f}" in text
    assert "7,912 tokens/s" in text and "41.2%" in text and "7 min 51 s" in text and "193 GFLOP/s" in text
    assert "5.93 M parameters" in text and "3.15 M active" in text and "3.69 M tokens" in text
    assert "4 of 8" in text and "0 of 8" in text and "50%" in text
    assert "PSF-2.0 (805 documents)" in text and "487,014" in text and "2.13.0" in text


def test_full_values_and_sources_stand_on_hover(complete):
    titles = [value for _, name, value in Page(text_of(complete)).attributes if name == "title"]
    assert "2.0134 (summary.json)" in titles and "0.5 (functions.json)" in titles


def test_the_page_needs_nothing_else(complete):
    text = text_of(complete)
    page = Page(text)
    outside = re.sub(r'<script(?: type="application/json")?>.*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?:|@import|<script|<link|<iframe|srcset", outside)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    for _, name, value in page.attributes:
        if name in ("href", "src"):
            assert value.startswith(("#", "data:")) or (complete / value).is_file(), value


def test_ids_are_unique_and_all_found(complete):
    text = text_of(complete)
    ids = [value for _, name, value in Page(text).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text)) == set(ids)


def test_texts_are_escaped(complete):
    text = text_of(complete)
    assert "<script>alert" not in text and "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in text
    assert "zq pe <script>alert('x')</script> & ~~" in Page(text_of(complete)).text


def test_every_value_from_a_file_is_escaped(tmp_path, no_plots):
    run = write_run(tmp_path / "run", steps=20)
    evil = "</pre><script>x"
    (run / "config.yaml").write_text(f"name: '{evil}'")
    (run / "versions.json").write_text(json.dumps({evil: evil}))
    (run / "summary.json").write_text(json.dumps(dict.fromkeys(["status", "tokens", "mfu", "bits_per_byte"], evil)))
    licences = {"licences": {evil: evil}, "splits": {evil: {evil: {"documents": evil}}}}
    (run / "corpus.json").write_text(json.dumps(licences))
    sample = {"prompt": evil, "text": evil + evil, "cut": evil, "ok": False, "error": evil}
    (run / "functions.json").write_text(json.dumps({"after": {"rate": 0.0, "samples": [sample]}}))
    page_of(run)
    assert "<script" not in (run / "report.html").read_text()


@pytest.mark.parametrize("name", FILES)
def test_each_file_may_be_missing(complete, tmp_path, name, no_plots):
    for file in complete.iterdir():
        if file.name not in (name, "report.html"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert "missing" in page_of(tmp_path).text
    assert read_run(tmp_path).problems == {name: "missing"}


def test_parts_that_the_configuration_did_not_ask_for_are_left_out(complete, tmp_path, no_plots):
    for file in complete.iterdir():
        if file.name not in ("samples.json", "functions.json", "generation.json", "report.html"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    asked = "trainer:\n  samples: 2\n  python_functions: {}\ngeneration:\n  files: []\n"
    (tmp_path / "config.yaml").write_text(asked.format(0))
    text = page_of(tmp_path).text
    assert (
        "Python functions" not in text
        and "functions.json" not in text
        and "generation.json" not in text
        and "missing: samples.json" in text
    )
    (tmp_path / "config.yaml").write_text(asked.format(8))
    assert "missing: functions.json" in page_of(tmp_path).text


def test_played_conversations_are_shown_before_and_after(complete, no_plots):
    page = page_of(complete)
    section = page.text.partition("Held-out conversations, played")[2]
    assert "3 records could not be played" in section
    assert "lookup before training 10 0.0%" in section and "lookup step 900 10 100.0% [50.0%, 100.0%]" in section
    assert "All sources, step by step" in section and "step 300" in section
    assert "(I look it up.) → lookup(key='<b>k</b>')" in section and "expected 7" in section
    assert section.count("✓ right") == 2 and section.count("✗ wrong") == 2


def test_an_empty_run_says_missing_and_no_number(tmp_path, no_plots):
    run = tmp_path / "2031-05-06" / "10-11-12-empty"
    run.mkdir(parents=True)
    page = page_of(run)
    assert "status missing" in page.text
    assert "0.000" not in page.text and "nan" not in page.text.lower()
    assert read_run(run).problems == dict.fromkeys(FILES, "missing")


@pytest.mark.parametrize("name", [n for n in FILES if n.endswith(".json")])
@pytest.mark.parametrize("content", ['{"before": [', "[1, 2]", '{"after": 3}', '{"after": [{"text": 1}]}', "", "\x00"])
def test_damaged_files_are_named(complete, tmp_path, name, content, no_plots):
    for file in complete.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    page_of(tmp_path)
    problem = read_run(tmp_path).problems.get(name, "")
    accepted = content.startswith('{"after"') and name not in ("samples.json", "functions.json")
    assert accepted or problem.startswith("unreadable")


def test_csv_files_with_nan_gaps_and_half_a_row(tmp_path):
    run = write_run(tmp_path / "run", steps=200)
    with (run / "metrics.csv").open("a") as file:
        file.write("210,1,2,0.5,0.1,nan,,inf,x\n220,17")
    (run / "eval.csv").write_text("step,seconds,bits_per_byte,loss\n")
    (run / "experts.csv").write_text("step,layer,expert,share\n1,1,0,nan\n1,1,1,nan\n")
    text = page_of(run).text
    assert "bits_per_byte in eval.csv" in text
    assert math.isnan(read_run(run).metrics["loss"][-1])


def test_half_of_a_surrogate_pair_is_replaced(tmp_path, no_plots):
    (tmp_path / "samples.json").write_text(r'{"after": [{"prompt": "a", "text": "b\ud83d"}]}')
    assert "ab?" in page_of(tmp_path).text.replace(" ", "")


def test_a_nan_in_the_summary_is_shown_as_such(tmp_path, no_plots):
    (tmp_path / "summary.json").write_text('{"bits_per_byte": NaN, "status": "failed: not finite"}')
    text = page_of(tmp_path).text
    assert "nan bits per byte" in text and "failed: not finite" in text


def test_without_a_summary_the_last_rows_count(tmp_path, no_plots):
    write_csv(tmp_path / "eval.csv", [{"step": 1, "bits_per_byte": 3.0}, {"step": 2, "bits_per_byte": 2.4321}])
    page = page_of(tmp_path)
    assert "2.432 bits per byte" in page.text
    assert ("span", "title", "2.4321 (last row of eval.csv)") in page.attributes


def test_one_row_is_enough_for_every_chart(tmp_path):
    run = write_run(tmp_path / "run", steps=20)
    for name in ("metrics.csv", "eval.csv"):
        lines = (run / name).read_text().splitlines()
        (run / name).write_text("\n".join(lines[:2]))
    assert "missing" not in page_of(run).text


def test_rows_that_a_resumed_run_trained_again_are_dropped(tmp_path):
    write_csv(tmp_path / "metrics.csv", [{"step": s, "loss": loss} for loss, s in enumerate([1, 10, 20, 30, 10, 20])])
    assert read_run(tmp_path).metrics["step"].tolist() == [1, 10, 10, 20]
    assert read_run(tmp_path).metrics["loss"].tolist() == [0, 1, 4, 5]


def test_expert_loads_are_in_units_of_the_fair_share(tmp_path):
    rows = [{"step": s, "layer": 2, "expert": e, "share": (0.1, 0.4)[e // 2]} for s in (1, 5) for e in range(4)]
    write_csv(tmp_path / "experts.csv", rows[:-1])
    steps, loads = read_run(tmp_path).expert_loads()
    assert steps.tolist() == [1, 5]
    assert loads[2][:, 0].tolist() == pytest.approx([0.4, 0.4, 1.6, 1.6])
    assert math.isnan(loads[2][3, 1])


def test_picture_of_a_run(complete, tmp_path):
    plot_run_png(complete, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    for file in ("eval.csv", "experts.csv"):
        (tmp_path / file).write_bytes((complete / file).read_bytes())
    plot_run_png(tmp_path, tmp_path / "loads.png")  # without MTP
    (tmp_path / "eval.csv").unlink()
    with pytest.raises(DataError, match=r"missing seconds in eval\.csv"):
        plot_run_png(tmp_path, tmp_path / "none.png")


def test_formats():
    assert [count(v) for v in (0, 999, 12345, 5931264, 753864139008)] == ["0", "999", "12,345", "5.93 M", "754 B"]
    assert [count(v) for v in (999_499, 999_500, 999_999_995_904)] == ["999,499", "1 M", "1 T"]
    assert [duration(s) for s in (0.4, 59.6, 471.3, 7380)] == ["0 s", "1 min 00 s", "7 min 51 s", "2 h 03 min"]
    assert running_mean(np.array([1.0, 2.0, 6.0]), 3).tolist() == pytest.approx([1.5, 3.0, 4.0])


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
def test_the_page_fits_every_screen_and_is_accessible(browser, screens, complete):
    looked_at(browser, (complete / "report.html").as_uri(), screens)


def test_the_head_names_recipe_data_model_and_command(tmp_path, no_plots):
    run = write_run(tmp_path / "10-11-12-mini")
    versions = {"command": "/home/me/.venv/bin/arcforge-train experiment=mini 'data.paths=[my texts]'"}
    (run / "versions.json").write_text(json.dumps(versions))
    (run / "config.yaml").write_text(
        "name: harbour\ndata: {name: files, paths: [my texts]}\nmodel: {name: mini}\n"
        "environment: {name: math, digits: 3}\n"
    )
    write_report(run)
    text = Page(text_of(run)).text
    assert (
        "harbour finished" in text
        and "recipe mini data files: my texts environment math model mini command arcforge-train" in text
    )
    assert "/home/me" not in text.split("Curves")[0]

"""The page of a run: figures from its files, nothing that a model says is obeyed, and every file may be missing."""

import csv
import html.parser
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser
from tests.rl.trainer.conftest import Compose

from arcforge_rl.trainer.callbacks import LABELS_FILE
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.report import page as report_module
from arcforge_rl.trainer.report.charts import CHARTS
from arcforge_rl.trainer.report.data import FILES, paired, rate, read_run
from arcforge_rl.trainer.report.page import write_report
from arcforge_rl.trainer.report.rollouts import ViewLimits, as_json, read_rollouts
from arcforge_rl.trainer.run import PolicyTraining, run
from support.browsing import Screens
from support.page_checks import looked_at

EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">$\\alpha$ & \x1b[2J"
)
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(html.parser.HTMLParser):
    """Keeps tags with attributes, text, and what scripts hold; tags must balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def rollout_row(step: int, group: int, number: int, text: str = "7", tokens: bool = True) -> dict[str, Any]:
    reward = float(number % 2)
    row = {"step": step, "group": f"{step}/{group}", "rollout": f"{number}", "task": f"task {group}", "domain": "sums"}
    row |= {"messages": [{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": text}]}
    row |= {"answer": "7", "rewards": {"reward": reward}, "reasons": {"reward": f"says {text}"}, "length": 2}
    row |= {"truncated": False, "learnt": True}
    if tokens:
        first = {"text": text, "logprob": -0.5, "advantage": reward - 0.5, "factor": 0.0 if number == 1 else 1.0}
        row["tokens"] = [[{"text": "3+4?"}, first, {"text": "!", "logprob": -1.0, "advantage": 0.1, "factor": 1.0}]]
    return row


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The files of a run, made up."""
    folder = tmp_path / "12-00-00-rl"
    folder.mkdir()
    metrics = [
        {"step": step, "tokens": 10 * step, "seconds": step, "progress": step / 8, "reward": step / 8,
         "reward_right": step / 8, "reward_form": 1.0, "groups": 4, "all_right": 1, "all_wrong": 2, "all_equal": 0,
         "nothing_sampled": 0, "refills": 0, "length": 5, "truncated": 0.25, "sampled_tokens": 20, "entropy": 1 / step,
         "logprob_gap": 1e-6, "logprob_gap_max": 1e-5 * step, "masked_low": 0.01, "masked_high": 0.02, "clipped_low": 0,
         "clipped_high": 0.1, "effective_samples": 0.9, "grad_norm": 1.5, "seconds_sampling": 0.5,
         "seconds_scoring": 0.1, "seconds_training": 0.25, "seconds_handover": 0.05}
        for step in range(1, 9)
    ]  # fmt: skip
    write_csv(folder / "metrics.csv", metrics)
    evaluations = [
        {"step": step, "seconds": step, "domain": domain, "tasks": 4, "pass@1": value, "pass@2": value + 0.1,
         "maj@2": value, "reward": value, "length": 5.0, "truncated": 0.0}
        for step, value in ((0, 0.25), (8, 0.75)) for domain in ("sums", "words", "all")
    ]  # fmt: skip
    write_csv(folder / "evaluations.csv", evaluations)
    heldout = [
        {"step": step, "task": task, "domain": ("sums", "words")[task % 2], "right": right, "tries": 2}
        for step, of_tasks in ((0, (0, 0, 1, 1)), (8, (2, 2, 1, 1))) for task, right in enumerate(of_tasks)
    ]  # fmt: skip
    write_csv(folder / "heldout.csv", heldout)
    labels = [
        {"step": step, "label": "kind:bullets", "figure": name, "value": value}
        for step, share in ((0, 0.1), (8, 0.6)) for name, value in (("tasks", 5), ("pass@1", share), ("loose", 0.75))
    ]  # fmt: skip
    write_csv(folder / "labels.csv", labels)
    warning = {"step": 5, "figure": "entropy", "value": 0.1, "limit": 0.2, "message": "entropy 0.1 nats"}
    write_csv(folder / "warnings.csv", [warning])
    lines = [rollout_row(step, group, n) for step in range(1, 9) for group in range(2) for n in range(4)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "steps": 8, "tokens": 80, "seconds": 8.0}))
    (folder / "config.yaml").write_text("name: rl\n")
    (folder / "versions.json").write_text('{"torch": "2.13.0"}')
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "CHARTS", ())


def test_a_page_tells_what_the_files_say(run_dir: Path) -> None:
    page = page_of(run_dir)
    assert (
        "rl finished" in page.text
        and "/12-00-00-rl" in page.text
        and "8 steps · trained on 80 tokens in 8 s" in page.text
    )
    assert "25.0% → 75.0% pass@1" in page.text
    assert "kind:bullets 5 10.0% 60.0% loose 0.75 → 0.75" in page.text
    assert "+50.0 points" in page.text and "4 tasks, tried 2 times each" in page.text
    assert "sampling 55.6%, 4 s" in page.text and "tokens/s sampled 40 tokens/s trained 40" in page.text
    assert "groups dropped 24" in page.text and "Warnings step 5: entropy 0.1 nats" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == len(CHARTS)
    assert "missing" not in page.text and "sums" in page.text and "pass@1, dashed pass@2" in page.text
    assert "form" in page.text.split("Reward")[1], "a reward that is not the whole has a curve of its own"
    assert page.text.count("Dashed: a warning.") == 1


def test_a_page_says_once_where_tasks_are_tried_once(run_dir: Path, undrawn: None) -> None:
    rows = [{"step": 0, "task": task, "domain": "sums", "right": task % 2, "tries": 1} for task in range(4)]
    write_csv(run_dir / "heldout.csv", rows)
    assert "4 tasks, tried once each." in page_of(run_dir).text


def test_a_page_says_that_nothing_was_trained_and_no_gain_is_certain(run_dir: Path, undrawn: None) -> None:
    (run_dir / "summary.json").write_text(json.dumps({"status": "finished", "steps": 8, "tokens": 0, "seconds": 8.0}))
    rows = [{"step": n, "task": task, "domain": "sums", "right": 0, "tries": 2} for n in (0, 8) for task in range(4)]
    write_csv(run_dir / "heldout.csv", rows)
    text = page_of(run_dir).text
    assert "Nothing was trained: in no step had a group different rewards." in text
    assert "+0.0 points (-32.7 to +32.7)" in text and "(+0.0 to +0.0)" not in text


@pytest.mark.parametrize(("right", "tries"), [(2, 1), (-1, 1), (0, 0)])
def test_shares_that_cannot_be_are_damage(run_dir: Path, undrawn: None, right: int, tries: int) -> None:
    write_csv(run_dir / "heldout.csv", [{"step": 0, "task": 0, "domain": "sums", "right": right, "tries": tries}])
    assert f"unreadable: ValueError: {right} of {tries} tries are right" in page_of(run_dir).text


def test_a_page_needs_nothing_from_outside(run_dir: Path) -> None:
    page = page_of(run_dir)
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src")]
    assert all(link.startswith("#") or link in FILES for link in links)
    (policy,) = (attributes["content"] for tag, attributes in page.tags if tag == "meta" and "http-equiv" in attributes)
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    text = (run_dir / "report.html").read_text()
    assert "prefers-color-scheme: dark" in text and "@import" not in text and "url(http" not in text


def test_no_two_elements_have_one_id(run_dir: Path) -> None:
    """Sections are named by their titles, and scripts look elements up."""
    ids = [attrs["id"] for _, attrs in page_of(run_dir).tags if "id" in attrs]
    assert len(ids) > 5 and sorted(ids) == sorted(set(ids))


def test_words_of_models_tasks_and_verifiers_stay_words(run_dir: Path) -> None:
    row = rollout_row(1, 0, 0, EVIL) | {"task": EVIL, "domain": EVIL, "answer": EVIL, "reasons": {"reward": EVIL}}
    (run_dir / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    (run_dir / "summary.json").write_text(json.dumps({"status": EVIL}))
    (run_dir / "config.yaml").write_text(EVIL)
    text = (run_dir / "evaluations.csv").read_text().replace("words", '"' + EVIL.replace('"', '""') + '"')
    (run_dir / "evaluations.csv").write_text(text)
    write_csv(run_dir / "warnings.csv", [{"step": 5, "figure": "entropy", "value": 0, "limit": 0, "message": EVIL}])
    page = page_of(run_dir)
    assert [tag for tag, _ in page.tags].count("script") == 2 + len(CHARTS)
    assert "img" not in [tag for tag, _ in page.tags]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert EVIL.replace("\x1b", "").split("$")[0] in page.text.replace("\x1b", "")
    data = next(json.loads(script) for script in page.scripts if script.startswith('{"1"'))
    (group,) = data["1"]
    assert group["task"] == EVIL and group["rollouts"][0]["messages"][1][1] == EVIL


@given(
    st.recursive(
        st.text("<>&/!-s\u2028") | st.text() | st.floats() | st.none(), lambda inner: st.lists(inner), max_leaves=5
    )
)
def test_data_cannot_leave_its_element(value: Any) -> None:
    text = as_json({"value": value})
    assert text.isascii() and not set("<>&") & set(text)
    json.loads(text)


def test_rollouts_beyond_the_limits_are_left_out_and_told(run_dir: Path) -> None:
    lines = [rollout_row(step, group, n) for step in range(1, 101) for group in range(3) for n in range(4)]
    (run_dir / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = read_rollouts(
        run_dir / "rollouts.jsonl", ViewLimits(steps=5, groups=2, rollouts=3, tokens=36, characters=4)
    )
    assert list(shown.steps) == [1, 26, 50, 75, 100] or list(shown.steps) == [1, 26, 51, 75, 100]
    assert all(len(groups) == 2 and all(len(g["rollouts"]) == 3 for g in groups) for groups in shown.steps.values())
    with_tokens = [r for groups in shown.steps.values() for g in groups for r in g["rollouts"] if "tokens" in r]
    assert len(with_tokens) == 12
    assert shown.left_out == "30 of 1,200 rollouts, of 5 of 100 steps; 18 rollouts without their tokens"
    assert shown.steps[1][0]["rollouts"][0]["tokens"] == [["3+4?", ["7", -0.5, -0.5, 1.0], ["!", -1.0, 0.1, 1.0]]]
    long = read_rollouts(run_dir / "rollouts.jsonl", ViewLimits(characters=2))
    assert long.steps[1][0]["rollouts"][0]["messages"][0] == ["user", "3+ … (2 more characters)"]


def test_groups_with_tokens_and_those_learnt_from_come_first(run_dir: Path) -> None:
    rows = [rollout_row(1, group, 0, tokens=group == 2) | {"learnt": group > 0} for group in range(3)]
    (run_dir / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = read_rollouts(run_dir / "rollouts.jsonl").steps[1]
    assert [group["task"] for group in groups] == ["task 2", "task 1", "task 0"]
    assert [group["learnt"] for group in groups] == [True, True, False]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "nonsense", "binary", "other"])
def test_any_file_may_be_missing_or_damaged(run_dir: Path, undrawn: None, name: str, damage: str) -> None:
    path = run_dir / name
    if damage == "missing":
        path.unlink()
    else:
        content = {"empty": b"", "nonsense": b"{[,,\n\n1,2", "binary": os.urandom(200), "other": b'["a"]\nx,y\n'}
        path.write_bytes(content[damage])
    page = page_of(run_dir)
    if damage == "missing" and name != "warnings.csv":
        assert "missing" in page.text


@pytest.mark.parametrize(
    "change", [{"tokens": 5}, {"tokens": [[3]]}, {"rewards": [1]}, {"messages": "x"}, {"length": {}}]
)
def test_a_rollout_that_cannot_be_shown_is_counted(run_dir: Path, change: dict[str, Any]) -> None:
    rows = [rollout_row(1, 0, 0), rollout_row(1, 0, 1) | change]
    (run_dir / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 2, "gro')
    shown = read_rollouts(run_dir / "rollouts.jsonl")
    assert len(shown.steps[1][0]["rollouts"]) == 1 and "1 lines cannot be read" in shown.left_out


def test_a_folder_with_nothing_in_it_gives_a_page(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert "status missing" in page.text and page.text.count("missing") > len(FILES)


def test_intervals() -> None:
    tried_once = rate(np.array([1.0] * 30 + [0.0] * 70), 1)
    assert tried_once.low == pytest.approx(0.2189, abs=1e-3) and tried_once.high == pytest.approx(0.3958, abs=1e-3)
    alike = rate(np.array([1.0] * 30 + [0.0] * 70), 4)
    assert alike.low == pytest.approx(tried_once.low, abs=2e-3), "four equal tries are worth one"
    independent = rate(np.array([0.25, 0.5, 0.25, 0.0] * 25), 4)
    assert independent.high - independent.low < 0.6 * (tried_once.high - tried_once.low)
    gain = paired(np.array([0.0, 0.5, 0.5, 1.0]), np.array([0.5, 0.5, 1.0, 1.0]))
    assert gain.value == 0.25 and gain.low == pytest.approx(1 / 6 - 1.96 * (2 / 9 / 6) ** 0.5, abs=1e-3)
    many = paired(np.array([0.0, 0.5, 0.5, 1.0] * 100), np.array([0.5, 0.5, 1.0, 1.0] * 100))
    assert many.high == pytest.approx(0.25 + 1.96 * 0.25 / 20, abs=3e-3), "the normal one for many tasks"
    none = paired(np.zeros(20), np.zeros(20))
    assert none.value == 0 and none.low == -none.high and 0.05 < none.high < 0.15, "as large as a task or two"
    assert rate(np.zeros(20), 4).high < 0.1 and rate(np.ones(20), 4).low > 0.9


@pytest.mark.slow(reason="a run and two drawn pages")
def test_the_page_of_a_real_run_and_of_one_that_was_interrupted(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcforge_rl.trainer.run.write_report", write_report)
    found = run(small_run("trainer.max_steps=3", "trainer.eval_every=2"))
    page = Page((found.dir / "report.html").read_text(encoding="utf-8"))
    assert "finished" in page.text and "3 steps" in page.text and "4 tasks, tried 2 times each" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == len(CHARTS) and "hand-over" in page.text
    data = next(json.loads(script) for script in page.scripts if script.startswith('{"1"'))
    sampled = [t for groups in data.values() for g in groups for r in g["rollouts"] for b in r.get("tokens", ())
               for t in b if isinstance(t, list)]  # fmt: skip
    assert sampled and all((logprob <= 0 and factor in (0.0, 1.0)) or 0.5 < factor < 2.0
                           for _, logprob, _, factor in sampled)  # fmt: skip
    known = read_run(found.dir)
    share = known.share(0)
    assert share is not None and share.value == pytest.approx(found.figures["pass@1_before"])
    assert known.evaluated == [0, 2, 3]

    step = PolicyModule.training_step

    def asks_to_stop(module: PolicyModule, batch: int, batch_idx: int) -> None:
        step(module, batch, batch_idx)
        if module.progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(PolicyModule, "training_step", asks_to_stop)
    stopped = run(small_run("trainer.max_steps=5"))
    page = Page((stopped.dir / "report.html").read_text(encoding="utf-8"))
    assert "interrupted" in page.text and "2 steps" in page.text


@pytest.mark.nightly(reason="two runs")
def test_figures_of_steps_that_are_taken_again_are_there_once(small_run: Compose) -> None:
    options = ("trainer.checkpoint_every=1", "trainer.eval_every=1", "monitor.window=1", "monitor.gap=0.0",
               "monitor.entropy_low=1.0", "optimizer.lr=0.03", "evaluation.tasks=32",
               "trainer.keep_checkpoints=9")  # fmt: skip
    first = run(small_run(*options, "trainer.max_steps=3"))
    for name in PolicyTraining.tables:
        assert (first.dir / name).exists() == (name != LABELS_FILE), name  # these tasks have no labels
    cut = first.dir / "checkpoints" / "step-00000002"
    with (first.dir / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 2, "group": "a line that a killed process did not')
    rest = run(small_run(*options, "trainer.max_steps=4", f"resume={cut}"))
    known = read_run(rest.dir)
    assert known.evaluated == [0, 1, 2, 3, 4]
    with (rest.dir / "heldout.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5 * 32
    lines = [json.loads(line) for line in (rest.dir / "rollouts.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines) and lines[-1]["step"] == 4
    assert len({line["rollout"] for line in lines}) == len(lines)
    assert len(set(known.warnings)) == len(known.warnings) > 1
    before, later = known.share(0), known.share(3)
    assert before is not None and later is not None and before.value != later.value
    assert rest.figures["pass@1_before"] == first.figures["pass@1_before"] == pytest.approx(before.value)


@pytest.mark.slow(reason="a browser starts")
def test_the_viewer_in_a_browser(run_dir: Path, undrawn: None, browser: Browser) -> None:
    rows = [rollout_row(1, 0, n, EVIL, tokens=n < 2) | {"task": EVIL} for n in range(3)]
    (run_dir / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = browser.new_page()
    page.goto(write_report(run_dir).as_uri())
    dom = page.locator("#shown-rollouts").inner_html()
    assert page.title() == "rl"
    assert dom.count('class="token negative') == 1 and dom.count('class="token positive') == 3
    assert dom.count("masked") == 2, "a class and a title"
    assert 'title="log-prob -0.500 · advantage 0.500 · factor 0.000 · masked"' in dom
    assert "&lt;/script&gt;&lt;script&gt;" in dom and "<img" not in dom and "\x1b" not in dom
    assert "says &lt;/script" in dom and 'class="given">user: 3+4?' in dom
    page.locator("#rollouts #group").wait_for()
    assert page.locator("#rollouts h2").inner_text() == "Rollouts"
    assert (
        page.locator("#step").input_value() == "1"
        and page.locator("#rollouts").get_by_text("advantage above 0").count()
    )


@pytest.mark.slow(reason="a browser starts")
def test_figures_at_the_top_have_a_line_each(run_dir: Path, undrawn: None, browser: Browser) -> None:
    with (run_dir / "metrics.csv").open() as file:
        rows = [{**row, "reward": 0.397, "entropy": 0.0301, "seconds_sampling": 105.5} for row in csv.DictReader(file)]
    write_csv(run_dir / "metrics.csv", rows)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(write_report(run_dir).as_uri())
    lines = page.evaluate(
        """[...document.querySelectorAll(".headline .value, .headline dd")].map((shown) =>
             [shown.textContent, shown.clientHeight / parseFloat(getComputedStyle(shown).lineHeight)])"""
    )
    assert "14 min 07 s in steps" in dict(lines) and "0.0301 → 0.0301" in dict(lines)
    assert not {text for text, height in lines if height > 1.5}


@pytest.mark.slow(reason="opens a page twice and runs axe-core")
def test_the_page_fits_every_screen_and_is_accessible(run_dir: Path, browser: Browser, screens: Screens) -> None:
    looked_at(browser, write_report(run_dir).as_uri(), screens)

"""Results of benchmarks: their ratios, floors and sweeps, and the page of all."""

import json
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

RESULT = {
    "benchmark": "attention",
    "machine": {
        "processor": "A <fast> one",
        "instructions": "AVX2",
        "threads": 2,
        "cores": 2,
        "load_average": [1.5, 0.0, 0.0],
    },
    "prefill": {"floor_s": 1.25, "settings": "sdpa+fp32", "sweep": {"sdpa": 0.5, "eager": "left out: <why>"}},
    "decode": {
        "milliseconds": {"floor": {"2048": 2.0}},
        "peer": {"2048": {"settings": "eager", "sweep": {"eager": 1.0}}},
    },
    "here": {"ratios": {"train": 1.5, "none": None}},
    "ratios": {"prefill_8k": 2.0, "prefill_over_floor": 3.0},
    "ranges": {"prefill_8k": [1.75, 2.25]},
}


def write(folder, result=RESULT, name="attention", **about):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"commit": "c" * 40, "begun": "2026-01-01", **about}))
    (folder / f"{name}.json").write_text(json.dumps(result))
    return folder


def test_ratios_floors_and_settings_are_found_wherever_they_are(tmp_path):
    from _results import floors, ratios, read_run, sweeps

    run = read_run(write(tmp_path / "run"))
    assert run.processor == "A <fast> one, AVX2, 2 threads" and run.commit == "cccccccc" and not run.unreadable
    result = run.results["attention"]
    found = {name: (ratio.value, ratio.low, ratio.high) for name, ratio in ratios(result).items()}
    assert found == {
        "prefill_8k": (2.0, 1.75, 2.25),
        "prefill_over_floor": (3.0, 3.0, 3.0),
        "here.train": (1.5, 1.5, 1.5),
    }
    assert floors(result) == {"prefill.floor": "1.25 s", "decode.milliseconds.floor": "2048: 2 ms"}
    assert [(sweep.place, sweep.best, list(sweep.tried)) for sweep in sweeps(result)] == [
        ("prefill", "sdpa+fp32", ["sdpa", "eager"]),
        ("decode.peer.2048", "eager", ["eager"]),
    ]


def test_the_page_shows_each_processor_targets_and_lost_ratios(tmp_path):
    from _results import read_runs
    from _results_page import write_page

    write(tmp_path / "a" / "1", begun="2026-01-01")
    worse = {**RESULT, "ratios": {"prefill_8k": 1.5, "prefill_over_floor": 2.0}, "ranges": {}}
    write(tmp_path / "a" / "2", worse, begun="2026-01-02", changed=True, ended={"attention": "", "serving": "stopped"})
    other = {**RESULT, "machine": {**RESULT["machine"], "processor": "Another"}}
    write(tmp_path / "b" / "1", other, begun="2026-01-03")
    runs = read_runs([tmp_path, tmp_path / "a"])
    assert [run.about["begun"][-1] for run in runs] == ["1", "2", "3"], "a run in two folders counts once"
    page = write_page(runs, tmp_path / "index.html").read_text()
    body = page[page.index("<main") :]
    assert "<fast>" not in body and "<why>" not in body, "names of files are no HTML"
    floor = re.search(r"<tr><td>attention</td><td>prefill_over_floor</td>.*?</tr>", body)[0]
    assert "at most 2.5" in floor
    assert re.findall(r'class="(\w+)" title="(\S+)">([\d.]+)', floor) == [
        ("met", "cccccccc+", "2.00"),
        ("missed", "cccccccc", "3.00"),
    ]
    history = body[body.index("History: A") : body.index("History: Another")]
    assert '<span class="missed">1.50</span>' in history, "a quarter less is lost"
    assert '<span class="missed">2.00</span>' not in history, "less over the floor is better"
    assert "1 of 2 targets met" in page and "stopped" in body and "1.5 (busy)" in body
    assert body.count('<figure class="chart" data-name=') == 1, "one chart: a processor with two runs"


def test_files_that_are_damaged_are_named_and_the_others_shown(tmp_path):
    from _results import read_runs
    from _results_page import write_page

    folder = write(tmp_path / "run", processor="P")
    (folder / "serving.json").write_text("{")
    (folder / "startup.json").write_text("[]")
    (run,) = read_runs([tmp_path])
    assert set(run.unreadable) == {"serving.json", "startup.json"} and set(run.results) == {"attention"}
    assert "is no object" in write_page([run], tmp_path / "index.html").read_text()
    (folder / "run.json").write_text("{")
    (run,) = read_runs([tmp_path])
    assert run.commit == "unknown", "a damaged run.json hides no result"
    write_page([run], tmp_path / "index.html")


@pytest.mark.parametrize(
    ("better", "before", "after", "loss"), [("more", 2.0, 1.5, 0.25), ("less", 2.0, 2.5, 0.25), ("more", 0.0, 1.0, 0.0)]
)
def test_losses_know_which_way_is_better(better, before, after, loss):
    from _catalogue import PEER, Reading

    assert Reading(PEER, better).loss(before, after) == loss


def test_every_benchmark_runs_or_is_left_out_with_a_reason():
    from _catalogue import BENCHMARKS as RUN
    from _catalogue import LEFT_OUT

    files = {path.stem: path.read_text() for path in BENCHMARKS.glob("[a-z]*.py")}
    assert set(files) == set(RUN) | set(LEFT_OUT) and not set(RUN) & set(LEFT_OUT)
    for name, benchmark in RUN.items():
        for option in ("--quick", "--json", benchmark.threads, *("--python",) * benchmark.peers):
            assert f'"{option}"' in files[name] or not option, f"{name} has no {option}"
        assert '"ratios"' in files[name] or re.search(r"add\(\s*report", files[name]), f"{name} writes no ratios"

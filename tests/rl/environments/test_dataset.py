"""Data sets from files: known field maps, answers taken out, rows without them refused by file and line."""

import asyncio
import json

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import play
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import DatasetConfig
from arcforge_rl.environments.dataset import Dataset

GSM8K = {"question": "Tom has {n} apples and buys 3000. How many?", "answer": "He has {n}+3000 = <<x>>.\n#### {a}"}
MATH = {
    "problem": "Add {n} halves.",
    "level": "1",
    "solution": "First \\boxed{{0}}, no: $\\boxed{{\\frac{{{n}}}{{2}}}}$.",
}
TACO = {
    "question": "Add {n} to what you read.",
    "solutions": '["print(int(input()) + {n})"]',
    "starter_code": "",
    "input_output": '{{"inputs": ["1\\n", "5\\n"], "outputs": ["{b}\\n", "{c}\\n"]}}',
}
FUNCTION = {
    "question": "Add {n}.",
    "solutions": '["class Solution:\\n    def add(self, x):\\n        return x + {n}"]',
    "starter_code": "class Solution:\n    def add(self, x):",
    "input_output": '{{"fn_name": "add", "inputs": [[1], [5]], "outputs": [[{b}], [{c}]]}}',
}
CODEFORCES = {
    "title": "A",
    "description": "Add {n}.",
    "input_format": "x",
    "output_format": "x + {n}",
    "input_mode": "stdio",
    "examples": [{"input": "1", "output": "{b}"}],
    "official_tests": [{"input": "1", "output": "{b}"}, {"input": "5", "output": "{c}"}],
}


def filled(value, n):
    if isinstance(value, str):
        return value.format(n=n, a=f"{n + 3000:,}", b=n + 1, c=n + 5)
    if isinstance(value, list):
        return [filled(part, n) for part in value]
    return {name: filled(part, n) for name, part in value.items()}


@pytest.fixture
def written(tmp_path):
    """Writes rows and returns an environment of them."""

    def write(rows, **options):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return Dataset(DatasetConfig(path=str(path), **options))

    return write


def rows_of(pattern, count=20):
    return [filled(pattern, n) for n in range(101, 101 + 2 * count, 2)]


@pytest.mark.parametrize(
    ("preset", "pattern", "domain", "answer"),
    [
        ("gsm8k", GSM8K, "math", "3{n}"),
        ("math", MATH, "math", "\\frac{{{n}}}{{2}}"),
        ("taco", TACO, "code", None),
        ("taco", FUNCTION, "code", None),
        ("codeforces", CODEFORCES, "code", ""),
    ],
)
def test_known_data_sets(written, preset, pattern, domain, answer):
    environment = written(rows_of(pattern), preset=preset)
    task = environment.task(0)
    n = next(n for n in range(101, 141, 2) if str(n) in task.prompt)
    assert environment.domain == domain
    if answer is not None:
        assert task.answer == answer.format(n=n)
    solution = f"print(int(input()) + {n})" if preset == "codeforces" else None
    script = [Reply(solution)] if solution else environment.oracle(task)
    assert score(environment, task, script).reward == 1.0
    for cheat in environment.cheats(task):
        assert score(environment, task, cheat).reward == 0.0, cheat
    if preset == "codeforces":
        with pytest.raises(ConfigError, match="no solutions"):
            environment.oracle(task)
        assert "Example input\n1" in task.prompt and f"Output\nx + {n}" in task.prompt


def test_sides_are_disjoint_and_whole(written):
    sides = [written(rows_of(GSM8K), preset="gsm8k", split=split) for split in ("train", "heldout")]
    keys = [{side.task(n).key for n in range(side.num_tasks)} for side in sides]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 20
    assert sides[0].task(0) == sides[0].task(sides[0].num_tasks)


@pytest.mark.parametrize(
    ("row", "preset", "reason"),
    [
        ({"question": "q", "answer": "no mark"}, "gsm8k", "has no ####"),
        ({"question": "q", "answer": "#### "}, "gsm8k", "has no ####"),
        ({"question": "q"}, "gsm8k", "no answer: the field 'answer' is not there; the row has question"),
        ({"question": "q", "answer": None}, "gsm8k", "the field 'answer' is empty"),
        ({"question": " ", "answer": "#### 4"}, "gsm8k", "no question"),
        ({"problem": "q", "solution": "none"}, "math", "has no \\boxed"),
        ({"problem": "q", "solution": "\\boxed{4"}, "math", "not closed"),
        ({"question": "q", "input_output": "{"}, "taco", "is not JSON"),
        ({"question": "q", "input_output": '{"inputs": [], "outputs": []}'}, "taco", "no inputs"),
        ({"question": "q", "input_output": '{"inputs": ["1"], "outputs": []}'}, "taco", "another number of outputs"),
        ({"question": "q", "input_output": "[1]"}, "taco", "not an object"),
        (filled(CODEFORCES, 1) | {"generated_checker": "x"}, "codeforces", "a checker of its own"),
        (filled(CODEFORCES, 1) | {"input_mode": "file"}, "codeforces", "reads from a file"),
        (filled(CODEFORCES, 1) | {"official_tests": [], "examples": []}, "codeforces", "no inputs"),
        ("not json", "gsm8k", "not JSON"),
        ("[1, 2]", "gsm8k", "a record must be an object"),
    ],
)
def test_rows_without_answers_are_refused_by_line(written, row, preset, reason):
    good = rows_of({"gsm8k": GSM8K, "math": MATH, "taco": TACO, "codeforces": CODEFORCES}[preset])
    with pytest.raises(DataError, match=r"rows\.jsonl:3: ") as caught:
        written([*good[:2], row, *good[2:]], preset=preset)
    assert reason in str(caught.value)
    kept = written([*good[:2], row, *good[2:]], preset=preset, skip_bad=True)
    assert 0 < kept.num_tasks <= 20


def test_left_out_rows_are_counted(written, caplog):
    with caplog.at_level("WARNING", "arcforge.environments"):
        written([*rows_of(GSM8K), {"question": "q", "answer": ""}, {"question": "p", "answer": ""}], skip_bad=True)
    assert "2 rows are left out: no answer" in caplog.text


@pytest.mark.parametrize(
    ("judge", "answer", "right", "wrong"),
    [
        ("math", "0.5", "so $\\frac{1}{2}$", "0.5 or 1"),
        ("exact", "blue whale", "I say\nblue whale", "blue  whale"),
        ("choice", "(b)", "Answer: B", "B or C"),
    ],
)
def test_fields_of_any_name(written, judge, answer, right, wrong):
    rows = [{"text": f"question {n}", "label": answer} for n in range(20)]
    options = {"prompt_field": "text", "answer_field": "label", "judge": judge, "suffix": "\nSay it."}
    environment = written(rows, **options)
    task = environment.task(0)
    assert task.prompt.endswith("\nSay it.")
    assert score(environment, task, environment.oracle(task)).reward == 1.0
    assert score(environment, task, [Reply(right)]).reward == 1.0
    assert score(environment, task, [Reply(right, finish_reason="length")]).reward == 0.0
    for script in (*environment.cheats(task), [Reply(wrong)], [Reply("")]):
        assert score(environment, task, script).reward == 0.0, script


def test_answers_that_are_no_letters_are_refused(written):
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*not a letter"):
        written([{"question": "q", "answer": "E"}], judge="choice")


def test_parquet_is_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = rows_of(GSM8K)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    environment = Dataset(DatasetConfig(path=str(tmp_path), preset="gsm8k"))
    task = environment.task(1)
    assert asyncio.run(play(environment, task, environment.oracle(task)))[1].reward == 1.0


def test_bad_paths_and_options_are_named(tmp_path):
    with pytest.raises(DataError, match=r"environment\.path="):
        Dataset(DatasetConfig(path=str(tmp_path / "nothing.jsonl")))
    with pytest.raises(ConfigError, match=r"environment\.path=''"):
        Dataset(DatasetConfig())
    with pytest.raises(ConfigError, match=r"environment\.preset='gsm'"):
        DatasetConfig(preset="gsm")
    with pytest.raises(ConfigError, match=r"environment\.judge="):
        DatasetConfig(judge="me")

import json
import re

import pytest

from arcforge_core.configs import ReferenceAttentionConfig, SimpleEngineConfig
from arcforge_core.contracts.data import Document
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.long_context.figures import headline, heat_maps, table, write_figures
from arcforge_core.eval.long_context.report import Cell, LongContextReport, read_report
from arcforge_core.eval.long_context.run import BATCH_TOKENS, Grid, evaluate_long_context
from arcforge_core.eval.long_context.tasks import TASKS
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_tokenizer

DOCUMENTS = [
    Document(f"{d}.txt", "\n".join(f"line {n} of {d} has {n * d + 5} things" for n in range(40)), "test")
    for d in range(6)
]
QUICK = {"lengths": (700, 1400), "depths": (0.0, 0.5), "samples": 2}


class Characters:
    """A token is a character; 0 ends a text and 1 begins it."""

    eos_id, bos_id, sha256 = 0, 1, "abcdef0123456789"

    def encode(self, text):
        return [ord(c) + 2 for c in text]

    def decode(self, ids):
        return "".join(chr(i - 2) for i in ids)


class Searching:
    """An engine that looks the code of the last key up, and knows nothing else; it notes what it was asked."""

    weight_version = 0

    def __init__(self, stop=None):
        self.calls, self.stop = [], stop

    def generate(self, prompts, params):
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        self.calls.append(prompts)
        outputs = []
        for prompt, param in zip(prompts, params, strict=True):
            assert prompt[0] == 1 and param.temperature == 0 and param.stop_token_ids == (0,)
            text = Characters().decode(prompt[1:])
            key = re.search(r"the code of (\w+)\?", text)
            said = re.search(rf"The code of {key[1]} is (\d+)", text)[1] if key else "?"
            ids = [*Characters().encode(f" {said}.")[: param.max_new_tokens], 0]
            outputs.append(GenerationOutput(ids, [0.0] * len(ids), "stop", 0))
        return outputs


def run(engine=None, documents=DOCUMENTS, **settings):
    settings = {"subject": "searching", **QUICK, **settings}
    return evaluate_long_context(engine or Searching(), Characters(), documents, **settings)


def test_scores_by_task_length_and_depth():
    report = run()
    assert report.score("single", 700) == report.score("multi_key", 1400) == 1.0
    assert report.score("variable_tracking", 700) == report.score("qa", 1400) == 0.0
    with_depth = {cell.place: len(cell.scores) for cell in report.cells if cell.task == "single"}
    assert with_depth == {("single", n, d): 2 for n in (700, 1400) for d in (0.0, 0.5)}
    without = {cell.place: len(cell.scores) for cell in report.cells if cell.task == "multi_value"}
    assert without == {("multi_value", n, None): 4 for n in (700, 1400)}, "as many as those of all depths"
    assert report.by_length() == {700: pytest.approx(2 / 8), 1400: pytest.approx(2 / 8)}
    assert report.overall() == pytest.approx(2 / 8)
    assert all(600 < cell.prompt_tokens < cell.length for cell in report.cells)


def test_every_model_gets_the_same_examples():
    one, two, other = Searching(), Searching(), Searching()
    run(one), run(two), run(other, seed=1)
    assert one.calls == two.calls != other.calls


def test_an_engine_is_given_few_tokens_at_once():
    engine = Searching()
    run(engine, tasks=("single",), lengths=(BATCH_TOKENS // 2, 2 * BATCH_TOKENS), depths=(0.5,), samples=3)
    assert [len(prompts) for prompts in engine.calls] == [2, 1, 1, 1, 1]


def test_our_own_model_and_tokenizer():
    config = small_config(vocab_size=TOKENIZER_SIZE, max_position_embeddings=512)
    engine = SimpleEngine(SimpleEngineConfig(), build_model(config, ReferenceAttentionConfig()))
    grid = {"tasks": ("single", "multi_query"), "lengths": (400,), "depths": (0.5,), "samples": 2}
    report = evaluate_long_context(engine, small_tokenizer(), DOCUMENTS, **grid)
    assert [cell.place for cell in report.cells] == [("single", 400, 0.5), ("multi_query", 400, None)]
    assert report.overall() < 0.5, "an untrained model knows nothing"


def test_generated_episodes_fill_no_prompts():
    episode = Document("retrieval/0", "xyzzy " * 1000, "retrieval", text_of="os.py")
    assert run(documents=[*DOCUMENTS, episode]) == run()


# ---- resuming ------------------------------------------------------------------------------------------------------


def test_finished_cells_are_kept_and_not_measured_again(tmp_path):
    whole = Searching()
    expected = run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(Searching(stop=5), output=tmp_path)
    assert len(read_report(tmp_path).cells) == 5
    rest = Searching()
    assert run(rest, output=tmp_path) == expected
    assert rest.calls == whole.calls[5:]
    again = Searching()
    assert run(again, output=tmp_path) == expected == read_report(tmp_path)
    assert again.calls == []


def test_more_lengths_and_samples_are_added(tmp_path):
    run(output=tmp_path, tasks=("single",))
    more = Searching()
    report = run(more, output=tmp_path, tasks=("single",), lengths=(700, 900))
    assert [cell.length for cell in report.cells] == [700, 700, 900, 900] and len(more.calls) == 2
    assert read_report(tmp_path).lengths == [700, 900, 1400]
    third = run(output=tmp_path, tasks=("single",), lengths=(700,), samples=3)
    assert [len(cell.scores) for cell in third.cells] == [3, 3]


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"seed": 1}, "seed=0 .now 1"), ({"subject": "other"}, "subject"), ({"documents": DOCUMENTS[1:]}, "texts")],
)
def test_another_evaluation_is_not_mixed_in(tmp_path, changed, name):
    run(output=tmp_path, tasks=("single",))
    with pytest.raises(DataError, match=rf"holds another evaluation: {name}.*choose another output"):
        run(output=tmp_path, tasks=("single",), **changed)


@pytest.mark.parametrize("text", ["{", "[]", '{"settings": {}, "cells": [{"task": "single"}]}'])
def test_a_damaged_report_is_named(tmp_path, text):
    (tmp_path / "long_context.json").write_text(text)
    with pytest.raises(DataError, match=r"long_context\.json: damaged"):
        run(output=tmp_path, tasks=("single",))


# ---- refusals, before anything is generated ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": (700, 40)}, r"length=40: the task single needs at least \d+ tokens"),
        ({"tasks": ("singel",)}, "did you mean 'single'"),
        ({"tasks": ()}, r"tasks=\[\]"),
        ({"lengths": ()}, r"lengths=\[\]"),
        ({"depths": ()}, r"depths=\[\]"),
        ({"depths": (2.0,)}, "depth=2.0"),
        ({"samples": 0}, "samples=0"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings, message):
    engine = Searching()
    with pytest.raises(ConfigError, match=message):
        run(engine, **settings)
    assert engine.calls == []


# ---- figures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report():
    return run(subject="<model> & co")


def test_the_table_has_a_row_for_each_task_and_one_for_all(report):
    found = table(report)
    columns = [[str(cell) for cell in column.cells] for column in found.columns]
    assert columns[0] == [*TASKS, "all tasks"]
    assert [str(column.header) for column in found.columns] == ["task", "700", "1,400"]
    assert columns[1] == ["100.0", "100.0", *["0.0"] * 6, "25.0"]
    assert "tokens of tokenizer abcdef012345" in headline(report)


def test_a_cell_that_is_missing_is_called_so():
    cells = [Cell("single", 10, 0.0, (1.0,), 9.0), Cell("qa", 20, None, (0.0,), 9.0)]
    part = LongContextReport({"subject": "x", "lengths_in": "y"}, cells)
    columns = [list(column.cells) for column in table(part).columns]
    assert columns[1:] == [["100.0", "missing", "100.0"], ["missing", "0.0", "0.0"]]
    heat_maps(part)


def test_the_heat_maps_show_depth_by_length(report):
    figure = heat_maps(report)
    maps = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(maps) == list(TASKS)
    assert maps["single"].images[0].get_array().tolist() == [[1, 1], [1, 1]]
    assert [t.get_text() for t in maps["single"].get_yticklabels()] == ["0", "0.5"]
    assert maps["common_words"].images[0].get_array().tolist() == [[0, 0]]


def test_files_are_written(report, tmp_path):
    report.write(tmp_path)
    page = write_figures(report, tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {f"long_context.{end}" for end in ("json", "png", "svg", "html")}
    text = page.read_text()
    assert "&lt;model&gt; &amp; co" in text and "<model>" not in text
    assert text.count("<tr>") == len(TASKS) + 2 and "<svg" in text
    assert (tmp_path / "long_context.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "long_context.json").read_text())
    assert content["by_length"] == {"700": 0.25, "1400": 0.25}
    svg = (tmp_path / "long_context.svg").read_bytes()
    write_figures(report, tmp_path)
    assert (tmp_path / "long_context.svg").read_bytes() == svg


def test_grid_orders_cells_by_length():
    places = Grid(("qa", "multi_value"), (9, 3), (1.0, 0.0)).places()
    assert places[:3] == [("qa", 3, 0.0), ("qa", 3, 1.0), ("multi_value", 3, None)]
    assert len(places) == 6

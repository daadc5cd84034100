"""The loop between author and validator: tasks are kept, mended, refused, and taken again."""

import asyncio
import json
import subprocess
import sys

import pytest

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.data.sources.readers import continued
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.terminal.authoring import synthesis
from arcforge_rl.terminal.authoring.authors import Proposal, TemplateAuthor
from arcforge_rl.terminal.authoring.pages.drawing import Unfit
from arcforge_rl.terminal.authoring.sources import classify, read_seeds, stratified, variations
from arcforge_rl.terminal.authoring.synthesis import RECORD, DraftAttempt, Synthesis, figures_of
from arcforge_rl.terminal.authoring.trial import Trial, tried
from arcforge_rl.terminal.command import main
from arcforge_rl.terminal.drafts import task_of
from arcforge_rl.terminal.environment import Terminal, group_of, read_folders, task_in
from arcforge_rl.terminal.harbor import write_task
from rl.terminal.authoring.conftest import corpus
from rl.terminal.authoring.test_rubric import GOOD, changed


def terminal():
    return Terminal(TerminalConfig())


class Scripted:
    """An author whose drafts a test decides."""

    name = "scripted"

    def __init__(self, *drafts, reviews=()):
        self.drafts, self.reviews, self.heard = list(drafts), list(reviews), []

    def begin(self, source):
        return self

    async def write(self, complaints):
        self.heard.append(list(complaints))
        draft = self.drafts.pop(0) if self.drafts else Unfit("no further draft")
        if isinstance(draft, Exception):
            raise draft
        return Proposal("sums", draft)

    async def review(self, draft):
        return self.reviews.pop(0) if self.reviews else ()


@pytest.fixture
def accepted(monkeypatch):
    """The validator accepts all but drafts that say otherwise; returns the tasks that it saw."""
    seen = []

    async def trial(environment, harbor, repeats):
        seen.append(harbor)
        flaw = "silence earns 1" if b"flawed" in harbor.solution["solve.sh"] else ""
        return Trial(b"broken" not in harbor.environment["Dockerfile"], [flaw] if flaw else [], 9)

    monkeypatch.setattr(synthesis, "tried", trial)
    return seen


def authored(folder, author, count=1, revisions=3):
    folder.mkdir(exist_ok=True)
    one = Synthesis(folder, author, terminal(), revisions, 1)
    asyncio.run(one.run(variations(read_seeds(None)), "seeds", count, 1))
    return one


def test_complaints_reach_the_author_until_the_draft_holds(tmp_path, accepted):
    author = Scripted(
        changed(cheats=["x"]), changed(solve="flawed"), DataError("no JSON"), GOOD, reviews=[["vague"], []]
    )
    one = authored(tmp_path, author)
    assert [said[0][:20] for said in author.heard if said] == ["1 cheats; must be at", "silence earns 1", "no JSON"]
    assert one.attempts[3].complaints == ["vague"] and one.attempts[3].last and not one.admitted("seeds")
    author = Scripted(GOOD, changed(instruction=GOOD.instruction + " Ends with a newline."), reviews=[["vague"], []])
    one = authored(tmp_path / "more", author)
    assert author.heard == [[], ["vague"]] and len(one.admitted("seeds")) == 1 and accepted


def test_a_source_that_fits_nothing_is_refused_and_the_next_one_taken(tmp_path, accepted):
    one = authored(tmp_path, Scripted(Unfit("it is a poem"), GOOD))
    assert [(a.source, a.last, bool(a.task)) for a in one.attempts] == [
        ("archives/0", True, False), ("build/0", True, True)]  # fmt: skip
    assert figures_of(one.attempts) == [("seeds", "2", "1", "1", "1", "100%", "1", "1")]


def test_an_author_who_never_succeeds_comes_to_an_end(tmp_path, accepted):
    one = authored(tmp_path, Scripted(*[changed(solve="flawed")] * 100), revisions=0, count=2)
    assert len(one.attempts) == synthesis.MOST_SOURCES * 2 and not one.admitted("seeds")


def test_failures_are_no_refusals(tmp_path, accepted):
    down = EpisodeFailure("engine", "no answer")
    one = authored(tmp_path, Scripted(down, GOOD))
    assert one.unanswered == ["archives/0"] and [a.source for a in one.attempts] == ["build/0"]
    again = authored(tmp_path, Scripted(GOOD), count=2)
    assert [a.source for a in again.attempts] == ["build/0", "archives/0"]
    with pytest.raises(ArcforgeError, match="3 sources in a row failed; the last one: engine: no answer"):
        authored(tmp_path, Scripted(*[down] * 9), count=9)


def test_a_stopped_synthesis_continues(tmp_path, accepted):
    first = authored(tmp_path, TemplateAuthor(), count=2)
    leftover = task_of("logs-x", "logs", GOOD)
    write_task(leftover, tmp_path / f"{synthesis.PARTIAL}-logs-x")  # of a process that was killed while it wrote
    record = (tmp_path / RECORD).read_text()
    (tmp_path / RECORD).write_text(record + '{"route": "se')
    second = authored(tmp_path, TemplateAuthor(), count=4)
    assert second.attempts[:2] == first.attempts and len(second.admitted("seeds")) == 4
    assert not [*tmp_path.glob(f"{synthesis.PARTIAL}*")] and len(accepted) == 4
    (tmp_path / RECORD).write_text("{}\n" + record)
    with pytest.raises(DataError, match=r"authored\.jsonl:1"):
        continued(tmp_path / RECORD, DraftAttempt, "attempt")


@pytest.mark.nightly(reason="a process that imports all and is killed, and twenty plays of two tasks")
def test_what_was_kept_survives_a_kill(tmp_path):
    seeds, tasks = tmp_path / "seeds.jsonl", tmp_path / "tasks"
    seeds.write_text('{"text": "Access logs.", "topic": "logs"}\n')
    words = ["author", str(tasks), "--seeds", str(seeds), "--repeats", "1"]
    start = [sys.executable, "-m", "arcforge_rl", "env", "terminal", *words, "--count", "3"]
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()  # the first task is there
        process.kill()
    assert "Access logs./0: task logs-" in line
    kept = (tasks / RECORD).read_text().splitlines()[0]
    assert main([*words, "--count", "2"]) == 0
    assert (tasks / RECORD).read_text().splitlines()[0] == kept and len(read_folders(tasks)) == 2


def test_groups_are_on_one_side_of_the_split(tmp_path, accepted):
    tmp_path.joinpath("tasks").mkdir()
    one = Synthesis(tmp_path / "tasks", TemplateAuthor(), terminal(), 3, 1)
    asyncio.run(one.run(variations(read_seeds(None)), "seeds", 26, 1))
    suited, _ = classify(corpus())
    asyncio.run(one.run(stratified(suited, 0), "pages", 8, 1))
    sides = [
        Terminal(TerminalConfig(path=str(tmp_path / "tasks"), split=split)).folders for split in ("train", "heldout")
    ]
    train, heldout = ({group_of(task) for task in side} for side in sides)
    assert train and heldout and not train & heldout and sum(map(len, sides)) == 34
    assert {one.partition("/")[0] for one in train} == {"seed", "page"}


@pytest.mark.slow(reason="eleven plays with two sandboxes each, twice")
def test_the_validator_plays_a_drawn_task_and_finds_flaws(tmp_path):
    suited, _ = classify(corpus())
    source = next(stratified(suited, 0))
    draft = asyncio.run(TemplateAuthor().begin(source).write(())).draft
    assert asyncio.run(tried(terminal(), task_of("x", "x", draft), 1)) == Trial(True, [], 3 + len(draft.cheats) + 4)
    for flawed, reason in (
        (changed(solve="echo 4 > sum.txt"), "oracle earns 0, must earn 1"),
        (changed(files=GOOD.files | {"sum.txt": "3\n"}), "earns 1, must earn 0: 1 rules hold"),
        (changed(cheats=["echo 3 > sum.txt", "true"]), "cheat 1 earns 1, must earn 0"),
        (changed(setup="exit 3"), "the world cannot be built"),
    ):
        found = asyncio.run(tried(terminal(), task_of("x", "x", flawed), 1))
        assert reason in found.complaints[0] and found.built == ("cannot" not in reason)


def test_cheats_of_a_folder_are_played_by_validate(tmp_path):
    write_task(task_of("sums", "sums", GOOD, group="g"), tmp_path / "sums")
    (folder,) = read_folders(tmp_path / "sums")
    task = task_in(folder)
    assert task.tricks[:2] == tuple(GOOD.cheats) and task.family == "sums" and group_of(folder) == "g"
    settings = json.loads(json.dumps(folder.settings)) | {"metadata": {"arcforge": {"cheats": [3, "x"]}}}
    assert task_in(type(folder)("n", "i", {}, {}, {}, settings)).tricks[0] == "x"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--count", "0"], "--count 0: must be at least 1"),
        (["--jobs", "0"], "--jobs 0: must be at least 1"),
        (["--revisions", "-1"], "--revisions -1: must be at least 0"),
        (["--model", "m"], "name --url"),
        (["--url", "localhost"], "--url"),
        (["--corpus", "python"], "--corpus: is no option of --route seeds"),
        (["--route", "pages", "--seeds", "x"], "--seeds: is no option of --route pages"),
        (["--seeds", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--route", "pages", "--corpus", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_written(tmp_path, words, reason):
    with pytest.raises(ArcforgeError) as caught:
        main(["author", str(tmp_path / "tasks"), *words])
    assert reason in str(caught.value) and not (tmp_path / "tasks").exists()


def test_templates_need_a_topic_that_they_know(tmp_path):
    (tmp_path / "seeds.jsonl").write_text('{"text": "Paint the fence.", "title": "fence"}\n')
    with pytest.raises(DataError, match="'fence' has the topic 'other'; without --url a topic must be one of archives"):
        main(["author", str(tmp_path / "tasks"), "--seeds", str(tmp_path / "seeds.jsonl")])

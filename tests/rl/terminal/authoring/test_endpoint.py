"""A model as an author: its replies, its mended drafts, its reviews, and a server that fails."""

import json
from contextlib import contextmanager

import pytest

from arcforge_core.data.sources.readers import continued
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.files.lock import locked
from arcforge_rl.search.pages import rows_of
from arcforge_rl.terminal.authoring import synthesis
from arcforge_rl.terminal.authoring.endpoint import Idea, draft_of, form_of
from arcforge_rl.terminal.authoring.synthesis import DraftAttempt
from arcforge_rl.terminal.authoring.trial import Trial
from arcforge_rl.terminal.command import main
from arcforge_rl.terminal.environment import read_folders
from rl.terminal.authoring.conftest import corpus
from support.listening import listening

TASK = {
    "instruction": "Count the lines of all texts in `/app/texts` and write the number to `/app/sum.txt` in decimals.",
    "files": [{"path": "texts/one.txt", "text": "one\ntwo\n"}, {"path": "texts/two.txt", "text": "three\n"}],
    "packages": [],
    "setup": "",
    "solve": "cat texts/* | wc -l > sum.txt",
    "cheats": ["echo 2 > sum.txt", "ls texts | wc -l > sum.txt"],
    "results": ["/app/sum.txt"],
    "check": "import os\nassert open('/app/sum.txt').read().strip() == '3'\n",
}  # fmt: skip


def attempts(folder):
    return continued(folder / "authored.jsonl", DraftAttempt, "attempt")


@contextmanager
def author(tasks, reviews=(), ideas=(), broken=()):
    """Serves a model that gives these replies; yields its address and the requests."""
    asked, tasks, reviews, ideas, broken = [], [*tasks], [*reviews], [*ideas], [*broken]

    def post(handler):
        body = handler.body()
        asked.append(body)
        if broken:
            return handler.answer(broken.pop(0), {"error": "busy"})
        wanted = body["response_format"]["json_schema"]["schema"]["title"]
        if wanted == "Idea":
            reply = ideas.pop(0) if ideas else {"unsuitable": "", "idea": "Count lines."}
        elif wanted == "Review":
            reply = {"complaints": reviews.pop(0) if reviews else []}
        else:
            reply = tasks.pop(0)
        text = reply if isinstance(reply, str) else json.dumps(reply)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return handler.answer(200, {"choices": [choice]})

    with listening(post) as address:
        yield address, asked


def run(folder, url, *words):
    return main(["author", str(folder), "--url", url, "--model", "author", "--count", "1", "--repeats", "1", *words])


@pytest.fixture
def accepted(monkeypatch):
    async def trial(environment, harbor, repeats):
        return Trial(True, ["silence earns 1"] if b"flawed" in harbor.solution["solve.sh"] else [], 9)

    monkeypatch.setattr(synthesis, "tried", trial)


@pytest.mark.slow(reason="eleven plays with two sandboxes each")
def test_a_model_writes_a_task_that_the_validator_plays(tmp_path):
    with author([TASK]) as (url, asked):
        assert run(tmp_path, url) == 0
    (task,) = read_folders(tmp_path)
    assert task.tests["check.py"].decode() == TASK["check"]
    assert [body["response_format"]["json_schema"]["schema"]["title"] for body in asked] == [
        "Idea", "WrittenTask", "Review"]  # fmt: skip
    assert "number 0" in asked[0]["messages"][0]["content"] and asked[0]["model"] == "author"
    (attempt,) = attempts(tmp_path)
    assert (attempt.author, attempt.built, attempt.task, attempt.plays) == ("author", True, task.name, 9)


def test_complaints_of_rules_validator_and_review_reach_the_model(tmp_path, accepted):
    drafts = ["Here it is: {", {**TASK, "cheats": []}, {**TASK, "solve": "flawed"}, TASK, TASK]
    with author(drafts, reviews=[["It is vague."], []]) as (url, asked):
        assert run(tmp_path, url, "--revisions", "4") == 0
    mended = [body["messages"][-1]["content"] for body in asked if len(body["messages"]) > 3]
    for said, reason in zip(mended, ["Invalid JSON", "0 cheats", "silence earns 1", "It is vague."], strict=True):
        assert said.startswith("The task does not hold:\n- ") and reason in said
    assert [a.last for a in attempts(tmp_path)] == [False] * 4 + [True]


def test_a_model_may_find_a_page_unsuitable(tmp_path, accepted):
    ideas = [{"unsuitable": "it is a table of contents", "idea": ""}]
    (tmp_path / "pages.jsonl").write_text("".join(rows_of(corpus())))
    with author([TASK], ideas=ideas) as (url, asked):
        assert run(tmp_path, url, "--route", "pages", "--corpus", str(tmp_path / "pages.jsonl")) == 0
    first, second = attempts(tmp_path)
    assert first.complaints == ["unsuitable: it is a table of contents"] and second.task
    page = asked[1]["messages"][0]["content"]
    assert second.source in page and f"its topic is {second.topic}" in page and second.difficulty in page


def test_a_server_that_fails_is_no_refusal(tmp_path, accepted, monkeypatch):
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    with author([TASK], broken=[503] * 3) as (url, _), pytest.raises(ArcforgeError, match="1 sources failed"):
        run(tmp_path, url)
    assert {a.source for a in attempts(tmp_path)} == {"build/0"}
    with author([], broken=[503] * 99) as (url, _), pytest.raises(ArcforgeError, match="3 sources in a row failed"):
        main(["author", str(tmp_path), "--url", url, "--count", "5"])
    with author([TASK]) as (url, _):
        assert main(["author", str(tmp_path), "--url", url, "--count", "2"]) == 0
    assert {a.source for a in attempts(tmp_path)} == {
        "build/0",
        "archives/0",
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": [{"path": "a", "text": "x"}, {"path": "a", "text": "y"}]}, "files: a path comes twice"),
        ({"files": [{"path": 3, "text": "x"}]}, "files.0.path: "),
        ({"cheats": "echo"}, "cheats: "),
        ({"extra": 1}, "extra: "),
        ({"check": None}, "check: "),
    ],
)
def test_replies_that_are_no_task(change, reason):
    with pytest.raises(DataError) as caught:
        draft_of(json.dumps({**TASK, **change}))
    assert str(caught.value).startswith(reason)


def test_objects_are_found_in_blocks_of_code():
    assert draft_of(f"Sure:\n```json\n{json.dumps(TASK)}\n```").solve == TASK["solve"]
    with pytest.raises(DataError, match="the reply: "):
        form_of(Idea, "no object at all")


def test_a_model_cannot_write_outside_of_the_world(tmp_path, accepted):
    draft = {**TASK, "files": [{"path": "../../escaped.txt", "text": "x"}]}
    with author([draft, TASK]) as (url, asked):
        assert run(tmp_path / "tasks", url) == 0
    assert "must be a relative path" in asked[2]["messages"][-1]["content"]
    assert not [*tmp_path.rglob("escaped.txt")]


def test_two_authors_of_one_folder(tmp_path):
    with locked(tmp_path), pytest.raises(ArcforgeError, match="is in use by process"):
        main(["author", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]

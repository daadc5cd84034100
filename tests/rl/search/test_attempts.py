"""A build whose filters ask a server keeps their answers, and a stopped one continues."""

import json

import pytest

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.search.attempts import AttemptRecord
from arcforge_rl.search.command import main
from arcforge_rl.search.pages import rows_of
from arcforge_rl.search.questions import read_folder, read_report
from support.listening import listening


def test_attempts_are_found_again_by_their_agent(tmp_path):
    path = tmp_path / "x/attempts.jsonl"
    made = AttemptRecord(path, "m").add("closed book", "Who?", 3, "Ada", False)
    assert AttemptRecord(path, "m").find("closed book", "Who?", 3) == made
    assert AttemptRecord(path, "other").find("closed book", "Who?", 3) is None
    assert AttemptRecord(path, "m").find("closed book", "Who?", 4) is None
    assert AttemptRecord().find("closed book", "Who?", 3) is None


def test_an_unfinished_last_line_is_dropped_and_any_other_named(tmp_path):
    path = tmp_path / "attempts.jsonl"
    AttemptRecord(path, "m").add("few steps", "Who?", 0, "", False)
    path.write_text(path.read_text() + '{"agent": "m", "fil')
    again = AttemptRecord(path, "m")
    again.add("few steps", "Who?", 1, "Ada", True)
    assert len(path.read_text().splitlines()) == 2 and AttemptRecord(path, "m").find("few steps", "Who?", 1)
    path.write_text("[]\n" + path.read_text())
    with pytest.raises(DataError, match=r"attempts\.jsonl:1: is no attempt"):
        AttemptRecord(path, "m")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcforgeError, match="cannot write"):
        AttemptRecord(tmp_path / "file/attempts.jsonl")


def test_a_stopped_build_continues(pages, tmp_path):
    corpus, asked, most = tmp_path / "pages.jsonl", [], [11]
    corpus.write_text("".join(rows_of(pages)))

    def post(handler):
        body = handler.body()
        if len(asked) == most[0]:
            return handler.answer(400, b"no more")
        asked.append(body)
        said = {"choices": [{"message": {"role": "assistant", "content": "Answer: nobody"}, "finish_reason": "stop"}]}
        return handler.answer(200, said)

    to = tmp_path / "made"
    with listening(post) as url:
        words = ["build", "--corpus", str(corpus), "--to", str(to), "--count", "2", "--url", url, "--model", "m"]
        with pytest.raises(EpisodeFailure, match="no more"):
            main(words)
        most[0] = 10**6
        assert main(words) == 0
    made = [json.loads(line) for line in (to / "attempts.jsonl").read_text().splitlines()]
    assert len(made) == 16 * read_report(to)["filters"]["closed book"]["asked"]
    assert len(made) <= len(asked) < len(made) + 8, "only attempts in flight were lost"
    assert len(read_folder(to)[1]) == 2 and read_report(to)["agents"] == "m"
    with_tools = [body for body in asked if "tools" in body]
    assert with_tools and "3 times in all" in with_tools[0]["messages"][0]["content"]

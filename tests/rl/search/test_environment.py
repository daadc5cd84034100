"""A solver searches; its answer is judged. The suite in tests/conformance tries oracle, no-op and cheats."""

import asyncio
import json
from pathlib import Path

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.scripted import play
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.environments import SearchConfig
from arcforge_rl.search.environment import Search
from arcforge_rl.search.questions import PAGES, QUESTIONS
from arcforge_rl.search.solvers import HastySearcher

PAGES_HERE = Path(__file__).parents[2] / "conformance/search" / PAGES


@pytest.fixture
def environment(folder):
    return Search(SearchConfig(path=str(folder)))


def test_oracle_opens_the_whole_chain_with_what_the_tools_say(environment):
    for index in range(environment.num_tasks):
        task = environment.task(index)
        episode, outcome = asyncio.run(play(environment, task, environment.oracle(task)))
        assert outcome.rewards["right"] == 1.0 and outcome.rewards["pages_on_chain"] == 1.0
        assert outcome.rewards["calls"] == 2 * (task.question.part.size + 1)
        results = [message.content for message in episode.messages if message.role == "tool"]
        assert not any(result.startswith("Error") for result in results)
        searches = zip(results[::2], results[1::2], strict=True)
        assert all(opened.splitlines()[0] in found.splitlines() for found, opened in searches), "search finds the page"


def test_no_cheat_is_paid(environment):
    for index in range(4):
        task = environment.task(index)
        for cheat in [*environment.cheats(task), [Reply(task.prompt)], []]:
            assert asyncio.run(play(environment, task, cheat))[1].reward == 0.0, cheat[-1:]


def test_sides_are_groups_of_answers(folder):
    sides = {split: Search(SearchConfig(path=str(folder), split=split)) for split in ("train", "heldout")}
    for split, environment in sides.items():
        tasks = [environment.task(index) for index in range(environment.num_tasks)]
        assert all(is_heldout_task(f"search/{task.question.group}") == (split == "heldout") for task in tasks)
    assert sum(one.num_tasks for one in sides.values()) == 24


def test_labels_say_hops_and_kind(environment):
    assert {label for n in range(20) for label in environment.labels_of(environment.task(n))} >= {"2 hops", "person"}


def test_a_hasty_searcher_fails_where_the_filter_tried_it(environment):
    task = environment.task(0)
    for number in range(8):
        episode = asyncio.run(environment.run(task, Agents(HastySearcher(number))))
        assert asyncio.run(environment.score(task, episode)).reward == 0.0
        assert len([message for message in episode.messages if message.role == "tool"]) == 2


def test_who_calls_once_more_scores_nothing(folder):
    environment = Search(SearchConfig(path=str(folder), max_calls=2))
    task = environment.task(0)
    calls = [Reply(calls=(ToolCall("search", {"query": "a town"}),))] * 2
    assert asyncio.run(play(environment, task, [*calls, Reply(task.answer)]))[1].reward == 1.0
    assert asyncio.run(play(environment, task, [*calls, calls[0], Reply(task.answer)]))[1].reward == 0.0


class Offered:
    """Notes the tools that it is offered."""

    async def reply(self, messages, tools=(), options=None):
        self.tools = [tool.name for tool in tools]
        return Reply("nothing")


@pytest.mark.parametrize(
    ("corpus", "python", "offered"), [("python", None, False), ("x", None, True), ("x", False, False)]
)
def test_programs_are_offered_where_they_cannot_read_the_pages(folder, corpus, python, offered):
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, "corpus": [corpus]}))
    environment, agent = Search(SearchConfig(path=str(folder), python=python)), Offered()
    asyncio.run(environment.run(environment.task(0), Agents(agent)))
    assert agent.tools == ["search", "open", "find", *["python"] * offered]


def test_programs_run_in_one_sandbox_of_the_episode(environment):
    task = environment.task(0)
    codes = (
        "open('note', 'w').write('seven')",
        "print(open('note').read())",
        f"print(open({str(PAGES_HERE)!r}).read())",
    )
    script = [Reply(calls=(ToolCall("python", {"code": code}),)) for code in codes]
    episode, outcome = asyncio.run(play(environment, task, [*script, Reply(task.answer)]))
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[1] == "seven" and "Error" in results[2] and outcome.reward == 1.0


def test_a_folder_without_questions_says_what_makes_them(tmp_path):
    with pytest.raises(DataError, match="arcforge-env search build --to"):
        Search(SearchConfig(path=str(tmp_path / "absent")))


def test_an_empty_side_is_named(folder):
    path = folder / QUESTIONS
    train = [line for line in path.read_text().splitlines(True) if not is_heldout_task(f"search/{_group(line)}")]
    path.write_text("".join(train))
    with pytest.raises(ConfigError, match=r"environment\.split='heldout'"):
        Search(SearchConfig(path=str(folder), split="heldout"))


def _group(line):
    return json.loads(line)["group"]


def test_bad_config_is_named():
    with pytest.raises(ConfigError, match=r"environment\.max_calls="):
        SearchConfig(max_calls=0)

"""``environment=miniwob`` on two small pages: the solver's actions earn 1, all else 0; MiniWoB++'s own by name."""

import asyncio
import json

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.external import MINIWOB_PAGES, MiniWobConfig
from arcforge_rl.external.miniwob import solvers
from arcforge_rl.external.miniwob.environment import END, PROMPT, MiniWob, script
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.slides.rendering.browser import browser_layers
from support.miniwob_small import PAGES, small_miniwob

HERE = str(small_miniwob())


@pytest.fixture(scope="module")
def chromium():
    try:
        return browser_layers("environment", "miniwob")
    except ConfigError as error:
        pytest.skip(str(error))


def built(**options):
    return MiniWob(MiniWobConfig(**{"path": HERE, "pages": [*PAGES], **options}))


def earned(made, task, scripts):
    async def all_of_them():
        return [await play(made, task, script) for script in scripts]

    outcomes = [outcome for _, outcome in asyncio.run(all_of_them())]
    assert [outcome.failure for outcome in outcomes] == [None] * len(scripts)
    return [outcome.reward for outcome in outcomes]


def test_problems_are_drawn_by_side_and_page(chromium):
    sides = [[built(split=split).task(index) for index in range(20)] for split in ("train", "heldout")]
    keys = [{task.key for task in side} for side in sides]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 40
    assert {built().labels_of(task)[0] for task in sides[0]} == set(PAGES)
    assert built().notice == "miniwob 9.9, licence: Free"


@pytest.mark.slow(reason="a browser for each script")
def test_the_solver_earns_1_and_every_cheat_0(chromium):
    made = built(pages=["enter-text"])
    task = made.task(0)
    cheats = made.cheats(task)
    assert len(cheats) == 6
    assert earned(made, task, [made.oracle(task), SILENCE, *cheats]) == [1.0] + [0.0] * 7


@pytest.mark.slow(reason="three browsers")
def test_what_an_agent_sees(chromium):
    made = built(pages=["enter-text"])
    task = made.task(0)
    calls = [reply.calls[0] for reply in made.oracle(task)[:-1]]
    field, button = (call.arguments["ref"] for call in calls)
    odd = [("type", {"ref": button, "text": "x"}), ("type", {"ref": field, "text": "x" * 1001}),
           ("click", {"ref": "1"}), ("click", {"ref": 99})]  # fmt: skip
    late = [("type", {"ref": field, "text": "no"}), *((call.name, call.arguments) for call in calls), ("look", {})]
    episode, outcome = asyncio.run(play(made, task, script([*odd, *late])))
    asked, rest, shown = episode.messages[0].content.split("\n\n")
    assert asked.startswith('Enter "') and rest == PROMPT
    assert shown == f'[{field}] input_text #tt = ""\n[{button}] button #subbtn Submit'
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[:4] == [
        f"Error: {button} is no field for text", "Error: text must have at most 1000 characters",
        "Error: ref='1': must be a whole number", "Error: there is no element 99",
    ]  # fmt: skip
    assert f'[{field}] input_text #tt = "no"' in results[4]
    assert results[-2:] == ["The problem has ended.", "Error: this problem has ended"]
    assert episode.artefacts[END] == {"done": True, "raw": 1.0} and outcome.rewards["calls"] == 8


@pytest.mark.slow(reason="two browsers")
def test_the_wrong_button_earns_0(chromium):
    made = built(pages=["click-test-2"])
    task = made.task(0)
    ref = made.oracle(task)[0].calls[0].arguments["ref"]
    outcome = asyncio.run(play(made, task, [Reply(calls=(ToolCall("click", {"ref": ref + 1}),))]))[1]
    assert (outcome.reward, outcome.rewards["raw"], outcome.reasons["reward"]) == (0.0, -1.0, "the page gave -1")


class Seen:
    """A page of recorded elements that notes clicks and texts."""

    def __init__(self, utterance, *elements):
        self.utterance, self.done = utterance, []
        self._elements = [dict(zip(("ref", "tag", "id", "text", "classes"), one, strict=True)) for one in elements]

    def elements(self):
        return self._elements

    def click(self, ref):
        self.done.append(ref)

    def type(self, ref, text):
        self.done.append((ref, text))


@pytest.mark.parametrize(("problem", "answer"), [("x + 3 = 10", "7"), ("x - 3 = 10", "13"), ("3 - x = 10", "-7")])
def test_algebra(problem, answer):
    page = Seen("", (1, "DIV", "math-problem", problem, ""), (2, "INPUT_text", "math-answer", "", ""),
                (3, "BUTTON", "subbtn", "Submit", ""))  # fmt: skip
    solvers.SOLVERS["simple-algebra"](page)
    assert page.done == [(2, answer), 3]


def test_boxes_are_chosen_by_their_labels():
    boxes = [(1, "INPUT_checkbox", "ch0", "", ""), (-1, "t", "", "ab", ""), (2, "INPUT_checkbox", "ch1", "", ""),
             (-2, "t", "", "a", ""), (3, "BUTTON", "subbtn", "Submit", "")]  # fmt: skip
    page = Seen("Select a, zz and click Submit.", *boxes)
    solvers.SOLVERS["click-checkboxes"](page)
    assert page.done == [2, 3]


def test_every_page_has_a_solver():
    assert sorted(solvers.SOLVERS) == sorted(MINIWOB_PAGES)
    assert json.dumps([*MINIWOB_PAGES]) == json.dumps(MiniWobConfig().pages)


@pytest.mark.parametrize("options", [{"pages": ["click-pie"]}, {"pages": []}, {"max_calls": 0}])
def test_options_that_are_refused(options):
    with pytest.raises(ConfigError):
        MiniWobConfig(**options)


@pytest.mark.network(reason="fetches MiniWoB++")
@pytest.mark.parametrize("page", MINIWOB_PAGES)
def test_miniwob_s_own_pages(chromium, page):
    folder = ensure(recipe_of("miniwob")).folder / "tree" / recipe_of("miniwob").prefix.lstrip("/")
    made = built(path=str(folder), pages=[page])
    assert made.notice == "miniwob 1.1.0, licence: MIT License"
    for index in range(2):
        task = made.task(index)
        cheats = made.cheats(task) if index == 0 else []
        assert earned(made, task, [made.oracle(task), SILENCE, *cheats]) == [1.0] + [0.0] * (1 + len(cheats))

"""The environment: its sides, its figures, its options."""

import asyncio

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.slides import SlidesConfig

pytest.importorskip("arcforge_rl.slides.judge")

from arcforge_rl.slides.environment import Slides


def outcome(environment, task, text, **further):
    return asyncio.run(play(environment, task, [Reply(text, **further)]))[1]


def test_titles_are_on_one_side():
    sides = [
        {Slides(SlidesConfig(split=side)).task(n).brief.pages[0].title for n in range(200)}
        for side in ("train", "heldout")
    ]
    assert all(sides) and not sides[0] & sides[1]


def test_pages_and_points_are_within_their_bounds():
    environment = Slides(SlidesConfig(fewest=2, most=4, points=3))
    briefs = [environment.task(n).brief for n in range(60)]
    assert {len(brief.pages) for brief in briefs} == {2, 3, 4}
    assert {len(page.points) for brief in briefs for page in brief.pages[1:]} == {2, 3}


@pytest.mark.parametrize("options", [{"fewest": 1}, {"fewest": 4, "most": 3}, {"points": 9}, {"seed": -1}])
def test_options_out_of_bounds(options):
    with pytest.raises(ConfigError, match="environment\\."):
        SlidesConfig(**options)


def test_figures_of_a_deck_with_one_tall_page():
    environment = Slides(SlidesConfig(fewest=4, most=4))
    task = environment.task(0)
    tall = task.answer.replace('class="slide"', 'class="slide" style="height: 900px"', 1)
    found = outcome(environment, task, tall)
    assert found.reward == 0.75 and found.rewards["strict_16_9"] == 0.75 and found.rewards["trivial"] == 0.0
    assert "not_16_9 on page 2: 1280 by 900 px" in found.reasons["reward"]
    flat = outcome(
        environment,
        task,
        task.answer.replace("background: #", "color: #").replace("border-left: 8px", "border-left: 0"),
    )
    assert flat.rewards["trivial"] == 1.0


def test_a_reply_that_was_cut_off_earns_nothing():
    environment = Slides(SlidesConfig())
    task = environment.task(0)
    assert outcome(environment, task, task.answer, finish_reason="length").reward == 0.0

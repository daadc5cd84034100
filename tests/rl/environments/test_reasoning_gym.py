"""Puzzles: options reach the data sets, junk earns nothing, refused data sets are refused."""

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import ReasoningGymConfig
from arcforge_rl.environments.reasoning_gym import ReasoningGym

pytest.importorskip("reasoning_gym")
SHORT = {"spell_backward": {"min_word_len": 3, "max_word_len": 4}}


def test_options_reach_the_data_set():
    environment = ReasoningGym(ReasoningGymConfig(datasets=["spell_backward"], options=SHORT))
    tasks = [environment.task(n) for n in range(20)]
    assert {len(task.answer) for task in tasks} <= {3, 4}
    assert len({task.key for task in tasks}) > 10
    other = ReasoningGym(ReasoningGymConfig(datasets=["spell_backward"], options=SHORT, seed=1))
    assert [other.task(n) for n in range(5)] != tasks[:5]
    found = score(environment, tasks[0], [Reply(f" {tasks[0].answer}\n")])
    assert found.reward == 1.0
    assert score(environment, tasks[0], [Reply(tasks[0].answer[::-1] + "x")]).reward == 0.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"datasets": ["spell_backwards"]}, "spell_backwards"),
        ({"datasets": ["graph_color"]}, "it has no reference answer"),
        ({"datasets": ["spell_backward"], "options": {"spell_backward": {"letters": 3}}}, "letters"),
        ({"datasets": ["spell_backward"], "options": {"spell_backward": {"min_word_len": -1}}}, "min_word_len"),
        ({"datasets": []}, "at least one dataset"),
        ({"datasets": ["spell_backward"], "options": {"sudoku": {}}}, "environment.options='sudoku'"),
        ({"seed": -1}, "environment.seed=-1"),
    ],
)
def test_bad_options_are_named(config, message):
    with pytest.raises(ConfigError) as caught:
        ReasoningGym(ReasoningGymConfig(**config))
    assert message in str(caught.value)

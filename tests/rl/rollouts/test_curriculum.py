import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.rollouts.curriculum import Curriculum


def test_without_a_pool_tasks_come_in_turn() -> None:
    curriculum = Curriculum(CurriculumConfig(), 0)
    assert curriculum.take(3) == [0, 1, 2] and curriculum.take(2) == [3, 4]
    curriculum.learn(0, 1.0)
    assert curriculum.figures == {}


def test_each_round_has_the_whole_pool_in_an_order_of_its_own() -> None:
    curriculum = Curriculum(CurriculumConfig(pool=10), 0)
    first, second = curriculum.take(10), curriculum.take(10)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_tasks_that_are_too_easy_or_too_hard_are_passed_over_and_come_again() -> None:
    curriculum = Curriculum(CurriculumConfig(pool=8, low=0.1, high=0.9, revisit=4), 0)
    for number in curriculum.take(8):
        curriculum.learn(number, {0: 1.0, 1: 0.0}.get(number, 0.5))
    assert curriculum.figures == {"curriculum_fitting": 6 / 8}
    offered = curriculum.take(4 * 8 - 2 * 3)  # four rounds, in one of which each of the two comes
    assert offered.count(0) == offered.count(1) == 1 and offered.count(2) == 4


def test_a_pool_without_a_fitting_task_is_offered_all_the_same() -> None:
    curriculum = Curriculum(CurriculumConfig(pool=3, high=0.5, revisit=1000), 0)
    for number in curriculum.take(3):
        curriculum.learn(number, 1.0)
    assert set(curriculum.take(30)) <= {0, 1, 2}


@given(steps=st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), max_size=8), pool=st.none() | st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_a_restored_curriculum_goes_on_alike(steps: list[tuple[int, float]], pool: int | None) -> None:
    config = CurriculumConfig(pool=pool, high=1.0 if pool is None else 0.5)
    one = Curriculum(config, 3)
    for count, rate in steps:
        for number in one.take(count):
            one.learn(number, rate)
    other = Curriculum(config, 3)
    other.state = one.state
    assert one.take(20) == other.take(20)


def test_order_depends_on_the_seed() -> None:
    orders = {tuple(Curriculum(CurriculumConfig(pool=9), seed).take(9)) for seed in range(5)}
    assert len(orders) == 5


def test_state_is_a_copy() -> None:
    curriculum = Curriculum(CurriculumConfig(pool=2), 0)
    state = curriculum.state
    curriculum.take(2)
    curriculum.learn(0, 0.5)
    assert state == {"next": 0, "rates": {}}
    with pytest.raises(KeyError):
        curriculum.state = {}

"""The training run that the page may start."""

import pytest

from arcforge_core.errors import CheckpointError
from support.lessons import lesson, release
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ended(lesson):
    wait_until(lambda: not lesson.running)
    return lesson


def test_a_lesson_trains_and_its_weights_are_taken():
    taken = []
    one = lesson(taken.append)
    assert (one.status, one.progress(), one.report()) == ("ready", {"rewards": [], "share": 0.0, "heldout": []}, None)
    assert one.start()
    ended(one)
    assert (one.status, one.taught, one.failure) == ("finished", True, "")
    assert one.progress() == {"rewards": [0.5, 0.75], "share": 0.5, "heldout": [(0, 0.4), (2, 0.85)]}
    assert b"Report" in one.report()
    assert [folder.name for folder in taken] == ["step-00000002"]


def test_one_at_a_time_and_another_afterwards():
    one = lesson(seconds=60)
    assert one.start() and not one.start() and one.status == "running"
    release(one)
    first = ended(one).folder
    assert one.start() and one.folder != first
    release(one)
    ended(one)


def test_a_run_that_fails_says_why_and_teaches_nothing():
    taken = []
    one = lesson(taken.append, code=2)
    one.start()
    ended(one)
    assert (one.status, one.failure, one.taught, taken) == ("failed", "init=demo: is damaged", False, [])


def test_weights_that_are_refused_are_no_fault_of_the_server():
    def refuse(folder):
        raise CheckpointError("another model")

    one = lesson(refuse)
    one.start()
    assert (ended(one).status, one.failure, one.taught) == ("failed", "another model", False)


def test_stopping_ends_the_run():
    one = lesson(seconds=60)
    one.start()
    one.stop()
    assert not one.running and not one.taught

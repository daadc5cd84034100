import pytest

from arcforge_rl.sandbox import users
from arcforge_rl.sandbox.users import BLOCK, BLOCKS, FIRST, UNPRIVILEGED, can_choose


@pytest.fixture
def start(monkeypatch):
    """Makes the users of a keeper of root, with ids that no keeper of this machine has; they end with the test."""
    monkeypatch.setattr(users.os, "getuid", lambda: 0)
    monkeypatch.setattr(users, "can_choose", lambda: True)
    monkeypatch.setattr(users, "FIRST", 5)
    started = []

    def start():
        started.append(users.Users())
        return started[-1]

    yield start
    for keeper in started:
        keeper.lock.close()


def test_no_two_keepers_have_a_user_in_common(start):
    first, second = start(), start()
    ours, theirs = ({keeper.take() for _ in range(100)} for keeper in (first, second))
    assert len(ours) == len(theirs) == 100 and not ours & theirs
    assert all(5 <= user < 5 + BLOCK * BLOCKS for user in ours | theirs)


def test_a_user_in_use_is_not_given_again(start, monkeypatch):
    monkeypatch.setattr(users, "BLOCK", 4)
    keeper = start()
    kept, *returned = (keeper.take() for _ in range(4))
    for user in returned:
        keeper.give_back(user)
    assert kept not in {keeper.take() for _ in range(3)}


def test_the_last_block_is_found_when_all_others_are_taken(start, monkeypatch):
    monkeypatch.setattr(users, "BLOCKS", 3)
    keepers = [start() for _ in range(4)]
    ids = [keeper.take() for keeper in keepers]
    assert len(set(ids)) == 4 and ids[3] == UNPRIVILEGED


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("0 0 4294967295", True), ("0 1000 1\n1 100000 65536", False), (f"{FIRST} 0 {BLOCK * BLOCKS}", True), ("", False)],
)
def test_whether_ids_are_free_to_choose(rows, expected, tmp_path):
    for name in ("uid_map", "gid_map"):
        (tmp_path / name).write_text(rows)
    assert can_choose(str(tmp_path)) is expected


def test_where_they_are_not_all_share_one_and_that_is_a_gap(start, monkeypatch):
    assert start().gaps() == []
    monkeypatch.setattr(users, "can_choose", lambda: False)
    assert [start().take(), start().take()] == [UNPRIVILEGED] * 2
    assert "65534" in start().gaps()[0]


def test_an_ordinary_user_is_the_only_one(start, monkeypatch):
    monkeypatch.setattr(users.os, "getuid", lambda: 1000)
    assert start().take() is None and start().gaps() == []

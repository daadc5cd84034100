import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_serving.configs import RouterConfig
from arcforge_serving.router.policies import (
    Bound,
    LeastLoad,
    PrefixAware,
    RoundRobin,
    SessionHash,
    Wanted,
    build_policy,
    place,
)

ENGINES = [str(number) for number in range(8)]
BOUND = Bound(1.25, 4)
PURE = Bound(math.inf)
requests = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=200)
"""(session, how many requests end first)"""


def replay(policy, events, count):
    """Sends requests one after another; yields (engine, loads before it)."""
    loads, flying = Counter(dict.fromkeys(ENGINES[:count], 0)), []
    for session, ends in events:
        for _ in range(min(ends, len(flying))):
            loads[flying.pop(0)] -= 1
        wanted = Wanted(f"session-{session}", tuple(hash((session, n)) for n in range(4)))
        before = dict(loads)
        engine = policy.choose(wanted, before)
        yield engine, before
        loads[engine] += 1
        flying.append(engine)


@pytest.mark.parametrize("kind", [SessionHash, PrefixAware])
@given(requests, st.integers(1, 8), st.floats(1.0, 3.0), st.integers(1, 8))
def test_no_engine_gets_more_than_the_bound(kind, events, count, factor, free):
    for engine, before in replay(kind(Bound(factor, free)), events, count):
        mean = (sum(before.values()) + 1) / count
        assert before[engine] + 1 <= max(free, math.ceil(factor * mean))


@pytest.mark.parametrize("name", ["session", "prefix", "least_load", "round_robin"])
@given(events=requests, count=st.integers(1, 8))
def test_every_policy_keeps_to_the_engines_that_it_is_shown(name, events, count):
    policy = build_policy(RouterConfig(name))
    for number, (engine, before) in enumerate(replay(policy, events, count)):
        assert engine in before
        if number % 7 == 0:
            policy.forget(engine)


def homes(policy, sessions, engines):
    return {s: policy.choose(Wanted(s), dict.fromkeys(engines, 0)) for s in sessions}


SESSIONS = [f"rollout-{number}" for number in range(400)]


@given(st.integers(2, 8), st.integers(0, 7))
def test_only_the_sessions_of_an_engine_that_goes_move(count, gone):
    gone = ENGINES[gone % count]
    policy = SessionHash(BOUND)
    before = homes(policy, SESSIONS, ENGINES[:count])
    policy.forget(gone)
    after = homes(policy, SESSIONS, [engine for engine in ENGINES[:count] if engine != gone])
    assert {s for s in SESSIONS if before[s] != after[s]} == {s for s in SESSIONS if before[s] == gone}


@given(st.integers(1, 7))
def test_an_engine_that_comes_takes_no_session_away_and_gets_new_ones(count):
    policy = SessionHash(BOUND)
    before = homes(policy, SESSIONS, ENGINES[:count])
    assert homes(policy, SESSIONS, ENGINES[: count + 1]) == before
    fresh = homes(policy, [f"new {s}" for s in SESSIONS[:20]], ENGINES[: count + 1])
    assert Counter(fresh.values())[ENGINES[count]] > 20 / (count + 1)


@given(st.integers(1, 7))
def test_without_a_bound_only_those_move_that_go_to_the_new_engine(count):
    before = homes(SessionHash(PURE), SESSIONS, ENGINES[:count])
    after = homes(SessionHash(PURE), SESSIONS, ENGINES[: count + 1])
    moved = {s for s in SESSIONS if before[s] != after[s]}
    assert {after[s] for s in moved} <= {ENGINES[count]}
    assert 0.5 / (count + 1) < len(moved) / len(SESSIONS) < 1.7 / (count + 1)


@given(st.integers(1, 8), st.integers(1, 400))
def test_sessions_are_spread_evenly_and_most_lie_where_another_router_would_have_them(count, number):
    found = homes(SessionHash(BOUND), SESSIONS[:number], ENGINES[:count])
    assert max(Counter(found.values()).values()) <= math.ceil(1.1 * number / count)
    first = {s: min(ENGINES[:count], key=lambda engine: place(s, engine)) for s in SESSIONS[:number]}
    if number == 400:
        assert sum(found[s] == first[s] for s in found) > 0.7 * number


def test_a_new_session_goes_where_few_requests_are():
    policy = SessionHash(Bound(8.0, 8))
    for session in SESSIONS[:40]:
        assert policy.choose(Wanted(session), {"0": 5, "1": 0, "2": 5}) == "1"
        policy.forget("1")
    (home,) = {policy.choose(Wanted("a"), {"0": 0, "1": 0, "2": 0})}
    assert policy.choose(Wanted("a"), {**dict.fromkeys("012", 0), home: 7}) == home, "it is there already"


def test_a_full_engine_loses_a_session_which_does_not_come_back():
    policy = SessionHash(Bound(1.0, 1))
    order = sorted(ENGINES[:3], key=lambda engine: place("a", engine))
    idle = dict.fromkeys(ENGINES[:3], 0)
    assert policy.choose(Wanted("a"), idle) == order[0]
    assert policy.choose(Wanted("a"), {**idle, order[0]: 1}) == order[1]
    assert policy.choose(Wanted("a"), idle) == order[1]
    assert policy.moves == 1
    policy.forget(order[1])
    assert policy.choose(Wanted("a"), idle) == order[0]


def test_an_infinite_factor_is_pure_hashing():
    policy = SessionHash(Bound(math.inf))
    busy = {engine: 10_000 * (engine == policy.choose(Wanted("a"), dict.fromkeys(ENGINES, 0))) for engine in ENGINES}
    assert busy[policy.choose(Wanted("a"), busy)] == 10_000


def test_sessions_that_have_not_come_for_long_are_forgotten():
    clock = [0.0]
    policy = build_policy(RouterConfig(load_factor=1.0, free_requests=1, active_seconds=10.0), lambda: clock[0])
    idle = dict.fromkeys(ENGINES, 0)
    first = policy.choose(Wanted("a"), idle)
    moved = policy.choose(Wanted("a"), {**idle, first: 1})
    for clock[0] in (9.0, 18.0, 27.0):
        assert policy.choose(Wanted("a"), idle) == moved
    clock[0] = 38.0
    assert policy.choose(Wanted("b"), idle) and policy._counts.total() == 1
    assert policy.choose(Wanted("a"), idle) == first


def test_requests_without_a_session_go_to_the_engine_with_the_fewest():
    policy = SessionHash(BOUND)
    assert policy.choose(Wanted(), {"0": 3, "1": 1, "2": 2}) == "1"


def test_least_load_takes_turns_where_loads_are_equal():
    policy = LeastLoad()
    assert [policy.choose(Wanted(), {"0": 1, "1": 0, "2": 0}) for _ in range(4)] == ["1", "2", "1", "2"]


def test_round_robin_takes_turns_whatever_the_loads_are():
    policy = RoundRobin()
    assert [policy.choose(Wanted(), {"0": 9, "1": 0}) for _ in range(4)] == ["0", "1", "0", "1"]


def test_prefixes_go_where_most_of_them_was_sent():
    policy = PrefixAware(BOUND)
    idle = dict.fromkeys("012", 0)
    first = policy.choose(Wanted(blocks=(1, 2, 3)), idle)
    other = policy.choose(Wanted(blocks=(1, 7, 8, 9)), idle)
    assert other != first  # less than half of it is known
    for _ in range(3):
        assert policy.choose(Wanted(blocks=(1, 2, 3, 4)), idle) == first
        assert policy.choose(Wanted(blocks=(1, 7, 8, 9)), idle) == other
    assert policy.choose(Wanted(blocks=(1, 2, 3, 4)), {**idle, first: 4}) != first
    policy.forget(first)
    policy.forget(other)
    assert policy.choose(Wanted(blocks=(1, 7, 8, 9)), {**idle, other: 1}) != other


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning():
    policy = PrefixAware(BOUND, remembered=4)
    first = policy.choose(Wanted(blocks=(1, 2, 3, 4)), {"0": 0})
    policy.choose(Wanted(blocks=(1, 2, 9)), {"0": 0})  # 9 is new: 4 goes, then 1 and 2 are still there
    assert policy._known(first, (1, 2, 3, 4)) == 3

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_serving.router.affinity import BLOCK, wanted_of

TURN = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
LATER = [*TURN, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And twice that?"}]


def session(body, headers=(), blocks=False):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return wanted_of(dict(headers), content, blocks=blocks).session


def test_who_names_a_session_has_it():
    body = {"messages": TURN, "user": "u"}
    assert session({**body, "session_id": "s", "prompt_cache_key": "k"}, {"x-session-id": "h"}) == "h"
    assert session({**body, "session_id": "s", "prompt_cache_key": "k"}) == "s"
    assert session({**body, "prompt_cache_key": "k"}) == "k"
    assert session(b"no json", {"x-session-id": "h"}, blocks=True) == "h"


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"messages": TURN}, {"messages": LATER}),
        ({"system": "S", "messages": TURN[1:]}, {"system": "S", "messages": LATER[1:]}),
        ({"instructions": "S", "input": "What?"}, {"instructions": "S", "input": "What?", "max_output_tokens": 1}),
        ({"input": TURN}, {"input": LATER}),
        ({"prompt": "x" * 600}, {"prompt": "x" * 900}),
        ({"prompt": [7] * 600}, {"prompt": [7] * 900}),
        ({"prompt_token_ids": [7] * 600}, {"prompt_token_ids": [7] * 900}),
    ],
)
def test_turns_of_a_conversation_are_one_session_in_every_dialect(first, later):
    assert session(first) == session(later) != ""
    other = json.loads(json.dumps(first).replace("What", "Which").replace("x", "y").replace("7", "8"))
    assert session(other) != session(first)
    assert session({**first, "user": "a"}) == session({**later, "user": "a"}) != session(first)


def test_tools_are_part_of_the_beginning():
    assert session({"messages": TURN, "tools": [{"name": "a"}]}) != session({"messages": TURN})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["messages", "prompt", "input", "tools", "role", "user", "content"]), inner)
    ),
    max_leaves=20,
)


@given(anything, st.booleans())
def test_whatever_comes_is_read_or_left(body, blocks):
    """The engine says what is wrong with it."""
    wanted = wanted_of({}, json.dumps(body).encode(), blocks=blocks)
    assert isinstance(wanted.session, str)


@given(st.binary(max_size=50))
def test_bodies_that_are_no_json_have_no_session(content):
    assert wanted_of({}, b"\xff" + content, blocks=True).session == ""


def test_blocks_go_on_with_the_prompt():
    first = wanted_of({}, json.dumps({"prompt": "a" * 3 * BLOCK}).encode(), blocks=True).blocks
    later = wanted_of({}, json.dumps({"prompt": "a" * 3 * BLOCK + "b" * 2 * BLOCK}).encode(), blocks=True).blocks
    other = wanted_of({}, json.dumps({"prompt": "b" + "a" * 3 * BLOCK}).encode(), blocks=True).blocks
    assert (len(first), len(later)) == (3, 5)
    assert later[:3] == first
    assert not set(other) & set(first)  # a number also covers all blocks before it
    talk = wanted_of({}, json.dumps({"messages": [{"role": "user", "content": "c" * 900}]}).encode(), blocks=True)
    assert len(talk.blocks) == 1
    assert wanted_of({}, b'{"prompt": "abc"}', blocks=False).blocks == ()

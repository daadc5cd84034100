"""Values as JSON: what is sent arrives, and nothing else is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.execution.plain_values import DEEPEST, from_plain, to_plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = SCALARS | st.tuples(SCALARS) | st.frozensets(SCALARS, max_size=3)
VALUES = st.recursive(
    SCALARS | st.complex_numbers(allow_nan=False) | st.sets(KEYS, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tuple", "set", "frozenset", "dict", "bytes", "complex", "x"]), inner, max_size=2
        )
    ),
)


def types(value):
    parts = value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [type(value), *map(types, parts)]


@given(VALUES)
def test_values_arrive_as_they_were(value):
    found = from_plain(json.loads(json.dumps(to_plain(value))))
    assert found == value and types(found) == types(value)


@given(JSON)
def test_any_json_is_read_or_refused(plain):
    try:
        value = from_plain(plain)
    except (TypeError, ValueError):
        return
    assert repr(from_plain(to_plain(value))) == repr(value)


@pytest.mark.parametrize("value", [object(), range(3), iter([]), int, len, slice(1)])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError, match="cannot leave"):
        to_plain([value])


def test_depth_is_bounded():
    value = []
    value.append(value)
    with pytest.raises(ValueError, match="more than 100"):
        to_plain(value)
    nested = json.loads("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))
    with pytest.raises(ValueError, match="more than 100"):
        from_plain(nested)

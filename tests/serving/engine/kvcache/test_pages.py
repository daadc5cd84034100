import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_serving.engine.kvcache.pages import PagePool


def test_pages_follow_each_other_where_they_can():
    pages = PagePool(32)
    first = pages.take(3, room=8)
    second = pages.take(3, room=8)
    assert first == [0, 1, 2]
    assert second == [17, 18, 19]  # the middle of what was free: the first one can grow
    assert pages.take(2, after=first[-1]) == [3, 4]
    assert pages.take(2, after=second[-1]) == [20, 21]
    assert pages.free == 22


def test_scattered_pages_are_used_up():
    pages = PagePool(6)
    taken = pages.take(6)
    pages.give([taken[1], taken[3], taken[4]])
    assert sorted(pages.take(3, after=5)) == [1, 3, 4]
    assert pages.free == 0


def test_a_page_is_given_back_once():
    pages = PagePool(2)
    (page,) = pages.take(1)
    pages.give([page])
    with pytest.raises(AssertionError, match="twice"):
        pages.give([page])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12), st.booleans()), max_size=30))
def test_no_page_has_two_owners(actions):
    pages, owned = PagePool(20), []
    for count, room, gives in actions:
        if gives and owned:
            pages.give(owned.pop(0))
        elif count <= pages.free:
            after = owned[-1][-1] if owned and room % 2 else None
            owned.append(pages.take(count, after, room))
        held = [page for part in owned for page in part]
        assert len(set(held)) == len(held) == pages.count - pages.free
        assert not pages.is_free_P[held].any()

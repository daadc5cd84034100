import gc

from arcforge_core.garbage import SERVER, frozen_garbage
from support.garbage import unfrozen


def test_what_exists_is_exempt_from_garbage_collection_unless_the_caller_has_seen_to_it(monkeypatch):
    collections = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append("whole"))  # it takes half a second here
    with unfrozen():
        with frozen_garbage():
            assert gc.get_freeze_count() > 10_000
        assert gc.get_freeze_count() == 0
        gc.freeze()
        before = gc.get_freeze_count()
        with frozen_garbage():
            assert 10_000 < gc.get_freeze_count() <= before, "frozen objects may be freed, and none was added"
        assert gc.get_freeze_count() > 10_000
    assert collections == ["whole"]


def test_thresholds_are_those_of_a_server_meanwhile():
    before = gc.get_threshold()
    with unfrozen():
        with frozen_garbage(SERVER):
            assert gc.get_threshold() == SERVER != before
        assert gc.get_threshold() == before

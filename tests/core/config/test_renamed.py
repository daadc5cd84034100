"""Options of the version before answer with one line that says what to write now."""

import pytest

from arcforge_core.config.compose import compose
from arcforge_core.config.renamed import RENAMED, renamed
from arcforge_core.errors import ArcforgeError


def test_an_option_is_known_wherever_its_section_is():
    for option, advice in RENAMED.items():
        assert renamed(option) == renamed(f"stages.one.{option}") == advice
        assert "\n" not in advice
    assert renamed("rollout.groups") is None
    assert renamed("engine_noise") is None and renamed("grollout.engine_noise") is None


@pytest.mark.parametrize("override", ["optimizer.split_rope=true", "+optimizer.split_rope=true"])
def test_the_error_names_the_option_and_the_new_way(override):
    with pytest.raises(ArcforgeError, match=r"unknown field optimizer\.split_rope: removed: a head's rotary rows"):
        compose(["optimizer=torch_adamw", override])


def test_an_option_that_never_was_gets_the_nearest_name():
    with pytest.raises(ArcforgeError, match=r"unknown field optimizer\.weight_decoy: .*did you mean 'weight_decay'"):
        compose(["optimizer=torch_adamw", "optimizer.weight_decoy=1"])

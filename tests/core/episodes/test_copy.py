import pytest

from arcforge_core.configs import CopyConfig
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError


def test_words_have_the_asked_length_and_stand_in_the_prompt() -> None:
    task = CopyEnvironment(CopyConfig(letters=7)).task(2)
    assert len(task.answer) == 7
    assert task.answer in task.prompt


def test_seed_changes_the_words() -> None:
    assert CopyEnvironment(CopyConfig(seed=0)).task(0) != CopyEnvironment(CopyConfig(seed=1)).task(0)


@pytest.mark.parametrize(("field", "value"), [("letters", 0), ("letters", 65), ("seed", -1)])
def test_bad_config_is_named(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{field}={value}"):
        CopyConfig(**{field: value})  # type: ignore[arg-type]

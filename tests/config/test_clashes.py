"""No field of a command has the name of a group that the command lacks: Hydra would take it for the group."""

import dataclasses

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.config.help import groups_of
from arcforge_core.config.search_path import presets
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import SampleConfig


def clashes(name, schema):
    """Returns the fields at the root of a command's configuration that cannot be set on its command line."""
    every = {component.kind for component in registry()} | {preset.group for preset in presets()}
    every.update(*map(groups_of, registry().jobs))  # a plugin may have the first component of a kind
    return {field.name for field in dataclasses.fields(schema)} & every - set(groups_of(name))


@pytest.mark.parametrize("name", sorted(registry().jobs))
def test_every_field_of_a_command_can_be_set(name):
    assert not clashes(name, registry().job(name).load_schema())


def test_a_clash_is_found():
    @dataclasses.dataclass
    class Clashing:
        environment: str = ""
        files: str = ""

    assert clashes("train", Clashing) == {"environment"}


def test_the_environment_and_the_engine_of_arcforge_sample_are_chosen_on_the_command_line():
    given = ["checkpoint=x", "environment=arithmetic", "environment.digits=3", "engine=paged", "engine.max_running=4"]
    config = compose_config("sample", SampleConfig, given)
    assert (config.environment.name, config.environment.digits) == ("arithmetic", 3)
    assert (config.engine.name, config.engine.max_running) == ("paged", 4)
    assert compose_config("sample", SampleConfig, given[:1]).environment is None

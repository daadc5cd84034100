import dataclasses
import json
import re

import pytest

from arcforge_core import registry
from arcforge_core.errors import PluginError, UnknownComponentError
from arcforge_core.plugins.registry import Registrar, Registry
from arcforge_core.plugins.wheels import how_to_install, known_wheels


def registrar(own: Registry, plugin: str) -> Registrar:
    return Registrar(own, plugin, f"{plugin} 1.0")


def add(own: Registry, plugin: str, kind: str, name: str, target: str = "json:loads") -> None:
    registrar(own, plugin).add(kind, name, target, schema="json:JSONDecoder", summary="test")


def test_a_component_is_imported_on_first_use():
    own = Registry()
    add(own, "acme", "attention", "fast")
    assert own.get("attention", "fast").load()("[1]") == [1]
    assert own.kinds() == ["attention"]
    assert own.names("attention") == ["fast"]


def test_a_target_that_cannot_be_imported_names_its_distribution():
    own = Registry()
    add(own, "acme", "attention", "fast", target="json:no_such_thing")
    with pytest.raises(PluginError, match=r"attention 'fast' of acme 1\.0: cannot import 'json:no_such_thing'"):
        own.get("attention", "fast").load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError: "),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_target_that_ends_its_import_in_any_way_names_its_distribution(text, message, tmp_path, monkeypatch, capfd):
    (tmp_path / "ends_at_import.py").write_text(f"import os\nos.write(1, b'noise')\n{text}" if text != "def" else text)
    monkeypatch.syspath_prepend(tmp_path)
    own = Registry()
    add(own, "acme", "attention", "fast", target="ends_at_import:Fast")
    with pytest.raises(PluginError, match=rf"attention 'fast' of acme 1\.0: cannot import .*: {message}"):
        own.get("attention", "fast").load()
    assert capfd.readouterr().out == ""


def test_a_name_claimed_twice_raises_only_when_it_is_asked_for():
    own = Registry()
    for plugin in ("acme", "other"):
        add(own, plugin, "attention", "fast")
    add(own, "other", "attention", "slow")
    assert own.get("attention", "slow").plugin == "other"
    message = r"claimed by acme 1\.0 and other 1\.0; set ARCFORGE_BLOCK_PLUGINS to one of: acme, other"
    with pytest.raises(PluginError, match=message):
        own.get("attention", "fast")


def test_an_unknown_name_lists_what_is_there_and_the_nearest():
    own = Registry()
    add(own, "acme", "attention", "fast")
    with pytest.raises(UnknownComponentError, match=r"installed: fast; did you mean 'fast'\?"):
        own.get("attention", "fasst")


@pytest.mark.parametrize(("kind", "name"), sorted(known_wheels()))
def test_a_component_of_ours_that_is_absent_names_its_wheel(kind, name):
    with pytest.raises(UnknownComponentError, match=re.escape(how_to_install(known_wheels()[kind, name]))):
        Registry().get(kind, name)


@pytest.mark.parametrize("target", ["json.loads", "json:loads:more"])
def test_a_target_that_is_no_import_string_is_refused(target):
    with pytest.raises(PluginError, match="is not of the form"):
        add(Registry(), "acme", "attention", "fast", target=target)


@pytest.mark.parametrize("name", ["Fast", "very-fast", "1st"])
def test_a_name_that_is_not_snake_case_is_refused(name):
    with pytest.raises(PluginError, match="snake_case"):
        add(Registry(), "acme", "attention", name)


def test_the_known_wheels_are_what_our_packages_register():
    registered = {
        (c.kind, c.name): c.distribution.split()[0]
        for c in registry()
        if c.plugin.startswith("arcforge-") and c.plugin != "arcforge-core"
    }
    assert registered == known_wheels()


def test_every_registered_component_can_be_imported():
    for component in registry():
        assert callable(component.load()), component
        assert dataclasses.is_dataclass(component.load_schema()), component
        assert component.summary, component
        assert not component.summary.endswith("."), component


def test_a_command_is_registered_once_with_its_schema():
    own = Registry()
    registrar(own, "acme").add_command("acme-go", "json:JSONDecoder")
    assert own.jobs["acme-go"].load_schema() is json.JSONDecoder
    with pytest.raises(PluginError, match="job 'acme-go' is registered twice"):
        registrar(own, "acme").add_command("acme-go", "json:JSONEncoder")
    registrar(own, "acme").add_command("acme-stop", "json:no_such_thing")
    with pytest.raises(PluginError, match=r"job 'acme-stop' of acme 1\.0: cannot import 'json:no_such_thing'"):
        own.jobs["acme-stop"].load_schema()


def test_a_job_is_registered_once_with_its_function():
    own = Registry()
    registrar(own, "acme").add_job("acme", "json:loads", schema="json:JSONDecoder", summary="do it")
    assert own.job("acme").load() is json.loads and own.job("acme").script == "arcforge acme"
    with pytest.raises(PluginError, match="job 'acme' is registered twice"):
        registrar(own, "acme").add_job("acme", "json:dumps", schema="json:JSONDecoder")
    with pytest.raises(PluginError, match="not of the form"):
        registrar(own, "acme").add_job("other", "json", schema="json:JSONDecoder")
    with pytest.raises(UnknownComponentError, match="no job 'acm'; there are acme; did you mean 'acme'"):
        own.job("acm")
    with pytest.raises(UnknownComponentError, match="job 'rl' needs the package 'arcforge-rl'"):
        own.job("rl")


def test_a_command_of_plugin_api_1_names_no_function():
    own = Registry()
    registrar(own, "acme").add_command("acme-go", "json:JSONDecoder")
    with pytest.raises(PluginError, match=r"job 'acme-go' of acme 1\.0 names no function: register it with add_job"):
        own.job("acme-go").load()

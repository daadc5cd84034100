"""The loader on faulty plugins laid out in a folder; tests/packaging has the same as installed wheels."""

import sys
from importlib import metadata

import pytest

from arcforge_core.errors import PluginError, UnknownComponentError
from arcforge_core.plugins import loader as plugins
from arcforge_core.plugins.hookspecs import PLUGIN_API

GOOD = """
from arcforge_core.plugins.hookspecs import hookimpl

@hookimpl
def arcforge_plugin_api():
    return {api}

@hookimpl
def {hook}(registry):
    registry.add("attention", "{component}", "json:loads", schema="json:JSONDecoder", summary="test")
"""


def source(component="fast", api=PLUGIN_API, hook="arcforge_register_components"):
    return GOOD.format(component=component, api=api, hook=hook)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Adds a distribution with one plugin to a folder and returns the entry points of all so far."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = set()

    def install(distribution, text, entry=None):
        module = "fault_" + distribution.replace("-", "_")
        modules.add(module)
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{entry or distribution} = {module}\n")

    def entries():
        found = [e for d in metadata.distributions(path=[str(tmp_path)]) for e in d.entry_points]
        return sorted(found, key=lambda e: e.dist.name)

    install.entries = entries
    yield install
    for module in modules:
        sys.modules.pop(module, None)


def load(site, strict=False, blocked=()):
    return plugins.load_entry_points(site.entries(), strict=strict, blocked=set(blocked))


def test_a_good_plugin_is_registered_with_its_distribution(site):
    site("acme", source())
    loaded = load(site)
    assert [(p.name, p.distribution, p.api, p.error) for p in loaded.plugins] == [("acme", "acme 1.0", PLUGIN_API, "")]
    assert loaded.registry.get("attention", "fast").distribution == "acme 1.0"


FAULTS = {
    "import error": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "exit at import": ("raise SystemExit(3)", "SystemExit: 3"),
    "cancelled at import": ("import asyncio\nraise asyncio.CancelledError", "CancelledError: "),
    "generator exit": ("raise GeneratorExit('why')", "GeneratorExit: why"),
    "own interrupt": ("class Mine(KeyboardInterrupt): pass\nraise Mine('no key')", "Mine: no key"),
    "no text": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "Mute: its text raises ValueError",
    ),
    "two lines": ("raise OSError('one\\n  two')", "OSError: one two"),
    "future API": (source(api=PLUGIN_API + 1), f"plugin API {PLUGIN_API + 1}, this arcforge has {PLUGIN_API}"),
    "API 0": (source(api=0), f"plugin API 0, this arcforge has {PLUGIN_API}"),
    "no API": ("", "the hook arcforge_plugin_api is missing"),
    "misspelt hook": (
        source(hook="arcforge_register_component"),
        "unknown hook 'arcforge_register_component'; did you mean 'arcforge_register_components'?",
    ),
    "bad component": (source(component="Very-Fast"), "names are snake_case"),
    "bad command": (source() + '    registry.add_command("acme", "json")\n', "job 'acme': 'json' is not of the form"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_recorded_and_stops_no_other_plugin(site, fault):
    text, message = FAULTS[fault]
    site("a-broken", text)
    site("good", source())
    loaded = load(site)
    assert [p.distribution for p in loaded.failures] == ["a-broken 1.0"]
    assert message in loaded.failures[0].error
    assert loaded.registry.names("attention") == ["fast"]
    with pytest.raises(
        UnknownComponentError, match=r"installed: fast; not loaded: a-broken 1\.0 \(arcforge-plugins says"
    ):
        loaded.registry.get("attention", "mine")
    with pytest.raises(PluginError, match=r"plugin 'a-broken' of a-broken 1\.0: "):
        load(site, strict=True)


def test_the_users_own_interrupt_ends_the_command(site):
    site("acme", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(site)


def test_what_a_plugin_prints_goes_to_standard_error(site, capsys):
    site("acme", "print('at import')\n" + source() + "    print('in a hook')\n")
    assert not load(site).failures
    assert capsys.readouterr() == ("", "at import\nin a hook\n")


PRINTS = {
    "the real stream": "import sys\nsys.__stdout__.write('noise\\n')\n",
    "the descriptor": "import os\nos.write(1, b'noise\\n')\n",
    "a child": "import subprocess\nsubprocess.run(['echo', 'noise'], check=True)\n",
}


@pytest.mark.parametrize("text", PRINTS.values(), ids=PRINTS)
def test_whatever_way_it_prints(site, capfd, text):
    site("acme", text + source() + "    import os\n    os.write(1, b'in a hook\\n')\n")
    print("before")
    assert not load(site).failures
    print("after")
    found = capfd.readouterr()
    assert found.out == "before\nafter\n" and sorted(found.err.split("\n")) == ["", "in a hook", "noise"]


def test_a_second_plugin_of_the_same_name_names_the_first(site):
    site("acme", source("fast"))
    site("same-name", source("slow"), entry="acme")
    loaded = load(site)
    assert loaded.failures[0].distribution == "same-name 1.0"
    assert loaded.failures[0].error == "entry point 'acme' is already used by acme 1.0"
    assert loaded.registry.names("attention") == ["fast"]


def test_a_command_belongs_to_who_registers_it_first(site):
    adds = '    registry.add_command("acme-go", "json:JSONDecoder")\n'
    site("acme", source() + adds)
    site("other", source("slow") + adds)
    loaded = load(site)
    assert loaded.registry.jobs["acme-go"].distribution == "acme 1.0"
    assert loaded.failures[0].error == "job 'acme-go' is already registered by acme 1.0"
    assert loaded.registry.names("attention") == ["fast"]  # a plugin enters the registry whole or not at all


@pytest.mark.parametrize("name", ["short", "acme-with-long-name"])
def test_a_plugin_is_blocked_by_its_own_or_its_distribution_name(site, name):
    site("acme-with-long-name", source(), entry="short")
    loaded = load(site, blocked=[name])
    assert loaded.plugins[0].blocked
    assert loaded.registry.names("attention") == []


def test_the_plugin_api_before_is_accepted_with_a_warning(site, monkeypatch):
    site("acme", source(api=PLUGIN_API))
    monkeypatch.setattr(plugins.hookspecs, "PLUGIN_API", PLUGIN_API + 1)
    with pytest.warns(FutureWarning, match=f"plugin API {PLUGIN_API} is deprecated"):
        loaded = load(site)
    assert loaded.registry.names("attention") == ["fast"]


def test_plugins_with_retired_kinds_are_told_what_to_do(site):
    both = (
        source().replace('"attention", "fast"', '"checker", "mine"')
        + """    registry.add(
        "toolbox", "desk", "json:loads", schema="json:JSONDecoder", summary="test"
    )
"""
    )
    site("acme", both)
    with pytest.warns(FutureWarning, match="acme 1.0"):
        loaded = load(site)
    assert "checker 'mine': the kind is now 'reward'" in loaded.plugins[0].warning
    assert "toolbox 'desk': tools belong to an environment now" in loaded.plugins[0].warning
    assert not loaded.failures


def test_first_party_plugins_come_first(monkeypatch, site):
    site("arcforge-aaa", source("fast"))  # a stranger with our prefix
    site("arcforge-hw", source("slow"))
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: site.entries())
    assert [e.dist.name for e in plugins.discover()] == ["arcforge-hw", "arcforge-aaa"]


def test_blocking_a_plugin_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setenv("ARCFORGE_BLOCK_PLUGINS", "arcforge-coree")
    with pytest.warns(UserWarning, match="no plugin 'arcforge-coree'; did you mean 'arcforge-core'"):
        plugins.load_plugins.__wrapped__()

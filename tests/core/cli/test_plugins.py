import json

import pytest

from arcforge_core.cli import plugins as cli
from arcforge_core.plugins.loader import LoadedPlugins, PluginInfo
from arcforge_core.plugins.registry import Component


@pytest.fixture
def loaded(monkeypatch):
    """One plugin of each state, and a name claimed twice."""
    result = LoadedPlugins(
        plugins=[
            PluginInfo("acme", "acme 1.0", api=1, seconds=0.002),
            PluginInfo("empty", "empty 1.0", api=1, warning="plugin API 1 is deprecated"),
            PluginInfo("broken", "broken 1.0", error="ImportError: no driver"),
            PluginInfo("off", "off 1.0", blocked=True),
        ]
    )
    result.registry.register(Component("hardware", "npu", "a:B", "a:C", "An NPU", "acme", "acme 1.0"))
    monkeypatch.setattr(cli, "load_plugins", lambda: result)
    monkeypatch.setattr(cli, "conflicts", lambda: {("attention", "dsa"): ["one 1.0", "two 1.0"]})
    return result


def test_text(loaded, capsys):
    assert cli.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "acme 1.0  (plugin acme, API 1)",
        "  hardware  npu  An NPU",
        "empty 1.0  (plugin empty, API 1)",
        "  no components",
        "WARNING empty 1.0 (plugin empty): plugin API 1 is deprecated",
        "FAILED broken 1.0 (plugin broken): ImportError: no driver",
        "BLOCKED off 1.0 (plugin off): ARCFORGE_BLOCK_PLUGINS names it",
        "CLAIMED TWICE attention=dsa: one 1.0 and two 1.0; using it is an error until one is blocked",
    ]


def test_timings(loaded, capsys):
    cli.main(["--timings"])
    assert "acme 1.0  (plugin acme, API 1, 2.0 ms)" in capsys.readouterr().out


def test_json(loaded, capsys):
    assert cli.main(["--json", "--timings"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert [(p["distribution"], p["state"]) for p in listing["plugins"]] == [
        ("acme 1.0", "loaded"),
        ("empty 1.0", "loaded"),
        ("broken 1.0", "failed"),
        ("off 1.0", "blocked"),
    ]
    assert listing["plugins"][0]["components"] == [{"kind": "hardware", "name": "npu", "summary": "An NPU"}]
    assert listing["plugins"][0]["seconds"] == 0.002
    assert listing["conflicts"] == [{"kind": "attention", "name": "dsa", "claimed_by": ["one 1.0", "two 1.0"]}]

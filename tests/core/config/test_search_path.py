import pytest

from arcforge_core.config import search_path
from arcforge_core.config.search_path import ConfigSource, conflicts, first_comment, options, presets, sources
from arcforge_core.plugins.loader import LoadedPlugins, PluginInfo


@pytest.mark.parametrize(
    ("text", "comment"),
    [
        ("# @package _global_\n# What it is\nx: 1\n", "What it is"),
        ("#@package _global_\n\nx: 1 # not this\n", ""),
        ("x: 1\n# Later\n# Last\n", "Later"),
        ("", ""),
    ],
)
def test_first_comment(text, comment):
    assert first_comment(text) == comment


def test_project_comes_first_and_core_is_always_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "project" not in [source.provider for source in sources()]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/arcforge.toml").touch()
    found = sources()
    assert found[0] == ConfigSource("project", f"file://{tmp_path}/conf")
    assert found[1].path == search_path.MAIN
    assert len({source.path for source in found}) == len(found)


def test_every_preset_says_what_it_is():
    assert [preset for preset in presets() if not preset.summary] == []


def test_options_are_presets_and_components():
    assert {"tiny", "mini", "small", "flash", "glm5"} <= set(options("model"))
    assert {"stdlib", "files"} <= set(options("data"))
    assert options("no_such_group") == []


def test_installed_distributions_do_not_conflict():
    assert conflicts() == {}


def test_a_plugin_with_missing_presets_warns_and_stops_nobody(tmp_path, monkeypatch):
    absent = PluginInfo("p", "acme 1.0", config_sources=(f"file://{tmp_path}/absent", "pkg://no_such_package.conf"))
    monkeypatch.setattr(search_path, "load_plugins", lambda: LoadedPlugins(plugins=[absent]))
    with pytest.warns(UserWarning, match=r"acme 1.0 declares presets at"):
        assert "mini" in {preset.name for preset in presets()}

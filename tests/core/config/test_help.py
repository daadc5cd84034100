import re

import pytest

from arcforge_core.config import help as help_module
from arcforge_core.config.help import render_help
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Component, Registry


def test_every_component_stands_with_summary_and_distribution():
    text = render_help("train")
    for component in registry():
        if component.kind in ("attention", "optimizer", "schedule", "data", "hardware"):
            line = rf"^  {component.name} +{re.escape(component.summary)}  \[{re.escape(component.distribution)}\]$"
            assert re.search(line, text, re.MULTILINE), component.name
    assert "engine" not in text, "a group that the command does not have"


def test_strangers_components_are_listed(monkeypatch):
    stranger = Component("hardware", "acme_npu", "a:b", "c:d", "The Acme chip", "acme", "acme-arcforge-npu 0.3")
    jobs = registry().jobs
    monkeypatch.setattr(help_module, "registry", lambda: Registry({("hardware", "acme_npu"): [stranger]}, jobs))
    assert re.search(r"^  acme_npu +The Acme chip  \[acme-arcforge-npu 0\.3\]$", render_help("train"), re.MULTILINE)


def test_long_lists_are_cut(monkeypatch):
    claims = {
        ("hardware", f"chip{n:03}"): [Component("hardware", f"chip{n:03}", "a:b", "c:d", "A chip", "p", "d 1")]
        for n in range(300)
    }
    many = Registry(claims, registry().jobs)
    monkeypatch.setattr(help_module, "registry", lambda: many)
    text = render_help("train")
    assert text.count("A chip") == help_module.SHOWN
    left_out = 300 + sum(preset.group == "hardware" for preset in help_module.presets()) - help_module.SHOWN
    assert f"  ... and {left_out} more: arcforge-plugins lists them" in text
    with pytest.raises(UnknownComponentError) as error:
        many.get("hardware", "chip2999")
    assert str(error.value).endswith(", chip039, ... (300 in all); did you mean 'chip299'?")


@pytest.mark.parametrize(
    "line",
    [
        "arcforge-train: Train a language model and write a report.",
        "Usage: arcforge-train [GROUP=OPTION ...] [FIELD=VALUE ...]",
        "model (default mini)",
        "experiment",
        "sweep",
    ],
)
def test_frame(line):
    assert line in render_help("train").splitlines()


@pytest.mark.parametrize("word", ["--cfg job", "--info defaults-tree", " -m ", "-sc install=bash", "Under a million"])
def test_says_how_to_see_more(word):
    assert word in render_help("train")


def test_unknown_command_is_refused():
    with pytest.raises(ConfigError, match="primary configuration"):
        render_help("nothing")

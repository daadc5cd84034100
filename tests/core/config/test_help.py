import re

import pytest

from arcforge_core.config import help as help_module
from arcforge_core.config.help import render_help
from arcforge_core.errors import ConfigError
from arcforge_core.registry import Component, Registry, registry


def test_every_component_stands_with_summary_and_distribution():
    text = render_help("train")
    for component in registry():
        if component.kind in ("attention", "optimizer", "schedule", "data", "hardware"):
            line = rf"^  {component.name} +{re.escape(component.summary)}  \[{re.escape(component.distribution)}\]$"
            assert re.search(line, text, re.MULTILINE), component.name
    assert "engine" not in text, "a group that the command does not have"


def test_strangers_components_are_listed(monkeypatch):
    stranger = Component("hardware", "acme_npu", "a:b", "c:d", "The Acme chip", "acme", "acme-arcforge-npu 0.3")
    monkeypatch.setattr(help_module, "registry", lambda: Registry({("hardware", "acme_npu"): [stranger]}))
    assert "  acme_npu  The Acme chip  [acme-arcforge-npu 0.3]" in render_help("train")


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

"""Defaults that depend on the installed packages, on registries with less than all of ours."""

import pytest

from arcforge_core.config import installed
from arcforge_core.config.compose import compose
from arcforge_core.config.help import groups_of
from arcforge_core.plugins.registry import Registry


@pytest.fixture
def bare(monkeypatch):
    """A registry in which nothing is registered."""
    monkeypatch.setattr(installed, "registry", Registry)


def test_the_first_installed_option_is_the_default():
    assert groups_of("train")["attention"] == "mla"
    assert installed.first_installed("attention", "no_such", "gqa", "reference") == "gqa"


def test_auto_is_the_default_of_the_group():
    config = compose(["attention=auto", "optimizer=auto", "schedule=auto"])
    assert (config.attention.name, config.optimizer.name, config.schedule.name) == ("mla", "muon_split", "wsd")
    assert config == compose([])


def test_cores_own_option_is_the_last(bare):
    assert installed.default_of("${first:attention,mla,reference}") == "reference"
    assert installed.default_of("stdlib") == "stdlib"
    assert installed.default_of(None) is None


def test_the_line_names_options_and_packages(bare):
    defaults = {"attention": "${first:attention,mla,reference}", "schedule": "${first:schedule,wsd,constant}"}
    both = {"attention": "reference", "schedule": "constant"}
    assert installed.fallbacks(defaults, both) == (
        "attention=reference, schedule=constant, because arcforge-attention and arcforge-optim are not installed"
    )
    chosen = {"attention": "reference", "schedule": "cosine"}
    assert installed.fallbacks(defaults, chosen) == "attention=reference, because arcforge-attention is not installed"
    assert installed.fallbacks({"data": "stdlib"}, {"data": "stdlib"}) is None


def test_all_missing_packages_of_a_command_line_and_its_recipes_are_named(bare):
    assert installed.missing(["experiment=mini", "+attention=dsa", "seed=1"]) == (
        "attention=dsa and schedule=cosine need the packages 'arcforge-attention' and 'arcforge-optim': "
        "pip install ./packages/attention ./packages/optim"
    )
    assert installed.missing(["experiment=mini", "schedule=constant"]) is None
    assert installed.missing(["attention=dsa"]) == (
        "attention=dsa needs the package 'arcforge-attention': pip install ./packages/attention"
    )

"""How the checker that a record names is found."""

from dataclasses import replace

import pytest

from arcforge_core import checkers
from arcforge_core.checkers import build_checker
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Registry


def test_unknown_names_and_arguments_are_named():
    with pytest.raises(ConfigError, match=r"checker\.name='nobody'"):
        build_checker("nobody", {})
    with pytest.raises(ConfigError, match=r"checker\.arguments\.anwser='1': number takes answer"):
        build_checker("number", {"anwser": "1"})


def test_a_checker_of_the_retired_kind_still_judges_and_says_once_what_it_should_be(monkeypatch, capsys):
    old = Registry()
    old.register(replace(registry().get("reward", "exact"), kind="checker", name="mine", distribution="acme 1.0"))
    monkeypatch.setattr(checkers, "registry", lambda: old)
    checkers._component.cache_clear()
    assert build_checker("mine", {"answer": "yes"}).check("yes")
    assert not build_checker("mine", {"answer": "yes"}).check("no")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("checker 'mine' of acme 1.0: the kind is now 'reward'")
    checkers._component.cache_clear()

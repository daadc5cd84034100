import importlib
import re
import sys

import pytest

from arcforge_core.moved import MOVED, new_path


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_gives_the_moved_module_and_names_it(old):
    new = importlib.import_module(MOVED[old])
    with pytest.warns(FutureWarning, match=re.escape(f"{old} is now {MOVED[old]}")):
        assert importlib.import_module(old) is new


def test_a_public_name_outlives_the_import_of_an_old_path(monkeypatch):
    import arcforge_core

    monkeypatch.delitem(sys.modules, "arcforge_core.registry", raising=False)
    with pytest.warns(FutureWarning):
        importlib.import_module("arcforge_core.registry")
    assert arcforge_core.registry().names("attention")


def test_modules_below_a_moved_folder_have_moved_with_it():
    assert new_path("arcforge_core.environments.rewards") == "arcforge_core.episodes.rewards"
    assert new_path("arcforge_core.episodes.rewards") is None
    with pytest.warns(FutureWarning):
        from arcforge_core.environments.rewards import reward as old
    from arcforge_core.episodes.rewards import reward as new

    assert old is new


@pytest.mark.parametrize(
    ("package", "name", "module"),
    [
        ("arcforge_core.data.sources", "FilesSource", "text"),
        ("arcforge_core.plugins", "load_plugins", "loader"),
        ("arcforge_rl.configs", "AutoSandboxConfig", "commands"),
        ("arcforge_serving.engine", "Engine", "facade"),
    ],
)
def test_a_module_that_became_a_package_still_has_its_names(package, name, module):
    with pytest.warns(FutureWarning, match=re.escape(f"{package}.{name} is now {package}.{module}.{name}")):
        found = getattr(importlib.import_module(package), name)
    assert found is getattr(importlib.import_module(f"{package}.{module}"), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(package).no_such_name  # noqa: B018


def test_a_renamed_class_is_found_under_its_old_name():
    from arcforge_core.contracts import sandbox

    with pytest.warns(FutureWarning, match=r"sandbox\.Limits is now arcforge_core\.contracts\.sandbox\.SandboxLimits"):
        assert sandbox.Limits is sandbox.SandboxLimits
    with pytest.raises(AttributeError, match="NoSuch"):
        sandbox.NoSuch  # noqa: B018


def test_a_path_that_never_was_is_still_an_error():
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        importlib.import_module("arcforge_core.no_such")

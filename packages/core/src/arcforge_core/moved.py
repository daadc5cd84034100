"""Old import paths that still work in this version, each with a warning that names the new path.

Listed are the paths that the documentation of 0.1 showed to plugin authors, with everything below them.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "arcforge_core.cache": "arcforge_core.files.cache",
    "arcforge_core.contracts.checker": "arcforge_core.contracts.conversation",
    "arcforge_core.data.conversations.conversation": "arcforge_core.contracts.conversation",
    "arcforge_core.data.needles": "arcforge_core.data.sources.needles",
    "arcforge_core.data.packing": "arcforge_core.data.tokens.packing",
    "arcforge_core.data.pipeline": "arcforge_core.data.tokens.pipeline",
    "arcforge_core.data.tokenizer": "arcforge_core.tokenizer.tokenizer",
    "arcforge_core.environments": "arcforge_core.episodes",
    "arcforge_core.environments.turns": "arcforge_core.episodes.tools",
    "arcforge_core.hookspecs": "arcforge_core.plugins.hookspecs",
    "arcforge_core.model.engine": "arcforge_core.generation.engine",
    "arcforge_core.model.generate": "arcforge_core.generation.generate",
    "arcforge_core.model.lora": "arcforge_core.model.adapt.lora",
    "arcforge_core.model.sampling": "arcforge_core.generation.sampling",
    "arcforge_core.model.weights": "arcforge_core.generation.weights",
    "arcforge_core.registry": "arcforge_core.plugins.registry",
    "arcforge_rl.configs_algorithms": "arcforge_rl.configs.algorithms",
    "arcforge_rl.configs_environments": "arcforge_rl.configs.environments",
    "arcforge_rl.configs_learning": "arcforge_rl.configs.learning",
    "arcforge_rl.corrections": "arcforge_rl.algorithms.corrections",
    "arcforge_rl.learning": "arcforge_rl.trainer",
    "arcforge_serving.grammar": "arcforge_serving.engine.grammar",
    "arcforge_serving.paged": "arcforge_serving.engine.paged",
}


def new_path(name: str) -> str | None:
    """Returns where a module is now, None where it has not moved."""
    old = name
    while old:
        if old in MOVED:
            return MOVED[old] + name.removeprefix(old)
        old = old.rpartition(".")[0]
    return None


class _Forward(Loader):
    def exec_module(self, module: ModuleType) -> None:
        new = new_path(module.__name__)
        assert new is not None
        warnings.warn(_message(module.__name__, new), FutureWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)


class _Package(ModuleType):
    """arcforge_core: a module imported by its old path does not replace a public name (``registry``)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and callable(vars(self).get(name))):
            super().__setattr__(name, value)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if new_path(name) is None else ModuleSpec(name, _Forward(), is_package=True)


def forward(package: str, *modules: str) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a package that was one module: names are looked up in the modules it became."""

    def lookup(name: str) -> Any:
        for module in () if name.startswith("__") else modules:
            found = importlib.import_module(f"{package}.{module}")
            if hasattr(found, name):
                warnings.warn(_message(f"{package}.{name}", f"{package}.{module}.{name}"), FutureWarning, stacklevel=2)
                return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return lookup


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a module whose public names have changed: old name -> new name."""

    def lookup(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(_message(f"{module}.{name}", f"{module}.{names[name]}"), FutureWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return lookup


def _message(old: str, new: str) -> str:
    return f"{old} is now {new}; the old path will be removed in the next version"


def install() -> None:
    """Makes the old paths importable; called once, when arcforge_core is imported.

    The finder comes first: the standard one would load a file below a moved folder a second time, as another module.
    """
    sys.meta_path.insert(0, _Finder())
    sys.modules["arcforge_core"].__class__ = _Package

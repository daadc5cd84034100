"""The component registry: names and import strings, imported on first use.

Kinds are open. A kind is also the name of its Hydra config group, and the component's dataclass is the
schema of its option there.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.errors import PluginError, UnknownComponentError, nearest

FIRST_PARTY = ("core", "attention", "optim", "rl", "serving", "hw")
"""Our own distributions, in loading order: a stranger's alphabetical luck never shadows them."""

KNOWN_WHEELS: dict[tuple[str, str], str] = {
    **{
        ("attention", name): "arcforge-attention"
        for name in ("gqa", "swa", "swa_pattern", "gdn", "simple_gdn", "mla", "dsa")
    },
    **{("optimizer", name): "arcforge-optim" for name in ("adamw", "muon", "muon_split")},
    **{("schedule", name): "arcforge-optim" for name in ("cosine", "wsd")},
    ("procedure", "attention_ablation"): "arcforge-attention",
    ("report", "algorithm"): "arcforge-rl",
    ("engine", "paged"): "arcforge-serving",
    ("engine", "sglang"): "arcforge-serving",
    ("engine", "vllm"): "arcforge-serving",
    **{("workload", name): "arcforge-serving" for name in ("random", "shared_prefix", "agent", "file")},
    **{
        ("environment", name): "arcforge-rl"
        for name in (
            "arithmetic",
            "code",
            "dataset",
            "human_eval",
            "math",
            "mixture",
            "reasoning_gym",
            "science",
            "tool_math",
        )
    },
    **{
        ("algorithm", name): "arcforge-rl"
        for name in (
            "grpo",
            "icepop",
            "double_sided",
            "dapo",
            "gspo",
            "cispo",
            "rloo",
            "reinforce_pp",
            "ppo",
            "opd",
        )
    },
    **{("correction", name): "arcforge-rl" for name in ("custom", "own")},
    **{("checker", name): "arcforge-rl" for name in ("reasoning_gym", "python_output", "python_doctest")},
    ("toolbox", "sandbox"): "arcforge-rl",
    **{("procedure", name): "arcforge-rl" for name in ("expert_iteration", "made_conversations")},
    **{("sandbox", name): "arcforge-rl" for name in ("auto", "bubblewrap", "landlock", "docker")},
    ("hardware", "cpu"): "arcforge-hw",
    ("hardware", "cuda"): "arcforge-hw",
}
"""Our components and the wheel that brings each, for the error shown when the wheel is absent."""


@dataclass(frozen=True)
class Component:
    """One registered component.

    Attributes:
        kind: e.g. ``attention``; also the Hydra config group.
        name: snake_case name inside the kind.
        target: import string ``package.module:Attribute``.
        schema: import string of the component's config dataclass (torch-free module).
        summary: one line for ``--help``.
        plugin: entry-point name of the plugin that registered it.
        distribution: distribution name and version, e.g. ``arcforge-core 0.1.0``.
    """

    kind: str
    name: str
    target: str
    schema: str
    summary: str
    plugin: str
    distribution: str

    def load(self) -> Any:
        """Imports and returns the target."""
        return import_string(self.target, self)

    def load_schema(self) -> type[Any]:
        """Imports and returns the config dataclass."""
        loaded: type[Any] = import_string(self.schema, self)
        return loaded


@dataclass(frozen=True)
class Command:
    """A console script whose command line is a configuration, so that its fields are documented with all others.

    Attributes:
        script: as it is typed, e.g. ``arcforge-env validate``.
        schema: import string of its root dataclass (torch-free module).
        distribution: distribution name and version.
    """

    script: str
    schema: str
    distribution: str

    def load_schema(self) -> type[Any]:
        """Imports and returns the root dataclass."""
        loaded: type[Any] = import_string(self.schema, self)
        return loaded


def import_string(path: str, owner: Component | Command) -> Any:
    """Imports ``package.module:Attribute`` and blames `owner`'s distribution when that fails."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        what = owner.script if isinstance(owner, Command) else f"{owner.kind} {owner.name!r}"
        raise PluginError(f"{what} of {owner.distribution}: cannot import {path!r}: {error}") from error


@dataclass
class Registry:
    """All registered components, by kind and name; doubly claimed names are kept apart until asked for.

    Attributes:
        claims: the components.
        commands: console scripts by what is typed, in loading order.
    """

    claims: dict[tuple[str, str], list[Component]] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        """Returns the kinds that have at least one component, sorted."""
        return sorted({kind for kind, _ in self.claims})

    def names(self, kind: str) -> list[str]:
        """Returns the names of a kind, sorted."""
        return sorted(name for k, name in self.claims if k == kind)

    def __iter__(self) -> Iterator[Component]:
        for key in sorted(self.claims):
            yield from self.claims[key]

    def get(self, kind: str, name: str) -> Component:
        """Returns the component.

        Raises:
            UnknownComponentError: nobody registers it; the wheel is named when it is one of ours.
            PluginError: two distributions claim it.
        """
        claims = self.claims.get((kind, name), [])
        if len(claims) == 1:
            return claims[0]
        if not claims:
            raise UnknownComponentError(self.explain_missing(kind, name))
        owners = " and ".join(c.distribution for c in claims)
        plugins = ", ".join(c.plugin for c in claims)
        raise PluginError(f"{kind} {name!r} is claimed by {owners}; set ARCFORGE_BLOCK_PLUGINS to one of: {plugins}")

    def explain_missing(self, kind: str, name: str) -> str:
        """Returns the message for a name that is not registered."""
        wheel = KNOWN_WHEELS.get((kind, name))
        if wheel:
            return f"{kind}={name} needs the package {wheel!r}: pip install {wheel}"
        names = self.names(kind)
        if not names:
            known = [n for k, n in KNOWN_WHEELS if k == kind]
            wheels = sorted({KNOWN_WHEELS[kind, n] for n in known})
            hint = f"; pip install {wheels[0]} brings {', '.join(known)}" if wheels else ""
            return f"no {kind} {name!r}: nothing of kind {kind!r} is installed{hint}"
        return f"no {kind} {name!r}; installed: {', '.join(names)}{nearest(name, names)}"

    def register(self, component: Component) -> None:
        """Adds one component; a name claimed before is kept beside the new claim."""
        self.claims.setdefault((component.kind, component.name), []).append(component)


@dataclass(frozen=True)
class Registrar:
    """What a plugin's ``arcforge_register_components`` receives: `add` and `add_command`, its own name filled in."""

    registry: Registry
    plugin: str
    distribution: str

    def add(self, kind: str, name: str, target: str, *, schema: str, summary: str) -> None:
        """Registers a component; see `Component` for the arguments."""
        for path in (target, schema):
            _check_import_string(f"{kind} {name!r}", path)
        if not name.isidentifier() or name != name.lower():
            raise PluginError(f"{kind} {name!r}: names are snake_case")
        self.registry.register(Component(kind, name, target, schema, summary, self.plugin, self.distribution))

    def add_command(self, script: str, schema: str) -> None:
        """Registers a console script that `arcforge_core.config.compose.run_app` runs; see `Command`."""
        _check_import_string(script, schema)
        if script in self.registry.commands:
            raise PluginError(f"command {script!r} is registered twice")
        self.registry.commands[script] = Command(script, schema, self.distribution)


def _check_import_string(what: str, path: str) -> None:
    if path.count(":") != 1:
        raise PluginError(f"{what}: {path!r} is not of the form 'package.module:Attribute'")


@functools.cache
def registry() -> Registry:
    """Returns the process-wide registry, loading all installed plugins on the first call."""
    from arcforge_core.plugins import load_plugins

    return load_plugins().registry

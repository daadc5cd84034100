"""The registry of components and jobs: names and import strings, imported on first use.

Kinds are open. A kind is also the name of its Hydra config group, and the component's dataclass is the
schema of its option there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arcforge_core.errors import ArcforgeError, PluginError, UnknownComponentError, listed, nearest
from arcforge_core.plugins.commands import COMMANDS
from arcforge_core.plugins.imports import is_users_interrupt, printing_to_stderr, words_of
from arcforge_core.plugins.wheels import how_to_install, known_wheels

if TYPE_CHECKING:
    from arcforge_core.console.result import Result

FIRST_PARTY = ("core", "attention", "optim", "rl", "serving", "hw")
"""Our own distributions, in loading order; third-party ones are loaded after them."""

RETIRED_KINDS = {
    "procedure": "procedures are jobs now: register the function with registry.add_job",
    "checker": "the kind is now 'reward': register it with registry.add('reward', ...)",
    "toolbox": "tools belong to an environment now: override `tools` of "
    "arcforge_core.episodes.conversations.ConversationEnvironment, and register that as kind 'environment'",
}
"""Removed kinds of plugin API 1, and their replacements."""


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
class JobEntry:
    """One registered job: a function of one configuration that returns an `arcforge_core.console.result.Result`.

    Its command line is the configuration. It can be a stage of a pipeline and can be swept.

    Attributes:
        name: in ``arcforge NAME`` and a pipeline's ``job: NAME``; also that of the primary YAML file.
        target: import string of the function; empty for a command of plugin API 1, whose script runs itself.
        schema: import string of the configuration's dataclass (torch-free module).
        script: the command, e.g. ``arcforge-env validate``.
        summary: one line for ``arcforge --help``.
        distribution: distribution name and version.
    """

    name: str
    target: str
    schema: str
    script: str
    summary: str
    distribution: str

    def load(self) -> Callable[[Any], Result | None]:
        """Imports and returns the function.

        Raises:
            PluginError: it cannot be imported, or was registered with `Registrar.add_command`, which names none.
        """
        if not self.target:
            raise PluginError(f"job {self.name!r} of {self.distribution} names no function: register it with add_job")
        loaded: Callable[[Any], Result | None] = import_string(self.target, self)
        return loaded

    def load_schema(self) -> type[Any]:
        """Imports and returns the configuration's dataclass."""
        loaded: type[Any] = import_string(self.schema, self)
        return loaded


def import_string(path: str, owner: Component | JobEntry) -> Any:
    """Imports ``package.module:Attribute``.

    Raises:
        PluginError: that fails in any way; names `owner`'s distribution.
    """
    module, _, attribute = path.partition(":")
    try:
        with nullcontext() if module in sys.modules else printing_to_stderr():
            return getattr(importlib.import_module(module), attribute)
    except BaseException as error:
        if is_users_interrupt(error) or isinstance(error, ArcforgeError):
            raise
        text = str(error) if isinstance(error, ImportError | AttributeError) else words_of(error)
        what = f"job {owner.name!r}" if isinstance(owner, JobEntry) else f"{owner.kind} {owner.name!r}"
        raise PluginError(f"{what} of {owner.distribution}: cannot import {path!r}: {text}") from error


@dataclass
class Registry:
    """All registered components, by kind and name; names claimed twice are an error only when requested.

    Attributes:
        claims: the components.
        jobs: by name, in loading order.
        absent: distributions whose plugins could not be loaded; an unknown name may be one of theirs.
    """

    claims: dict[tuple[str, str], list[Component]] = field(default_factory=dict)
    jobs: dict[str, JobEntry] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

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
            UnknownComponentError: it is not registered; names the wheel if it is one of ours.
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
        wheel = known_wheels().get((kind, name))
        if wheel:
            return f"{kind}={name} needs the package {wheel!r}: {how_to_install(wheel)}"
        names = self.names(kind)
        if not names:
            known = {n: wheel for (k, n), wheel in known_wheels().items() if k == kind}
            hint = f"; {how_to_install(min(known.values()))} brings {', '.join(known)}" if known else ""
            return f"no {kind} {name!r}: nothing of kind {kind!r} is installed{hint}"
        absent = f"; not loaded: {listed(self.absent)} (arcforge-plugins says why)" if self.absent else ""
        return f"no {kind} {name!r}; installed: {listed(names)}{nearest(name, names)}{absent}"

    def job(self, name: str) -> JobEntry:
        """Returns the job.

        Raises:
            UnknownComponentError: it is not registered; names the wheel if it is one of ours.
        """
        if name in self.jobs:
            return self.jobs[name]
        wheel = COMMANDS[name].wheel if name in COMMANDS else "arcforge-core"
        if wheel != "arcforge-core":
            raise UnknownComponentError(f"job {name!r} needs the package {wheel!r}: {how_to_install(wheel)}")
        raise UnknownComponentError(f"no job {name!r}; there are {listed(self.jobs)}{nearest(name, self.jobs)}")

    def register(self, component: Component) -> None:
        """Adds one component; earlier claims of its name are kept."""
        self.claims.setdefault((component.kind, component.name), []).append(component)


@dataclass(frozen=True)
class Registrar:
    """The argument of ``arcforge_register_components``: registers components and jobs under the plugin's name."""

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

    def add_job(self, name: str, target: str, *, schema: str, script: str = "", summary: str = "") -> None:
        """Registers a job; see `JobEntry`. Without a `script`, its command is ``arcforge NAME``.

        Its primary configuration is the file NAME.yaml of one of the plugin's config sources.
        """
        for path in (target, schema):
            _check_import_string(f"job {name!r}", path)
        self._add(JobEntry(name, target, schema, script or f"arcforge {name}", summary, self.distribution))

    def add_command(self, script: str, schema: str) -> None:
        """Registers a console script of plugin API 1, for the documentation only; `add_job` registers what it runs."""
        _check_import_string(f"job {script!r}", schema)
        self._add(JobEntry(script, "", schema, script, "", self.distribution))

    def _add(self, job: JobEntry) -> None:
        if job.name in self.registry.jobs:
            raise PluginError(f"job {job.name!r} is registered twice")
        self.registry.jobs[job.name] = job


def _check_import_string(what: str, path: str) -> None:
    if path.count(":") != 1:
        raise PluginError(f"{what}: {path!r} is not of the form 'package.module:Attribute'")

"""Loads plugins from entry points: each in its own try, every fault reported, none fatal, output to standard error.

pluggy's stock loader skips a second plugin of the same name silently, dies on one broken plugin and accepts
misspelt hooks; this one records all three and continues. ``ARCFORGE_STRICT_PLUGINS=1`` raises instead.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from dataclasses import dataclass, field, replace
from importlib import metadata

import pluggy

from arcforge_core.errors import PluginError, nearest
from arcforge_core.plugins import hookspecs
from arcforge_core.plugins.imports import is_users_interrupt, printing_to_stderr, words_of
from arcforge_core.plugins.registry import FIRST_PARTY, RETIRED_KINDS, Registrar, Registry

GROUP = "arcforge.plugins"


@dataclass(frozen=True)
class PluginInfo:
    """The result of loading one plugin.

    Attributes:
        name: entry-point name.
        distribution: distribution name and version.
        api: plugin API number it was written for; 0 when it was not loaded.
        seconds: time its import and registration took.
        error: why it was not loaded, or an empty string.
        warning: a problem that did not prevent loading, or an empty string.
        blocked: disabled by ``ARCFORGE_BLOCK_PLUGINS``.
        config_sources: Hydra search-path entries.
    """

    name: str
    distribution: str
    api: int = 0
    seconds: float = 0.0
    error: str = ""
    warning: str = ""
    blocked: bool = False
    config_sources: tuple[str, ...] = ()


@dataclass
class LoadedPlugins:
    """The registry and the result of each plugin."""

    registry: Registry = field(default_factory=Registry)
    plugins: list[PluginInfo] = field(default_factory=list)

    @property
    def failures(self) -> list[PluginInfo]:
        """Plugins that could not be loaded."""
        return [p for p in self.plugins if p.error]

    @property
    def config_sources(self) -> list[tuple[str, str]]:
        """(distribution, search-path entry) of every loaded plugin, in loading order."""
        return [(p.distribution, source) for p in self.plugins for source in p.config_sources]


def discover() -> list[metadata.EntryPoint]:
    """Returns the entry points of our group, first-party distributions first, then by distribution name."""
    order = {f"arcforge-{name}": i for i, name in enumerate(FIRST_PARTY)}
    unique = {(_owner(e), e.name, e.value): e for e in metadata.entry_points(group=GROUP)}
    return [unique[key] for key in sorted(unique, key=lambda k: (order.get(k[0].split()[0], 99), *k))]


def _owner(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown distribution"


def _load_one(entry: metadata.EntryPoint, loaded: LoadedPlugins) -> PluginInfo:
    """Imports and registers one plugin; it enters the registry whole or not at all."""
    owner = _owner(entry)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    module = entry.load()
    manager.register(module, name=entry.name)
    _refuse_unknown_hooks(manager, module)
    api = manager.hook.arcforge_plugin_api()
    if not api:
        raise PluginError("the hook arcforge_plugin_api is missing")
    if api[0] not in (hookspecs.PLUGIN_API, hookspecs.PLUGIN_API - 1) or api[0] < 1:
        raise PluginError(f"plugin API {api[0]}, this arcforge has {hookspecs.PLUGIN_API}")
    own = Registry()
    manager.hook.arcforge_register_components(registry=Registrar(own, entry.name, owner))
    sources = [s for result in manager.hook.arcforge_config_sources() for s in result]
    taken = [job for name, job in loaded.registry.jobs.items() if name in own.jobs]
    if taken:
        raise PluginError(f"job {taken[0].name!r} is already registered by {taken[0].distribution}")
    for component in own:
        loaded.registry.register(component)
    loaded.registry.jobs |= own.jobs
    notes = [f"{c.kind} {c.name!r}: {RETIRED_KINDS[c.kind]}" for c in own if c.kind in RETIRED_KINDS]
    if api[0] < hookspecs.PLUGIN_API:
        notes.insert(0, f"plugin API {api[0]} is deprecated, this arcforge has {hookspecs.PLUGIN_API}")
    return PluginInfo(
        entry.name,
        owner,
        api=api[0],
        warning="; ".join(notes),
        config_sources=tuple(sources),
    )


def _refuse_unknown_hooks(manager: pluggy.PluginManager, module: object) -> None:
    """Raises `PluginError` if the module marks an unknown hook, which pluggy would never call."""
    known = [name for name in vars(hookspecs) if name.startswith("arcforge_")]
    marked = [caller.name for caller in manager.get_hookcallers(module) or ()]
    for name in sorted(set(marked) - set(known)):
        raise PluginError(f"unknown hook {name!r}{nearest(name, known)}")


def load_entry_points(entries: list[metadata.EntryPoint], *, strict: bool, blocked: set[str]) -> LoadedPlugins:
    """Loads the given entry points in order; see the module docstring for how faults are handled.

    Args:
        entries: those of `discover`.
        strict: raise at the first fault.
        blocked: entry-point or distribution names to skip.

    Raises:
        PluginError: a plugin is faulty and `strict` is set.
    """
    loaded = LoadedPlugins()
    owners: dict[str, str] = {}
    for entry in entries:
        owner = _owner(entry)
        if blocked & {entry.name, owner.split()[0]}:
            loaded.plugins.append(PluginInfo(entry.name, owner, blocked=True))
            continue
        start = time.perf_counter()
        try:
            if entry.name in owners:
                raise PluginError(f"entry point {entry.name!r} is already used by {owners[entry.name]}")
            owners[entry.name] = owner
            with printing_to_stderr():
                info = _load_one(entry, loaded)
        except BaseException as error:  # SystemExit, CancelledError: one plugin must not stop every command
            if is_users_interrupt(error):
                raise
            message = str(error) if isinstance(error, PluginError) else words_of(error)
            if strict:
                raise PluginError(f"plugin {entry.name!r} of {owner}: {message}") from error
            info = PluginInfo(entry.name, owner, error=message)
            loaded.registry.absent.append(owner)
        elapsed = time.perf_counter() - start
        loaded.plugins.append(replace(info, seconds=elapsed))
        if info.warning:
            warnings.warn(f"plugin {info.name!r} of {owner}: {info.warning}", FutureWarning, stacklevel=2)
    return loaded


@functools.cache
def load_plugins() -> LoadedPlugins:
    """Loads every installed plugin once per process (workers call it too)."""
    blocked = {name.strip() for name in os.environ.get("ARCFORGE_BLOCK_PLUGINS", "").split(",") if name.strip()}
    strict = os.environ.get("ARCFORGE_STRICT_PLUGINS") == "1"
    entries = discover()
    known = {entry.name for entry in entries} | {_owner(entry).split()[0] for entry in entries}
    for name in sorted(blocked - known):
        warnings.warn(f"ARCFORGE_BLOCK_PLUGINS: no plugin {name!r}{nearest(name, known)}", stacklevel=2)
    return load_entry_points(entries, strict=strict, blocked=blocked)


@functools.cache
def registry() -> Registry:
    """Returns the process-wide registry, loading all installed plugins on the first call."""
    return load_plugins().registry

"""Loads plugins from entry points: each in its own try, every fault reported, none fatal.

pluggy's stock loader skips a second plugin of the same name silently, dies on one broken plugin and accepts
misspelt hooks; this one records all three and goes on. ``ARCFORGE_STRICT_PLUGINS=1`` raises instead.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from dataclasses import dataclass, field, replace
from importlib import metadata

import pluggy

from arcforge_core import hookspecs
from arcforge_core.errors import PluginError, nearest
from arcforge_core.registry import FIRST_PARTY, Registrar, Registry

GROUP = "arcforge.plugins"


@dataclass(frozen=True)
class PluginInfo:
    """One plugin that was looked at.

    Attributes:
        name: entry-point name.
        distribution: distribution name and version.
        api: plugin API number it was written for; 0 when it was not loaded.
        seconds: time its import and registration took.
        error: why it was not loaded, or an empty string.
        warning: something to know although it was loaded, or an empty string.
        blocked: switched off by ``ARCFORGE_BLOCK_PLUGINS``.
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
    """The registry and what happened to each plugin."""

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
    """Imports and registers one plugin; nothing of it enters the registry unless all of it is well."""
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
    taken = [command for script, command in loaded.registry.commands.items() if script in own.commands]
    if taken:
        raise PluginError(f"command {taken[0].script!r} is that of {taken[0].distribution}")
    for component in own:
        loaded.registry.register(component)
    loaded.registry.commands |= own.commands
    old = f"plugin API {api[0]} is deprecated, this arcforge has {hookspecs.PLUGIN_API}"
    return PluginInfo(
        entry.name,
        owner,
        api=api[0],
        warning=old if api[0] < hookspecs.PLUGIN_API else "",
        config_sources=tuple(sources),
    )


def _refuse_unknown_hooks(manager: pluggy.PluginManager, module: object) -> None:
    """Raises `PluginError` when the module marks a hook that is none of ours; pluggy would never call it."""
    known = [name for name in vars(hookspecs) if name.startswith("arcforge_")]
    marked = [caller.name for caller in manager.get_hookcallers(module) or ()]
    for name in sorted(set(marked) - set(known)):
        raise PluginError(f"unknown hook {name!r}{nearest(name, known)}")


def load_entry_points(entries: list[metadata.EntryPoint], *, strict: bool, blocked: set[str]) -> LoadedPlugins:
    """Loads the given entry points in order; see the module docstring for the treatment of faults.

    Args:
        entries: what `discover` found.
        strict: raise at the first fault.
        blocked: entry-point or distribution names to leave out.

    Raises:
        PluginError: a plugin is at fault and `strict` is set.
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
            info = _load_one(entry, loaded)
        except (Exception, SystemExit) as error:  # whatever a stranger's module does must not stop other commands
            message = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            if strict:
                raise PluginError(f"plugin {entry.name!r} of {owner}: {message}") from error
            info = PluginInfo(entry.name, owner, error=message)
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

"""``arcforge-plugins``: lists plugins, their components, and faults; ``new`` writes a package of your own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arcforge_core.cli.errors import Parser, run_main
from arcforge_core.cli.new_plugin import KINDS, new_plugin
from arcforge_core.config.search_path import conflicts
from arcforge_core.plugins.hookspecs import PLUGIN_API
from arcforge_core.plugins.loader import LoadedPlugins, PluginInfo, load_plugins
from arcforge_core.plugins.registry import Component


def components_of(plugin: PluginInfo, loaded: LoadedPlugins) -> list[Component]:
    """Returns the components of a plugin, by kind and name."""
    return [c for c in loaded.registry if (c.plugin, c.distribution) == (plugin.name, plugin.distribution)]


def as_json(loaded: LoadedPlugins, timings: bool) -> dict[str, Any]:
    """Returns the listing as JSON-ready values."""
    plugins = []
    for plugin in loaded.plugins:
        state = "failed" if plugin.error else "blocked" if plugin.blocked else "loaded"
        row: dict[str, Any] = {"name": plugin.name, "distribution": plugin.distribution, "state": state}
        row |= {"api": plugin.api, "error": plugin.error, "warning": plugin.warning}
        row["components"] = [
            {"kind": c.kind, "name": c.name, "summary": c.summary} for c in components_of(plugin, loaded)
        ]
        if timings:
            row["seconds"] = round(plugin.seconds, 6)
        plugins.append(row)
    doubles = [{"kind": kind, "name": name, "claimed_by": owners} for (kind, name), owners in conflicts().items()]
    return {"plugin_api": PLUGIN_API, "plugins": plugins, "conflicts": doubles}


def as_text(loaded: LoadedPlugins, timings: bool) -> Iterator[str]:
    """Yields the listing line by line: loaded plugins with their components, then blocked and failed ones."""
    for plugin in loaded.plugins:
        if plugin.error or plugin.blocked:
            continue
        time = f", {plugin.seconds * 1e3:.1f} ms" if timings else ""
        yield f"{plugin.distribution}  (plugin {plugin.name}, API {plugin.api}{time})"
        rows = components_of(plugin, loaded)
        kind_width = max((len(c.kind) for c in rows), default=0)
        name_width = max((len(c.name) for c in rows), default=0)
        for c in rows:
            yield f"  {c.kind:<{kind_width}}  {c.name:<{name_width}}  {c.summary}"
        if not rows:
            yield "  no components"
    yield from problems(loaded)


def problems(loaded: LoadedPlugins) -> Iterator[str]:
    """Yields one line for each blocked, failed or outdated plugin, and for each name that two distributions claim."""
    for plugin in loaded.plugins:
        if plugin.blocked:
            yield f"BLOCKED {plugin.distribution} (plugin {plugin.name}): ARCFORGE_BLOCK_PLUGINS names it"
        if plugin.warning:
            yield f"WARNING {plugin.distribution} (plugin {plugin.name}): {plugin.warning}"
        if plugin.error:
            yield f"FAILED {plugin.distribution} (plugin {plugin.name}): {plugin.error}"
    for (kind, name), owners in conflicts().items():
        yield f"CLAIMED TWICE {kind}={name}: {' and '.join(owners)}; using it is an error until one is blocked"


@run_main
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; broken plugins are listed, and are no failure of the command."""
    parser = Parser(prog="arcforge-plugins", description="List installed plugins and components.")
    parser.add_argument("--json", action="store_true", help="machine-readable listing")
    parser.add_argument("--timings", action="store_true", help="add the time to import and register each")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    new = actions.add_parser("new", help="write a package of your own", description="Write a package of your own.")
    new.add_argument("kind", help=f"kind of its component: {', '.join(KINDS)}")
    new.add_argument("name", help="the component's name, e.g. acme for hardware=acme")
    new.add_argument("--folder", type=Path, default=Path(), help="where the package's folder is made; default: here")
    options = parser.parse_args(argv)
    loaded = load_plugins()
    if options.action == "new":
        written = new_plugin(options.kind, options.name, options.folder, loaded.registry)
        print(f"{written}: pip install -e {written}, then arcforge-conformance {options.kind}={options.name} --quick")
    elif options.json:
        print(json.dumps(as_json(loaded, options.timings), indent=2))
    else:
        print("\n".join(as_text(loaded, options.timings)))
    return 0

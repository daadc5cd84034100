"""``arcforge-env layers``: lists, fetches, verifies and frees toolchains that sandboxes show over the system."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arcforge_core.cli.errors import Parser
from arcforge_core.contracts.sandbox import Command, SandboxLimits
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.commands import BubblewrapConfig
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import KNOWN, recipe_of
from arcforge_rl.layers.store import Layer, LayerError, LayerStore
from arcforge_rl.sandbox.select import build_sandboxes

ACTIONS = ("list", "fetch", "verify", "free")
LIMITS = SandboxLimits(cpu_seconds=30, wall_seconds=60, memory_bytes=2 << 30, processes=256)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: a name is unknown, or a layer cannot be fetched or used.
    """
    parser = Parser(prog="arcforge-env layers", description=__doc__)
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS, help="what to do (default: list)")
    parser.add_argument("names", nargs="*", help=f"layers: {', '.join(KNOWN)}; verify and free: all by default")
    parser.add_argument("--store", type=Path, help="folder of the layers (default: layers in the cache of arcforge)")
    parser.add_argument("--downloads", action="store_true", help="free: delete the kept downloads of the layers, too")
    options = parser.parse_args(argv)
    if options.downloads and options.action != "free":
        raise ArcforgeError(f"--downloads: is an option of free, not of {options.action}")
    store = LayerStore(options.store)
    for name in options.names:
        recipe_of(name) if options.action == "fetch" else None
    if options.action == "list":
        show(store)
    elif options.action == "fetch":
        for name in options.names or parser.error("fetch: name at least one layer"):
            layer = ensure(recipe_of(name), store)
            print(f"{layer.name}  {layer.bytes / 1e6:.1f} MB  {layer.content[:16]}  {try_out(layer)}")
    else:
        layers = chosen(store, options.names, missing=options.downloads)
        for layer in layers:
            if options.action == "verify":
                layer.check()
                print(f"{layer.name}  {layer.content[:16]}  unchanged  {try_out(layer)}")
            else:
                store.free(layer)
                print(f"{layer.name}  {layer.bytes / 1e6:.1f} MB freed")
        for name in sorted({*options.names} or {layer.name for layer in layers}) if options.downloads else ():
            print(f"{name}  {store.free_downloads(name) / 1e6:.1f} MB of downloads freed")
    return 0


def chosen(store: LayerStore, names: Sequence[str], missing: bool = False) -> list[Layer]:
    """Returns the layers of these names, all if none is given.

    Args:
        store: has them.
        names: of layers.
        missing: whether one may be missing.

    Raises:
        LayerError: one is not there.
    """
    layers = store.layers()
    for name in () if missing else names:
        if name not in {layer.name for layer in layers}:
            raise LayerError("missing", f"layer {name} is not in {store.folder}")
    return [layer for layer in layers if not names or layer.name in names]


def show(store: LayerStore) -> None:
    """Prints the layers that are there, and those that can be fetched."""
    table = Table("layer", "source", "size", "packages", "content")
    layers = store.layers()
    for layer in layers:
        source = KNOWN[layer.name].source if layer.name in KNOWN else "-"
        packages = f"{len(layer.contents)}: {', '.join(layer.contents)[:40]}"
        table.add_row(layer.name, source, f"{layer.bytes / 1e6:.1f} MB", packages, layer.content[:16])
    for name, recipe in KNOWN.items():
        if name not in {layer.name for layer in layers}:
            table.add_row(name, recipe.source, "not fetched", ", ".join(recipe.packages), "")
    Console(markup=False, highlight=False).print(table)


def try_out(layer: Layer) -> str:
    """Runs the check of a known layer in a sandbox and returns the first line of its output.

    Raises:
        LayerError: it fails.
    """
    recipe = KNOWN.get(layer.name)
    if recipe is None or not recipe.check:
        return ""

    async def work() -> str:
        async with build_sandboxes(BubblewrapConfig()) as backend:
            sandbox = await backend.open(limits=LIMITS, layers=layer.shown)
            done = await sandbox.exec(Command(recipe.check))
        text = (done.stdout + done.stderr).decode(errors="replace").strip()
        if not done.ok:
            said = text.splitlines()[-1] if text else "nothing"
            how = f"{' '.join(recipe.check)} ended with {done.outcome.value} {done.code}: {said}"
            raise LayerError("partial", f"layer {layer.name} does not work in a sandbox: {how}")
        return text.splitlines()[0] if text else ""

    return asyncio.run(work())

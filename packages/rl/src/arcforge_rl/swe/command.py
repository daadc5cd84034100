"""``arcforge-env swe``: builds instances of ``environment=swe``, and reads and writes SWE-bench's form.

``bugs SOURCE`` puts faults into a repository whose tests pass; ``releases OLD NEW`` runs a release's tests on the code
of the one before; ``import FILE REPOSITORY`` adds SWE-bench instances of one checked-out repository; ``export FOLDER``
prints instances in that form; ``patches SOURCE NAME`` runs the tests of a Debian source package with and without one of
its patches. A source is a folder, an archive, a release on an index of Python packages, ``NAME==VERSION``, or a source
package of Debian, ``debian:NAME`` or ``debian:NAME=VERSION``; none of their code is run when they are fetched.
Languages are components of the kind ``swe_language``; that of most source files is the default.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.swe.archives import fetch_release
from arcforge_rl.swe.build import TRIES, Injected, Repository, compare, inject
from arcforge_rl.swe.debian import PLACES, PREFIX, fetch_source, patched
from arcforge_rl.swe.instance import FILE, OURS, instance_of, read_instances, read_text
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.patches import apply, paths_of
from arcforge_rl.swe.setup import log_attempts, set_up
from arcforge_rl.swe.sources import copy_clean, source_tree

ARCHIVES = "archives"
"""Folder of fetched releases."""
LOG = "attempts.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: an argument is wrong, or nothing could be built, with the reason.
    """
    parser = Parser(prog="arcforge-env swe", description=__doc__)
    parser.add_argument("action", choices=("bugs", "releases", "patches", "import", "export"))
    parser.add_argument("sources", nargs="+", type=Path, help="see above")
    parser.add_argument("--to", type=Path, default=Path("swe"), help="folder of the environment (default: swe)")
    parser.add_argument("--repo", default="", help="name of the repository (default: that of the source)")
    parser.add_argument("--language", default="", help="of the repository (default: that of most source files)")
    parser.add_argument("--version", default="", help="its version")
    parser.add_argument(
        "--index",
        default="",
        help="of packages (default: that of PIP_INDEX_URL, else PyPI); "
        "a file or folder of apt's sources for debian:NAME (default: those of this system)",
    )
    parser.add_argument("--count", type=int, default=8, help="faults to put in (default: 8)")
    parser.add_argument("--tries", type=int, help=f"faults to try at most (default: {TRIES} for each of --count)")
    parser.add_argument("--seconds", type=float, default=120.0, help="bound of one run of the tests (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="decides which faults are tried (default: 0)")
    options = parser.parse_args(argv)
    wanted = {"bugs": 1, "releases": 2, "patches": 2, "import": 2, "export": 1}[options.action]
    if len(options.sources) != wanted:
        raise ArcforgeError(f"{options.action}: takes {wanted} sources, not {len(options.sources)}")
    if options.count < 1 or options.seconds <= 0:
        raise ArcforgeError("--count must be at least 1, --seconds above 0")
    if options.tries is not None and options.tries < options.count:
        raise ArcforgeError(f"--tries {options.tries}: must be at least --count, which is {options.count}")
    options.to.mkdir(parents=True, exist_ok=True) if options.action != "export" else None
    name = options.repo or options.sources[0].name.split(".tar")[0].removeprefix(PREFIX).split("=")[0]
    if options.action == "export":
        for one in read_instances(options.sources[0]):
            print(json.dumps({key: value for key, value in one.as_row().items() if key != OURS}))
    elif options.action == "import":
        taken = take(options.sources[0], options.sources[1], options.to, options.language)
        print(f"{taken} instances in {options.to}")
    elif options.action == "bugs":
        with source_tree(_located(options.sources[0], options)) as tree:
            made = asyncio.run(_bugs(tree, name, options))
        print(f"{len(made.made)} of {options.count} instances of {name} in {options.to}; {made}")
    elif options.action == "patches":
        located = _located(options.sources[0], options)
        with tempfile.TemporaryDirectory() as place:
            old, new = patched(located, str(options.sources[1]), Path(place))
            print(f"{asyncio.run(_release(old, new, name, options, 'patch'))} in {options.to}")
    else:
        before, after = (_located(source, options) for source in options.sources)
        with source_tree(before) as old, source_tree(after) as new:
            print(f"{asyncio.run(_release(old, new, name, options))} in {options.to}")
    return 0


def _located(source: Path, options: Namespace) -> Path:
    """Returns a source's folder or archive; a release is fetched."""
    if str(source).startswith(PREFIX):
        places = [Path(options.index)] if options.index else PLACES
        return fetch_source(str(source), options.to.absolute() / ARCHIVES, places)
    if source.exists() or "==" not in source.name:
        return source
    return fetch_release(str(source), options.to / ARCHIVES, options.index)


async def _prepared(tree: Path, name: str, options: Namespace) -> Repository:
    language = language_of(options.language) if options.language else language_in(tree)
    packages, attempts = await set_up(language, tree, options.seconds)
    log_attempts(options.to / LOG, name, language.name, attempts)
    if attempts[-1].reason:
        raise DataError(f"{name} cannot be set up: {attempts[-1].reason} ({len(attempts)} attempts, see {LOG})")
    return Repository(language, name, options.version, packages, options.to, options.seconds)


async def _bugs(tree: Path, name: str, options: Namespace) -> Injected:
    repo = await _prepared(tree, name, options)
    tries = TRIES * options.count if options.tries is None else options.tries
    found = await inject(repo, tree, options.count, options.seed, tries)
    if not found.made:
        raise DataError(f"{name}: no fault became an instance; {found}")
    return found


async def _release(old: Path, new: Path, name: str, options: Namespace, kind: str = "release") -> str:
    return (await compare(await _prepared(new, name, options), old, new, kind)).instance_id


def take(path: Path, repository: Path, to: Path, language: str = "") -> int:
    """Adds the SWE-bench instances of a file, whose repository is checked out in a folder.

    Raises:
        DataError: a row is malformed, or its patches do not fit the repository.
        UnknownComponentError: the language is not registered.
    """
    spoken = language_of(language) if language else language_in(repository)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    rows = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    )
    if not rows:
        raise DataError(f"{path} has no instance")
    known = {one.instance_id for one in read_instances(to)} if (to / FILE).exists() else set()
    lines = []
    for number, row in enumerate(rows, 1):
        one = instance_of(row, f"{path}:{number}")
        if one.instance_id in known:
            raise DataError(f"{path}:{number}: {one.instance_id} is in {to} already")
        tests = apply(one.test_patch, {name: read_text(repository / name) for name in paths_of(one.test_patch)})
        one.repair(repository)
        ours = {"tree": one.instance_id, "tests": {k: v for k, v in tests.items() if v is not None}, "kind": "import"}
        copy_clean(repository, to / "trees" / one.instance_id, spoken.left_out)
        lines.append(json.dumps({**row, OURS: {**ours, "layers": [], "language": spoken.name}}) + "\n")
    with (to / FILE).open("a", encoding="utf-8") as file:
        file.writelines(lines)
    return len(lines)

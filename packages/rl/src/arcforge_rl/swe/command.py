"""``arcforge-env swe``: builds instances of ``environment=swe``, and reads and writes SWE-bench's form.

``bugs SOURCE`` puts faults into a repository whose tests pass; ``releases OLD NEW`` runs a release's tests on the code
of the one before; ``import FILE REPOSITORY`` adds SWE-bench instances of one checked-out repository; ``export FOLDER``
prints instances in that form; ``patches SOURCE NAME`` runs the tests of a Debian source package with and without one of
its patches; ``changes REPOSITORY`` takes commits that change code and tests from the history of a git repository, a
folder or a bundle; ``all FILE`` builds from each line of a file, in these words. Any other source is a folder, an
archive, a release on an index of Python packages, ``NAME==VERSION``, one of npm, ``npm:NAME==VERSION``, or a source
package of Debian, ``debian:NAME`` or ``debian:NAME=VERSION``; none of their code is run when they are fetched.
Languages are components of the kind ``swe_language``; that of most source files is the default.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.files.lock import locked
from arcforge_rl.layers.archives import fetch_release
from arcforge_rl.swe.agent_options import OPTIONS, add_agent, agent_in, flag_of, words_of
from arcforge_rl.swe.build import TRIES, Origin, Repository, Tried, compare, inject
from arcforge_rl.swe.changes import ChangeWalk
from arcforge_rl.swe.debian import DEBIAN, PLACES, fetch_source, patched
from arcforge_rl.swe.history import opened
from arcforge_rl.swe.instance import FILE, OURS, instance_of, read_instances, read_text
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.listed import LOG, build_all, read_lines, table_of
from arcforge_rl.swe.messages import CLASSES, FEATURE, FIX
from arcforge_rl.swe.npm import NPM, fetch_pack
from arcforge_rl.swe.patches import apply, paths_of
from arcforge_rl.swe.setup import NOT_SET_UP
from arcforge_rl.swe.setup_agent import attempts_at
from arcforge_rl.swe.sources import copy_clean, source_tree

ARCHIVES = "archives"
"""Folder of fetched releases."""
LONGEST_FETCH = 3600.0
"""Seconds for which a source waits for those that other processes fetch."""
WANTED = {"bugs": 1, "releases": 2, "patches": 2, "changes": 1, "import": 2, "export": 1, "all": 1}
"""Action -> number of its sources."""
LINES = ("bugs", "releases", "patches", "changes")
"""Actions of the lines of a file."""
PAIR = {"repo", "language", "version", "index", "seconds", *OPTIONS}
READ = {
    "bugs": {*PAIR, "count", "tries", "seed"}, "releases": PAIR, "patches": PAIR, "import": {"language"},
    "changes": {*PAIR, "count", "tries", "branch", "classes"} - {"version", "index"}, "export": set[str](),
    "all": {"jobs", "minutes", *OPTIONS},
}  # fmt: skip
"""Action -> options that it reads, besides folders."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: an argument is wrong, or nothing could be built, with the reason.
    """
    options = options_of(argv)
    options.to.mkdir(parents=True, exist_ok=True) if options.action != "export" else None
    name = options.repo or _name_of(options.sources[0])
    if options.action == "all":
        return _all(options)
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
    elif options.action == "changes":
        changed = _changes(name, options)
        print(f"{len(changed.made)} of {options.count} instances of {name} in {options.to}; {changed}")
    elif options.action == "patches":
        located = _located(options.sources[0], options)
        with tempfile.TemporaryDirectory() as place:
            old, new = patched(located, str(options.sources[1]), Path(place))
            print(f"{asyncio.run(_pair(old, new, name, options, 'patch'))} in {options.to}")
    else:
        before, after = (_located(source, options) for source in options.sources)
        with source_tree(before) as old, source_tree(after) as new:
            print(f"{asyncio.run(_pair(old, new, name, options, 'release'))} in {options.to}")
    return 0


def options_of(argv: Sequence[str] | None) -> Namespace:
    """Returns the options that the words of the command give.

    Raises:
        ArcforgeError: a word is wrong.
    """
    parser = Parser(prog="arcforge-env swe", description=__doc__, allow_abbrev=False)
    parser.add_argument("action", choices=(*WANTED,))
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
    parser.add_argument("--count", type=int, default=8, help="instances to make of faults or changes (default: 8)")
    parser.add_argument(
        "--tries", type=int, help=f"faults or changes to try at most (default: {TRIES} for each of --count)"
    )
    parser.add_argument("--branch", default="", help="changes: branch, tag or range A..B (default: that of HEAD)")
    parser.add_argument(
        "--classes", default=f"{FIX},{FEATURE}", help=f"changes: of {', '.join(CLASSES)} (default: {FIX},{FEATURE})"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="bound of one run of the tests (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="decides which faults are tried (default: 0)")
    parser.add_argument("--archives", type=Path, help=f"folder of fetched releases (default: {ARCHIVES} in --to)")
    parser.add_argument("--jobs", type=int, default=2, help="all: lines that are built at a time (default: 2)")
    parser.add_argument("--minutes", type=float, default=75.0, help="all: bound of the command (default: 75)")
    add_agent(parser)
    options = parser.parse_args(argv)
    if len(options.sources) != WANTED[options.action]:
        raise ArcforgeError(f"{options.action}: takes {WANTED[options.action]} sources, not {len(options.sources)}")
    foreign = {name for read in READ.values() for name in read} - READ[options.action]
    for name in sorted(name for name in foreign if getattr(options, name) != parser.get_default(name)):
        raise ArcforgeError(f"{flag_of(name)}: is no option of {options.action}, which reads {_listed(options.action)}")
    agent_in(options)
    if options.jobs < 1 or options.minutes <= 0:
        raise ArcforgeError("--jobs must be at least 1, --minutes above 0")
    if options.count < 1 or options.seconds <= 0:
        raise ArcforgeError("--count must be at least 1, --seconds above 0")
    if options.tries is not None and options.tries < options.count:
        raise ArcforgeError(f"--tries {options.tries}: must be at least --count, which is {options.count}")
    if strange := [one for one in options.classes.split(",") if one not in CLASSES]:
        raise ArcforgeError(f"--classes {strange[0]!r}: must be of {', '.join(CLASSES)}, with commas between")
    return options


def _name_of(source: Path) -> str:
    """Returns the name of a source's repository: that of a folder, archive, bundle or release."""
    own = source.resolve().name if source.name in ("", "..") else source.name
    return own.split(".tar")[0].removesuffix(".bundle").removesuffix(".git").split(":")[-1].split("=")[0]


def _listed(action: str) -> str:
    return ", ".join(flag_of(name) for name in ("to", "archives", *sorted(READ[action])))


def _all(options: Namespace) -> int:
    """Builds each line of a file; 1 if there is no instance."""
    folder = (options.archives or options.to / ARCHIVES).absolute()

    def check(words: Sequence[str]) -> None:
        if options_of(words).action not in LINES:
            raise ArcforgeError(f"{words[0]}: a line is one of {', '.join(LINES)}")
        if own := [word for word in words if re.match("--(to|archives|url|model|key-variable|agent.*)(=|$)", word)]:
            raise ArcforgeError(f"{own[0]}: is an option of all, not of a line")

    lines = read_lines(options.sources[0], check)
    built = build_all(lines, options.to, folder, options.jobs, options.minutes, words_of(options))
    print(table_of(built))
    return 0 if any(one.kinds for one in built) else 1


def _located(source: Path, options: Namespace) -> Path:
    """Returns a source's folder or archive; a release is fetched, by one process of a folder at a time."""
    debian, npm = (str(source).startswith(prefix) for prefix in (DEBIAN, NPM))
    if not debian and not npm and (source.exists() or "==" not in source.name):
        return source
    folder = (options.archives or options.to / ARCHIVES).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, LONGEST_FETCH):
        if npm:
            return fetch_pack(str(source), folder)
        if debian:
            return fetch_source(str(source), folder, [Path(options.index)] if options.index else PLACES)
        return fetch_release(str(source), folder, options.index)


async def _prepared(tree: Path, name: str, options: Namespace) -> Repository:
    language = language_of(options.language) if options.language else language_in(tree)
    attempts = await attempts_at(name, language, tree, options.seconds, options.to / LOG, agent_in(options))
    last = attempts[-1]
    if last.reason:
        more = f"--seconds is {options.seconds:g}; {len(attempts)} attempts, see {LOG}"
        raise DataError(f"{name} {NOT_SET_UP}: {last.reason} ({more})")
    return Repository(language, name, options.version, last.packages, options.to, options.seconds, last.left_out)


async def _bugs(tree: Path, name: str, options: Namespace) -> Tried:
    repo = await _prepared(tree, name, options)
    tries = TRIES * options.count if options.tries is None else options.tries
    found = await inject(repo, tree, options.count, options.seed, tries)
    if not found.made:
        raise DataError(f"{name}: no fault became an instance; {found}")
    return found


async def _pair(old: Path, new: Path, name: str, options: Namespace, kind: str) -> str:
    return (await compare(await _prepared(new, name, options), old, new, Origin(kind))).instance_id


def _changes(name: str, options: Namespace) -> Tried:
    tries = TRIES * options.count if options.tries is None else options.tries
    with opened(options.sources[0]) as history:
        walk = ChangeWalk(
            history, name, options.to, options.count, tries, options.classes.split(","), options.branch,
            options.language, options.seconds, agent_in(options),
        )  # fmt: skip
        return asyncio.run(walk.build())


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

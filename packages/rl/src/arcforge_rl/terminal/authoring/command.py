"""``arcforge-env terminal author``: writes tasks from seeds or pages, and keeps those that the validator accepts.

``--route seeds`` takes a jsonl file of seeds (``text``, and optionally ``title``, ``topic``, ``difficulty``), or one
seed for each template family; ``--route pages`` classifies the pages of a corpus and draws from strata of topic and
difficulty. Without ``--url`` templates write the tasks; with it a model on a server of OpenAI's chat completions. A
draft must keep the rules, be built, and be played: the oracle must earn 1, silence and cheats 0. Otherwise the author
mends it, ``--revisions`` times. ``authored.jsonl`` has each draft; a stopped command continues.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.files.lock import locked
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.endpoints import add_server, server_in
from arcforge_rl.search.corpus import PYTHON, corpus_pages
from arcforge_rl.terminal.authoring.authors import Author, TemplateAuthor
from arcforge_rl.terminal.authoring.endpoint import EndpointAuthor
from arcforge_rl.terminal.authoring.sources import TaskSource, classify, read_seeds, stratified, variations
from arcforge_rl.terminal.authoring.synthesis import Synthesis, figures_of, refused_by
from arcforge_rl.terminal.environment import Terminal
from arcforge_rl.terminal.table import FAMILIES

LONGEST_REPLY = 8192
"""Tokens of a model's reply, which holds a whole task."""


def author(argv: Sequence[str]) -> int:
    """Runs the command line; 1 if there are fewer tasks than wanted.

    Raises:
        ArcforgeError: an argument is wrong, another process writes there, or the infrastructure fails.
    """
    parser = Parser(prog="arcforge-env terminal author", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the tasks")
    parser.add_argument("--route", default="seeds", choices=("seeds", "pages"), help="(default: seeds)")
    parser.add_argument("--count", type=int, default=13, help="tasks of the route in the folder (default: 13)")
    parser.add_argument("--seeds", type=Path, help="seeds: jsonl file (default: one seed for each template family)")
    parser.add_argument("--corpus", nargs="+", help="pages: python, or files and folders (default: python)")
    parser.add_argument("--seed", type=int, default=0, help="pages: decides the draws from the strata (default: 0)")
    add_server(parser, "the author")
    parser.add_argument("--revisions", type=int, default=3, help="drafts after the first one (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, help="plays of each script (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, help="sources at a time (default: 1)")
    options = parser.parse_args(argv)
    for name, least in (("count", 1), ("revisions", 0), ("repeats", 1), ("jobs", 1), ("seed", 0)):
        if (value := getattr(options, name)) < least:
            raise ArcforgeError(f"--{name} {value}: must be at least {least}")
    foreign = ("corpus", "seed") if options.route == "seeds" else ("seeds",)
    for name in foreign:
        if getattr(options, name) != parser.get_default(name):
            raise ArcforgeError(f"--{name}: is no option of --route {options.route}")
    writer = _author(options)
    sources, refused = _sources(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    with locked(options.folder):
        synthesis = Synthesis(options.folder, writer, Terminal(TerminalConfig()), options.revisions, options.repeats)
        try:
            asyncio.run(synthesis.run(sources, options.route, options.count, options.jobs))
        finally:
            show(synthesis, refused)
    found = len(synthesis.admitted(options.route))
    if synthesis.unanswered:
        raise ArcforgeError(f"{len(synthesis.unanswered)} sources failed; the same command takes them again")
    return 0 if found >= options.count else 1


def _author(options: Namespace) -> Author:
    config = server_in(options, max_new_tokens=LONGEST_REPLY, seconds=600.0)
    return TemplateAuthor() if config is None else EndpointAuthor(config)


def _sources(options: Namespace) -> tuple[Iterator[TaskSource], Counter[str]]:
    """Returns the sources of the route, and pages that suit no task, by reason."""
    if options.route == "seeds":
        seeds = read_seeds(options.seeds)
        strange = [seed for seed in seeds if seed.topic not in FAMILIES]
        if strange and options.url is None:
            raise DataError(
                f"{options.seeds}: {strange[0].title!r} has the topic {strange[0].topic!r}; without --url a topic must "
                f"be one of {', '.join(FAMILIES)}"
            )
        return variations(seeds), Counter()
    suited, refused = classify(corpus_pages(options.corpus or [PYTHON]))
    if not suited:
        raise DataError(f"no page suits a task: {_counted(refused)}")
    return stratified(suited, options.seed), refused


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(8))


def show(synthesis: Synthesis, refused: Counter[str]) -> None:
    """Prints figures by route, and reasons."""
    console, table = Console(), Table()
    for column in ("route", "sources", "drafts", "worlds", "built", "share", "tasks", "families"):
        table.add_column(column, justify="left" if column == "route" else "right")
    for row in figures_of(synthesis.attempts):
        table.add_row(*row)
    console.print(table)
    if refused:
        console.print(f"pages: {_counted(refused)}", highlight=False)
    if counts := refused_by(synthesis.attempts):
        console.print(f"drafts: {_counted(counts)}", highlight=False)

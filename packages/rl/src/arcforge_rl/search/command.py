"""``arcforge-env search``: makes the questions of ``environment=search``.

``build`` reads pages, draws questions, filters them and writes a folder; ``show FOLDER`` prints how its questions came
about. ``--corpus python`` is the documentation of the running Python's standard library; jsonl files, web archives and
folders with HTML or texts are others. Without ``--url`` the filters ask scripted agents; with it a model on a server of
OpenAI's chat completions.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arcforge_core.cli.errors import Parser
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.endpoints import Endpoint, add_server, server_in
from arcforge_rl.search.attempts import AttemptRecord
from arcforge_rl.search.build import Built, build
from arcforge_rl.search.corpus import PYTHON, corpus_pages
from arcforge_rl.search.filters import MakeAgent
from arcforge_rl.search.questions import QUESTIONS, read_report, write_folder

ATTEMPTS = "attempts.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: an argument is wrong, or no question was made.
    """
    parser = Parser(prog="arcforge-env search", description=__doc__)
    parser.add_argument("action", choices=("build", "show"))
    parser.add_argument("folder", nargs="?", type=Path, help="of show (default: search)", default=Path("search"))
    parser.add_argument("--corpus", nargs="+", default=[PYTHON], help="python, or files and folders (default: python)")
    parser.add_argument("--to", type=Path, default=Path("search"), help="folder of the environment (default: search)")
    parser.add_argument("--count", type=int, default=240, help="questions that are wanted (default: 240)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: 0)")
    parser.add_argument("--shared", type=int, default=1, help="rare entities in two questions, at most (default: 1)")
    add_server(parser, "the agent that the filters ask")
    options = parser.parse_args(argv)
    if options.action == "show":
        return show(options.folder)
    if options.count < 1 or options.seed < 0 or options.shared < 0:
        raise ArcforgeError("--count must be at least 1, --seed and --shared not below 0")
    agent = _agent(options)
    if (options.to / QUESTIONS).exists():
        raise ArcforgeError(f"{options.to} has questions already; choose another folder with --to")
    pages = corpus_pages(options.corpus)
    named = options.model or options.url or "scripted"
    record = AttemptRecord(options.to / ATTEMPTS if agent else None, named)
    built = asyncio.run(build(pages, options.count, options.seed, agent, agent, options.shared, record))
    if not built.questions:
        raise DataError(f"no question: {built.report['draws']} draws, {_most(built)}")
    report = {"corpus": options.corpus, "agents": named, **built.report}
    try:
        write_folder(options.to, pages, built.questions, built.corrections, report)
    except OSError as error:
        raise ArcforgeError(f"cannot write {error.filename or options.to}: {error.strerror}") from error
    return show(options.to)


def _agent(options: Namespace) -> MakeAgent | None:
    config = server_in(options, max_new_tokens=1024, seconds=300.0)
    return None if config is None else lambda key, number: Endpoint("filter", config, None, f"{key}/{number}")


def _most(built: Built) -> str:
    counts: dict[str, int] = built.report["draws without a question"] | built.report["reasons"]
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda pair: -pair[1])[:3])


def show(folder: Path) -> int:
    """Prints the report of a folder.

    Raises:
        DataError: it has none.
    """
    report = read_report(folder)
    filters, drawn = report["filters"], report["draws without a question"]
    table = Table()
    for column in ("filter", "asked", "refused", "share"):
        table.add_column(column, justify="left" if column == "filter" else "right")
    refused = sum(drawn.values())
    table.add_row("draws", str(report["draws"]), str(refused), f"{refused / max(1, report['draws']):.1%}")
    for name, counts in filters.items():
        table.add_row(name, str(counts["asked"]), str(counts["refused"]), f"{counts['share']:.1%}")
    console = Console()
    console.print(f"{report['questions']} questions in {folder}, {report['heldout']} of them held out", highlight=False)
    console.print(table)
    for title, counts in (("draws", drawn), ("filters", report["reasons"])):
        for reason, count in counts.items():
            console.print(f"{title}: {count} {reason}", highlight=False)
    console.print(f"corrections of the graph: {report['corrections']}", highlight=False)
    return 0

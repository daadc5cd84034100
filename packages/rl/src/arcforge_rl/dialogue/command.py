"""``arcforge-env tau2``: audits the tasks of tau2: which ones ``environment=tau2`` leaves out, and why.

The data are those of the layer ``tau2`` (``arcforge-env layers fetch tau2``), or of a folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from arcforge_core.cli.errors import Parser
from arcforge_rl.configs.environments import TAU2_DOMAINS
from arcforge_rl.dialogue.audit import audited
from arcforge_rl.dialogue.benchmark import benchmark_folder, licence_of

COLUMNS = ("the gold replay earns 0", "silence earns 1", "an immediate transfer earns 1",
           "repeating the customer's words earns 1")  # fmt: skip
"""Reasons of the audit, in its order."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        DataError, LayerError: the data are not there or cannot be read.
    """
    parser = Parser(prog="arcforge-env tau2", description=__doc__)
    parser.add_argument("action", nargs="?", default="audit", choices=("audit",), help="what to do (default: audit)")
    parser.add_argument("--path", default="", help="folder with inspect-evals (default: the layer tau2)")
    parser.add_argument("--whole", action="store_true", help="all tasks, not only the benchmark's list base")
    parser.add_argument("--json", action="store_true", help="one JSON object per excluded task")
    options = parser.parse_args(argv)
    folder = benchmark_folder(options.path)
    found = {name: audited(folder, name, options.whole) for name in TAU2_DOMAINS}
    excluded = [(name, one) for name in TAU2_DOMAINS for one in found[name] if one.excluded]
    if options.json:
        for name, one in excluded:
            print(json.dumps({"domain": name, "task": one.case.key, "reason": one.excluded}))
        return 0
    table = Table("domain", "tasks", "used", *COLUMNS, "gold calls that fail")
    for name, tasks in found.items():
        reasons = Counter(one.excluded.split(":")[0] for one in tasks)
        counts = [len(tasks), reasons[""], *(reasons[column] for column in COLUMNS), sum(one.failing for one in tasks)]
        table.add_row(name, *map(str, counts))
    console = Console(markup=False, highlight=False)
    console.print(licence_of(folder))
    console.print(table)
    for name, one in excluded:
        console.print(f"{name} {one.case.key}: {one.excluded}")
    return 0

"""The template families by name."""

from __future__ import annotations

import random

from arcforge_rl.terminal.cheating import CHEATS
from arcforge_rl.terminal.drafts import Draft, Family, task_of
from arcforge_rl.terminal.families import (
    archives,
    build,
    checksums,
    git,
    logs,
    network,
    permissions,
    processes,
    repair,
    schedules,
    services,
    sql,
    text,
)
from arcforge_rl.terminal.harbor import HarborTask

FAMILIES: dict[str, Family] = {
    "archives": archives.draw, "build": build.draw, "checksums": checksums.draw, "git": git.draw, "logs": logs.draw,
    "network": network.draw, "permissions": permissions.draw, "processes": processes.draw, "repair": repair.draw,
    "schedules": schedules.draw, "services": services.draw, "sql": sql.draw, "text": text.draw,
}  # fmt: skip


def drawn(family: str, number: int) -> Draft:
    """Returns the draft of a family's number; the same in every process."""
    return FAMILIES[family](random.Random(f"{family}/{number}"))


def drawn_task(family: str, number: int) -> tuple[HarborTask, tuple[str, ...]]:
    """Returns the task of a family's number, and its cheats: those of the family, and those that fit every task."""
    draft = drawn(family, number)
    return task_of(f"{family}-{number}", family, draft), (*draft.cheats, *CHEATS)

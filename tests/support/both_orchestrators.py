"""Runs whose orchestrator is a thread, and a process: apart from `orchestrated`, which that process imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.trainer.run import run
from support.orchestrated import serving


def runs_of_both(
    small_run: Callable[..., RlConfig], policy: Path, folder: Path, options: Sequence[str]
) -> tuple[Path, Path]:
    """Returns the folders of two runs of the same options: the orchestrator is a thread of the first and a process of
    the second. Each asks a server of its own; without staleness and chance both must end in the same bits."""
    shared = (*options, "evaluation.tasks=0", "trainer.deterministic=true", "algorithm=double_sided")
    shared += ("rollout.refills=9", "collection=async", "collection.eta=0", "collection.reset_optimizer=false")
    folders = []
    for orchestrator in ("thread", "process"):
        with serving(policy) as (address, _):
            own = (f"collection.orchestrator={orchestrator}", f"output_dir={folder / orchestrator}")
            engine = ("engine=arcforge", f"engine.url={address}", "engine.stream=false")
            folders.append(run(small_run(*shared, *engine, *own)).dir)
    return folders[0], folders[1]

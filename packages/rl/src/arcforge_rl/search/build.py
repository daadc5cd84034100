"""Makes questions from pages: draw, filter, mend the graph, verify again, until there are enough."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcforge_core.console.progress import track
from arcforge_core.data.split import is_heldout_task
from arcforge_rl.search.attempts import AttemptRecord
from arcforge_rl.search.draw import Drawer, Rejected
from arcforge_rl.search.filters import Filters, MakeAgent
from arcforge_rl.search.graph import Graph, GraphCorrection
from arcforge_rl.search.pages import Page
from arcforge_rl.search.query import QueryPart, solutions
from arcforge_rl.search.questions import SearchQuestion
from arcforge_rl.search.solvers import Guesser, HastySearcher
from arcforge_rl.search.tools import Library
from arcforge_rl.search.verify import Verifier
from arcforge_rl.search.wording import question

DRAWS = 40
"""Draws per question that is wanted, at most, in a round."""
ROUNDS = 3
"""Rounds, each with the graph that the one before has mended."""
OTHERS = 4
"""Wrong answers that a question keeps."""


@dataclass
class Built:
    """Questions, and how they came about.

    Attributes:
        questions: in the order in which they were drawn.
        corrections: of the graph.
        report: counts, plain data.
    """

    questions: list[SearchQuestion]
    corrections: list[GraphCorrection]
    report: dict[str, Any] = field(default_factory=dict)


async def build(
    pages: Sequence[Page],
    wanted: int,
    seed: int = 0,
    closed: MakeAgent | None = None,
    hasty: MakeAgent | None = None,
    shared: int = 1,
    record: AttemptRecord | None = None,
) -> Built:
    """Returns up to `wanted` questions about some pages; the same for the same arguments.

    Args:
        pages: of the corpus.
        wanted: number of questions.
        seed: of all draws.
        closed: agents of the closed-book filter; None: `Guesser`.
        hasty: agents of the few-step filter; None: `HastySearcher`.
        shared: rare entities that two questions may share, at most.
        record: attempts of an earlier build with the same arguments, which are not made again; None keeps none.

    Raises:
        ConfigError: the package of the index is not installed.
        EpisodeFailure: an agent's server gave no reply.
    """
    library, corrections = Library(pages), dict[tuple[str, str, str], GraphCorrection]()
    kept: list[SearchQuestion] = []
    drawn, draws, dropped = Counter[str](), 0, 0
    verifier = Verifier(pages)
    graph = verifier.graph
    closed = closed or (lambda _, number: Guesser(graph, number))
    hasty = hasty or (lambda _, number: HastySearcher(number))
    filters = Filters(library, verifier, closed, hasty, record or AttemptRecord())
    for round_number in range(ROUNDS):
        drawer = Drawer(verifier.graph, shared)
        before, kept = kept, []
        for one in before:  # the mended graph must have their answers alone, too
            if not verifier.check(one.part)[0]:
                drawer.keep(one.part)
                kept.append(one)
        dropped += len(before) - len(kept)
        for number in track(range(wanted * DRAWS), f"round {round_number + 1}", wanted * DRAWS):
            if len(kept) >= wanted:
                break
            draw = random.Random(f"{seed}/{round_number}/{number}")
            draws += 1
            try:
                part = drawer.draw(draw)
            except Rejected as error:
                drawn[str(error)] += 1
                continue
            made = _question(verifier.graph, part, draw)
            if await filters.passes(made):
                drawer.keep(part)
                kept.append(made)
        new = {key: one for key, one in filters.corrections.items() if key not in corrections}
        if not new:
            break
        corrections |= new
        verifier = Verifier(pages, [*corrections.values()])
        filters = replace(filters, verifier=verifier)
    kept = [one for one in kept if not verifier.check(one.part)[0]]
    report = {
        "wanted": wanted,
        "seed": seed,
        "questions": len(kept),
        "heldout": sum(is_heldout_task(f"search/{one.group}") for one in kept),
        "hops": dict(sorted(Counter(str(one.part.size) for one in kept).items())),
        "kinds": dict(sorted(Counter(one.part.kind for one in kept).items())),
        "draws": draws,
        "draws without a question": dict(sorted(drawn.items())),
        "filters": _shares(filters),
        "reasons": dict(sorted(filters.reasons.items())),
        "dropped by a mended graph": dropped,
        "corrections": len(corrections),
        "graph": dict(verifier.graph.figures),
    }
    return Built(kept, [*corrections.values()], report)


def _shares(filters: Filters) -> dict[str, dict[str, float]]:
    found = {}
    for name in ("closed book", "few steps", "verification"):
        asked, refused = filters.counts[f"{name}: asked"], filters.counts[f"{name}: refused"]
        found[name] = {"asked": asked, "refused": refused, "share": round(refused / asked, 4) if asked else 0.0}
    return found


def _question(graph: Graph, part: QueryPart, draw: random.Random) -> SearchQuestion:
    near = [one for less in part.smaller() for one in sorted(solutions(graph, less) - {part.entity})[:50]]
    near += sorted(graph.kinds[part.kind] - {part.entity})[:50]
    others = tuple(dict.fromkeys(near))
    chosen = tuple(draw.sample(others, min(OTHERS, len(others))))
    return SearchQuestion(question(part, draw), part, *graph.answers(part.entity), chosen, graph.group(part.entity))

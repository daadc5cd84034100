"""``arcforge-env slides``: selects decks of rollouts for fine-tuning, shows them, and prints them.

``select ROLLOUTS`` writes the best deck of each task as a record; its defective pages are not trained on. ``gallery
ROLLOUTS`` writes a page with pictures of decks, ``pdf FILE`` the pages of one HTML document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.cli.errors import Parser
from arcforge_core.console.progress import track
from arcforge_core.errors import ArcforgeError, DataError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: an argument is wrong, no rollout can be read, or Chromium is needed and missing.
    """
    parser = Parser(prog="arcforge-env slides", description=__doc__)
    parser.add_argument("action", choices=("select", "gallery", "pdf"))
    parser.add_argument("sources", nargs="+", help="files of rollouts; for pdf an HTML document")
    parser.add_argument("--to", type=Path, default=Path("slides"), help="folder of the results (default: slides)")
    parser.add_argument("--least", type=float, default=0.5, help="share of good pages of a kept deck (default: 0.5)")
    parser.add_argument("--per-task", type=int, default=1, help="most decks of a task (default: 1)")
    parser.add_argument("--most", type=int, default=20, help="most decks in the gallery, the best first (default: 20)")
    options = parser.parse_args(argv)
    if not 0 < options.least <= 1 or options.per_task < 1 or options.most < 1:
        raise ArcforgeError("--least must be above 0 and at most 1, --per-task and --most at least 1")
    try:
        import selectolax  # noqa: F401
        import tinycss2  # noqa: F401
    except ImportError as error:
        raise DataError(f"arcforge-env slides needs pip install 'arcforge-rl[slides]' ({error})") from error
    if options.action == "pdf":
        print(asyncio.run(_pdf(options.sources, options.to)))
    elif options.action == "gallery":
        print(asyncio.run(_gallery(options.sources, options.to, options.most)))
    else:
        print(_select(options.sources, options.to, options.least, options.per_task))
    return 0


def _select(sources: Sequence[str], to: Path, least: float, per_task: int) -> str:
    from arcforge_rl.slides.select import candidates, read_rollouts, select, write

    rollouts = read_rollouts(sources)
    selected = select(candidates(track(rollouts, "judging", len(rollouts))), least, per_task)
    path = write(selected, to)
    pages = sum(len(one.pages) for one in selected.kept)
    reasons = "".join(
        f"\nnot kept: {count:,}, because it {reason}" for reason, count in selected.rejected.most_common()
    )
    return f"{len(selected.kept)} of {len(rollouts)} decks, {selected.masked} of {pages} pages masked: {path}{reasons}"


async def _gallery(sources: Sequence[str], to: Path, most: int) -> Path:
    from arcforge_rl.slides.gallery import gallery
    from arcforge_rl.slides.rendering.browser import render
    from arcforge_rl.slides.select import candidates, read_rollouts

    found = sorted(candidates(read_rollouts(sources)), key=lambda one: -one.verdict.score)
    shown = [(one, await render(one.document, pictures=True)) for one in found[:most] if one.document]
    to.mkdir(parents=True, exist_ok=True)
    return gallery(shown, f"Decks of {', '.join(sources)}"[:120]).write(to / "gallery.html")


async def _pdf(sources: Sequence[str], to: Path) -> Path:
    from arcforge_rl.slides.rendering.browser import render

    source = Path(sources[0])
    if len(sources) != 1 or not source.is_file():
        raise ArcforgeError(f"pdf: takes one HTML document, not {', '.join(sources)}")
    rendered = await render(source.read_text(encoding="utf-8", errors="replace"), pdf=True)
    if rendered.flaw:
        raise DataError(f"{source} cannot be printed: {rendered.flaw}")
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"{source.stem}.pdf"
    path.write_bytes(rendered.pdf)
    return path

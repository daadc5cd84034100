"""The verdict on a deck as a browser shows it; the last ones are kept, because each metric asks for its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from arcforge_rl.slides.brief import Brief
from arcforge_rl.slides.judge import Verdict, judge, with_rendering
from arcforge_rl.slides.rendering.browser import render
from arcforge_rl.slides.rendering.measured import measured
from arcforge_rl.slides.rendering.pixels import seen

KEPT = 64
_KNOWN: OrderedDict[tuple[str, Brief, int], Verdict] = OrderedDict()


async def shown(document: str, brief: Brief, level: int) -> Verdict:
    """Returns the verdict of levels 1 to `level`, which is 2 or 3.

    Raises:
        SandboxFault: the sandbox or the browser broke, twice.
        ConfigError: Chromium's layer is not there.
    """
    key = document, brief, level
    if key not in _KNOWN:
        await pictured(document, brief, level)
    _KNOWN.move_to_end(key)
    return _KNOWN[key]


async def pictured(document: str, brief: Brief, level: int) -> tuple[Verdict, tuple[bytes, ...]]:
    """Returns the verdict of levels 1 to `level`, and at level 3 the PNG of each page.

    Raises:
        SandboxFault: the sandbox or the browser broke, twice.
        ConfigError: Chromium's layer is not there.
    """
    verdict = await asyncio.to_thread(judge, document, brief)
    rendered = await render(document, pictures=level == 3)
    findings = list(measured(rendered, verdict.layouts))
    if level == 3:
        findings += await asyncio.to_thread(lambda: list(seen(rendered)))
    found = _KNOWN[document, brief, level] = with_rendering(verdict, findings, level)
    while len(_KNOWN) > KEPT:
        _KNOWN.popitem(last=False)
    return found, rendered.pictures

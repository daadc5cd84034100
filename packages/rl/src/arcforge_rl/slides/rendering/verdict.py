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
        verdict = await asyncio.to_thread(judge, document, brief)
        rendered = await render(document, pictures=level == 3)
        findings = list(measured(rendered, verdict.layouts))
        if level == 3:
            findings += await asyncio.to_thread(lambda: list(seen(rendered)))
        _KNOWN[key] = with_rendering(verdict, findings, level)
    _KNOWN.move_to_end(key)
    while len(_KNOWN) > KEPT:
        _KNOWN.popitem(last=False)
    return _KNOWN[key]

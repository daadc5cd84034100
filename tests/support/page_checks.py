"""Demands on every page: it fits its screen, can be read in light and dark, and axe-core finds nothing serious."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe

from support.browsing import Screens

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SMALLEST = 12
"""Pixels of the smallest text in a chart."""
RECORD_FONTS = """
window.drawn = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.drawn.push([text, parseFloat(/([\\d.]+)px/.exec(this.font)[1]) / devicePixelRatio]);
  return write.call(this, text, ...rest);
};
"""
SMALL_TEXTS = """(least) => {
  const found = window.drawn.filter(([, size]) => size < least);
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.getClientRects().length) continue;
    const scale = text.ownerSVGElement.getScreenCTM().a;
    const size = parseFloat(getComputedStyle(text).fontSize) * scale;
    if (size < least - 0.05) found.push([text.textContent, size]);
  }
  for (const text of document.querySelectorAll(".plot td, .plot th, .map span, .bars span"))
    if (text.getClientRects().length && parseFloat(getComputedStyle(text).fontSize) < least)
      found.push([text.textContent, 0]);
  return found;
}"""


def looked_at(
    browser: Browser,
    address: str,
    screens: Screens,
    prepare: Callable[[Page], object] = lambda page: None,
    **context: Any,
) -> None:
    """Opens a page on several screens and checks it.

    Args:
        browser: Chromium.
        address: of the page.
        screens: the test's fixture, all of them over a nightly run.
        prepare: brings the page into the state to look at.
        context: further options of the browser.
    """
    for scheme, width in screens:
        opened = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True, **context
        )
        page = opened.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.add_init_script(RECORD_FONTS)
        page.goto(address)
        prepare(page)
        where = f"{address} {scheme} {width}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{where}: scrolls sideways"
        assert page.evaluate(SMALL_TEXTS, SMALLEST) == [], f"{where}: small text"
        assert serious(page) == [], where
        assert said == [], where
        opened.close()


def serious(page: Page) -> list[str]:
    """Returns what axe-core finds serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]

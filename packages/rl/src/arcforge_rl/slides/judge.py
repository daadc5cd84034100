"""Judges a deck from its markup and styles."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arcforge_rl.slides.brief import Brief
from arcforge_rl.slides.cascade import cascade
from arcforge_rl.slides.checks import images, shown
from arcforge_rl.slides.content import says
from arcforge_rl.slides.geometry import PageLayout
from arcforge_rl.slides.grades import consistent, looks
from arcforge_rl.slides.layout import lay_out
from arcforge_rl.slides.markup import read_markup
from arcforge_rl.slides.rules import RULES, Cost, Finding, grades

BLOCK = re.compile(r"```html[ \t]*\n(.*?)\n?```", re.DOTALL)
STRICT = (
    "not_16_9", "off_canvas", "unmeasured_layout", "zoom", "transform", "hidden_overflow", "clipped", "too_large",
    "malformed", "measured_16_9", "measured_off_canvas", "unrendered",
)  # fmt: skip
"""Rules that a strict 16:9 page keeps."""
DIGITS = re.compile(r"\d{100}")
"""Parsers raise errors for numbers that are too long."""
LONGEST = 120_000
"""Characters of a document."""


@dataclass(frozen=True)
class Verdict:
    """The findings about a deck, and its scores.

    Attributes:
        findings: broken rules.
        pages: score in [0, 1] of each page of the brief.
        layouts: of the deck's pages.
    """

    findings: tuple[Finding, ...]
    pages: tuple[float, ...]
    layouts: tuple[PageLayout, ...] = ()

    @property
    def score(self) -> float:
        """The mean of the pages."""
        return sum(self.pages) / len(self.pages)

    @property
    def reason(self) -> str:
        """The worst findings in words."""
        order = [*Cost]
        worst = sorted(self.findings, key=lambda found: order.index(RULES[found.rule].cost))
        return "; ".join(map(str, worst[:3])) or "keeps every rule"

    def strict_share(self, wanted: int) -> float:
        """Returns the share of `wanted` pages that are 16:9 with everything on them."""
        bad = {found.page for found in self.findings if found.rule in STRICT}
        if None in bad:
            return 0.0
        return sum(layout.page.page not in bad for layout in self.layouts[:wanted]) / wanted

    @property
    def trivial(self) -> bool:
        """Whether no page has structure."""
        flat = {found.page for found in self.findings if found.rule == "structure"}
        return all(layout.page.page in flat or not layout.paragraphs for layout in self.layouts)

    def broken(self, cost: Cost) -> list[str]:
        """Returns the names of broken rules of one cost."""
        return sorted({found.rule for found in self.findings if RULES[found.rule].cost is cost})


def document_of(reply: str) -> str:
    """Returns the document of a reply: its only block of HTML, or all of it; empty if there is none."""
    blocks: list[str] = BLOCK.findall(reply)
    if len(blocks) == 1 and reply.count("```") == 2:
        return blocks[0].strip()
    text = reply.strip()
    return text if text[:2] == "<!" and text[2:9].lower() == "doctype" and "```" not in text else ""


@functools.lru_cache(maxsize=4)
def judge(document: str, brief: Brief) -> Verdict:
    """Returns the verdict on a document; the last ones are kept, because each metric asks for it."""
    nothing = (0.0,) * len(brief.pages)
    if len(document) > LONGEST:
        return Verdict((Finding("too_large", None, f"{len(document):,} characters"),), nothing)
    if DIGITS.search(document):
        return Verdict((Finding("too_large", None, "a number of 100 digits or more"),), nothing)
    markup = read_markup(document)
    if markup.root is None:
        return Verdict(markup.findings, nothing)
    styles, found = cascade(markup)
    if not styles:
        return Verdict((*markup.findings, *found), nothing)
    layouts = tuple(lay_out(page, styles) for page in markup.pages)
    findings = [*markup.findings, *found, *images(markup.pages)]
    if len(layouts) != len(brief.pages):
        findings.append(Finding("page_count", None, f"{len(layouts)} pages, not {len(brief.pages)}"))
    for layout in layouts:
        findings += [*layout.findings, *shown(layout), *looks(layout)]
    for layout, page in zip(layouts, brief.pages, strict=False):
        findings += says(layout, page, len(brief.pages))
    findings += consistent(layouts)
    return Verdict(tuple(findings), scores(findings, len(brief.pages), len(layouts)), layouts)


def with_rendering(verdict: Verdict, findings: Sequence[Finding], level: int) -> Verdict:
    """Returns a verdict with what a browser shows.

    Args:
        verdict: from markup and styles.
        findings: rules of levels 2 and 3 that are broken.
        level: 2 or 3, which decides the number of grades.
    """
    every = (*verdict.findings, *findings)
    return replace(verdict, findings=every, pages=scores(every, len(verdict.pages), len(verdict.layouts), level))


def scores(findings: Sequence[Finding], wanted: int, there: int, level: int = 1) -> tuple[float, ...]:
    """Returns the scores of the pages that were asked for.

    Args:
        findings: broken rules.
        wanted, there: pages asked for, and pages of the deck.
        level: up to which grades count.
    """
    most = len(grades(level))
    lost: set[int] = set()
    broken: dict[int, set[str]] = {}
    for found in findings:
        cost = RULES[found.rule].cost
        everywhere = cost is Cost.DECK or (cost is Cost.PAGE and found.page is None and found.rule != "page_count")
        if everywhere or (found.rule == "page_count" and there > wanted):
            return (0.0,) * wanted
        if cost is Cost.PAGE and found.page is not None:
            lost.add(found.page)
        elif cost is Cost.GRADE and found.page is not None:
            broken.setdefault(found.page, set()).add(found.rule)
    return tuple(
        0.0 if page in lost or page > there else 1 - len(broken.get(page, ())) / most for page in range(1, wanted + 1)
    )

"""The contents of a page and their places: boxes, painted areas and paragraphs."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_rl.slides.markup import Element
from arcforge_rl.slides.rules import Finding
from arcforge_rl.slides.text import TextRun
from arcforge_rl.slides.values import Colour

WIDTH, HEIGHT = 1280.0, 720.0
"""Of a page, in px."""
Key = tuple[tuple[int, int], ...]
"""Place in the order of painting: z-index and number of the box, of each stacking context from the page inwards."""


@dataclass(frozen=True)
class Rect:
    """A rectangle on a page, in px from its upper left corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def shared(self, other: Rect) -> tuple[float, float]:
        """Returns width and height of what two rectangles share; negative where they are apart."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        return wide, min(self.bottom, other.bottom) - max(self.top, other.top)

    def holds(self, other: Rect, slack: float = 0.0) -> bool:
        """Whether another one lies in it."""
        across = self.left - slack <= other.left and other.right <= self.right + slack
        return across and self.top - slack <= other.top and other.bottom <= self.bottom + slack


@dataclass(frozen=True)
class Paint:
    """An area that is painted: the background or a border of a box, or an image.

    Attributes:
        rect: where.
        colours: of which each point has one; empty for an image.
        key: when, in the order of painting.
        owner: element whose it is.
        corners: width and height of its round corners, in px.
    """

    rect: Rect
    colours: tuple[Colour, ...]
    key: Key
    owner: Element
    corners: tuple[float, float] = (0.0, 0.0)

    @property
    def solid(self) -> Rect:
        """A rectangle in it without its round corners."""
        across, down = (0.3 * part for part in self.corners)
        return Rect(self.rect.left + across, self.rect.top + down, self.rect.width - 2 * across,
                    self.rect.height - 2 * down)  # fmt: skip


@dataclass(frozen=True)
class Paragraph:
    """Lines of text.

    Attributes:
        text: white space collapsed.
        runs: pieces in one font each.
        rect: of the lines, as wide as the longest.
        longest: characters of the longest line.
        key: when its box is painted.
        owners: its block, and what that lies in, inwards first.
    """

    text: str
    runs: tuple[TextRun, ...]
    rect: Rect
    longest: int
    key: Key
    owners: tuple[Element, ...]

    @property
    def size(self) -> float:
        """The largest size of its text, in px."""
        return max(run.font.size for run in self.runs)

    @property
    def smallest(self) -> float:
        return min(run.font.size for run in self.runs)


@dataclass
class PageLayout:
    """The contents of a page.

    Attributes:
        page: the section.
        boxes: outer rectangles of positioned boxes, the page's own first.
        paints: painted areas, the page's background left out.
        paragraphs: in the order of the document.
        backgrounds: colours of the page, over those of what it lies in.
        findings: rules broken while it was laid out.
    """

    page: Element
    boxes: list[tuple[Element, Rect]] = field(default_factory=list)
    paints: list[Paint] = field(default_factory=list)
    paragraphs: list[Paragraph] = field(default_factory=list)
    backgrounds: tuple[Colour, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    def broken(self, rule: str, detail: str) -> None:
        self.findings.append(Finding(rule, self.page.page, detail))

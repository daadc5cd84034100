"""A page: a heading and a list of sections, as one HTML file without external resources."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from arcforge_core.files.rundir import write_text
from arcforge_core.report.files import RunFiles
from arcforge_core.report.html import configuration, files

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: text; empty for no heading.
        content: HTML; values must be escaped.
        headline: whether its cards are the figures at the top.
    """

    title: str
    content: str
    headline: bool = False


@dataclass(frozen=True)
class Page:
    """An HTML page.

    Attributes:
        kind: subject of the page, shown above the title.
        title: text.
        sections: in order.
        status: of a run; empty shows none.
        subtitle: HTML below the title.
        footer: HTML.
        style: CSS appended to that of every page.
        script: JavaScript, the only one that the page's security policy allows.
    """

    kind: str
    title: str
    sections: Sequence[Section]
    status: str = ""
    subtitle: str = ""
    footer: str = ""
    style: str = ""
    script: str = ""

    def render(self) -> str:
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        return ENVIRONMENT.get_template("page.html").render(
            page=self,
            style=(FOLDER / "style.css").read_text(encoding="utf-8") + self.style,
            script_source=f"'sha256-{digest}'" if self.script else "'none'",
        )

    def write(self, path: Path) -> Path:
        """Writes and returns `path`; the write is atomic. Lone surrogates become question marks."""
        write_text(path, self.render().encode("utf-8", "replace").decode("utf-8"))
        return path


def run_page(
    run: RunFiles,
    kind: str,
    subtitle: str,
    sections: Sequence[Section],
    holds: Mapping[str, str],
    problems: Mapping[str, str],
    **further: str,
) -> Page:
    """Returns the page of a run: its sections, then its configuration, versions and files.

    Args:
        run: the run that was read.
        kind: of run, in words.
        subtitle: HTML, shown with the name of the folder that contains the run's.
        sections: those of this kind of run.
        holds: file name -> its content in words.
        problems: file name -> why it could not be read.
        further: fields of `Page`.
    """
    folder = run.dir.resolve()
    return Page(
        kind=kind,
        title=folder.name,
        status=str(run.summary.get("status", "status missing")),
        subtitle=f"{escape(folder.parent.name)} · {subtitle}",
        sections=[
            *sections,
            Section("Configuration and versions", configuration(run.config, run.versions)),
            Section("Files", files(holds, problems)),
        ],
        **further,
    )

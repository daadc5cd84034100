"""A page: a heading and a list of sections, as one HTML file without external resources."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from arcforge_core.files.rundir import write_text
from arcforge_core.report.about import run_about, run_name
from arcforge_core.report.charts import CHART
from arcforge_core.report.files import RunFiles
from arcforge_core.report.html import SORTABLE, configuration, files

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


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

    @property
    def id(self) -> str:
        """The place that the contents link to."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


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
        script: JavaScript of this page.
        about: names and HTML of its origin, shown below the title.

    Charts and sortable tables bring their script; the page's security policy allows that and `script`, by their hash.
    """

    kind: str
    title: str
    sections: Sequence[Section]
    status: str = ""
    subtitle: str = ""
    footer: str = ""
    style: str = ""
    script: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> str:
        parts = self._parts()
        script = "\n".join([*(_read(name) for name in parts if name.endswith(".js")), *filter(None, [self.script])])
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return ENVIRONMENT.get_template("page.html").render(
            page=self,
            contents=[(section.id, section.title) for section in self.sections if section.title],
            style="".join(_read(name) for name in parts if name.endswith(".css")) + self.style,
            script=script,
            script_source=f"'sha256-{digest}'" if script else "'none'",
        )

    def _parts(self) -> list[str]:
        """Returns the styles and scripts of what the page contains."""
        content = "".join(section.content for section in self.sections)
        charts = ["vendor/uPlot.min.css", "vendor/uPlot.iife.min.js", "charts.js"] if CHART in content else []
        return ["tokens.css", *charts, "style.css", *(["sort.js"] if SORTABLE in content else [])]

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
        title=run_name(run) or folder.name,
        status=str(run.summary.get("status", "status missing")),
        subtitle=f"{escape(folder.parent.name)}/{escape(folder.name)} · {subtitle}",
        about=run_about(run),
        sections=[
            *sections,
            Section("Configuration and versions", configuration(run.config, run.versions)),
            Section("Files", files(holds, problems)),
        ],
        **further,
    )

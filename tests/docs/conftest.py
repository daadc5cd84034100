"""Finds the fenced blocks of the pages, and prepares a folder with a tiny run in which they can be executed.

A block that cannot run here follows the line ``<!-- needs: WHAT -->``.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from arcforge_core.files.rundir import point_name
from support.runs import write_corpus

ROOT = Path(__file__).parents[2]
OF_PACKAGES = sorted(ROOT.glob("packages/*/README.md"))
PAGES = [ROOT / "README.md", *OF_PACKAGES, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>.+?) -->\n+)?```(?P<language>\w+)(?: title=(?P<title>\S+))?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

RUN = {
    "data": "files",
    "data.paths": "[my_texts]",
    "data.heldout": "0.1",
    "model": "tiny",
    "trainer.max_steps": "1",
    "trainer.minutes": "null",
    "trainer.sequence_length": "64",
    "trainer.micro_batch_tokens": "256",
    "trainer.log_every": "1",
    "trainer.eval_tokens": "64",
    "trainer.samples": "0",
    "trainer.python_functions": "0",
    "trainer.mtp_acceptance": "0",
    "trainer.threads": "1",
}
"""What makes a documented training run cheap."""


NAMES = ("assistant", "sft_mini", "sft_expressions")
"""Runs that a block starts from and another block makes."""

LONG = (
    "pipeline=long_context_small",
    "stage=dsa_sparse",
    "data=mixture",
    "sweep=attention",
    "-m experiment=mtp_sharing_ablation",
    "environment=math                  # the shortest form",
)
"""Blocks with one of these take more than ten seconds in short, too."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its page and line, its language, the file it gives (in the tutorial), and its text."""

    page: Path
    line: int
    language: str
    title: str | None
    needs: str | None
    text: str

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: m.start("language")].count("\n") + 1, m["language"], m["title"], m["needs"], m["text"])
        for m in FENCE.finditer(text)
    ]


def pytest_generate_tests(metafunc):
    """Gives `bash_block` every block that is to be run, and `python_page` every page with its Python blocks."""
    if "bash_block" in metafunc.fixturenames:
        found = [
            b for page in PAGES for b in blocks(page) if b.language == "bash" and not b.needs and not is_tutorial(b)
        ]
        night = pytest.mark.nightly(reason="several training runs")
        marked = [
            pytest.param(b, marks=night if b.page in OF_PACKAGES or has_long(b) else (), id=b.place) for b in found
        ]
        metafunc.parametrize("bash_block", marked)
    if "python_page" in metafunc.fixturenames:
        pages = [[b for b in blocks(page) if b.language == "python" and not b.needs and not b.title] for page in PAGES]
        metafunc.parametrize("python_page", [page for page in pages if page], ids=lambda p: name_of(p[0].page))


def has_long(block):
    """Returns whether a block has a command that takes long even when it is shortened."""
    return any(part in block.text for part in LONG)


def name_of(page):
    """Returns a page's name; that of a package's README is the package's."""
    return page.parent.name if page in OF_PACKAGES else page.stem


def is_tutorial(block):
    """The tutorial's commands run in the folder that it builds, see test_tutorial.py."""
    return block.page.name.startswith("tutorial")


@pytest.fixture(scope="session")
def pages():
    """Every page of the documentation, and its fenced blocks."""
    return {page: blocks(page) for page in PAGES}


def call(name, arguments):
    """Runs a console script in this process, which spares the import of torch; returns its exit code."""
    [script] = metadata.entry_points(group="console_scripts", name=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        return script.load()() or 0


@pytest.fixture(scope="session")
def console_script():
    return call


@pytest.fixture(scope="session")
def cheap_run():
    return RUN


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with texts and a finished tiny run, as after ``make run``; it is every run of `NAMES`, too."""
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder / "my_texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ARCFORGE_CACHE", str(folder.parent / "docs-cache"))
        overrides = [f"{name}={value}" for name, value in RUN.items()]
        assert call("arcforge-train", ["experiment=mini", *overrides]) == 0
    for name in NAMES:
        point_name(folder / "outputs" / "pipelines", name, folder / "outputs" / "latest")
    return folder


@pytest.fixture
def project(trained, tmp_path, monkeypatch):
    """A copy of `trained` that is the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ARCFORGE_CACHE", str(trained.parent / "docs-cache"))
    return folder

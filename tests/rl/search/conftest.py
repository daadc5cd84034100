import asyncio

import pytest

from arcforge_rl.search.build import build
from arcforge_rl.search.questions import write_folder
from support.searching import made_up_pages


@pytest.fixture(scope="session")
def pages():
    return made_up_pages()


@pytest.fixture(scope="session")
def built(pages):
    """24 questions about the made-up country."""
    return asyncio.run(build(pages, 24))


@pytest.fixture
def folder(pages, built, tmp_path):
    write_folder(
        tmp_path / "search", pages, built.questions, built.corrections, {"corpus": ["made up"], **built.report}
    )
    return tmp_path / "search"

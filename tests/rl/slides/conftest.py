import random

import pytest

from arcforge_rl.slides.brief import draw_brief


@pytest.fixture
def brief():
    """Four pages: a title, and two to four points on each other page."""
    return draw_brief(random.Random(1), 4, 4, 4)


@pytest.fixture
def found(brief):
    """Judges a document; returns the verdict."""
    judge = pytest.importorskip("arcforge_rl.slides.judge").judge
    return lambda document: judge(document, brief)


@pytest.fixture
def deck(brief):
    """A deck that keeps every rule."""
    return pytest.importorskip("arcforge_rl.slides.oracle").deck_of(brief)

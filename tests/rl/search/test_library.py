"""Pages of Python's library hold the documentation of modules, classes and functions."""

import pytest

from arcforge_rl.search.graph import graph_of
from arcforge_rl.search.library import library_pages

FILES = {
    "shop/__init__.py": '"""Sells things."""\nfrom .till import Till\n__all__ = ["Till"]\n',
    "shop/till.py": '''"""Counts money."""
import json
from shop.errors import ShopError as Wrong

class Till(dict):
    """Holds coins."""
    def count(self):
        """Counts all coins."""
    def _hidden(self): ...

class Big(Till): ...

def opened(key, *, slowly=False):
    """Opens a till."""
    if not key:
        raise Wrong("no key")
    raise ValueError
''',
    "shop/errors.py": "class ShopError(Exception):\n    '''Something is wrong.'''\n",
    "shop/_private.py": "class No: ...\n",
    "shop/broken.py": "def (\n",
    "test/test_shop.py": "class No: ...\n",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("library")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return {page.title: page for page in library_pages(root, ("math", "no_such_module"))}


def test_pages_are_of_public_things(made):
    ours = {title for title in made if title.startswith("shop")}
    assert ours == {"shop", "shop.till", "shop.errors", "shop.till.Till", "shop.till.Big", "shop.till.opened"} | {
        "shop.errors.ShopError"
    }
    assert "No" not in " ".join(ours) and list(made) == sorted(made)


def test_classes(made):
    assert made["shop.till.Till"].facts == {
        "Kind": ("class",),
        "Also known as": ("shop.Till", "Till"),
        "Defined in": ("shop.till",),
        "Base classes": ("dict",),
        "Methods": ("count",),
    }
    assert made["shop.till.Till"].prose == "Holds coins.\n\ncount - Counts all coins."
    assert made["shop.errors.ShopError"].facts["Kind"] == ("exception",)


def test_functions(made):
    facts = made["shop.till.opened"].facts
    assert facts["Raises"] == ("ValueError", "shop.errors.ShopError")
    assert facts["Parameters"] == ("key", "slowly")


def test_modules(made):
    assert made["shop.till"].facts == {"Kind": ("module",), "Part of": ("shop",), "Imports": ("json", "shop.errors")}
    assert made["shop.till"].prose.startswith("Counts money.\n\nTill - Holds coins.")


def test_modules_in_c_are_asked(made):
    assert made["math.sqrt"].facts["Defined in"] == ("math",) and "square root" in made["math.sqrt"].prose
    assert made["ValueError"].facts["Base classes"] == ("Exception",) and "IOError" not in made


def test_its_graph(made):
    graph = graph_of([*made.values()])
    assert graph.others("ValueError", "Raises", forward=False) == ("shop.till.opened",)
    assert graph.others("shop.till.Till", "Base classes", forward=False) == ("shop.till.Big",)
    assert graph.answers("shop.till.Till")[0] == ("shop.till.Till", "Till", "shop.Till")

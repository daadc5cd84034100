"""Families of tasks about pages: solution and cheats run on the drawn files, judged by the verifier's own program."""

import json
import random
import subprocess
import sys
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_rl.search.pages import Page, page_of
from arcforge_rl.terminal.authoring.pages.examples import module_of
from arcforge_rl.terminal.authoring.pages.links import draw as draw_links
from arcforge_rl.terminal.authoring.pages.table import PAGE_FAMILIES, Unfit
from arcforge_rl.terminal.authoring.rubric import complaints_about
from rl.terminal.authoring.conftest import EXAMPLE, PROSE, corpus

CHECK = str(resources.files("arcforge_rl.terminal").joinpath("checks.py"))
DOUBLE = "def double(n):\n    return 2 * n\n"


def earned(draft, folder, script):
    """Returns whether the work of a script passes."""
    folder.mkdir()
    for path, text in draft.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "doubling.py").write_text(DOUBLE)  # which the examples document
    subprocess.run(["bash", "-ec", script], cwd=folder, check=True, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "."})
    rules = [{**one, "path": one["path"].replace("/app", str(folder))} for one in draft.rules]
    (folder / "rules.json").write_text(json.dumps(rules))
    done = subprocess.run([sys.executable, "-I", CHECK, str(folder / "rules.json")], capture_output=True)
    assert not done.stderr, done.stderr
    return done.returncode == 0


def with_examples() -> list[Page]:
    first = page_of("doubling", {"Kind": ["module"], "Imports": ["amber"]}, PROSE + EXAMPLE)
    return [first, *corpus()]


@pytest.mark.parametrize("family", PAGE_FAMILIES)
def test_the_solution_passes_and_no_cheat_does(family, tmp_path):
    pages = with_examples() if family == "examples" else corpus()
    draft = PAGE_FAMILIES[family](random.Random(1), pages)
    assert not complaints_about(draft)
    assert earned(draft, tmp_path / "right", draft.solve)
    for place, cheat in enumerate(draft.cheats):
        assert not earned(draft, tmp_path / f"cheat{place}", cheat), cheat


@pytest.mark.parametrize("family", PAGE_FAMILIES)
def test_equal_seeds_draw_equal_tasks(family):
    pages = with_examples() if family == "examples" else corpus()
    assert PAGE_FAMILIES[family](random.Random(7), pages) == PAGE_FAMILIES[family](random.Random(7), pages)


@pytest.mark.parametrize("family", PAGE_FAMILIES)
def test_pages_that_do_not_fit_are_refused(family):
    for pages in ([page_of("alone", {"Kind": ["module"]}, PROSE)], [Page(name, PROSE) for name in "abcdefgh"]):
        with pytest.raises(Unfit):
            PAGE_FAMILIES[family](random.Random(0), pages)


LABELS = st.sampled_from(["Imports", "Uses", "Kind", "Methods"])
TITLES = [f"page{number}" for number in range(8)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    facts=st.lists(
        st.dictionaries(LABELS, st.lists(st.sampled_from([*TITLES, "absent", "a-b", "Ünï"]), min_size=1, max_size=4)),
        min_size=8, max_size=8,
    ),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_drawn_pages_keep_the_rubric(facts, seed):
    pages = [page_of(title, own, PROSE) for title, own in zip(TITLES, facts, strict=True)]
    for family in ("closure", "index", "links"):
        try:
            draft = PAGE_FAMILIES[family](random.Random(seed), pages)
        except Unfit:
            continue
        assert not complaints_about(draft)


def test_titles_that_would_share_a_file_are_refused():
    pages = [page_of(title, {"Imports": ["A/b", "a b"]}, PROSE) for title in ("A/b", "c", "a b", "d")]
    with pytest.raises(Unfit, match="the same file"):
        draw_links(random.Random(0), pages)


def test_examples_run_in_their_module():
    assert module_of(page_of("json", {"Kind": ["module"]}, "x")) == "json"
    assert module_of(page_of("json.loads", {"Kind": ["function"], "Defined in": ["json"]}, "x")) == "json"

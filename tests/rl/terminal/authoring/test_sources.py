"""Seeds and pages are read, classified and drawn from strata."""

import itertools
import json
from collections import Counter

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.search.pages import page_of
from arcforge_rl.terminal.authoring.sources import SIZES, classify, read_seeds, stratified, variations
from arcforge_rl.terminal.authoring.topics import TOPICS, is_technical, topic_of
from arcforge_rl.terminal.table import FAMILIES
from rl.terminal.authoring.conftest import PROSE, corpus


def test_topics_are_those_of_the_template_families():
    assert set(TOPICS) == set(FAMILIES)
    assert topic_of("Opens a socket to a server's address and sends an HTTP request.") == "network"
    assert topic_of("Nothing of it.") == "other"


@pytest.mark.parametrize(
    ("text", "technical"),
    [
        ("Call f(x), then g(y).", True),
        ("Run it with -v or --all.", True),
        ("See os.path.join and /etc/app/app.conf.", True),
        ("A well-known poem about the sea, and (of course) the wind.", False),
        ("The well-kept, long-lived garden.", False),
    ],
)
def test_pages_about_programs_have_code(text, technical):
    assert is_technical(text) is technical


def test_pages_that_suit_no_task_are_counted_by_reason(pages):
    pages += [
        page_of("short", {"Kind": ["module"], "Imports": ["amber"]}, "Too short."),
        page_of("poem", {"Kind": ["poem"], "Imports": ["amber"]}, "The wind and the sea and the wind again. " * 10),
        page_of("alone", {"Kind": ["module"]}, PROSE),
    ]
    suited, refused = classify(pages)
    assert {page.title for page, _ in suited} == {page.title for page in corpus()}
    assert refused == Counter({"too short": 1, "not about programs": 1, "leads to too few pages": 1})
    page, related = suited[0]
    assert [one.title for one in related[:2]] == list(page.facts["Imports"][:2]) and page not in related


def test_strata_take_turns_and_each_page_comes_once(pages):
    suited, _ = classify(pages)
    found = list(stratified(suited, 3))
    assert Counter(source.key for source in found) == Counter(page.title for page in pages)
    assert len({source.group for source in found[:5]}) == 5  # of the five groups none comes twice first
    for source in found:
        assert len(source.pages) == SIZES[source.difficulty] and source.pages[0].title == source.key
    assert [s.key for s in found] == [s.key for s in stratified(suited, 3)] != [s.key for s in stratified(suited, 4)]


def test_seeds_are_read_and_vary_without_end(tmp_path):
    path = tmp_path / "seeds.jsonl"
    rows = [
        {"text": "Compress old archives with gzip."},
        {"text": "x", "title": "t", "topic": "sql", "difficulty": "hard"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seeds = read_seeds(path)
    assert [(s.title, s.topic, s.difficulty) for s in seeds] == [
        ("Compress old archives with gzip.", "archives", ""), ("t", "sql", "hard")]  # fmt: skip
    taken = list(itertools.islice(variations(seeds), 4))
    assert len({s.key for s in taken}) == 4 and len({s.group for s in taken}) == 2
    assert {seed.topic for seed in read_seeds(None)} == set(FAMILIES)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ('{"text": ""}', "text must not be empty"),
        ('{"text": 3}', "text must be a text"),
        ('{"text": "x", "subject": "y"}', "has no field 'subject'"),
        ('{"text": "x", "difficulty": "brutal"}', "must be one of easy, medium, hard"),
        ('{"text": "x"}\n{"text": "x"}', "comes twice"),
        ("", "has no seed"),
    ],
)
def test_seeds_that_are_refused(tmp_path, line, reason):
    (tmp_path / "seeds.jsonl").write_text(line + "\n" if line else "")
    with pytest.raises(DataError, match=reason):
        read_seeds(tmp_path / "seeds.jsonl")

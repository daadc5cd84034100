"""HTML becomes a title, facts, prose and links, however broken it is."""

import builtins

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.search.markup import LONGEST_PROSE, draft_of

PAGE = """<!doctype html><html><head><title>Alder - Country</title><script>var x = "no";</script></head><body>
<nav>Menu <a href="/menu">all</a></nav>
<h1>Alder Town&para;</h1>
<table><tr><th>Lies on:</th><td><a href="even.html">River Even</a>, <a href="odd">River; Odd</a></td></tr>
<tr><th>Founded</th><td>1512; 1513</td></tr><tr><th>A</th><th>B</th></tr><tr><th>Long</th><td>{long}</td></tr></table>
<dl><dt>Twin towns</dt>
<dd><ul><li>Birch</li><li>Cedar</li></ul></dd></dl>
<p>It has a <b>chap</b>el.</p><p>Nobody knows why.
<p>Unclosed &amp; <a href="#top">odd</a> <a href="even.html#x">even</a>
<style>p {{ color: red }}</style>
</body></html>"""


@pytest.fixture
def draft():
    return draft_of("http://x.org/towns/alder.html", PAGE.format(long="y" * 500))


def test_facts_are_rows_with_one_head_and_lists_of_terms(draft):
    assert draft.facts == {
        "Lies on": ("River Even", "River, Odd"),
        "Founded": ("1512", "1513"),
        "Twin towns": ("Birch", "Cedar"),
    }


def test_titles_and_prose(draft):
    assert (draft.title, draft.heading) == ("Alder - Country", "Alder Town")
    lines = draft.prose.splitlines()
    assert "It has a chapel." in lines and "Nobody knows why." in lines and "Unclosed & odd even" in lines
    assert not any(word in draft.prose for word in ("var x", "color", "Menu"))


def test_links_are_whole_addresses_without_fragments(draft):
    assert set(draft.links) == {f"http://x.org/towns/{name}" for name in ("even.html", "odd", "alder.html")}


@pytest.mark.parametrize("html", ["", "<", "plain", "\0", "<p" * 10_000, "<div>" * 3_000, "<td>x</td>", "\ud800"])
def test_any_text_has_a_draft(html):
    assert len(draft_of("x", html).prose) <= LONGEST_PROSE


def test_a_missing_parser_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("selectolax"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'arcforge-rl\[search\]'"):
        draft_of("x", "")

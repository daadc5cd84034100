"""A site of pages some of whose links lead nowhere: to a missing page, a missing anchor, or another spelling."""

from __future__ import annotations

import random
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from arcforge_rl.search.pages import Page
from arcforge_rl.terminal.authoring.pages.drawing import LONGEST, Unfit, described
from arcforge_rl.terminal.drafts import Draft, python, rule
from arcforge_rl.terminal.harbor import name_of

SOLVE = """
import html.parser, json, pathlib, urllib.parse
class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()
    def handle_starttag(self, tag, given):
        given = dict(given)
        if given.get("id"):
            self.ids.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
pages = {}
for path in pathlib.Path("site").glob("*.html"):
    reader = Reader()
    reader.feed(TEXT)
    pages[path.name] = reader
broken = {}
for name, reader in pages.items():
    for link in reader.links:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme:
            continue
        target = UNQUOTED or name
        if target not in pages or ANCHORED:
            broken.setdefault(name, set()).add(link)
json.dump({name: sorted(links) for name, links in broken.items()}, open("broken.json", "w"))
"""
GOOD = {
    "TEXT": "path.read_text()",
    "UNQUOTED": "urllib.parse.unquote(parts.path)",
    "ANCHORED": "parts.fragment and parts.fragment not in pages[target].ids",
}
FEWEST_LINKS = 6


def draw(draw: random.Random, pages: Sequence[Page]) -> Draft:
    """Draws which links of a site are broken."""
    pages = described(pages)
    names = {page.title: f"{name_of(page.title)} page.html" if number % 3 == 1 else f"{name_of(page.title)}.html"
             for number, page in enumerate(pages)}  # fmt: skip
    if len({name.lower() for name in names.values()}) < len(names):
        raise Unfit("two pages would have the same file")
    places = [(page.title, label, value) for page in pages for label, values in page.facts.items()
              for value in values if value in names and value != page.title]  # fmt: skip
    if len(places) < FEWEST_LINKS:
        raise Unfit(f"{len(places)} links between these pages, and {FEWEST_LINKS} are needed")
    gone = draw.choice(sorted({value for *_, value in places}))
    whole = [place for place in places if gone not in (place[0], place[2])]
    if len(whole) < 4:
        raise Unfit("nearly all links lead to one page")
    odd = draw.sample(whole, 3)
    broken: dict[str, set[str]] = {}
    sections: dict[str, dict[str, list[str]]] = {page.title: {label: [] for label in page.facts} for page in pages}
    by_title = {page.title: page for page in pages}
    for number, place in enumerate(places):
        title, label, value = place
        link = quote(names[value])
        anchors = [name_of(one).lower() for one in by_title[value].facts]
        if place == odd[0]:
            link += "#appendix"
        elif place == odd[1]:
            link = link.swapcase()
        elif place == odd[2] or number % 2:
            link += f"#{anchors[number % len(anchors)]}"
        if value == gone or place in odd[:2]:
            broken.setdefault(title, set()).add(link)
        sections[title][label].append(f'<a href="{link}">{escape(value)}</a>')
    files: dict[str, str | bytes] = {
        f"site/{names[page.title]}": html_of(page, sections[page.title]) for page in pages if page.title != gone
    }
    wanted = {names[title]: sorted(links) for title, links in broken.items() if title != gone}
    if len(wanted) < 2:
        raise Unfit("the broken links would be on one page")
    instruction = """
`/app/site` holds the HTML pages of a site. Write to `/app/broken.json` a JSON object that maps the name of each file
with broken links to the sorted list of these links, as their `href` attributes are written, each once. Files without
broken links are left out.

A link between the pages is broken if no file has exactly the name that it gives (percent-encoded, without what follows
`#`), or if what follows `#` is no `id` in that file. A link that begins with `#` leads to its own page. Links in
comments are none, and links with a scheme, such as `https:`, do not count.
"""
    return Draft(
        instruction,
        files,
        [rule("json", "broken.json", value=wanted)],
        solve(),
        [
            solve(ANCHORED="False"),
            solve(UNQUOTED="parts.path"),
            solve(TEXT='path.read_text().replace("<!--", "").replace("-->", "")'),
            "echo '{}' > broken.json",
        ],
    )


def html_of(page: Page, sections: dict[str, list[str]]) -> str:
    """Returns a page with its links by label; a comment and a link to another site are decoys."""
    lines = [f"<title>{escape(page.title)}</title>", f'<h1 id="top">{escape(page.title)}</h1>']
    for label, links in sections.items():
        lines += [f'<h2 id="{name_of(label).lower()}">{escape(label)}</h2>', "<ul>"]
        lines += [f"<li>{link}</li>" for link in links] + ["</ul>"]
    lines += [
        '<!-- <a href="old-index.html">Index</a> -->',
        '<p><a href="https://example.org/old-index.html">Mirror</a>',
    ]
    lines += ['<a href="#top">Top</a></p>', f"<pre>{escape(page.prose[:LONGEST])}</pre>"]
    return "\n".join(lines) + "\n"


def solve(**changed: str) -> str:
    """Returns the solution, or one with a fault."""
    text = SOLVE
    for name, code in (GOOD | changed).items():
        text = text.replace(name, code)
    return python(text)

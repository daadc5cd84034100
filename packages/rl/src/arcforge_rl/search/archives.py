"""Pages from web archives (WARC) and from folders of documentation, with their links as relations."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from arcforge_core.data.sources.readers import Unreadable, read_text, walk
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.search.markup import DocumentDraft, draft_of
from arcforge_rl.search.pages import ALIASES, Page, page_of

LINKS = "Links to"
MOST_LINKS = 40
LARGEST = 4 << 20
"""Bytes of a document; larger ones are skipped."""
SHORTEST = 80
"""Characters of prose below which a document is no page."""
WARC = (".warc", ".warc.gz")
HTML, TEXT = (".html", ".htm", ".xhtml"), (".txt", ".md", ".rst")
SUFFIX = re.compile(r"\s+(?:[|\u2013\u2014\u00b7-]|::)\s+")


@dataclass
class Gathered:
    """Pages of archives or folders.

    Attributes:
        pages: in the order of their documents.
        skipped: documents that became no page, by reason.
    """

    pages: list[Page]
    skipped: Counter[str] = field(default_factory=Counter)


def is_archive(path: Path) -> bool:
    """Returns whether a name is one of a web archive."""
    return path.name.lower().endswith(WARC)


def gather(path: Path, taken: Container[str] = ()) -> Gathered:
    """Reads a web archive, or a folder with HTML and text files.

    Args:
        path: of the archive or the folder.
        taken: titles of other pages; a page with one of them has its address in its title, too.

    Raises:
        DataError: it cannot be read, is cut off, or has no page.
        ConfigError: a package that reads it is not installed.
    """
    found = Gathered([])
    drafts = list(_archived(path, found.skipped) if is_archive(path) else _in_folder(path, found.skipped))
    found.pages = list(_pages(drafts, taken, found.skipped))
    if not found.pages:
        skipped = ", ".join(f"{count} {reason}" for reason, count in found.skipped.items())
        raise DataError(f"{path} has no page{f': {skipped}' if skipped else ''}")
    return found


def _archived(path: Path, skipped: Counter[str]) -> Iterator[DocumentDraft]:
    for address, body, kind in _responses(path):
        if len(body) > LARGEST:
            skipped["larger than 4 MiB"] += 1
        else:
            yield draft_of(address, _decoded(body, kind))


def _responses(path: Path) -> Iterator[tuple[str, bytes, str]]:
    """Yields address, body and type of the HTML documents; of large ones `LARGEST` bytes and one more."""
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError as error:
        raise ConfigError("--corpus", str(path), "needs warcio: pip install 'arcforge-rl[search]'") from error
    number = 0
    try:
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream):
                number += 1
                headers = record.http_headers
                kind = (headers.get_header("Content-Type") or "") if headers else ""
                if record.rec_type != "response" or not headers or headers.get_statuscode() != "200":
                    continue
                body = record.content_stream().read(LARGEST + 1) if "html" in kind else b""
                if "html" in kind and len(body) <= LARGEST and record.raw_stream.limit > 0:
                    raise EOFError("it is cut off")
                if body:
                    yield (record.rec_headers.get_header("WARC-Target-URI") or "").strip("<>"), body, kind
    except (ArchiveLoadFailed, EOFError, OSError, ValueError, AttributeError) as error:  # the last: headers cut off
        raise DataError(f"{path}: record {number or 1} or the next one cannot be read: {error}") from error


def _decoded(body: bytes, kind: str) -> str:
    named = re.search(r"charset=[\"']?([\w-]+)", kind) or re.search(rb"charset=[\"']?([\w-]+)", body[:2048])
    name = named[1] if named else "utf-8"
    try:
        return body.decode(name if isinstance(name, str) else name.decode("ascii"), "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def _in_folder(folder: Path, skipped: Counter[str]) -> Iterator[DocumentDraft]:
    if not folder.is_dir():
        raise DataError(f"{folder} is neither a folder, nor a file that ends in .jsonl, {' or '.join(WARC)}")
    for path in walk(folder):
        if path.suffix.lower() not in (*HTML, *TEXT):
            continue
        if path.stat().st_size > LARGEST:
            skipped["larger than 4 MiB"] += 1
            continue
        address = path.relative_to(folder.parent).as_posix()
        try:
            text = read_text(path)
        except Unreadable as error:
            skipped[str(error)] += 1
            continue
        yield draft_of(address, text) if path.suffix.lower() in HTML else _plain(address, text)


def _plain(address: str, text: str) -> DocumentDraft:
    lines = text.strip().splitlines() or [""]
    return DocumentDraft(address, lines[0].strip("#=* ").strip(), "", {}, "\n".join(lines[1:]).strip())


def _pages(drafts: list[DocumentDraft], taken: Container[str], skipped: Counter[str]) -> Iterator[Page]:
    endings, titles, texts = _endings(drafts), dict[str, str](), set[str]()
    headings = Counter(heading for heading, _ in {(draft.heading, draft.prose) for draft in drafts})
    kept: list[tuple[str, DocumentDraft]] = []
    for draft in drafts:
        title = " ".join((_shortened(draft, endings) or draft.heading).replace(";", ",").split())
        if title in taken or title in titles.values():
            title = f"{title} ({draft.address.rpartition('.')[0] or draft.address})"
        if not title:
            skipped["without title"] += 1
        elif len(draft.prose) < SHORTEST and not draft.facts:
            skipped["without text"] += 1
        elif draft.prose in texts:
            skipped["copies"] += 1
            titles.setdefault(draft.address, next(name for name, one in kept if one.prose == draft.prose))
        elif title in titles.values():
            skipped["with the address of another"] += 1
        else:
            titles[draft.address] = title
            texts.add(draft.prose)
            kept.append((title, draft))
    for title, draft in kept:
        linked = list(dict.fromkeys(titles[one] for one in draft.links if titles.get(one, title) != title))
        known = {value for values in draft.facts.values() for value in values}
        new = [one for one in linked if one not in known][:MOST_LINKS]
        own = headings[draft.heading] == 1 and draft.heading != title and ";" not in draft.heading
        other = [draft.heading] if own and draft.heading else []
        facts = {ALIASES: other, **{label: v for label, v in draft.facts.items() if label != ALIASES}, LINKS: new}
        yield page_of(title, facts, draft.prose)


def _endings(drafts: list[DocumentDraft]) -> frozenset[tuple[str, str]]:
    """Returns host and last part of titles which at least half of a host's documents share, as the name of the site."""
    totals: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for draft in drafts:
        host = urlsplit(draft.address).netloc
        totals[host] += 1
        if len(parts := SUFFIX.split(draft.title)) > 1:
            counts[host][parts[-1]] += 1
    return frozenset(
        (host, ending)
        for host, found in counts.items()
        for ending, count in found.items()
        if count > 2 and 2 * count >= totals[host]
    )


def _shortened(draft: DocumentDraft, endings: frozenset[tuple[str, str]]) -> str:
    *first, last = SUFFIX.split(draft.title)
    if first and (urlsplit(draft.address).netloc, last) in endings:
        return draft.title[: draft.title.rindex(last)].rstrip(" |\u2013\u2014\u00b7-:")
    return draft.title

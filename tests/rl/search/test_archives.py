"""Archives and folders become pages with their links; documents that are no pages are counted."""

import gzip

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.search import archives
from arcforge_rl.search.archives import gather, is_archive
from arcforge_rl.search.command import main
from arcforge_rl.search.graph import graph_of

pytest.importorskip("warcio")
TEXT = "It is an old place with a chapel, a bridge and a market that opens every morning before the sun is up. "


def html(title, body="", heading=""):
    return f"<title>{title}</title>{f'<h1>{heading}</h1>' if heading else ''}<p>{TEXT}</p><p>{title} {body}</p>"


DOCUMENTS = {
    "http://x.org/a": html("Alder | Country", '<a href="b#top">Birch</a> <a href="/c">see</a> <a href="/gone">x</a>'),
    "http://x.org/b": html("Birch | Country", heading="Birchwick"),
    "http://x.org/c": html("Cedar | Country", "Near Birchwick."),
    "http://x.org/short": "<title>Short | Country</title><p>Nothing.</p>",
    "http://y.org/none": f"<p>{TEXT} Untitled.</p>",
    "http://y.org/a": html("Alder", "of another site"),
    "http://y.org/copy": html("Birch | Country", heading="Birchwick"),
}


def archive(path, documents, kind="text/html; charset=utf-8", gzipped=True, status="200 OK"):
    records = []
    for address, text in documents.items():
        data = text if isinstance(text, bytes) else text.encode()
        http = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n".encode() + data
        named = {"WARC-Type": "response", "WARC-Target-URI": address, "WARC-Date": "2026-01-01T00:00:00Z"}
        named |= {"Content-Type": "application/http; msgtype=response", "Content-Length": len(http)}
        head = "".join(["WARC/1.0\r\n", *(f"{name}: {value}\r\n" for name, value in named.items()), "\r\n"])
        record = head.encode() + http + b"\r\n\r\n"
        records.append(gzip.compress(record) if gzipped else record)
    path.write_bytes(b"".join(records))
    return path


@pytest.mark.parametrize("gzipped", [True, False])
def test_an_archive(tmp_path, gzipped):
    path = archive(tmp_path / f"x.warc{'.gz' * gzipped}", DOCUMENTS, gzipped=gzipped)
    found = gather(path)
    pages = {page.title: page for page in found.pages}
    assert [*pages] == ["Alder", "Birch", "Cedar", "Alder (http://y)"], "the name of the site is left out"
    assert pages["Alder"].facts == {"Links to": ("Birch", "Cedar")}
    assert pages["Birch"].facts == {"Also known as": ("Birchwick",)}
    assert found.skipped == {"without text": 1, "without title": 1, "copies": 1}
    graph = graph_of(found.pages)
    assert graph.others("Birch", "Mentions", forward=False) == ("Cedar",)


def test_other_records_are_no_pages(tmp_path):
    for kind, status in (("image/png", "200 OK"), ("text/html", "404 Not Found")):
        with pytest.raises(DataError, match="has no page"):
            gather(archive(tmp_path / "x.warc.gz", DOCUMENTS, kind=kind, status=status))


def test_encodings(tmp_path):
    text = html("Gr\u00fcn").encode("latin-1")
    named = archive(tmp_path / "a.warc", {"http://x.org/a": text}, kind="text/html; charset=latin-1")
    unknown = archive(tmp_path / "b.warc", {"http://x.org/a": text}, kind="text/html; charset=no-such-thing")
    assert gather(named).pages[0].title == "Gr\u00fcn"
    assert gather(unknown).pages[0].title == "Gr\ufffdn"


def test_large_documents_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 1000)
    documents = {**DOCUMENTS, "http://x.org/large": html("Large") + "x" * 1000}
    assert gather(archive(tmp_path / "x.warc.gz", documents)).skipped["larger than 4 MiB"] == 1


@pytest.mark.parametrize("keep", [0.5, 0.95])
def test_an_archive_that_is_cut_off_is_refused(tmp_path, keep):
    path = archive(tmp_path / "x.warc.gz", DOCUMENTS)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DataError, match=r"x\.warc\.gz: record \d+ or the next one cannot be read"):
        gather(path)


def test_no_archive_at_all(tmp_path):
    (tmp_path / "x.warc").write_bytes(b"no archive\r\n")
    with pytest.raises(DataError, match="record 1 or the next one cannot be read"):
        gather(tmp_path / "x.warc")
    with pytest.raises(DataError, match="cannot be read"):
        gather(tmp_path / "absent.warc.gz")
    with pytest.raises(DataError, match="neither a folder"):
        gather(tmp_path / "absent.txt")
    assert is_archive(tmp_path / "A.WARC.GZ") and not is_archive(tmp_path / "a.gz")


def test_a_folder(tmp_path):
    for name, text in {
        "docs/a.html": html("Alder", '<a href="sub/b.html">Birch</a>'),
        "docs/sub/b.html": html("Birch", '<a href="../a.html">back</a>'),
        "docs/c.md": f"# Cedar\n\n{TEXT}\nIt lies near Birch.\n",
        "docs/d.txt": b"\0binary",
        "docs/e.png": "no page",
        "docs/.hidden.txt": TEXT,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = gather(tmp_path / "docs", {"Cedar"})
    pages = {page.title: page for page in found.pages}
    assert set(pages) == {"Alder", "Birch", "Cedar (docs/c)"} and found.skipped == {"binary": 1}
    assert pages["Birch"].facts["Links to"] == ("Alder",)
    assert pages["Cedar (docs/c)"].prose.startswith("It is an old place")


def test_the_command_says_what_it_skipped(tmp_path, capsys):
    path = archive(tmp_path / "x.warc.gz", DOCUMENTS)
    with pytest.raises(DataError, match="no question"):
        main(["build", "--corpus", str(path), "--to", str(tmp_path / "made"), "--count", "1"])
    assert "4 pages; skipped: 1 copies; skipped: 1 without text" in "".join(capsys.readouterr())

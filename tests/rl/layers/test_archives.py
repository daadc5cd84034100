"""Releases are fetched from an index of packages, compared with its hashes, and never run."""

import hashlib
import http.server
import io
import json
import tarfile
import threading

import pytest

from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.layers.archives import fetch_release
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.command import main
from arcforge_rl.swe.sources import source_tree


@pytest.fixture
def index(tmp_path):
    """An index with one release, whose setup.py leaves a trace; yields its pages and its address."""
    trace = tmp_path / "trace"
    script = f"open({str(trace)!r}, 'w').write('ran')".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("odd_name-1.0/setup.py")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    content = packed.getvalue()
    hashes = {"sha256": hashlib.sha256(content).hexdigest()}
    files = [
        {"filename": "odd_name-1.0-py3-none-any.whl", "url": "/odd.whl", "hashes": {}},
        {"filename": "odd_name-1.0.tar.gz", "url": "../files/odd.tar.gz", "hashes": hashes},
    ]
    pages = {
        "/odd-name/": json.dumps({"files": files}).encode(),
        "/files/odd.tar.gz": content,
        "/no-json/": b"<html>",
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = pages.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            """The test prints nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield pages, f"http://127.0.0.1:{server.server_port}", trace
    server.shutdown()
    server.server_close()


def test_an_archive_is_fetched_once_and_never_run(index, tmp_path):
    pages, url, trace = index
    fetched = fetch_release("Odd.Name==1.0", tmp_path / "archives", url)
    assert fetched.name == "odd_name-1.0.tar.gz" and not trace.exists()
    with source_tree(fetched) as tree:
        assert [path.name for path in tree.iterdir()] == ["setup.py"]
    pages.clear()
    assert fetch_release("odd-name==1.0.0", tmp_path / "archives", url) == fetched
    fetched.write_bytes(b"another")
    with pytest.raises(LayerError, match=r"odd_name-1\.0\.tar\.gz was changed") as error:
        fetch_release("odd-name==1.0", tmp_path / "archives", url)
    assert error.value.kind == "tampered"


def test_an_archive_with_another_hash_is_not_stored(index, tmp_path):
    pages, url, _ = index
    pages["/files/odd.tar.gz"] += b"more"
    with pytest.raises(LayerError, match="hash differs") as error:
        fetch_release("odd-name==1.0", tmp_path / "archives", url)
    assert error.value.kind == "tampered" and not (tmp_path / "archives").exists()


@pytest.mark.parametrize(
    ("release", "error", "reason"),
    [
        ("odd-name==2.0", DataError, r"odd-name==2\.0: the index has no source archive"),
        ("odd-name==1.0.x!", DataError, "neither a folder, an archive nor NAME==VERSION"),
        ("../odd==1.0", DataError, "neither a folder"),
        ("missing==1.0", LayerError, "HTTP status 404"),
        ("no-json==1.0", LayerError, "gave no archive"),
    ],
)
def test_releases_that_cannot_be_fetched(index, tmp_path, release, error, reason):
    with pytest.raises(error, match=reason) as caught:
        fetch_release(release, tmp_path, index[1])
    assert len(str(caught.value).splitlines()) == 1


def test_an_index_that_leads_elsewhere_or_is_down(index, tmp_path):
    pages, url, _ = index
    page = json.loads(pages["/odd-name/"])
    page["files"][1]["url"] = (tmp_path / "secret").as_uri()
    pages["/odd-name/"] = json.dumps(page).encode()
    with pytest.raises(LayerError, match="names no file that can be fetched"):
        fetch_release("odd-name==1.0", tmp_path / "archives", url)
    with pytest.raises(LayerError, match="the index gave no archive") as error:
        fetch_release("odd-name==1.0", tmp_path / "archives", "http://127.0.0.1:1")
    assert error.value.kind == "registry"


def test_the_command_takes_releases(index, tmp_path):
    _, url, trace = index
    with pytest.raises(ArcforgeError, match=r"^odd-name cannot be set up: it has no tests"):
        main(["bugs", "odd-name==1.0", "--language", "python", "--to", str(tmp_path / "swe"), "--index", url])
    assert (tmp_path / "swe/archives/odd_name-1.0.tar.gz").is_file() and not trace.exists()

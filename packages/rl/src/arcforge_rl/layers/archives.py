"""Source archives of releases, from an index of Python packages; nothing that they contain is run.

``pip download --no-binary`` asks the archive for its metadata, which runs its ``setup.py``. Here the file is fetched,
compared with the index's hash and stored.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.layers.store import LayerError

INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
"""PEP 691."""
LARGEST = 200 << 20
"""Bytes of an archive."""
SECONDS = 60.0
RELEASE = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([\w.!+-]+)")


def fetch_release(release: str, folder: Path, index: str = "") -> Path:
    """Returns the source archive of a release; one that the folder has is used without the index.

    Args:
        release: ``NAME==VERSION``.
        folder: of the archives and of their hashes, ``FILE.sha256``.
        index: empty: that of ``PIP_INDEX_URL``, else `INDEX`.

    Raises:
        DataError: the release is malformed, or has no source archive of gzipped tar.
        LayerError: the index cannot be reached, or the archive is not the one that it describes.
    """
    found = RELEASE.fullmatch(release)
    try:
        name, version = (canonicalize_name(found[1]), Version(found[2])) if found else ("", None)
    except InvalidVersion:
        version = None
    if version is None:
        raise DataError(f"{release!r} is neither a folder, an archive nor NAME==VERSION")
    if (known := _stored(name, version, folder)) is not None:
        return known
    page = f"{(index or os.environ.get('PIP_INDEX_URL') or INDEX).rstrip('/')}/{name}/"
    try:
        with httpx.Client(timeout=SECONDS, follow_redirects=True, headers={"Accept": JSON}) as client:
            answer = client.get(page).raise_for_status()
            file = _chosen(answer.json(), name, version)
            if file is None:
                raise DataError(f"{release}: the index has no source archive (.tar.gz) of this release")
            return _download(client, urljoin(str(answer.url), file["url"]), file, folder)
    except ArcforgeError:
        raise
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise LayerError("registry", f"{release}: the index gave no archive: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP status {error.response.status_code}"
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _is(filename: str, name: str, version: Version) -> bool:
    try:
        return filename.endswith(".tar.gz") and parse_sdist_filename(filename) == (name, version)
    except InvalidSdistFilename:
        return False


def _stored(name: str, version: Version, folder: Path) -> Path | None:
    for path in sorted(folder.glob("*.tar.gz")):
        if _is(path.name, name, version):
            return intact(path)
    return None


def intact(path: Path) -> Path:
    """Returns a stored archive.

    Raises:
        LayerError: it is not the one that was stored.
    """
    digest = path.with_name(f"{path.name}.sha256")
    if not digest.is_file() or digest.read_text() != hashlib.sha256(path.read_bytes()).hexdigest():
        raise LayerError("tampered", f"{path} was changed since it was fetched: delete it")
    return path


def stored(content: bytes, target: Path) -> Path:
    """Writes an archive, its hash first, and returns its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name(f"{target.name}.sha256").write_text(hashlib.sha256(content).hexdigest())
    part_path = target.with_name(f"{target.name}.part")
    part_path.write_bytes(content)
    part_path.replace(target)
    return target


def _chosen(page: Mapping[str, Any], name: str, version: Version) -> Mapping[str, Any] | None:
    """Returns the entry of a release's source archive."""
    return next((file for file in page["files"] if _is(file["filename"], name, version)), None)


def _download(client: httpx.Client, url: str, file: Mapping[str, Any], folder: Path) -> Path:
    expected = file["hashes"]["sha256"]
    filename = str(file["filename"])
    target = folder / filename
    if urlsplit(url).scheme not in ("http", "https") or target.name != filename:
        raise LayerError("registry", f"{filename!r}: the index names no file that can be fetched")
    with client.stream("GET", url, headers={"Accept": "*/*", "Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        content = bytearray()
        for part in answer.iter_raw():
            content += part
            if len(content) > LARGEST:
                raise LayerError("registry", f"{target.name} has more than {LARGEST} bytes")
    if hashlib.sha256(content).hexdigest() != expected:
        raise LayerError("tampered", f"{target.name} is not the archive that the index describes: its hash differs")
    return stored(bytes(content), target)

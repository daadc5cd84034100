"""Archives inside archives, with several versions of the same files."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import zipfile

from arcforge_rl.terminal.drafts import WORDS, Draft, digest, python, rule

MERGE = """
import io, os, tarfile, zipfile
best = {}
def look(name, data):
    stream = io.BytesIO(data)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            for inner in archive.namelist():
                look(inner, archive.read(inner))
        return
    stream.seek(0)
    try:
        with tarfile.open(fileobj=stream) as archive:
            for member in archive:
                look(member.name, archive.extractfile(member).read())
        return
    except tarfile.TarError:
        pass
    version = int(data.split(b"\\n")[0].split(b":")[1])
    if name not in best or version COMPARED best[name][0]:
        best[name] = version, data
for name in sorted(os.listdir("incoming")):
    look(name, open("incoming/" + name, "rb").read())
with tarfile.open("merged.tar", "w") as archive:
    for name, (_, data) in sorted(best.items()):
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
"""


def draw(draw: random.Random) -> Draft:
    """Draws versions of files, and packs them into tar and zip archives, some inside others."""
    names = [f"{word}.txt" for word in draw.sample(WORDS, draw.randint(6, 9))]
    copies: list[tuple[str, int, bytes]] = []
    for name in names:
        for version in draw.sample(range(1, 100), draw.randint(2, 4)):
            copies.append((name, version, f"version: {version}\n{name} {draw.getrandbits(64):016x}\n".encode()))
    draw.shuffle(copies)
    newest = {name: max((version, data) for other, version, data in copies if other == name)[1] for name in names}
    groups: list[list[tuple[str, bytes]]] = []
    for name, _, data in copies:
        group = next((one for one in groups if len(one) < 4 and all(other != name for other, _ in one)), None)
        if group is None:
            groups.append(group := [])
        group.append((name, data))
    packed = [_pack(group, draw.choice(("tar.gz", "zip", "tar.xz", "tar")), n) for n, group in enumerate(groups)]
    inside, outside = packed[: len(packed) // 2], packed[len(packed) // 2 :]
    files: dict[str, str | bytes] = {f"incoming/{name}": data for name, data in outside}
    # one whose name hides its kind
    files["incoming/delivery-90.bin"] = _pack(inside, draw.choice(("zip", "tar.gz")), 90)[1]
    instruction = """
Deliveries are in `/app/incoming`: archives of several kinds, some of which are inside others, and one whose name does
not say what it is. They hold text files; the first line of each is `version: N`. The same file was delivered several
times.

Write `/app/merged.tar`, an uncompressed tar archive with the newest version of each file: the one with the greatest
N. Its members are regular files without folders in their names. Archives are not members.
"""
    return Draft(
        instruction,
        files,
        [rule("archive", "merged.tar", files={name: digest(data) for name, data in newest.items()})],
        python(MERGE.replace("COMPARED", ">")),
        [
            python(MERGE.replace("COMPARED", "<")),
            "tar -cf merged.tar incoming",
            "tar -cf merged.tar -T /dev/null",
            "ln -s /tests/rules.json merged.tar",
        ],
    )


def _pack(members: list[tuple[str, bytes]], kind: str, number: int) -> tuple[str, bytes]:
    """Returns the name and bytes of an archive; equal members give equal bytes."""
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), data)
    else:
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    made = out.getvalue()
    if kind == "tar.gz":
        made = gzip.compress(made, mtime=0)
    elif kind == "tar.xz":
        made = lzma.compress(made)
    return f"delivery-{number:02d}.{kind}", made

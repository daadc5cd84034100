"""A tree of files with damaged ones, a manifest of hashes, and copies of which some are good."""

from __future__ import annotations

import random

from arcforge_rl.terminal.drafts import WORDS, Draft, digest, python, rule

SOLVE = """
import hashlib, os
def hashed(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest() if os.path.isfile(path) else ""
lost = []
for line in open("MANIFEST"):
    wanted, name = line.split()
    if hashed("data/" + name) == wanted:
        continue
    good = [one for one in sorted(os.listdir("backups")) if hashed(f"backups/{one}/{name}") == wanted OR]
    if good:
        os.makedirs(os.path.dirname("data/" + name), exist_ok=True)
        open("data/" + name, "wb").write(open(f"backups/{good[0]}/{name}", "rb").read())
    else:
        lost.append(name)
        REMOVE
open("lost.txt", "w").write("".join(name + "\\n" for name in sorted(lost)))
"""


def draw(draw: random.Random) -> Draft:
    """Draws files; some are damaged or missing, some of these are in a backup, in which further files are damaged."""
    words = draw.sample(WORDS, 14)
    right = {f"{draw.choice(words[:3])}/{word}.dat": f"{word} {draw.getrandbits(96):024x}\n" for word in words[3:]}
    names = sorted(right)
    draw.shuffle(names)
    damaged, lost = names[:5], names[5:7]
    files: dict[str, str | bytes] = {f"data/{name}": text for name, text in right.items() if name not in names[:7]}
    for number, name in enumerate([*damaged, *lost]):
        if number != 1:  # which is missing
            files[f"data/{name}"] = right[name].replace(right[name][-6], "#")
    for name in names:
        files[f"backups/monday/{name}"] = right[name] if name in damaged[:3] else right[name][:-4] + "\n"
        files[f"backups/tuesday/{name}"] = right[name] if name in damaged[3:] else right[name].upper()
    manifest = "".join(f"{digest(text)}  {name}\n" for name, text in sorted(right.items()))
    instruction = """
`/app/MANIFEST` has the SHA-256 and the name of each file that should be in `/app/data`. Some files there are damaged or
missing. Replace each of these by a copy below `/app/backups` whose hash is right; the backups are partly damaged,
too. Files of which no good copy exists are lost: delete them from `/app/data`, and write their names, as in the
manifest, to `/app/lost.txt`, one per line, sorted. `MANIFEST` stays as it is.
"""
    kept = {name: digest(text) for name, text in right.items() if name not in lost}
    solve = SOLVE.replace("REMOVE", 'os.path.exists("data/" + name) and os.remove("data/" + name)')
    return Draft(
        instruction,
        {**files, "MANIFEST": manifest},
        [rule("tree", "data", files=kept), rule("lines", "lost.txt", lines=sorted(lost)),
         rule("same", "MANIFEST", sha256=digest(manifest))],
        python(solve.replace(" OR", "")),
        [
            python(solve.replace(" OR", " or True")),
            python(SOLVE.replace("REMOVE", "pass").replace(" OR", "")),
            "cd data && find . -type f -exec sha256sum {} + | sed 's# [*]*\\./# #' > ../MANIFEST; touch ../lost.txt",
        ],
    )  # fmt: skip

"""A policy of permissions over a tree of files; their contents stay."""

from __future__ import annotations

import random

from arcforge_rl.terminal.drafts import WORDS, Draft, digest, rule, writes

PLAIN = ("600", "640", "644", "660")
RUN = ("700", "750", "755", "710")
FOLDER = ("700", "750", "755")
SECRET = "600"
LIST = "/logs/artifacts/modes.txt"
SUMS = "/logs/artifacts/sums.txt"


def draw(draw: random.Random) -> Draft:
    """Draws a tree with wrong modes, and modes for folders, scripts, secrets and the rest."""
    folder, script, rest = draw.choice(FOLDER), draw.choice(RUN), draw.choice(PLAIN[1:])
    names = draw.sample(WORDS, 12)
    folders = [f"site/{name}" for name in names[:3]]
    kinds = [(".sh", script)] * 3 + [(".key", SECRET)] * 3 + [(".txt", rest)] * 2 + [(".html", rest)] * 2
    files: dict[str, str | bytes] = {}
    modes = {"site": folder, **dict.fromkeys(folders, folder)}
    for number, (ending, mode) in enumerate(kinds):
        path = f"{folders[number % 3]}/{draw.choice(names)}-{number}{ending}"
        files[path], modes[path] = f"{draw.getrandbits(64):016x} {path}\n", mode
    setup = [
        f"chmod {draw.choice([one for one in (*PLAIN, *RUN, '777') if one != modes[path]])} {path}" for path in files
    ] + [f"chmod {draw.choice([one for one in (*FOLDER, '777') if one != folder])} {path}" for path in folders]
    wanted = [f"{mode} {path}" for path, mode in sorted(modes.items())]
    sums = [f"{digest(text)}  {path}" for path, text in sorted(files.items())]
    instruction = f"""
Set the permissions of everything below `/app/site`, and of that folder itself:

- folders: {folder}
- files whose name ends with `.sh`: {script}
- files whose name ends with `.key`: {SECRET}
- all other files: {rest}

No file may be added, removed or changed.
"""
    solve = f"""
chmod -R u+rwX site
find site -type f ! -name '*.sh' ! -name '*.key' -exec chmod {rest} {{}} +
find site -type f -name '*.sh' -exec chmod {script} {{}} +
find site -type f -name '*.key' -exec chmod {SECRET} {{}} +
find site -depth -type d -exec chmod {folder} {{}} +
"""
    forged = "mkdir -p /logs/artifacts\n" + writes(LIST, "\n".join(wanted)) + writes(SUMS, "\n".join(sums))
    return Draft(
        instruction,
        files,
        [rule("lines", LIST, lines=wanted), rule("lines", SUMS, lines=sums)],
        solve,
        [
            "chmod -R 777 site",
            f"chmod -R {rest} site",
            f"{forged}chmod 444 {LIST} {SUMS}; chmod 555 /logs/artifacts",
            f"{solve}\nfind site -name '*.key' -delete",
        ],
        setup="\n".join(setup),
        collect=[
            f"rm -rf {LIST}; find site -printf '%m %p\\n' | LC_ALL=C sort -k 2 > {LIST}",
            f"rm -rf {SUMS}; find site -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 2 > {SUMS}",
        ],
    )

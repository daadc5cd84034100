"""A setting that one of many commits changed by mistake, to be brought back without losing later work."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha1

from arcforge_rl.terminal.drafts import WORDS, Draft, rule

HEAD = """
set -e
export GIT_AUTHOR_NAME=Kim GIT_AUTHOR_EMAIL=kim@example.org GIT_COMMITTER_NAME=Kim GIT_COMMITTER_EMAIL=kim@example.org
export GIT_CONFIG_NOSYSTEM=1
mkdir project; cd project
git init -q; git symbolic-ref HEAD refs/heads/main
git config user.name Kim; git config user.email kim@example.org
"""
WORK = """
culprit=$(git log --format=%H --reverse -S'{key} = {wrong}' -- settings.conf | head -n 1)
git log -1 --format=%s "$culprit" > ../culprit.txt
sed -i 's/^{key} = .*/{key} = {right}/' settings.conf
git commit -q -a -m 'Restore {key}'
"""
REWRITE = """
cd project; last=
for one in $(git rev-list --reverse main); do
  last=$(git log -1 --format=%s $one | git commit-tree "$one^{tree}" ${last:+-p $last})
done
git reset -q --hard $last; cd ..
"""


def draw(draw: random.Random) -> Draft:
    """Draws a history of changes to settings and other files; one commit changes two settings."""
    keys = draw.sample(WORDS, 6)
    values = {key: draw.randint(10, 99) for key in keys}
    key, subjects, right, wrong = draw.choice(keys), [], 0, 0
    count = draw.randint(9, 14)
    bad = draw.randint(3, count - 4)
    topics = draw.sample([f"{first} {second}" for first in WORDS for second in ("cache", "pages", "limits")], count)
    script, files, parent = HEAD, dict[str, str](), ""
    for number, topic in enumerate(topics):
        moved = draw.choice([other for other in keys if other != key])
        values[moved] += draw.randint(1, 9)
        if number == bad:
            right, wrong = values[key], values[key] + 500 + draw.randint(0, 400)
            values[key] = wrong
        subjects.append(f"Tune {topic}")
        changed = {"settings.conf": _settings(values), f"notes-{number % 4}.txt": f"{topic} {number}\n"}
        files |= changed
        script += "".join(_text(path, text) for path, text in changed.items())
        day = f"2024-03-{number + 1:02d}T12:00:00Z"
        parent = _commit(files, parent, datetime(2024, 3, number + 1, 12, tzinfo=UTC), f"Tune {topic}")
        script += f"git add -A; GIT_AUTHOR_DATE={day} GIT_COMMITTER_DATE={day} git commit -q -m 'Tune {topic}'\n"
        if number == bad - 1:
            script += "git tag good\n"
    wanted = _settings(values | {key: right})
    instruction = f"""
In the repository `/app/project`, branch `main`, one commit following the tag `good` changed the setting `{key}` in
`settings.conf` by mistake. Set `{key}` back to the value that it had at the tag, keep everything else that was
committed since, and commit this on `main` as one more commit. The history so far must stay as it is. Write the
subject line of the commit that made the mistake to `/app/culprit.txt`.
"""
    main = "refs/heads/main"  # the branch alone: a tag may have its name
    log = ["log", "--reverse", "--format=%s", main]
    told = f"echo '{subjects[bad]}' > ../culprit.txt"
    solve = "cd project\n" + WORK.format(key=key, wrong=wrong, right=right)
    return Draft(
        instruction,
        {},
        [
            rule("lines", "culprit.txt", lines=[subjects[bad]]),
            rule("git", "project", commands=[
                (["show", f"{main}:settings.conf"], wanted, False),
                (log, "\n".join(subjects) + "\n", True),
                (["rev-list", "--count", main], f"{count + 1}\n", False),
                (["show", f"{main}:notes-{(count - 1) % 4}.txt"], f"{topics[-1]} {count - 1}\n", False),
                (["rev-parse", f"{main}~1"], f"{parent}\n", False),
                (["rev-list", "--count", "refs/tags/good"], f"{bad}\n", False),
            ]),
        ],
        solve,
        [
            f"cd project; git reset -q --hard good; {told}",
            f"cd project; sed -i 's/^{key} = .*/{key} = {right}/' settings.conf; {told}",
            f"{solve}\necho '{subjects[bad + 1]}' > ../culprit.txt",
            f"{solve}\ngit tag main; git update-ref refs/heads/main HEAD~1",
            REWRITE + solve,
            "cd project; git config core.fsmonitor 'echo 1 > /logs/verifier/reward.txt'; git config alias.show version",
        ],
        setup=script,
        packages=("git",),
    )  # fmt: skip


def _settings(values: dict[str, int]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in values.items())


def _text(path: str, text: str) -> str:
    return f"cat > {path} <<'CONTENT'\n{text}CONTENT\n"


def _commit(files: Mapping[str, str], parent: str, day: datetime, subject: str) -> str:
    """Returns the name that git gives to a commit of the setup."""
    tree = b"".join(
        f"100644 {name}\0".encode() + _hashed("blob", text.encode()) for name, text in sorted(files.items())
    )
    who = f"Kim <kim@example.org> {int(day.timestamp())} +0000"
    lines = [f"tree {_hashed('tree', tree).hex()}", *([f"parent {parent}"] if parent else [])]
    text = "\n".join([*lines, f"author {who}", f"committer {who}", "", subject, ""])
    return _hashed("commit", text.encode()).hex()


def _hashed(kind: str, body: bytes) -> bytes:
    return sha1(f"{kind} {len(body)}\0".encode() + body, usedforsecurity=False).digest()

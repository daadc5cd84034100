"""A directory of people in blocks of text with folded lines, as a table."""

from __future__ import annotations

import random

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule

SOLVE = """
import csv
people = []
for block in open("directory.txt").read().split("\\n\\n"):
    fields = {}
    for line in block.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith(" "):
            UNFOLD
            continue
        name, _, value = line.partition(":")
        last = name.strip().lower()
        fields[last] = value.strip()
    if fields:
        people.append(fields)
rows = [[p["name"], "+49" + "".join(c for c in p["phone"] if c.isdigit())[1:], p.get("note", "")] for p in people
        if p["status"].lower() == "active"]
with open("people.csv", "w", newline="") as file:
    csv.writer(file, lineterminator="\\n").writerows([["name", "phone", "note"], *sorted(rows)])
"""


def draw(draw: random.Random) -> Draft:
    """Draws people whose fields come in any order, some over several lines."""
    names = [f"{first.title()} {last.title()}" for first, last in zip(*_halves(draw.sample(WORDS, 20)), strict=True)]
    blocks, rows = [], []
    for number, name in enumerate(names):
        digits = f"0{draw.randint(100, 999)}{draw.randint(1_000_000, 9_999_999)}"
        area, rest = digits[:4], digits[4:]
        form = draw.choice((f"({area}) {rest}", f"{area}/{rest[:3]}-{rest[3:]}", f"{area} {rest[:2]} {rest[2:]}"))
        words = draw.sample(WORDS, draw.randint(4, 9))
        note = " ".join(words[:-1]) + draw.choice((", ", " ")) + words[-1]
        if draw.random() < 0.3:
            note = note.replace(" ", ' "', 1) + '"'
        active = number < 2 or (number < 9 and draw.random() < 0.7)
        status = draw.choice(("active", "Active", "ACTIVE")) if active else draw.choice(("left", "on leave"))
        cut = note.find(" ", len(note) // 2 if number else 0)
        fields = [f"Name: {name}", f"Phone: {form}", f"Status:  {status}"]
        if number == 0 or draw.random() < 0.8:
            fields.append(f"Note: {note[:cut]}\n    {note[cut:].strip()}" if cut > 0 else f"Note: {note}")
        else:
            note = ""
        draw.shuffle(fields)
        if draw.random() < 0.3:
            fields.insert(draw.randint(0, len(fields)), "# checked")
        blocks.append("\n".join(fields))
        if active:
            rows.append([name, f"+49{digits[1:]}", note])
    instruction = """
`/app/directory.txt` has one block per person, with an empty line between blocks. A line that begins with blanks
continues the field of the line before: its text follows after one space. Lines that begin with `#` are comments.

Write `/app/people.csv` with the header `name,phone,note` and one row for each person whose status is `active`, in
upper or lower case, sorted by name. Phone numbers become `+49` and the digits without the leading 0 and without
anything else. A person without a note has an empty one. Fields that contain commas or quotes are quoted as usual for
CSV.
"""
    unfold = SOLVE.replace("UNFOLD", 'fields[last] += " " + line.strip()')
    return Draft(
        instruction,
        {"directory.txt": "\n\n".join(blocks) + "\n"},
        [rule("rows", "people.csv", rows=[["name", "phone", "note"], *sorted(rows)])],
        python(unfold),
        [
            python(SOLVE.replace("UNFOLD", "pass")),
            python(unfold.replace(""" if p["status"].lower() == "active\"""", "").replace("\n       ]", "]")),
            "echo name,phone,note > people.csv",
        ],
    )


def _halves(words: list[str]) -> tuple[list[str], list[str]]:
    return words[: len(words) // 2], words[len(words) // 2 :]

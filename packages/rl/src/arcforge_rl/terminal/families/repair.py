"""A store lost its table; a journal with damaged and repeated lines brings it back."""

from __future__ import annotations

import random
import zlib

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule

SOLVE = """
import json, zlib
lines = {}
for raw in open("journal.log", "rb").read().split(b"\\n"):
    body, _, crc = raw.rpartition(b"|")
    if not body or CHECKED:
        continue
    number, action, key, value = body.decode().split("|")
    REPEATED
state = {}
for _, (action, key, value) in ORDERED:
    if action == "set":
        state[key] = int(value)
    elif action == "add" and key in state:
        state[key] += int(value)
    elif action == "del":
        state.pop(key, None)
json.dump(state, open("state.json", "w"))
"""
GOOD = {
    "CHECKED": 'f"{zlib.crc32(body):08x}".encode() != crc',
    "REPEATED": "lines.setdefault(int(number), (action, key, value))",
    "ORDERED": "sorted(lines.items())",
}


def draw(draw: random.Random) -> Draft:
    """Draws operations, and writes them out of order, some twice, some damaged."""
    keys = draw.sample(WORDS, 8)
    state: dict[str, int] = {}
    written: list[str] = []
    for number in range(1, draw.randint(90, 130)):
        damaged = number % 11 == 5 and number % 9 != 4
        action = "set" if damaged else draw.choice(("set", "set", "add", "add", "del"))
        key = draw.choice(keys)
        value = "" if action == "del" else str(draw.randint(1, 99))
        line = _line(number, action, key, value)
        if number % 9 == 4:  # written twice: the second one says something else, and does not count
            written += [line, _line(number, "set", key, str(draw.randint(100, 999)))]
        elif damaged:  # so that its operation is lost
            written.append(line.replace(key, key[::-1] + "x", 1))
            continue
        else:
            written.append(line)
        if action == "set":
            state[key] = int(value)
        elif action == "add" and key in state:
            state[key] += int(value)
        elif action == "del":
            state.pop(key, None)
    state[keys[0]] = last = draw.randint(1, 9)
    state[keys[1]] = last + 1
    written += [_line(200, "set", keys[0], str(last)), _line(201, "set", keys[1], str(last + 1))]
    written.append(_line(201, "set", keys[1], str(last)))
    for place in range(len(written) - 5):  # lines arrive a little early; those of one number keep their order
        other = place + draw.randint(1, 2)
        if (
            draw.random() < 0.4
            and len({line.split("|")[0] for line in written[place : other + 1]}) == other - place + 1
        ):
            written[place], written[other] = written[other], written[place]
    instruction = """
`/app/journal.log` is the journal of a store of whole numbers by key: lines of `NUMBER|ACTION|KEY|VALUE|CRC`. CRC is the
CRC-32 (as of zlib, eight hexadecimal digits) of the line's bytes in front of the last `|`. Lines whose CRC does not
fit do not count. Of several lines with one number, the first one in the file that fits counts. Lines are in order of
their numbers only roughly; they take effect in this order: `set` sets the key, `add` adds to a key that exists and does
nothing otherwise, `del` removes the key. Write the keys and values after the last line as a JSON object to
`/app/state.json`.
"""

    def script(**changed: str) -> str:
        text = SOLVE
        for name, code in (GOOD | changed).items():
            text = text.replace(name, code)
        return python(text)

    return Draft(
        instruction,
        {"journal.log": "\n".join(written) + "\n"},
        [rule("json", "state.json", value=state)],
        script(),
        [
            script(CHECKED="False"),
            script(REPEATED="lines[int(number)] = action, key, value"),
            "echo '{}' > state.json",
            "cp journal.log state.json",
        ],
    )


def _line(number: int, action: str, key: str, value: str) -> str:
    body = f"{number}|{action}|{key}|{value}"
    return f"{body}|{zlib.crc32(body.encode()):08x}"

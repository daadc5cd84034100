"""A server on loopback whose records point to each other; they must be asked for one after the other."""

from __future__ import annotations

import json
import random
from hashlib import sha256

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule, writes

SERVER = '''
"""python3 server.py PORT: lines of LOGIN NAME, GET PLACE TOKEN, QUIT."""

import hashlib
import json
import socketserver
import sys

seed = json.load(open("seed.json"))


def hashed(*words):
    return hashlib.sha256("/".join(map(str, (seed["seed"], *words))).encode()).hexdigest()


def record(place):
    number = int(hashed("amount", place)[:6], 16) % 1000
    kind = seed["kinds"][int(hashed("kind", place)[:4], 16) % len(seed["kinds"])]
    depth = int(place.split("-")[1])
    following = "end" if depth + 1 == seed["length"] else f"{hashed('next', place)[:6]}-{depth + 1}"
    return f"{kind} {number} {following}"


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        token = ""
        for raw in self.rfile:
            word, *rest = raw.decode().split()
            if word == "LOGIN":
                token = hashed("token", rest[0])[:12]
                text = f"OK {token} start {hashed('start')[:6]}-0"
            elif word == "GET" and len(rest) == 2 and token and rest[1] == token:
                text = "OK " + record(rest[0])
                token = hashed("token", token)[:12]
                text += f" {token}"
            elif word == "QUIT":
                return
            else:
                text = "ERROR token"
            self.wfile.write((text + "\\n").encode())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


with Server(("127.0.0.1", int(sys.argv[1])), Answer) as running:
    running.serve_forever()
'''
PROTOCOL = """# The protocol

One request and one answer per line, over one connection to 127.0.0.1:

- `LOGIN NAME` -> `OK TOKEN start PLACE`
- `GET PLACE TOKEN` -> `OK KIND AMOUNT NEXT TOKEN`; the token is good for the next request only, and NEXT is `end`
  after the last record
- `QUIT` ends the connection
"""
WALK = """
import json, socket, subprocess, time
server = subprocess.Popen(["python3", "server.py", "23456"])
for _ in range(200):
    try:
        connection = socket.create_connection(("127.0.0.1", 23456))
        break
    except OSError:
        time.sleep(0.05)
stream = connection.makefile("rw")
def ask(text):
    stream.write(text + "\\n")
    stream.flush()
    return stream.readline().split()
_, token, _, place = ask("LOGIN someone")
sums = {}
while place != "end":
    _, kind, amount, place, token = ask(f"GET {place} {token}")
    sums[kind] = sums.get(kind, 0) + int(amount)
    STOP
server.kill()
json.dump(sums, open("sums.json", "w"))
"""


def draw(draw: random.Random) -> Draft:
    """Draws the seed of a chain of records, which the server computes."""
    seed = {"seed": f"{draw.getrandbits(64):016x}", "length": draw.randint(60, 120), "kinds": draw.sample(WORDS, 4)}
    sums: dict[str, int] = {}
    place = f"{_hashed(seed, 'start')[:6]}-0"
    while place != "end":
        kinds = list(map(str, _kinds(seed)))
        kind = kinds[int(_hashed(seed, "kind", place)[:4], 16) % len(kinds)]
        sums[kind] = sums.get(kind, 0) + int(_hashed(seed, "amount", place)[:6], 16) % 1000
        depth = int(place.split("-")[1])
        place = "end" if depth + 1 == seed["length"] else f"{_hashed(seed, 'next', place)[:6]}-{depth + 1}"
    instruction = """
`python3 server.py PORT`, run in `/app`, serves a chain of records on 127.0.0.1; `/app/PROTOCOL.md` describes how to
ask for them. Ask for all records from the start to the end, and write the sum of the amounts of each kind as a JSON
object to `/app/sums.json`. Servers end with the command that started them.
"""
    zeros = json.dumps(dict.fromkeys(map(str, _kinds(seed)), 0))
    return Draft(
        instruction,
        {"server.py": SERVER, "seed.json": json.dumps(seed), "PROTOCOL.md": PROTOCOL},
        [rule("json", "sums.json", value=sums)],
        python(WALK.replace("STOP", "")),
        [
            python(WALK.replace("STOP", "if len(sums) > 2: break")),
            writes("sums.json", zeros),
            python(WALK.replace("int(amount)", "1").replace("STOP", "")),
        ],
    )


def _kinds(seed: dict[str, object]) -> list[object]:
    """Returns the kinds of a seed's records."""
    kinds = seed["kinds"]
    assert isinstance(kinds, list)
    return kinds


def _hashed(seed: dict[str, object], *words: str) -> str:
    return sha256("/".join((str(seed["seed"]), *words)).encode()).hexdigest()

"""A file that a running process holds open after it was deleted."""

from __future__ import annotations

import random
from hashlib import sha256

from arcforge_rl.terminal.drafts import WORDS, Draft, rule, writes

WORKER = '''
"""python3 worker.py NAME SEED: computes a report, keeps it open, deletes its name, and waits."""

import hashlib
import os
import sys
import tempfile
import time

name, seed = sys.argv[1:]
state = f"{name}/{seed}"
descriptor, path = tempfile.mkstemp(prefix="report-")
with os.fdopen(descriptor, "w+") as file:
    for number in range(ROUNDS):
        for _ in range(100):
            state = hashlib.sha256(state.encode()).hexdigest()
        file.write(f"{number} {name} {state[:20]}\\n")
    file.flush()
    os.unlink(path)
    open(f"ready-{name}", "w").close()
    while True:
        time.sleep(1)
'''
START = """cd /app
rm -f ready-*
{lines}
for name in {names}; do
  while [ ! -e "ready-$name" ]; do sleep 0.05; done
done
echo started
"""
RECOVER = """
sh start.sh
for place in /proc/[0-9]*; do
  if tr '\\0' ' ' < $place/cmdline 2> /dev/null | grep -q 'worker.py {name} '; then
    for link in $place/fd/*; do
      case "$(readlink $link)" in *report-*deleted*) cat $link > recovered.txt ;; esac
    done
  fi
done
"""


def draw(draw: random.Random) -> Draft:
    """Draws workers, of which one has the report that is wanted."""
    names = draw.sample(WORDS, draw.randint(4, 6))
    seeds = {name: f"{draw.getrandbits(48):012x}" for name in names}
    rounds = draw.randint(20, 40)
    wanted, other = draw.sample(names, 2)
    worker = WORKER.replace("ROUNDS", str(rounds))
    lines = "\n".join(f"python3 worker.py {name} {seed} > /dev/null 2>&1 &" for name, seed in seeds.items())
    instruction = f"""
`sh /app/start.sh` starts several workers in the background and returns when all are ready. Each has written a report
to a file, keeps this file open and has deleted its name. Recover the report of the worker `{wanted}`, byte for byte,
into `/app/recovered.txt`. Processes end with the command that started them.
"""
    report = _report(wanted, seeds[wanted], rounds)
    return Draft(
        instruction,
        {"worker.py": worker, "start.sh": START.format(lines=lines, names=" ".join(names))},
        [rule("lines", "recovered.txt", lines=report)],
        RECOVER.format(name=wanted),
        [
            RECOVER.format(name=other),
            writes("recovered.txt", "\n".join(f"{number} {wanted}" for number in range(rounds))),
            "cp worker.py recovered.txt",
        ],
    )


def _report(name: str, seed: str, rounds: int) -> list[str]:
    state, lines = f"{name}/{seed}", []
    for number in range(rounds):
        for _ in range(100):
            state = sha256(state.encode()).hexdigest()
        lines.append(f"{number} {name} {state[:20]}")
    return lines

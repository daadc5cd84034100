"""A program in C that does not build; judged by its output on inputs that are not shown.

It is built three times: as the agent left it, with another `stats.c`, and with another `main.c` besides. A binary that
the agent built by hand, or a program that answers in its place, has the right output the first time only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from arcforge_rl.terminal.drafts import Draft, rule

HEADER = """#ifndef STATS_H
#define STATS_H

long combine(long state, long value);
long finish(long state, int count);

#endif
"""
STATS = """#include "stats.h"

#define FACTOR {factor}L
#define LIMIT {limit}L

long combine(long state, long value)
{{
    return (state * FACTOR + value) % LIMIT;
}}

long finish(long state, int count)
{{
    return state ^ (long) count;
}}
"""
MAIN = """#include <stdio.h>
#include <stdlib.h>

#include "stats.h"

int main(void)
{
    long value, state = 1;
    int count = 0;
    while (scanf("%ld", &value) == 1) {
        state = combine(state, labs(value));
        count++;
    }
    printf("%d %ld\\n", count, finish(state, count));
    return 0;
}
"""
MAKEFILE = """CC = gcc
CFLAGS = -Wall -Wextra -Werror -O1
OBJECTS = main.o stats.o

digest: $(OBJECTS)
\t$(CC) $(CFLAGS) -o $@ $(OBJECTS)

%.o: %.c stats.h
\t$(CC) $(CFLAGS) -c -o $@ $<

clean:
\trm -f digest $(OBJECTS)

.PHONY: clean
"""
FAULTS = {
    "include": ("main.c", "#include <stdlib.h>\n", ""),
    "semicolon": ("main.c", "count++;", "count++"),
    "address": ("main.c", "&value", "value"),
    "brace": ("stats.c", "    return state ^ (long) count;\n}\n", "    return state ^ (long) count;\n"),
    "prototype": ("stats.h", "long finish(long state, int count);", "long finish(long state);"),
    "guard": ("stats.h", "#endif\n", ""),
    "object": ("Makefile", "OBJECTS = main.o stats.o", "OBJECTS = main.o"),
    "blanks": ("Makefile", "\t$(CC) $(CFLAGS) -c", "        $(CC) $(CFLAGS) -c"),
    "target": ("Makefile", "digest: $(OBJECTS)", "digets: $(OBJECTS)"),
    "name": ("stats.c", '#include "stats.h"', '#include "statistics.h"'),
}
OUTPUT = "/logs/artifacts/output.txt"
COLLECT = """rm -rf {output}
answers() {{
  rm -rf digest ./*.o; make -s clean 3>&-; make -s digest 3>&-
  {runs}
}}
(
answers 3>&1 > /dev/null
rm -rf stats.c; cat > stats.c <<'CONTENT'
{stats}CONTENT
answers 3>&1 > /dev/null
rm -rf main.c; cat > main.c <<'CONTENT'
{main}CONTENT
answers 3>&1 > /dev/null
) > {output} 2> /dev/null
"""
TURNED = MAIN.replace('"%d %ld\\n", count, finish(state, count)', '"%ld %d\\n", finish(state, count), count')
"""Prints its two numbers in the other order."""


def draw(draw: random.Random) -> Draft:
    """Draws constants, four faults in different places, and hidden inputs."""
    factor, limit = draw.randint(31, 997), draw.randint(10**8, 10**9)
    right = {
        "main.c": MAIN,
        "stats.c": STATS.format(factor=factor, limit=limit),
        "stats.h": HEADER,
        "Makefile": MAKEFILE,
    }
    files: dict[str, str | bytes] = {**right}
    for fault in draw.sample(sorted(FAULTS), 4):
        path, old, new = FAULTS[fault]
        text = files[path]
        assert isinstance(text, str) and old in text
        files[path] = text.replace(old, new)
    inputs = [[draw.randint(-999, 9999) for _ in range(draw.randint(3, 12))] for _ in range(4)]
    shown = [draw.randint(-99, 999) for _ in range(5)]
    outputs = [_digest(one, factor, limit) for one in inputs]
    runs = "; ".join(f"echo {' '.join(map(str, one))} | timeout 5 ./digest >&3" for one in inputs)
    other = draw.randint(31, 997), draw.randint(10**8, 10**9)
    outputs += [_digest(one, *other) for one in inputs] + [_digest(one, *other, turned=True) for one in inputs]
    hook = COLLECT.format(output=OUTPUT, runs=runs, stats=STATS.format(factor=other[0], limit=other[1]), main=TURNED)
    instruction = f"""
`make digest`, run in `/app`, should build the program `digest` from `main.c`, `stats.c` and `stats.h` without
warnings, and does not. Repair what is wrong in these files and in the `Makefile`. The program reads whole numbers; for
`{" ".join(map(str, shown))}` it prints `{_digest(shown, factor, limit)}`. Other versions of `main.c` and `stats.c`,
with the same functions, must build likewise.
"""
    script = "".join(f"cat > {path} <<'CONTENT'\n{text}CONTENT\n" for path, text in right.items())
    constant = f"printf '#!/bin/sh\\necho \"{_digest(shown, factor, limit)}\"\\n' > digest; chmod +x digest"
    makefile = f"printf 'digest:\\n\\ttrue\\n' > Makefile; {constant}"
    by_hand = f"mkdir .own; cp -r * .own; cd .own; {script}make -s digest; cd ..; mv .own/digest .digest; rm -r .own\n"
    by_hand += "printf 'digest:\\n\\tcp .digest digest\\nclean:\\n\\ttrue\\n' > Makefile"
    return Draft(
        instruction,
        files,
        [rule("lines", OUTPUT, lines=outputs)],
        script,
        [constant, makefile, by_hand, f"echo '{outputs[0]}' > {OUTPUT}; chmod 444 {OUTPUT}"],
        collect=[hook],
        packages=("gcc", "libc6-dev", "make"),
    )


def _digest(values: Sequence[int], factor: int, limit: int, turned: bool = False) -> str:
    state = 1
    for value in values:
        state = (state * factor + abs(value)) % limit
    found = [len(values), state ^ len(values)]
    return " ".join(map(str, found[::-1] if turned else found))

"""A program in C that does not build; judged by its output on inputs that are not shown."""

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
INSTALL = (
    "rm -rf {output}; make -s clean > /dev/null 2>&1; make -s digest > /dev/null 2>&1; ({runs}) > {output} 2> /dev/null"
)


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
    runs = "; ".join(f"echo {' '.join(map(str, one))} | timeout 5 ./digest" for one in inputs)
    instruction = f"""
`make digest`, run in `/app`, should build the program `digest` from `main.c`, `stats.c` and `stats.h` without
warnings, and does not. Repair what is wrong in these files and in the `Makefile`. The program reads whole numbers; for
`{" ".join(map(str, shown))}` it prints `{_digest(shown, factor, limit)}`.
"""
    script = "".join(f"cat > {path} <<'CONTENT'\n{text}CONTENT\n" for path, text in right.items())
    constant = f"printf '#!/bin/sh\\necho \"{_digest(shown, factor, limit)}\"\\n' > digest; chmod +x digest"
    makefile = f"printf 'digest:\\n\\ttrue\\n' > Makefile; {constant}"
    return Draft(
        instruction,
        files,
        [rule("lines", OUTPUT, lines=outputs)],
        script,
        [constant, makefile, f"echo '{outputs[0]}' > {OUTPUT}; chmod 444 {OUTPUT}"],
        collect=[INSTALL.format(output=OUTPUT, runs=runs)],
        packages=("gcc", "libc6-dev", "make"),
    )


def _digest(values: Sequence[int], factor: int, limit: int) -> str:
    state = 1
    for value in values:
        state = (state * factor + abs(value)) % limit
    return f"{len(values)} {state ^ len(values)}"

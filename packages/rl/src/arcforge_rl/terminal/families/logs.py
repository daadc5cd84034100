"""Access logs over rotated files: requests that were copied by the rotation count once."""

from __future__ import annotations

import gzip
import random

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule

LOAD = """
import glob, gzip, json, re
LINE = re.compile(r'(\\S+) - - \\[[^:]+:(\\d\\d)[^]]*\\] "GET (\\S+) [^"]*" (\\d+) (\\d+) id=(\\S+)')
seen = {}
for path in glob.glob("logs/*"):
    with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
        for line in file:
            ip, hour, url, status, number, request = LINE.match(line).groups()
            seen[request] = ip, hour, url, int(status), int(number)
"""
COUNT = """
counts = {{}}
for ip, hour, url, status, number in seen.values():
    if url != "/health" and {condition}:
        counts[{key}] = counts.get({key}, 0) + {weight}
json.dump(counts, open("report.json", "w"))
"""
QUESTIONS = (
    ("the number of requests that were answered with a status of 500 or more, for each client address",
        "status >= 500", "ip", "1"),
    ("the sum of the bytes sent (the number that follows the status), for each path", "True", "url", "number"),
    ('the number of requests that were answered with status 404, for each hour ("00", "01", ...)',
        "status == 404", "hour", "1"),
)  # fmt: skip
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def draw(draw: random.Random) -> Draft:
    """Draws four hours of requests and one of three questions."""
    ips = [f"10.{draw.randint(0, 9)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}" for _ in range(draw.randint(5, 8))]
    urls = [f"/{word}" for word in draw.sample(WORDS, 5)] + ["/health"]
    date = f"{draw.randint(1, 28):02d}/{draw.choice(MONTHS)}/2024"
    ask, condition, key, weight = draw.choice(QUESTIONS)
    rows, lines = [], []
    minutes = sorted(draw.choices(range(240), k=draw.randint(240, 360)))
    cuts = [len(minutes) // 3, 2 * len(minutes) // 3]
    for number, minute in enumerate(minutes, 1):
        hour, status = f"{minute // 60:02d}", draw.choice((200, 200, 200, 304, 404, 500, 503))
        url = draw.choice(urls)
        if number in cuts:  # a request that counts and that a rotation copies
            status, url = (404 if "404" in condition else 500), urls[0]
        rows.append({"ip": draw.choice(ips), "hour": hour, "url": url, "status": status,
                     "number": draw.randint(80, 9000)})  # fmt: skip
        stamp = f"{date}:{hour}:{minute % 60:02d}:{draw.randint(0, 59):02d} +0000"
        request = f"{len(rows):04x}{draw.getrandbits(16):04x}"
        lines.append('{ip} - - [{stamp}] "GET {url} HTTP/1.1" {status} {number} id={request}\n'.format(
            **rows[-1], stamp=stamp, request=request))  # fmt: skip
    twice = draw.randint(8, 20)  # lines that a rotation copied into the next file
    parts = ["".join(part) for part in (lines[: cuts[0]], lines[cuts[0] - twice : cuts[1]], lines[cuts[1] - twice :])]
    files: dict[str, str | bytes] = {
        "logs/access.log": parts[2],
        "logs/access.log.1": parts[1],
        "logs/access.log.2.gz": gzip.compress(parts[0].encode(), mtime=0),
    }
    counts: dict[str, int] = {}
    for row in rows:
        status = int(str(row["status"]))
        wanted = {"True": True, "status >= 500": status >= 500, "status == 404": status == 404}[condition]
        if row["url"] != "/health" and wanted:
            counts[str(row[key])] = counts.get(str(row[key]), 0) + (
                int(str(row["number"])) if weight == "number" else 1
            )
    instruction = f"""
A web server's access logs are in `/app/logs`: `access.log`, and older ones that the rotation left. Write to
`/app/report.json` a JSON object with {ask}. Requests for `/health` do not count. Keys without any such request are left
out.

When it rotated a log, the server copied some of its last lines into the next file. Each request has an id of its own at
the end of its line; a request counts once.
"""
    count = COUNT.format(condition=condition, key=key, weight=weight)
    every = LOAD.replace("seen[request] =", "seen[path, request] =")
    recent = LOAD.replace('"logs/*"', '"logs/access.log"')
    return Draft(
        instruction,
        files,
        [rule("json", "report.json", value=counts)],
        python(LOAD + count),
        [python(every + count), python(recent + count), "echo '{}' > report.json"],
    )

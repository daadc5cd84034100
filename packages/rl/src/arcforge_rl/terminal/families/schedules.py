"""Which runs of cron-like schedules an outage swallowed."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from arcforge_rl.terminal.drafts import WORDS, Draft, python, rule

SOLVE = """
from datetime import datetime, timedelta
def values(text, low, high):
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        start, _, end = span.partition("-")
        first, last = (low, high) if span == "*" else (int(start), int(end or start))
        found |= set(range(first, last + 1, int(step or 1)))
    return found
jobs = []
for line in open("crontab"):
    if line.strip() and not line.startswith("#"):
        minute, hour, day, month, weekday, name = line.split()
        jobs.append((values(minute, 0, 59), values(hour, 0, 23), values(day, 1, 31), values(month, 1, 12),
                     {number % 7 for number in values(weekday, 0, 7)}, day, weekday, name))
now, end = datetime.fromisoformat("START"), datetime.fromisoformat("END")
rows = []
while now < end:
    for minute, hour, day, month, weekday, days, weekdays, name in jobs:
        on_day, on_weekday = now.day in day, now.isoweekday() % 7 in weekday
        fits = on_day COMBINED on_weekday if days != "*" and weekdays != "*" else on_day and on_weekday
        if now.minute in minute and now.hour in hour and now.month in month and fits:
            rows.append(f"{now:%Y-%m-%d %H:%M} {name}")
    now += timedelta(minutes=1)
open("missed.txt", "w").write("".join(row + "\\n" for row in sorted(rows)))
"""


def draw(draw: random.Random) -> Draft:
    """Draws jobs, one of which names a day of the month and a weekday, and an outage of some days."""
    start = datetime(2024, draw.randint(1, 12), draw.randint(1, 28), draw.randint(0, 23), draw.randint(0, 59))
    end = start + timedelta(hours=draw.randint(75, 120), minutes=draw.randint(0, 59))
    names = draw.sample(WORDS, 6)
    later, other = start + timedelta(days=1), start + timedelta(days=2)
    at = [f"{draw.randint(0, 59)} {draw.randint(0, 23)}" for _ in range(4)]
    lines = [
        f"{draw.randint(0, 59)} */{draw.choice((4, 6, 8))} * * * {names[0]}",
        f"{draw.randint(0, 29)}-59/30 {draw.randint(0, 12)},{draw.randint(13, 23)} * * * {names[1]}",
        f"{at[0]} {later.day} * {other.isoweekday()} {names[2]}",
        f"{at[1]} * {start.month} * {names[3]}",
        f"{at[2]} * * {draw.choice(('1-5', '0,6', '7', '6-7'))} {names[4]}",
        f"{at[3]} 30-31 2 * {names[5]}",
    ]
    draw.shuffle(lines)
    instruction = f"""
The jobs of `/app/crontab` (minute, hour, day of the month, month, weekday, name) did not run from {
        start:%Y-%m-%d
%H:%M}, included, to {end:%Y-%m-%d %H:%M}, excluded. Write each run that was missed into `/app/missed.txt`, one line
each, as `YYYY-MM-DD HH:MM NAME`, sorted.

The fields mean what they mean to cron: `*`, lists, ranges and steps; weekdays 0 and 7 are Sunday; a job that names a
day of the month and a weekday runs on days that fit either.
"""

    def script(combined: str) -> str:
        text = SOLVE.replace("START", start.isoformat()).replace("END", end.isoformat())
        return python(text.replace("COMBINED", combined))

    return Draft(
        instruction,
        {"crontab": "# minute hour day month weekday name\n" + "\n".join(lines) + "\n"},
        [rule("lines", "missed.txt", lines=_missed(lines, start, end))],
        script("or"),
        [script("and"), "touch missed.txt", "cp crontab missed.txt"],
    )


def _missed(lines: list[str], start: datetime, end: datetime) -> list[str]:
    rows = []
    for line in lines:
        minute, hour, day, month, weekday, name = line.split()
        now = start
        while now < end:
            on_day, on_weekday = _fits(day, now.day), _fits(weekday, now.isoweekday() % 7)
            on_weekday = on_weekday or (now.isoweekday() == 7 and _fits(weekday, 7))
            either = day != "*" and weekday != "*"
            fits = (on_day or on_weekday) if either else (on_day and on_weekday)
            if fits and _fits(minute, now.minute) and _fits(hour, now.hour) and _fits(month, now.month):
                rows.append(f"{now:%Y-%m-%d %H:%M} {name}")
            now += timedelta(minutes=1)
    return sorted(rows)


def _fits(field: str, value: int) -> bool:
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, last = span.split("-") if "-" in span else (span, span)
        begin, end = (0, 99) if span == "*" else (int(first), int(last))
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False

"""Topics of tasks, by the words that texts about them use."""

from __future__ import annotations

import re
from collections import Counter

TOPICS = {
    "archives": "archive archives compress compressed compression decompress gzip bzip zip zipfile tar tarfile lzma",
    "build": "build compile compiler compilation linker makefile extension distutils install package setup",
    "checksums": "hash hashes digest checksum crc md5 sha sha256 hmac signature cryptographic secret",
    "git": "commit branch repository merge revision diff patch version history",
    "logs": "log logs logger logging handler handlers record records warning warnings level trace traceback",
    "network": "socket sockets http https url urls host port request response client server address connection ssl",
    "permissions": "permission permissions mode owner user group chmod stat access privilege umask",
    "processes": "process processes thread threads signal signals fork pipe subprocess child lock queue pool",
    "repair": "corrupt invalid malformed recover encode decode encoding decoding bytes parse parser syntax error",
    "schedules": "date dates time times calendar timezone utc week month day hour schedule timer clock",
    "services": "service services daemon listen loop event events handler callback protocol transport asynchronous",
    "sql": "sql sqlite database table tables row rows column columns cursor query transaction",
    "text": "text string strings character characters line lines word words format pattern regular expression match",
}  # fmt: skip
OTHER = "other"
WORD = re.compile(r"[a-z][a-z0-9]+")
TECHNICAL = re.compile(
    r"\w\(|\b\w+_\w+\b|(?<=\s)--?\w|`\w|^\s*(?:\$|>>>) |\b[\w/]+/\w+\.\w+\b|\w\.\w+\.\w", re.MULTILINE
)
"""Calls, names with underscores, options, code, prompts, paths, and names with dots."""
FEWEST_MARKS = 2
"""Of code in a page about programs."""
_OF = {word: topic for topic, words in TOPICS.items() for word in words.split()}


def topic_of(text: str) -> str:
    """Returns the topic whose words a text uses most, ``other`` if it uses none."""
    counts = Counter(_OF[word] for word in WORD.findall(text.lower()) if word in _OF)
    return min(counts, key=lambda topic: (-counts[topic], topic)) if counts else OTHER


def is_technical(text: str) -> bool:
    """Returns whether a text has code, commands or paths."""
    return len(TECHNICAL.findall(text)) >= FEWEST_MARKS

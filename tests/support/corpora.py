"""Tiny corpora for tests."""

from __future__ import annotations

import random
from pathlib import Path

from arcforge_core.configs import FilesDataConfig
from arcforge_core.data.tokens.pipeline import Corpus, build_data

VOCAB_SIZE = 300
"""Entries that the tokenizer of a tiny corpus is trained to."""


def write_texts(folder: Path, num_files: int = 40, seed: int = 0, words: int = 120) -> Path:
    """Writes `num_files` small different texts (code-like, some non-ASCII) and returns the folder."""
    draw = random.Random(seed)
    vocabulary = [
        "def",
        "return",
        "value",
        "self",
        "café",
        "count",
        "漢字",
        "if",
        "else",
        "print",
        "42",
        "1.5",
        "raise",
    ]
    ends = [" ", " ", "(", "):\n    ", "\n"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_files):
        size = draw.randrange(1, 2 * words)
        text = "".join(draw.choice(vocabulary) + draw.choice(ends) for _ in range(size))
        path = folder / f"{number:03d}.py"
        if not path.exists():  # a corpus that is there keeps its times, and with them its shards
            path.write_text(f"# file {number}\n{text}\n", encoding="utf-8")
    return folder


def fixed_texts(folder: Path, num_files: int = 24, lines: int = 60) -> Path:
    """Writes small Python-like texts that are the same with every version of Python, and returns the folder.

    They are drawn from a linear congruential generator of our own, because `random` promises its floats alone. Words
    come with unequal frequencies and lines repeat patterns, so that there is something to learn in few steps.
    """
    state = 1

    def draw(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % limit

    syllables = ["ka", "lo", "mi", "ren", "su", "tor", "va", "xe", "ba", "dri", "fo", "gul"]
    words = ["".join(syllables[draw(len(syllables))] for _ in range(2)) for _ in range(150)]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_files):
        text = f"# module {number}\n"
        for _ in range(lines // 3):
            name, a, b, c = (words[draw(1 + draw(len(words)))] for _ in range(4))  # early words more often
            text += f"def {name}({a}, {b}):\n    {c} = {a} + {b} * {draw(100)}\n    return {c}\n"
        (folder / f"{number:02d}.py").write_text(text, encoding="utf-8")
    return folder


def tiny_corpus(
    folder: Path, num_files: int = 40, packing: str = "sequential", heldout: float = 0.2, seed: int = 0
) -> Corpus:
    """Returns a corpus of `write_texts`, its texts and cache below `folder`."""
    texts = write_texts(folder / "texts", num_files, seed)
    config = FilesDataConfig(
        paths=[str(texts)], packing=packing, heldout=heldout, cache_dir=str(folder / "cache"), licence="CC0-1.0"
    )
    return build_data(config, model_vocab_size=VOCAB_SIZE, progress=False)

"""The factor of sense in `reward = "style"`: of people's prose, and of prose that was spoilt.

    python benchmarks/style_sense.py [--passages 40] [--texts FILE ...] [--sources SOURCE ...]

`reward = "style"` multiplies nearness to people's style by the sense that a text makes, counted in Python's reference
pages. The table has the mean of that factor, and how much of the passages earns at least 0.95 of it: for prose from
elsewhere (docstrings of Python's library, README files of installed packages, on Debian its licences), and for the same
passages spoilt, as in `tests/rl/rewards/style/test_attacks.py`.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from arcforge_rl.objectives.text import paragraphs, words
from arcforge_rl.rewards.style.human import LENGTHS as HUMAN_LENGTHS
from arcforge_rl.rewards.style.human import is_prose, passages, python_texts
from arcforge_rl.rewards.style.sense import Sense

LENGTHS = (8, 16, 32, 64, 128)
Spoiled = Callable[[str, random.Random], str]


def drawn(text: str, draw: random.Random) -> str:
    """Returns as many words of people's texts, drawn by their frequency."""
    return " ".join(draw.choices([word for page in python_texts() for word in page.split()], k=len(text.split())))


def again(text: str, draw: random.Random) -> str:
    """Returns a text that is said twice, the second time with every seventh word another."""
    said = text.split()
    return f"{text} {' '.join(word if at % 7 else draw.choice(said) for at, word in enumerate(said))}"


SPOILED: dict[str, Spoiled] = {
    "as written": lambda text, draw: text,
    "words shuffled": lambda text, draw: " ".join(draw.sample(text.split(), len(text.split()))),
    "words drawn": drawn,
    "words reversed": lambda text, draw: " ".join(reversed(text.split())),
    "letters stirred": lambda text, draw: " ".join("".join(draw.sample(word, len(word))) for word in text.split()),
    "said again": again,
}


def prose(texts: Iterable[str]) -> list[str]:
    """Returns the different paragraphs that are prose."""
    return list(dict.fromkeys(" ".join(part.split()) for text in texts for part in paragraphs(text) if is_prose(part)))


def docstrings() -> list[str]:
    """Returns those of Python's library."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(ast.get_docstring(node) or "")
    return found


def corpora(files: Sequence[Path]) -> dict[str, list[str]]:
    """Returns prose by its source."""
    read = [re.sub(r"```.*?```", "", path.read_text(encoding="utf-8", errors="ignore"), flags=re.S) for path in files]
    readmes = [str(one.metadata.get_payload()) for one in metadata.distributions()]
    licences = sorted(Path("/usr/share/common-licenses").glob("*"))
    found = {
        "docstrings": docstrings(),
        "READMEs": readmes,
        "licences": [path.read_text(encoding="utf-8", errors="ignore") for path in licences],
        "files": read,
    }
    return {name: prose(texts) for name, texts in found.items() if texts}


def nearest(text: str) -> int:
    """Returns the length of the passages that a text is compared with, as `Style.length_of`."""
    return min(HUMAN_LENGTHS, key=lambda length: abs(math.log(len(words(text)) / length)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=40)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--sources", nargs="*", default=["docstrings", "READMEs", "licences", "files"])
    options = parser.parse_args()
    sense, draw = Sense(python_texts()), random.Random(0)
    print(f"Python {sys.version.split()[0]}\n\n| source | words | {' | '.join(SPOILED)} |")
    print(f"| --- | --- |{' --- |' * len(SPOILED)}")
    for name, texts in corpora(options.texts).items():
        for length, parts in passages(texts).items():
            if length in LENGTHS and name in options.sources:
                taken = parts[: options.passages]
                of = {
                    how: np.array([sense.of(text, nearest(text)) for text in (spoil(part, draw) for part in taken)])
                    for how, spoil in SPOILED.items()
                }
                cells = [f"{values.mean():.2f} ({np.mean(values >= 0.95):.0%})" for values in of.values()]
                print(f"| {name} | {length} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

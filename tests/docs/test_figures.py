"""Every measured figure in README and docs is in a section that names the command that gives it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/README.md")))
    if path != ROOT / "docs" / "config.md"  # generated from docstrings, which state defaults
]
FIGURE = re.compile(
    r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:x\b|\s?%|\s?points?\b"
    r"|\s(?:tokens/s|tokens per second|bits per byte|GFLOP/s|GB/s|nats)\b"
    r"|\s(?:to \d[\d.]* )?times (?:as|faster|slower))"
)
COMMAND = re.compile(
    r"^```bash|^\*\*Command\.\*\*|`(?:python |\.venv/)"
    r"|`arcforge(?:-\w+| \w+)[^`\n]*(?:=| -)|`make (?:run|demo|bench|test|nightly)",
    re.MULTILINE,
)
"""A block, or a command with an option: the bare name of a command measures nothing."""
FILE = re.compile(r"(?:benchmarks|scripts|tests)/[\w/]*\w(?:\.py)?")
CONSTANTS = {
    "docs/adr/0013-gateway-in-serving.md": {"13. The gateway is part of serving": "a third party's, cited"},
    "docs/environments.md": {"Domains": "the verifier's tolerance"},
}
"""Sections whose figures are constants of a specification or a citation, by page and heading, and which."""


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yields heading and body of each section; fenced lines are no headings."""
    heading, lines, fenced = "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            yield heading, "\n".join(lines)
            heading, lines = line.lstrip("# "), []
        else:
            lines.append(line)
    yield heading, "\n".join(lines)


def without_command(text: str) -> dict[str, list[str]]:
    """Returns the figures of the sections that name no command, by heading."""
    found = {}
    for heading, body in sections(text):
        prose = re.sub(r"^```.*?^```", "", body, flags=re.MULTILINE | re.DOTALL)
        figures = [match.group() for match in FIGURE.finditer(prose)]
        if figures and not COMMAND.search(body) and not any((ROOT / name).is_file() for name in FILE.findall(body)):
            found[heading] = figures
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_figure_is_beside_its_command(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    assert without_command(page.read_text()).keys() == CONSTANTS.get(name, {}).keys()


def test_a_figure_without_a_command_is_found() -> None:
    text = """# A
1.3x as fast
## B
`arcforge-train experiment=mini`: 4,850 tokens/s
## C
```bash
# 5%
```
## D
23.8% of it
## E
`arcforge-train` has 5 points
## F
`benchmarks/absent.py`: 3%
## G
`benchmarks/startup.py`: 4%
"""
    assert without_command(text) == {"A": ["1.3x"], "D": ["23.8%"], "E": ["5 points"], "F": ["3%"]}
    assert without_command("2 to 3 times as fast, 1.44 bits per byte, 0x80, x86, 8 x 512") == {
        "": ["2 to 3 times as", "1.44 bits per byte"]
    }

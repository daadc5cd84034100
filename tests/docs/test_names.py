"""A command of a page that starts from an earlier command's result says so by name, and something makes that name.

``outputs/latest`` is whatever ran last, on the reader's machine as on the page: another command between the two would
silently change what the second one uses.
"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE_ELSEWHERE = {
    "demo": None,
    "mini": "README.md",
    "sft_mini": "docs/sft.md",
    "sft_expressions": "docs/rl.md",
    "dsa_sparse": "docs/rl.md",
}
"""Names that pages use without making them, and the page whose command does; ``demo`` is in the wheel."""
STARTS = re.compile(r"^(?:init|checkpoint|run|resume)=(.+)$")
CHANGES = re.compile(r"^(?:model|attention|optimizer|schedule|data|stage)=|^\+data[.@]")
"""Options that make another model than the recipe's."""
MAKES = re.compile(r"^(?:name|pipeline|experiment)=(.+)$")


def commands(page_blocks):
    """Yields the words of every command of ours in the bash blocks, in the order of the page."""
    for block in page_blocks:
        if block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield block.place, words


def made(words):
    """Returns the names that a command gives to its result."""
    if words[:2] == ["make", "run"]:
        return {"mini"}
    names = {match[1] for word in words if (match := MAKES.match(word))}
    if words[0] == "arcforge-convert":
        names |= {word for word in words[2:3] if not word.startswith("-")}
    return names


def used(words):
    """Returns the runs and models that a command starts from."""
    found = {match[1].removeprefix("outputs/by-name/") for word in words if (match := STARTS.match(word))}
    if words[0] == "arcforge-convert":
        found.add(words[1])
    return {name for name in found if name != "latest" and not name.startswith("$")}


def strangers(page_blocks):
    """Returns (place, name) of the names that neither the page nor another one makes."""
    known, found = set(MADE_ELSEWHERE), []
    for place, words in commands(page_blocks):
        found += [(place, name) for name in used(words) - known]
        known |= made(words)
    return found


def test_what_a_command_starts_from_is_made_before(pages):
    assert [stranger for page_blocks in pages.values() for stranger in strangers(page_blocks)] == []


def test_names_of_other_pages_are_made_there(pages):
    for name, page in MADE_ELSEWHERE.items():
        if page is not None:
            assert any(name in made(words) for _, words in commands(pages[ROOT / page])), name


def test_no_command_starts_from_whatever_ran_last(pages):
    blocks = [block for page_blocks in pages.values() for block in page_blocks if block.language in ("bash", "python")]
    code = [(block.place, line.partition(" #")[0]) for block in blocks for line in block.text.splitlines()]
    assert [place for place, line in code if "outputs/latest" in line] == []


def test_a_recipe_with_other_components_has_a_name_of_its_own(pages):
    """Later pages use the recipe's own name; a sweep's last run takes it, too."""
    found = []
    for page_blocks in pages.values():
        for place, words in commands(page_blocks):
            runs = any(word.startswith("experiment=") for word in words) and not {"--cfg", "--help"} & set(words)
            if runs and any(CHANGES.match(word) for word in words) and not any(w.startswith("name=") for w in words):
                found.append((place, " ".join(words)))
    assert found == []


@pytest.mark.parametrize(
    ("line", "starts", "makes"),
    [
        ("arcforge-train init=warmup name=sparse", {"warmup"}, {"sparse"}),
        ("arcforge-rl resume=outputs/by-name/grpo", {"grpo"}, set()),
        ("arcforge-train experiment=mini resume=latest", set(), {"mini"}),
        ("arcforge-convert mini half --dtype bfloat16", {"mini"}, {"half"}),
        ("arcforge-pipeline pipeline=sft_mini init=mini", {"mini"}, {"sft_mini"}),
    ],
)
def test_names_in_a_command(line, starts, makes):
    assert used(line.split()) == starts
    assert made(line.split()) == makes

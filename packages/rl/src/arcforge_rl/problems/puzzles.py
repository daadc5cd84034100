"""Puzzles of reasoning-gym: logic, words and small word problems."""

from __future__ import annotations

import random
from typing import Any

from arcforge_rl.problems.problem import ALL_MODES, Checked, Problem, asked
from arcforge_rl.problems.puzzle_checker import puzzle, question_hash

DATASETS = (
    "syllogism", "knights_knaves", "family_relationships", "aiw", "self_reference", "zebra_puzzles", "count_bits",
    "spell_backward", "letter_counting", "gsm_symbolic",
)  # fmt: skip
"""Datasets with one short answer that is compared; `REFUSED` lists those that cannot be trusted."""
SEEDS, PER_SEED = 50, 1000


class Puzzles:
    """One puzzle, with reasoning for kinds whose solution method is implemented."""

    corpus, modes, most = "reasoning", ALL_MODES, 1
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns a puzzle; its question is the operand."""
        dataset, seed, index = draw.choice(DATASETS), draw.randrange(SEEDS), draw.randrange(PER_SEED)
        _, entry = puzzle(dataset, seed, index)
        arguments = {"dataset": dataset, "seed": seed, "index": index, "question": question_hash(entry)}
        solve = asked(str(entry["question"]), str(entry["answer"]), reasoning(dataset, entry))
        return Problem(f"{dataset}:{question_hash(entry)}", solve, Checked("reasoning_gym", arguments))


def reasoning(dataset: str, entry: dict[str, Any]) -> str:
    """Returns the derivation of a puzzle's answer, or an empty text if none is implemented."""
    if dataset == "spell_backward":
        word = entry["metadata"]["word"]
        return f"The letters are {' '.join(word)}. From the end: {' '.join(reversed(word))}."
    if dataset == "letter_counting":
        letter, text = entry["question"].split('"')[1], entry["question"].split('"')[3]
        words = [f"{word}: {word.lower().count(letter)}" for word in text.split() if letter in word.lower()]
        return f"Words with {letter}: {', '.join(words)}." if words else f"No word has the letter {letter}."
    return ""

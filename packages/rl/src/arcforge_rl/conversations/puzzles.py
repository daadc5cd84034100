"""Puzzles of reasoning-gym: logic, words and small word problems."""

from __future__ import annotations

import random
from typing import Any

from arcforge_rl.checkers.puzzles import puzzle, question_hash
from arcforge_rl.conversations.problem import ALL_MODES, Checked, Problem, asked

DATASETS = (
    "syllogism", "knights_knaves", "family_relationships", "aiw", "self_reference", "zebra_puzzles", "count_bits",
    "spell_backward", "letter_counting", "gsm_symbolic",
)  # fmt: skip
"""With one answer that is compared, in few words; `REFUSED` says which others are not to be trusted."""
SEEDS, PER_SEED = 50, 1000


class Puzzles:
    """One puzzle; reasoning is written for those kinds whose way to the answer is known."""

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
    """Returns the way to a puzzle's answer, nothing where it is not known."""
    if dataset == "spell_backward":
        word = entry["metadata"]["word"]
        return f"The letters are {' '.join(word)}. From the end: {' '.join(reversed(word))}."
    if dataset == "letter_counting":
        letter, text = entry["question"].split('"')[1], entry["question"].split('"')[3]
        words = [f"{word}: {word.lower().count(letter)}" for word in text.split() if letter in word.lower()]
        return f"Words with {letter}: {', '.join(words)}." if words else f"No word has the letter {letter}."
    return ""

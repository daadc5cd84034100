"""Implements ``arcforge-env label``: people judge pairs or replies, in the terminal or on a page of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.files.rundir import write_text
from arcforge_rl.configs.labels import LabelConfig
from arcforge_rl.rewards.judge.labels import Labelling, Labels, anchors_of, order_of, read_items
from arcforge_rl.rewards.judge.rubric import read_rubric

RULE = "-" * 60


def run(config: LabelConfig) -> Result:
    """Asks until all items are judged or the labeller ends, then prints how far the labellers agree.

    Raises:
        ConfigError, DataError: a file cannot be used, or the port cannot be listened on.
    """
    rubric = None if config.rubric is None else read_rubric(Path(config.rubric), "rubric")
    items = read_items(Path(config.items), rubric)[: config.limit]
    labels = Labels(Path(config.output), rubric)
    desk = Labelling(config.labeller, order_of(items, config.labeller, config.seed), labels, rubric)
    if config.port is None:
        ask_in_terminal(desk, sys.stdin, print)
    else:
        from arcforge_rl.rollouts.labelling_page import serve

        with suppress(KeyboardInterrupt):
            serve(desk, config.port)
    figures = {"left": float(len(desk.left)), **labels.figures()}
    found = Result(Path(config.output).parent, figures)
    found.show(f"{config.labeller}: {desk.done} of {len(desk.items)} judged")
    if config.anchors is not None:
        write_text(Path(config.anchors), anchors_of(labels.records))
        print(os.path.relpath(config.anchors))
    print(os.path.relpath(config.output))
    return found


def ask_in_terminal(desk: Labelling, given: TextIO, show: Callable[[str], Any]) -> None:
    """Asks about each item; ``s`` leaves one for later, ``q`` and the end of the input end.

    Args:
        desk: items that are left.
        given: answers, one a line.
        show: prints a text.
    """
    for item in list(desk.left):
        show(f"{RULE}\n{desk.done + 1} of {len(desk.items)}\n\n{printable(item.prompt)}")
        for number, reply in enumerate(item.replies, 1):
            show(f"\n--- reply{f' {number}' if desk.rubric is None else ''}\n{printable(reply)}")
        answers: dict[str, str] = {}
        for name, (question, accepted) in desk.questions().items():
            answer = _asked(question, accepted, desk.rubric is None, given, show)
            if answer is None:
                return
            if not answer:
                break
            answers[name] = answer
        else:
            desk.judge(item, answers)
    say("all items have been shown")


def _asked(
    question: str, accepted: tuple[str, ...], pairs: bool, given: TextIO, show: Callable[[str], Any]
) -> str | None:
    """Returns an accepted answer; empty for an item that is left for later, None at the end."""
    keys = dict(zip(accepted, accepted, strict=True)) if pairs else {str(n): one for n, one in enumerate(accepted, 1)}
    offered = "1, 2, = for equal" if pairs else ", ".join(f"{key} {answer}" for key, answer in keys.items())
    while True:
        show(f"\n{question} [{offered}; s later, q end]")
        line = given.readline()
        answer = line.strip().lower()
        if not line or answer == "q":
            return None
        if answer == "s":
            return ""
        if answer in keys:
            return keys[answer]
        show(f"{answer[:40]!r} is none of them")


def printable(text: str) -> str:
    """Returns a text that no terminal takes for commands."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)

"""Runs in sandboxes: generates a game of TextWorld, compiles it and plays it.

As a program it reads ``{"game", "settings", "seed"}`` from standard input and prints the commands that win. Plain
Python without imports of ours.
"""

import json
import os
import re
import sys
import tempfile
from typing import Any

Json = dict[str, Any]
sys.path.insert(0, "/opt/arcforge-package")
COMMAND = re.compile(r"[A-Za-z0-9' -]{1,120}")
STATUS = re.compile(r"\n>[^\n]*\Z")
"""The interpreter's prompt, with the room and the score in a line of their own."""
REFUSED = ("restart", "restore", "save", "undo", "quit", "q", "script", "transcript", "verify", "superbrief")
"""Words that talk to the interpreter."""
ACT = {
    "name": "act",
    "description": "Gives one command to the game, such as: look, inventory, go north, open fridge, take key.",
    "inputSchema": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"],
        "additionalProperties": False,
    },
}  # fmt: skip


def generated(records: Json) -> Any:
    """Returns a game and its options."""
    import textworld.challenges  # noqa: F401  # registers them
    from textworld.challenges.registration import CHALLENGES
    from textworld.generator.game import GameOptions

    options = GameOptions()
    options.seeds = records["seed"]
    return CHALLENGES[f"tw-{records['game']}"][1](records["settings"], options), options


def walkthrough(records: Json) -> list[str]:
    """Returns the commands that win."""
    return [str(command) for command in generated(records)[0].metadata["walkthrough"]]


def text_of(feedback: str) -> str:
    """Returns what the game says, without the interpreter's prompt and without runs of empty lines."""
    return re.sub(r"\n{3,}", "\n\n", STATUS.sub("", feedback.rstrip())).strip()


class Game:
    """One game that is played.

    Args:
        records: ``game``, ``settings``, ``seed``.
    """

    def __init__(self, records: Json) -> None:
        import textworld
        from textworld.generator import compile_game

        game, options = generated(records)
        options.path = os.path.join(tempfile.mkdtemp(), "game.z8")
        file = compile_game(game, options)
        asked = ("intermediate_reward", "max_score", "score", "won", "lost")  # the first one makes it follow the quests
        infos = textworld.EnvInfos(**dict.fromkeys(asked, True))
        self._tools = {"act": ACT}
        self._environment = textworld.start(file, infos)
        self._state = self._environment.reset()
        self._moves, self._done = 0, False
        self._intro = text_of(re.sub(r"(?s).*\$\$[^\n]*\n", "", self._state.feedback))

    @property
    def records(self) -> Json:
        """The intro, and how it stands; ``won`` needs the engine's word and that of TextWorld's own rules."""
        state = self._state
        return {
            "intro": self._intro,
            "won": bool(state["won"] and state["_game_progression"].completed),
            "lost": bool(state["lost"]),
            "score": int(state["score"] or 0),
            "most": int(state["max_score"]),
            "moves": self._moves,
        }

    def _call(self, name: str, arguments: Json) -> str:
        command = arguments["command"]
        if not isinstance(command, str) or not COMMAND.fullmatch(command):
            raise ValueError("a command has 1 to 120 letters, digits, spaces, hyphens and apostrophes")
        words = command.lower().split()
        if not words or words[0] in REFUSED or words[0].startswith("tw-") or "then" in words:
            raise ValueError("this is not one command to the game")
        if self._done:
            raise ValueError("the game has ended")
        self._state, _, self._done = self._environment.step(command)
        self._moves += 1
        return text_of(str(self._state["feedback"]).partition("Would you like to RESTART")[0]) or "(no answer)"


SERVICES = {"game": Game}

if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(walkthrough(json.load(sys.stdin))), file=out, flush=True)

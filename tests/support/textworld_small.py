"""A small package in the form of TextWorld: a corridor with a coin at its end, and rules that are ours."""

import functools
import tempfile
from pathlib import Path

from support.trees import write_files

HELD: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are removed with the process."""
PACKAGE = """
import json


class EnvInfos:
    def __init__(self, **wanted):
        pass


class Progression:
    completed = False


class Environment:
    def __init__(self, file):
        self.walk, self.place, self.said = json.load(open(file)), 0, Progression()

    def state(self, feedback, won=False):
        return State(feedback=feedback, won=won, lost=False, score=int(self.said.completed), max_score=1,
                     _game_progression=self.said)

    def reset(self):
        goal = f"Fetch the coin: {len(self.walk)} commands."
        return self.state(f" | $$ banner $$\\n | $$\\n\\n{goal}\\n\\n>   -= Corridor =-0/0")

    def step(self, command):
        print("a package that prints")
        if command == "say *** The End ***" or command == "forge":
            return self.state("*** The End ***", won=True), 0, False
        if self.place < len(self.walk) and command == self.walk[self.place]:
            self.place += 1
        self.said.completed = self.place == len(self.walk)
        prompt = "\\n>" + 60 * " " + "-= Corridor =-0/1"
        text = f"You: {command}.\\n\\n\\n\\n{prompt}"
        if self.said.completed:
            text = f"*** The End ***\\n\\nWould you like to RESTART, QUIT?{prompt}"
        return self.state(text, self.said.completed), 0, self.said.completed


class State(dict):
    __getattr__ = dict.__getitem__


def start(file, infos):
    return Environment(file)
"""
REGISTRATION = """
import random


class Game:
    def __init__(self, settings, seed):
        draw = random.Random(str((sorted(map(str, settings.items())), seed)))
        ways = draw.choices(["go north", "go east", "open door"], k=settings.get("level", 3))
        self.metadata = {"walkthrough": [*ways, "take coin"]}


KINDS = ("coin_collector", "treasure_hunter", "simple", "cooking")
CHALLENGES = {f"tw-{kind}": ("", lambda settings, options: Game(settings, options.seeds), None) for kind in KINDS}
"""
GENERATOR = """
import json


def compile_game(game, options):
    with open(options.path, "w") as file:
        json.dump(game.metadata["walkthrough"], file)
    return options.path
"""


@functools.cache
def small_textworld() -> Path:
    """Returns a folder with ``textworld``, which lasts as long as the process."""
    held = tempfile.TemporaryDirectory(prefix="textworld-small-")
    HELD.append(held)
    Path(held.name).chmod(0o755)  # sandboxes have users of their own
    write_files(Path(held.name), {
        "textworld/__init__.py": PACKAGE, "textworld/challenges/__init__.py": "",
        "textworld/challenges/registration.py": REGISTRATION, "textworld/generator/__init__.py": GENERATOR,
        "textworld/generator/game.py": "class GameOptions:\n    seeds = path = None\n",
        "textworld-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: textworld\nVersion: 9.9\n\nx",
        "textworld-9.9.dist-info/licenses/LICENSE.txt": "Small v1\n\nFree License\n",
    })  # fmt: skip
    return Path(held.name)

"""A reward of one's own: an environment with a verifier, played by its oracle, a cheat and the packed model.

python examples/environment.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.chat import ChatOptions, Message
from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.scripted import play
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams


@dataclass
class SumsConfig(EnvironmentConfig):
    """Sums of two numbers."""

    name: str = "sums"
    seed: int = 0


class Sums(GeneratedEnvironment):
    """Asks for sums of numbers below 50."""

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns what decides the side of the split, and the task."""
        a, b = draw.randrange(50), draw.randrange(50)
        return f"{min(a, b)},{max(a, b)}", Task(f"sums/{a}/{b}", f"What is {a}+{b}?", str(a + b))

    @reward()
    def right(self, task: Task, episode: Episode) -> Score:
        """Rewards the number and nothing else."""
        said = episode.reply.text.strip()
        return Score(float(said == task.answer), f"said {said[:20]!r} for {task.answer}")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns replies that must earn nothing: all numbers together, and the question."""
        return [[Reply(" ".join(map(str, range(100))))], [Reply(task.prompt)]]


def main(tasks: int = 8) -> tuple[float, float, float]:
    """Returns the mean rewards of the oracle, the first cheat and the model."""
    environment = Sums(SumsConfig(split="heldout"))
    folder = find_checkpoint("demo")
    template, engine = build_chat_template(Tokenizer.load(folder)), Engine(folder)
    params = SamplingParams(max_new_tokens=40, temperature=0.0, stop_token_ids=template.stop_ids)
    rewards: dict[str, list[float]] = {"oracle": [], "cheat": [], "model": []}
    for index in range(tasks):
        task = environment.task(index)
        options = ChatOptions(enable_thinking=False)
        prompt = template.render([Message("user", task.prompt)], options=options, generation_prompt=True).ids
        [output] = engine.generate([list(prompt)], params)
        said = Reply(template.parse(output.token_ids, prompt).message.content)
        scripts = {"oracle": environment.oracle(task), "cheat": environment.cheats(task)[0], "model": [said]}
        for name, script in scripts.items():
            rewards[name].append(asyncio.run(play(environment, task, script))[1].reward)
    means = tuple(sum(each) / tasks for each in rewards.values())
    print(dict(zip(rewards, means, strict=True)))
    return means


if __name__ == "__main__":
    main()

"""Workloads: sessions of one request or more, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.errors import DataError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.bench.configs import (
    AgentWorkloadConfig,
    FileWorkloadConfig,
    RandomWorkloadConfig,
    SharedPrefixWorkloadConfig,
)

WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my than first water
been call who oil its now find long down day did get come made may part over new sound take only little work know place
""".split()  # noqa: SIM905  # a list literal takes a line for each
"""Short common words: most tokenizers have a token for each."""


@dataclass(frozen=True)
class Message:
    """What one side of a conversation says."""

    role: str
    content: str


@dataclass(frozen=True)
class Turn:
    """A request: the messages that come on top of all earlier ones and their replies, and the tokens of its reply."""

    messages: tuple[Message, ...]
    output_tokens: int


@dataclass(frozen=True)
class Session:
    """Requests one after the other, each when the one before was answered and `pause` seconds have passed."""

    turns: tuple[Turn, ...]
    pause: float = 0.0


class Texts:
    """Draws numbers and texts.

    Args:
        seed: the same seed, the same texts.
        tokenizer: counts tokens; without one a word is taken for a token.
    """

    def __init__(self, seed: int, tokenizer: Tokenizer | None = None) -> None:
        self.random, self.tokenizer = random.Random(seed), tokenizer

    def between(self, bounds: Sequence[int]) -> int:
        """Draws a number of a range, both ends included."""
        return self.random.randint(*bounds)

    def text(self, tokens: int) -> str:
        """Returns words of `tokens` tokens, or up to one word more."""
        words = self.random.choices(WORDS, k=tokens)
        if self.tokenizer is not None:
            while words and len(self.tokenizer.encode(" ".join(words))) > tokens:
                surplus = len(self.tokenizer.encode(" ".join(words))) - tokens
                del words[-max(1, surplus * len(words) // (tokens + surplus) // 2) :]
            while len(self.tokenizer.encode(" ".join(words))) < tokens:
                words.append(self.random.choice(WORDS))
        return " ".join(words)


def random_workload(config: RandomWorkloadConfig, texts: Texts) -> list[Session]:
    """Returns independent requests of random words."""
    return [
        single(texts.text(texts.between(config.input_tokens)), texts.between(config.output_tokens))
        for _ in range(config.requests)
    ]


def shared_prefix_workload(config: SharedPrefixWorkloadConfig, texts: Texts) -> list[Session]:
    """Returns requests that begin alike: request i as all others of group ``i % groups``."""
    common = round(config.share * config.input_tokens)
    prefixes = [texts.text(common) for _ in range(config.groups)]
    return [
        single(f"{prefixes[n % config.groups]} {texts.text(config.input_tokens - common)}", config.output_tokens)
        for n in range(config.requests)
    ]


def agent_workload(config: AgentWorkloadConfig, texts: Texts) -> list[Session]:
    """Returns conversations: a system prompt that all share, a task, then results of tools after each reply.

    Results come as messages of the user: an endpoint takes those of the role ``tool`` only after a call of its own.
    """
    system = Message("system", texts.text(config.system_tokens))
    sessions = []
    for _ in range(config.sessions):
        turns = []
        for number in range(texts.between(config.turns)):
            if number == 0:
                said: tuple[Message, ...] = (system, Message("user", texts.text(texts.between(config.task_tokens))))
            else:
                result = texts.text(texts.between(config.result_tokens))
                said = (Message("user", f"<tool_result>\n{result}\n</tool_result>"),)
            turns.append(Turn(said, texts.between(config.output_tokens)))
        sessions.append(Session(tuple(turns), config.tool_seconds))
    return sessions


def file_workload(config: FileWorkloadConfig, texts: Texts) -> list[Session]:
    """Returns the requests of a file of JSON lines, in its order.

    Raises:
        DataError: it cannot be read, or a line is no request; the line is named.
    """
    try:
        lines = Path(config.path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"workload.path={config.path!r}: cannot be read: {error}") from error
    sessions = [
        _session(line, f"workload.path={config.path!r}: line {number}", config.output_tokens)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not sessions:
        raise DataError(f"workload.path={config.path!r}: holds no request")
    return sessions


def _session(line: str, place: str, output_tokens: int) -> Session:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: no JSON: {error}") from error
    if not isinstance(found, dict) or ("prompt" in found) == ("messages" in found):
        raise DataError(f"{place}: must be an object with 'prompt' or 'messages'")
    tokens = found.get("max_tokens", output_tokens)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise DataError(f"{place}: 'max_tokens' must be a number of at least 1")
    given = found.get("messages", [{"role": "user", "content": found.get("prompt")}])
    if not isinstance(given, list) or not given:
        raise DataError(f"{place}: 'messages' must be a list that is not empty")
    for message in given:
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise DataError(f"{place}: 'prompt', 'role' and 'content' must be texts")
    return Session((Turn(tuple(Message(m["role"], m["content"]) for m in given), tokens),))


def single(prompt: str, output_tokens: int) -> Session:
    """Returns a session of one request."""
    return Session((Turn((Message("user", prompt),), output_tokens),))

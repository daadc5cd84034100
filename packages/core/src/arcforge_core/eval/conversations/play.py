"""Plays conversations with an engine: many at a time, each message of the model parsed, its calls run, answers checked.

In a round every conversation under way gets one message of the model. Those that end make room for others, so that the
engine has a full batch until the last few.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from arcforge_core.chat.parser import ENDED_BY_CALL, NOT_CLOSED, THINK, UNKNOWN_TOOL
from arcforge_core.config.schema import PlayConfig
from arcforge_core.contracts.chat import ChatTemplate, Fork, Message, Parsed, ToolCall
from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.contracts.toolbox import Toolbox
from arcforge_core.data.conversations.conversation import Conversation
from arcforge_core.data.conversations.format import call_flaws
from arcforge_core.data.split import key_hash
from arcforge_core.eval.conversations.items import Item
from arcforge_core.eval.conversations.played import (
    ANSWERED,
    NOT_REACHED,
    TOO_MANY_CALLS,
    TRUNCATED,
    Answer,
    Played,
    Step,
)

Pending = tuple[ToolCall, str | None]
"""A call, and why it is not run; None where it is."""


@dataclass
class Player:
    """Plays.

    Attributes:
        engine: writes the messages.
        template: of the model's tokenizer.
        toolbox: entered already.
        config: how long, how hot, how many at a time.
        positions: tokens of a conversation that the model allows.
    """

    engine: Engine
    template: ChatTemplate
    toolbox: Toolbox
    config: PlayConfig
    positions: int

    def play(self, tries: Iterable[tuple[Item, int]]) -> Iterator[Played]:
        """Yields conversations as they end.

        Args:
            tries: what to play, and the number of the try, which changes what is drawn. An item may come several times.
        """
        waiting, games = iter(tries), list[_Game]()
        while True:
            games += [
                self._begin(item, n) for item, n in itertools.islice(waiting, self.config.batch_size - len(games))
            ]
            if not games:
                return
            self._round(games)
            ended = [game for game in games if game.over]
            games = [game for game in games if not game.over]
            for game in ended:
                self.toolbox.close(game.key)
                yield game.played

    def _begin(self, item: Item, sample: int) -> _Game:
        game = _Game(Played(item, sample), self)
        self.toolbox.open(game.key, item.conversation)
        return game

    def _round(self, games: list[_Game]) -> None:
        asked = [game for game in games if game.has_room()]
        if not asked:
            return
        outputs = self.engine.generate([game.prompt for game in asked], [game.params() for game in asked])
        pending = [(game, game.take(output)) for game, output in zip(asked, outputs, strict=True)]
        runs = [(game.key, call) for game, calls in pending for call, refused in calls if refused is None]
        results = iter(self.toolbox.run(runs) if runs else ())
        for game, calls in pending:
            if calls:
                game.go_on([Message("tool", next(results) if refused is None else refused) for _, refused in calls])


class _Game:
    """One conversation under way."""

    def __init__(self, played: Played, player: Player) -> None:
        self.played, self.player = played, player
        self.conversation = played.item.conversation
        self.key = f"{played.item.key}#{played.sample}"
        self.over = False
        self.prompt: tuple[int, ...] = ()
        self._completion: tuple[int, ...] = ()
        self._calls = 0
        self.go_on(list(played.item.turns[0].given))

    def go_on(self, messages: list[Message]) -> None:
        """Adds what others say; the next prompt ends where the model begins.

        What was sampled stays as it was, where the format allows; else all is rendered anew.
        """
        template, conversation = self.player.template, self.conversation
        self.played.messages += messages
        if self._completion:
            rendered = template.bridge_to_next_turn(
                self.prompt, self._completion, messages, conversation.tools, conversation.options
            )
            if not isinstance(rendered, Fork):
                self.prompt = rendered.ids
                return
        self.prompt = template.render(
            self.played.messages, conversation.tools, conversation.options, generation_prompt=True
        ).ids

    def has_room(self) -> bool:
        """Says whether the model may write on; where it may not, the turn is over."""
        if len(self.prompt) >= self.player.positions:
            self._end_turn(TRUNCATED, "")
        return not self.over

    def params(self) -> SamplingParams:
        """Returns how the next message is sampled: by a seed of its own, whatever is played beside it."""
        config = self.player.config
        item, step = self.played.item, len(self.played.steps)
        seed = key_hash(f"{config.seed}/{item.source}/{item.line}/{self.played.sample}/{step}") >> 1
        return SamplingParams(
            min(config.max_new_tokens, self.player.positions - len(self.prompt)),
            config.temperature,
            stop_token_ids=self.player.template.stop_ids,
            seed=seed,
        )

    def take(self, output: GenerationOutput) -> list[Pending]:
        """Takes the model's message; returns its calls, none when the turn is over."""
        parsed = self.player.template.parse(output.token_ids, self.prompt, self.conversation.tools)
        cut = output.finish_reason != "stop"
        pending = judge_calls(parsed, self.conversation)
        valid = sum(refused is None for _, refused in pending)
        calls = max(len(pending), len(malformed(parsed)))
        obeyed = obeys(parsed, self.conversation)
        step = Step(parsed.message, parsed.flaws, output.token_ids, sum(output.logprobs), cut, calls, valid, obeyed)
        self.played.steps.append(step)
        self.played.messages.append(parsed.message)
        self._completion = tuple(output.token_ids)
        if cut:
            self._end_turn(TRUNCATED, parsed.message.content)
        elif not pending:
            self._end_turn(ANSWERED, parsed.message.content)
        elif self._calls >= self.player.config.max_calls:
            self._end_turn(TOO_MANY_CALLS, parsed.message.content)
        else:
            self._calls += 1
            return pending
        return []

    def _end_turn(self, outcome: str, text: str) -> None:
        """Judges the answer, and asks the next question of the record, if an answer to this one is there."""
        turns, answers = self.played.item.turns, self.played.answers
        turn = turns[len(answers)]
        right = None if turn.checker is None else outcome == ANSWERED and turn.checker.check(text)
        answers.append(Answer(outcome, text, turn.expected, right))
        self._calls = 0
        if outcome == ANSWERED and len(answers) < len(turns):
            self.go_on(list(turns[len(answers)].given))
            return
        for missed in turns[len(answers) :]:
            answers.append(Answer(NOT_REACHED, "", missed.expected, None if missed.checker is None else False))
        self.over = True


def malformed(parsed: Parsed) -> list[str]:
    """Returns the flaws that are about how calls are written."""
    return [f for f in parsed.flaws if f not in (NOT_CLOSED, ENDED_BY_CALL) and not f.startswith(UNKNOWN_TOOL)]


def judge_calls(parsed: Parsed, conversation: Conversation) -> list[Pending]:
    """Returns the calls of a message, each with the error that it gets instead of being run.

    Of a message with a malformed call none is run: which arguments were meant is not known.
    """
    broken = malformed(parsed)
    found: list[Pending] = []
    for call in parsed.message.tool_calls:
        flaw = broken[0] if broken else next(call_flaws(call, conversation), None)
        found.append((call, None if flaw is None else f"Error: {flaw}"))
    return found


def obeys(parsed: Parsed, conversation: Conversation) -> bool:
    """Says whether a message keeps to its thinking mode."""
    reasoning = bool((parsed.message.reasoning or "").strip())
    if conversation.options.enable_thinking:
        return reasoning and NOT_CLOSED not in parsed.flaws and ENDED_BY_CALL not in parsed.flaws
    return not reasoning and THINK not in parsed.message.content

import asyncio
import statistics
from typing import Any

import pytest

from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.scripted_engine import ScriptedEngine
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.rollouts.solver import ChatSpeaker, Manner, Solver, Speaker, TextSpeaker, build_speaker
from arcforge_rl.rollouts.turns import Turns

TOKENIZER = small_tokenizer()
END = TOKENIZER.decode([TOKENIZER.eos_id])
USER = Message("user", "one")


def solver(engine: Any, speaker: Speaker, positions: int = 500, longest: int = 60) -> Solver:
    turns = Turns(engine)
    return Solver(turns, 0, Manner(speaker, longest, 1.0, positions, "seed"))


def talk(of: Solver, *conversations: list[Message], tools: tuple[Tool, ...] = ()) -> list[Reply]:
    """Has the solver reply to each conversation in turn; a reply can be put into a later one as None."""

    async def program() -> list[Reply]:
        replies: list[Reply] = []
        for messages in conversations:
            filled = [replies[int(m.content)].message if m.role == "assistant" else m for m in messages]
            replies.append(await of.reply(filled, tools))
        return replies

    (found,) = asyncio.run(of.turns.play([program()]))
    return found


def said(number: int) -> Message:
    """Stands for the reply of that number."""
    return Message("assistant", str(number))


def chat() -> ChatSpeaker:
    speaker = build_speaker(TOKENIZER, False)
    assert isinstance(speaker, ChatSpeaker)
    return speaker


def stop() -> str:
    """The token that ends a turn and begins the user's."""
    return "<|user|>"


def test_what_was_sampled_is_recorded_as_it_was() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two 3{stop()}"), chat())
    (reply,) = talk(of, [USER])
    assert reply == Reply("two 3", finish_reason="stop") and not of.truncated
    (branch,) = of.branches
    sampled = [token for token, mine in zip(branch.ids, branch.sampled, strict=True) if mine]
    assert TOKENIZER.decode(sampled) == f"two 3{stop()}"
    assert [v for v, mine in zip(branch.logprobs, branch.sampled, strict=True) if mine] == [-1.0] * len(sampled)
    assert set(branch.versions) == {-1, 0}
    assert branch.ids[: branch.sampled.index(True)] == chat().prompt([USER], ())


def misread(noise: float) -> list[float]:
    """Log-probs that are recorded where the engine says -1 for each of many tokens."""
    engine = ScriptedEngine(TOKENIZER, lambda text, params: "1 " * 400 + stop())
    of = Solver(Turns(engine), 0, Manner(chat(), 2000, 1.0, 4000, "seed", noise))
    talk(of, [USER])
    (branch,) = of.branches
    return [value for value, mine in zip(branch.logprobs, branch.sampled, strict=True) if mine]


def test_an_error_of_log_probs_has_the_spread_that_is_asked_for_and_is_the_same_again() -> None:
    assert set(misread(0.0)) == {-1.0}
    found = misread(0.2)
    assert found == misread(0.2)
    assert statistics.mean(found) == pytest.approx(-1.0, abs=0.05)
    assert statistics.stdev(found) == pytest.approx(0.2, abs=0.05)
    assert max(misread(9.0)) == 0.0


def test_a_conversation_that_goes_on_stays_one_branch() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    talk(of, [USER], [USER, said(0), Message("user", "three")])
    (branch,) = of.branches
    assert branch.num_sampled == 2 * len(TOKENIZER.encode(f"two{stop()}", allow_special=True))
    first = chat().prompt([USER], ())
    assert branch.ids[: len(first)] == first


def test_a_conversation_that_was_changed_begins_another_branch() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    talk(of, [USER], [Message("user", "three"), said(0), Message("user", "1")])
    assert len(of.branches) == 2
    assert all(sum(branch.sampled) for branch in of.branches)


def test_replies_are_cut_where_tokens_or_positions_end() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two " * 50), chat(), longest=5)
    (reply,) = talk(of, [USER])
    assert reply.finish_reason == "length" and of.truncated and of.branches[0].num_sampled == 5
    room = len(chat().prompt([USER], ()))
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two " * 50), chat(), positions=room + 2)
    talk(of, [USER])
    assert of.truncated and of.branches[0].num_sampled == 2
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two"), chat(), positions=room)
    (reply,) = talk(of, [USER])
    assert reply == Reply(finish_reason="length") and of.truncated and not of.branches[0].ids


def test_every_token_has_the_version_it_came_from() -> None:
    class Updated(ScriptedEngine):
        def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
            return [GenerationOutput([5, 6, 7], [-1.0, -2.0, 0.0005], "stop", 4, [(3, 2), (4, 1)])]

    of = solver(Updated(TOKENIZER, lambda text, params: ""), chat())
    talk(of, [USER])
    branch = of.branches[0]
    assert branch.versions[-3:] == [3, 3, 4] and branch.logprobs[-3:] == [-1.0, -2.0, 0.0]


def test_rollouts_have_seeds_of_their_own_and_the_same_ones_again() -> None:
    seeds: list[int] = []

    def script(text: str, params: SamplingParams) -> str:
        seeds.append(params.seed)
        return f"two{stop()}"

    for number in (0, 1, 0):
        turns = Turns(ScriptedEngine(TOKENIZER, script))
        of = Solver(turns, number, Manner(chat(), 9, 1.0, 500, "seed"))
        talk(of, [USER], [USER, said(0), USER])
    assert seeds[:2] == seeds[4:] and len(set(seeds)) == 4


def test_plain_text_is_one_document() -> None:
    speaker = TextSpeaker(TOKENIZER)
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f" three{END}"), speaker)
    (reply,) = talk(of, [Message("user", "one"), Message("user", " two")])
    assert reply.text == " three"
    assert of.branches[0].ids == [
        TOKENIZER.bos_id,
        *TOKENIZER.encode("one two"),
        *TOKENIZER.encode(" three"),
        TOKENIZER.eos_id,
    ]


def test_plain_text_goes_on_behind_what_was_cut_only() -> None:
    speaker = TextSpeaker(TOKENIZER)
    cut = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two two two"), speaker, longest=2)
    talk(cut, [USER], [USER, said(0), Message("user", "1")])
    assert len(cut.branches) == 1
    ended = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{END}"), speaker)
    talk(ended, [USER], [USER, said(0), Message("user", "1")])
    assert len(ended.branches) == 2


def test_tools_need_a_chat_template() -> None:
    tool = Tool({"type": "function", "function": {"name": "look"}})
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two"), TextSpeaker(TOKENIZER))
    with pytest.raises(ConfigError, match="'look': offers tools, and the tokenizer has no chat template"):
        talk(of, [USER], tools=(tool,))

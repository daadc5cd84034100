import asyncio
from dataclasses import replace
from typing import Any

import pytest

from arcforge_core.chat import glm5_bridge
from arcforge_core.chat.glm_parser import GlmParser
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import Message, PicturedMessage, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Reply
from arcforge_core.data.split import key_hash
from arcforge_core.episodes.agent import (
    ChatDialogue,
    Dialogue,
    PolicyAgent,
    SamplingSetup,
    TextDialogue,
    build_dialogue,
)
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_tokenizer
from support.scripted_engine import ScriptedEngine

TOKENIZER = small_tokenizer()
END = TOKENIZER.decode([TOKENIZER.eos_id])
USER = Message("user", "one")


def solver(engine: Any, dialogue: Dialogue, positions: int = 500, longest: int = 60) -> PolicyAgent:
    return PolicyAgent(Lockstep(engine), 0, SamplingSetup(dialogue, longest, 1.0, positions), "seed/0")


def talk(of: PolicyAgent, *conversations: list[Message], tools: tuple[Tool, ...] = ()) -> list[Reply]:
    """Has the solver reply to each conversation in turn; a reply can be put into a later one as None."""

    async def program() -> list[Reply]:
        replies: list[Reply] = []
        with of.lockstep.program():
            for messages in conversations:
                filled = [replies[int(m.content)].message if m.role == "assistant" else m for m in messages]
                replies.append(await of.reply(filled, tools))
        return replies

    return asyncio.run(program())


def said(number: int) -> Message:
    """Returns a placeholder of the reply of that number."""
    return Message("assistant", str(number))


def chat() -> ChatDialogue:
    dialogue = build_dialogue(TOKENIZER, "off")
    assert isinstance(dialogue, ChatDialogue)
    return dialogue


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
    assert branch.ids[: int(branch.sampled.argmax())].tolist() == list(chat().prompt([USER], ()).ids)


def test_log_probs_above_zero_are_recorded_as_zero() -> None:
    class Rounding(ScriptedEngine):
        def generate(self, *args: Any, **kwargs: Any) -> list[GenerationOutput]:
            outputs = super().generate(*args, **kwargs)
            return [replace(output, logprobs=[1e-7] * len(output.logprobs)) for output in outputs]

    of = solver(Rounding(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    talk(of, [USER])
    (branch,) = of.branches
    assert branch.num_sampled and set(branch.logprobs) == {0.0}


def test_a_conversation_that_goes_on_stays_one_branch() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    talk(of, [USER], [USER, said(0), Message("user", "three")])
    (branch,) = of.branches
    assert branch.num_sampled == 2 * len(TOKENIZER.encode(f"two{stop()}", allow_special=True))
    first = chat().prompt([USER], ()).ids
    assert branch.ids[: len(first)].tolist() == list(first)


def test_a_conversation_that_was_changed_begins_another_branch() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    talk(of, [USER], [Message("user", "three"), said(0), Message("user", "1")])
    assert len(of.branches) == 2
    assert all(sum(branch.sampled) for branch in of.branches)


def test_replies_are_cut_where_tokens_or_positions_end() -> None:
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two " * 50), chat(), longest=5)
    (reply,) = talk(of, [USER])
    assert reply.finish_reason == "length" and of.truncated and of.branches[0].num_sampled == 5
    room = len(chat().prompt([USER], ()).ids)
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two " * 50), chat(), positions=room + 2)
    talk(of, [USER])
    assert of.truncated and of.branches[0].num_sampled == 2
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two"), chat(), positions=room)
    (reply,) = talk(of, [USER])
    assert reply == Reply(finish_reason="length") and of.truncated and not len(of.branches[0])


def test_every_token_has_the_version_it_came_from() -> None:
    class Updated(ScriptedEngine):
        def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
            return [GenerationOutput([5, 6, 7], [-1.0, -2.0, 0.0005], "stop", 4, [(3, 2), (4, 1)])]

    of = solver(Updated(TOKENIZER, lambda text, params: ""), chat())
    talk(of, [USER])
    branch = of.branches[0]
    assert branch.versions[-3:].tolist() == [3, 3, 4] and branch.logprobs[-3:].tolist() == [-1.0, -2.0, 0.0]
    assert branch.oldest_version == 3


def test_rollouts_have_seeds_of_their_own_and_the_same_ones_again() -> None:
    seeds: list[int] = []

    def script(text: str, params: SamplingParams) -> str:
        seeds.append(params.seed)
        return f"two{stop()}"

    for number in (0, 1, 0):
        lockstep = Lockstep(ScriptedEngine(TOKENIZER, script))
        of = PolicyAgent(lockstep, number, SamplingSetup(chat(), 9, 1.0, 500), f"seed/{number}")
        talk(of, [USER], [USER, said(0), USER])
    assert seeds[:2] == seeds[4:] and len(set(seeds)) == 4
    assert seeds[:2] == [key_hash(f"seed/0/{reply}") >> 1 for reply in range(2)]


class Ending(ScriptedEngine):
    """Ends one request after another with the given reasons or errors, then answers."""

    def __init__(self, *endings: str | Exception) -> None:
        super().__init__(TOKENIZER, lambda text, params: f"two{stop()}")
        self.endings = list(endings)

    def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
        if not self.endings:
            return super().generate(prompts, params)
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return [GenerationOutput([5], [-1.0], ending, 0) for _ in prompts]


@pytest.mark.parametrize("ending", ["abort", "error", RuntimeError("out of memory")])
def test_a_turn_that_the_engine_does_not_finish_is_asked_for_again_then_the_agent_has_failed(
    ending: str | Exception,
) -> None:
    of = solver(Ending(ending), chat())
    assert talk(of, [USER])[0].text == "two" and of.failure is None
    of = solver(Ending(ending, ending), chat())
    replies = talk(of, [USER], [USER, said(0), USER])
    kind = ending if isinstance(ending, str) else "error"
    assert [reply.finish_reason for reply in replies] == [kind, "error"] and not of.recorded
    wanted = "RuntimeError: out of memory" if isinstance(ending, Exception) else f"with {ending} after 1 tokens"
    assert of.failure is not None and of.failure.kind == "engine" and of.failure.reason.endswith(wanted)


def recorded_work(turns: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Returns tokens appended to branches, tokens that the template's parser and encoder saw, and tokens in all."""
    appended, seen = 0, 0
    append, feed, encode = Branch._append, GlmParser.feed, glm5_bridge.encode_spans

    def appending(branch: Branch, columns: Any) -> None:
        nonlocal appended
        appended += len(columns["ids"])
        append(branch, columns)

    def feeding(parser: GlmParser, ids: Any) -> Any:
        nonlocal seen
        seen += len(ids)
        return feed(parser, ids)

    def encoding(*given: Any, **named: Any) -> Any:
        nonlocal seen
        rendered = encode(*given, **named)
        seen += len(rendered)
        return rendered

    monkeypatch.setattr(Branch, "_append", appending)
    monkeypatch.setattr(GlmParser, "feed", feeding)
    monkeypatch.setattr(glm5_bridge, "encode_spans", encoding)
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two 3{stop()}"), chat(), 10**6)
    conversations: list[list[Message]] = [[USER]]
    for turn in range(turns - 1):
        conversations.append([*conversations[-1], said(turn), USER])
    talk(of, *conversations)
    (branch,) = of.recorded
    monkeypatch.undo()
    return appended, seen, len(branch)


def test_recording_a_turn_costs_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the turns are twice the work: no token is checked, parsed or rendered a second time."""
    counts = [recorded_work(turns, monkeypatch) for turns in (50, 100)]
    for appended, seen, tokens in counts:
        assert appended == tokens  # `named` copies none
        assert seen < 3 * tokens  # parsed by the agent and by the template
    assert all(twice <= 2.1 * once for once, twice in zip(*counts, strict=True))


@pytest.mark.parametrize("wrong", [float("nan"), -float("inf"), 0.5])
def test_a_token_without_a_log_probability_is_a_failure_of_the_engine(wrong: float) -> None:
    class Broken(ScriptedEngine):
        def generate(self, *args: Any, **kwargs: Any) -> list[GenerationOutput]:
            outputs = super().generate(*args, **kwargs)
            return [replace(output, logprobs=[wrong, *output.logprobs[1:]]) for output in outputs]

    of = solver(Broken(TOKENIZER, lambda text, params: f"two{stop()}"), chat())
    (reply,) = talk(of, [USER])
    assert reply.finish_reason == "error" and of.failure is not None and of.failure.kind == "engine"
    assert f"was sampled with log-probability {wrong}" in of.failure.reason


def test_plain_text_is_one_document() -> None:
    dialogue = TextDialogue(TOKENIZER)
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: f" three{END}"), dialogue)
    (reply,) = talk(of, [Message("user", "one"), Message("user", " two")])
    assert reply.text == " three"
    assert of.branches[0].ids.tolist() == [
        TOKENIZER.bos_id,
        *TOKENIZER.encode("one two"),
        *TOKENIZER.encode(" three"),
        TOKENIZER.eos_id,
    ]


def test_plain_text_goes_on_behind_what_was_cut_only() -> None:
    dialogue = TextDialogue(TOKENIZER)
    cut = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two two two"), dialogue, longest=2)
    talk(cut, [USER], [USER, said(0), Message("user", "1")])
    assert len(cut.branches) == 1
    ended = solver(ScriptedEngine(TOKENIZER, lambda text, params: f"two{END}"), dialogue)
    talk(ended, [USER], [USER, said(0), Message("user", "1")])
    assert len(ended.branches) == 2


def test_tools_need_a_chat_template() -> None:
    tool = Tool({"type": "function", "function": {"name": "look"}})
    of = solver(ScriptedEngine(TOKENIZER, lambda text, params: "two"), TextDialogue(TOKENIZER))
    with pytest.raises(ConfigError, match="'look': offers tools, and the tokenizer has no chat template"):
        talk(of, [USER], tools=(tool,))


def test_pictures_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot see pictures: name url"):
        asyncio.run(
            solver(ScriptedEngine(TOKENIZER, []), chat()).reply([PicturedMessage("user", "a", pictures=(b"PNG",))])
        )

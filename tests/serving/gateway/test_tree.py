"""What agents do with a conversation, and what becomes of its tokens."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from arcforge_core.contracts.chat import ChatOptions, Message, Tool, ToolCall
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.errors import ConfigError
from arcforge_serving.gateway import keys
from arcforge_serving.gateway.tree import SessionTree
from support.sessions import (
    CALL,
    PRESERVED,
    QUIET,
    TEMPLATE,
    THINKS,
    TOKENIZER,
    TOOL,
    Client,
    said,
    text_of,
    tool,
    user,
)

A, B, C, D = user("one"), user("two"), user("three"), user("3")


def client(**options) -> Client:
    return Client(SessionTree(TEMPLATE, **options))


def talk(of: Client, turns: int, text: str = "two<|user|>", options: ChatOptions = QUIET) -> list[Message]:
    """Plays a conversation of some turns; returns its messages."""
    messages: list[Message] = [A]
    for turn in range(turns):
        _, reply = of.ask(messages, text, options=options)
        messages += [reply, user(chr(ord("a") + turn % 26))]
    return messages[:-1]


# ---- conversations that grow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2, 8])
def test_a_conversation_that_grows_is_one_branch(turns: int) -> None:
    of = client()
    talk(of, turns)
    (branch,) = of.check()
    assert branch.num_sampled == turns * len(TOKENIZER.encode("two<|user|>", allow_special=True))
    assert [node.keep for node in of.tree.nodes] == [0, *(node.length for node in of.tree.nodes[:-1])]


def test_the_first_prompt_is_the_rendering() -> None:
    of = client()
    at, _ = of.ask([Message("system", "s"), A])
    assert at.prompt == list(TEMPLATE.render([Message("system", "s"), A], (), QUIET, generation_prompt=True).ids)
    assert at.drift == "new"


@pytest.mark.parametrize(
    ("text", "following", "between"),
    [
        ("two<|user|>", B, ""),
        ("two<|observation|>", B, "<|user|>"),
        ("two<|endoftext|>", B, "<|user|>"),
        ("two", B, "<|endoftext|><|user|>"),
        (CALL + "<|observation|>", tool("x"), ""),
        (CALL + "<|user|>", tool("x"), "<|observation|>"),
        (CALL + "<|endoftext|>", tool("x"), "<|observation|>"),
        (CALL[:20], B, "<|endoftext|><|user|>"),
        ("", B, "<|endoftext|><|user|>"),
    ],
)
def test_a_turn_that_ended_in_any_way_is_continued(text: str, following: Message, between: str) -> None:
    of = client()
    _, reply = of.ask([A], text, [TOOL])
    at, _ = of.ask([A, reply, following], "two<|user|>", [TOOL])
    assert at.drift == "clean" and text_of(at.read).startswith(between or text_of(at.read)[0])
    (branch,) = of.check()
    assert text_of(branch.ids[~branch.sampled]).count(between) >= 1


def test_several_results_of_tools_are_read_together() -> None:
    of = client()
    _, reply = of.ask([A], CALL + CALL + "<|observation|>", [TOOL])
    at, _ = of.ask([A, reply, tool("1"), tool("2")], "two<|user|>", [TOOL])
    assert at.drift == "clean" and len(reply.tool_calls) == 2
    assert text_of(at.read).startswith("<tool_response>1</tool_response><tool_response>2</tool_response>")
    of.check()


def test_what_the_model_wrote_is_kept_though_it_would_be_rendered_otherwise() -> None:
    of = client()
    _, reply = of.ask([A], "  two \n<|user|>")
    assert reply.content == "two"
    at, _ = of.ask([A, reply, B])
    assert at.drift == "clean" and "  two \n<|user|>two" in text_of(at.prompt)
    of.check()


def test_reasoning_stays_within_a_users_turn() -> None:
    of = client()
    _, reply = of.ask([A], "r</think>" + CALL + "<|observation|>", [TOOL], THINKS)
    at, _ = of.ask([A, reply, tool("x")], "s</think>two<|user|>", [TOOL], THINKS)
    assert at.drift == "clean"
    assert len(of.check()) == 1


def test_reasoning_that_a_user_clears_forks() -> None:
    of = client(fork_threshold_tokens=0)
    _, reply = of.ask([A], "r</think>two<|user|>", options=THINKS)
    at, _ = of.ask([A, reply, B], "r</think>two<|user|>", options=THINKS)
    assert at.drift == "fork" and "clears the reasoning" in at.reason and at.parent is None
    assert len(of.check()) == 2 and of.tree.masked == 0


def test_reasoning_that_a_user_clears_is_realigned_below_the_threshold() -> None:
    of = client()
    at, reply = of.ask([A], "r</think>two<|user|>", options=THINKS)
    prompt = at.prompt
    at, _ = of.ask([A, reply, B], "r</think>two<|user|>", options=THINKS)
    assert at.drift == "fork"  # the tag that opens the reasoning was read, not sampled: it differs before the reply
    assert at.prompt[: len(prompt) - 1] == prompt[:-1] and len(of.check()) == 2


def test_preserved_reasoning_extends() -> None:
    of = client()
    messages = talk(of, 3, "r</think>two<|user|>", PRESERVED)
    assert len(of.check()) == 1 and messages[1].reasoning == "r"


def test_thinking_may_be_switched_between_turns() -> None:
    of = client()
    _, reply = of.ask([A], options=QUIET)
    at, reply = of.ask([A, reply, B], "r</think>two<|user|>", options=PRESERVED)
    assert at.drift == "clean" and at.prompt[-1] == TOKENIZER.special["<think>"]
    of.check()


# ---- retries, rollbacks, siblings ------------------------------------------------------------------------------------


def test_the_same_request_again_is_a_sibling() -> None:
    of = client()
    first, _ = of.ask([A], "two<|user|>")
    second, _ = of.ask([A], "three<|user|>")
    assert first.prompt == second.prompt and second.drift == "new"
    assert [branch.num_sampled for branch in of.check()] == [len(of.sampled[n][1]) for n in range(2)]


def test_a_turn_is_regenerated() -> None:
    of = client()
    messages = talk(of, 2)
    at, _ = of.ask(messages[:-1], "three<|user|>")
    assert at.drift == "clean" and at.parent is of.tree.nodes[0]
    one, other = of.check()
    shared = of.tree.nodes[0].length
    assert one.sampled[:shared].any() and not other.sampled[:shared].any()


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_client_continues_the_sibling_that_it_chose(chosen: int) -> None:
    of = client()
    replies = [of.ask([A], f"{text}<|user|>")[1] for text in ("two", "three")]
    at, _ = of.ask([A, replies[chosen], B])
    assert at.drift == "clean" and at.parent is of.tree.nodes[chosen]
    assert len(of.check()) == 2


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_rollback_attaches_to_an_earlier_turn(back: int) -> None:
    of = client()
    messages = talk(of, 4)
    kept = messages[: 2 * (4 - back)]
    at, _ = of.ask([*kept, user("other")])
    assert at.drift == "clean" and at.parent is of.tree.nodes[3 - back]
    one, other = of.check()
    assert one.num_sampled == 4 * other.num_sampled


def test_concurrent_requests_are_siblings_in_order_of_their_ends() -> None:
    of = client()
    _, reply = of.ask([A])
    slow = of.attach([A, reply, B])
    fast = of.attach([A, reply, C])
    of.record(fast, "three<|user|>")
    of.record(slow, "3<|user|>")
    assert slow.parent is fast.parent is of.tree.nodes[0]
    assert len(of.check()) == 2


def test_concurrent_equal_requests_keep_both_replies() -> None:
    of = client()
    both = [of.attach([A]) for _ in range(2)]
    replies = [of.record(at, text).reply for at, text in zip(both, ("two<|user|>", "three<|user|>"), strict=True)]
    for number, reply in enumerate(replies):
        assert of.ask([A, reply, B])[0].parent is of.tree.nodes[number]
    of.check()


def test_equal_replies_of_siblings_continue_the_later_one() -> None:
    of = client()
    replies = [of.ask([A])[1] for _ in range(2)]
    assert replies[0] == replies[1]
    assert of.ask([A, replies[0], B])[0].parent is of.tree.nodes[1]
    assert len(of.check()) == 2


def test_a_request_whose_generation_failed_leaves_nothing() -> None:
    of = client()
    _, reply = of.ask([A])
    of.attach([A, reply, B])
    at, _ = of.ask([A, reply, B])
    assert at.drift == "clean" and len(of.tree.nodes) == 2 and len(of.check()) == 1


def test_subagents_are_branches_of_their_own() -> None:
    of = client()
    main = talk(of, 2)
    sub = [Message("system", "sub"), B]
    _, reply = of.ask(sub)
    at, _ = of.ask([*sub, reply, C])
    assert at.drift == "clean" and of.ask([*main, D])[0].drift == "clean"
    assert len(of.check()) == 2


# ---- history that the client changes ---------------------------------------------------------------------------------


def changed_at(index: int, message: Message) -> tuple[Client, str]:
    """Plays three turns, then asks with one message changed; returns the drift."""
    of = client()
    messages = talk(of, 3)
    messages[index] = message
    return of, of.ask([*messages, D])[0].drift


@pytest.mark.parametrize(("index", "parent"), [(0, None), (2, 0), (4, 1)])
def test_an_edited_question_attaches_before_it(index: int, parent: int | None) -> None:
    of, drift = changed_at(index, user("edited"))
    at = of.tree.nodes[-1]
    assert drift == ("new" if parent is None else "clean")
    assert (None if at.parent is None else at.parent.number) == parent
    one, other = of.check()
    assert one.num_sampled == 3 * other.num_sampled


@pytest.mark.parametrize("index", [1, 3])
def test_an_edited_reply_in_the_middle_keeps_its_branch(index: int) -> None:
    of, drift = changed_at(index, said("edited"))
    assert drift == "fork" and len(of.check()) == 2 and of.tree.masked == 0


def test_an_edited_last_reply_is_realigned() -> None:
    of, drift = changed_at(5, said("edited"))
    node = of.tree.nodes[-1]
    assert drift == "realign" and node.parent is of.tree.nodes[2]
    (branch,) = of.check()
    assert of.tree.masked == of.tree.nodes[2].tokens.num_sampled
    assert "edited" in text_of(branch.ids) and branch.num_sampled == 3 * of.tree.nodes[0].tokens.num_sampled


def test_a_reply_that_is_kept_in_part_is_trained_in_part() -> None:
    of = client()
    of.ask([A], "two three one one<|user|>")
    at, _ = of.ask([A, said("two three"), B])
    assert at.drift == "realign" and 0 < at.masked < of.tree.nodes[0].tokens.num_sampled
    (branch,) = of.check()
    assert text_of(branch.ids[branch.sampled]).startswith("two three")
    assert of.tree.masked == at.masked


@pytest.mark.parametrize(("threshold", "drift"), [(0, "fork"), (5, "fork"), (6, "realign"), (1024, "realign")])
def test_the_threshold_is_the_number_of_lost_tokens(threshold: int, drift: str) -> None:
    of = client(fork_threshold_tokens=threshold)
    of.ask([A], "3" * 4 + "<|user|>")
    assert len(of.sampled[0][1]) == 5
    at, _ = of.ask([A, said("漢"), B])
    assert at.drift == drift and len(of.check()) == (2 if drift == "fork" else 1)
    assert at.reason == "the client changed the last reply"


def test_a_reply_that_others_continue_is_not_realigned() -> None:
    of = client()
    messages = talk(of, 2)
    at, _ = of.ask([A, said("edited"), D])
    assert at.drift == "fork" and of.tree.masked == 0
    assert of.ask([*messages, D])[0].drift == "clean"
    assert len(of.check()) == 2


def test_a_realigned_reply_that_comes_back_unchanged_is_trained_after_all() -> None:
    of = client()
    _, reply = of.ask([A])
    of.ask([A, said("edited"), B])
    assert of.tree.masked == len(of.sampled[0][1])
    at, _ = of.ask([A, reply, B])
    assert at.drift == "clean" and of.tree.masked == 0 and len(of.check()) == 2


def test_messages_that_the_client_made_up_are_context() -> None:
    of = client()
    at, _ = of.ask([A, said("an example"), B])
    assert at.drift == "new"
    (branch,) = of.check()
    assert text_of(branch.ids[branch.sampled]) == "two<|user|>"


def test_a_made_up_turn_after_a_recorded_one_is_context() -> None:
    of = client()
    _, reply = of.ask([A])
    at, third = of.ask([A, reply, B, said("made up"), C])
    assert at.drift == "clean" and at.parent is of.tree.nodes[0] and "made up" in text_of(at.read)
    assert of.ask([A, reply, B, said("made up"), C, third, D])[0].drift == "clean"
    assert len(of.check()) == 1


def test_a_made_up_call_is_context() -> None:
    of = client()
    _, reply = of.ask([A], tools=[TOOL])
    call = Message("assistant", tool_calls=(ToolCall("f", {"a": "made up"}),))
    at, _ = of.ask([A, reply, B, call, tool("x")], tools=[TOOL])
    assert at.drift == "clean" and "<tool_call>f<arg_key>a</arg_key><arg_value>made up" in text_of(at.read)
    (branch,) = of.check()
    assert "made up" not in text_of(branch.ids[branch.sampled])


def test_shortened_history_is_another_conversation() -> None:
    of = client()
    messages = talk(of, 3)
    at, _ = of.ask([*messages[2:], D])
    assert at.drift == "new" and len(of.check()) == 2


def test_reordered_history_attaches_to_what_is_in_order() -> None:
    of = client()
    messages = talk(of, 3)
    at, _ = of.ask([*messages[:2], *messages[4:6], *messages[2:4], D])
    assert at.parent is of.tree.nodes[0] and len(of.check()) == 2


def test_compaction_begins_a_branch_that_continues() -> None:
    of = client()
    talk(of, 3)
    summary = [A, user("summary: two two two")]
    at, reply = of.ask(summary)
    assert at.drift == "new"
    assert of.ask([*summary, reply, B])[0].drift == "clean"
    one, other = of.check()
    assert one.num_sampled // 3 == other.num_sampled // 2


def test_old_results_of_tools_are_omitted() -> None:
    """Keep-recent-k: the first result is replaced once a second one is there."""
    of = client()
    messages = [A]
    for turn in range(4):
        _, reply = of.ask(messages, CALL + "<|observation|>", [TOOL])
        messages += [reply, tool(f"{turn}")]
        shown = [place for place, message in enumerate(messages) if message.role == "tool"]
        for place in shown[:-2]:
            messages[place] = tool("Tool result is omitted to save tokens.")
    branches = of.check()
    assert sum(branch.num_sampled for branch in branches) == sum(len(ids) for _, ids in of.sampled.values())
    assert of.tree.masked == 0 and len(branches) == 2


def keep_recent(of: Client, turns: int, recent: int = 2) -> list[int]:
    """Plays turns that call a tool, of whose results the agent keeps the last ones only; returns what each one read."""
    messages, read = [A], []
    for turn in range(turns):
        at, reply = of.ask(messages, CALL + "<|observation|>", [TOOL])
        assert at.prompt == list(TEMPLATE.render(messages, [TOOL], QUIET, generation_prompt=True).ids)
        read.append(len(at.read))
        messages = [*messages, reply, tool(f"{turn}" * 20)]
        for place in [place for place, message in enumerate(messages) if message.role == "tool"][:-recent]:
            messages[place] = tool("Tool result is omitted to save tokens.")
    return read


def test_contexts_that_omit_old_results_share_what_is_equal() -> None:
    """A context reads what follows the result that was omitted last, and its record grows by that."""
    of = client()
    read = keep_recent(of, 24)
    assert max(read[12:]) < 1.2 * max(read[4:12])  # the digits of the turn become two
    branches = of.check()
    assert len(branches) == 22 and of.tree.masked == 0  # one for each context
    assert sum(branch.num_sampled for branch in branches) == sum(len(ids) for _, ids in of.sampled.values())
    sizes = [len(json.dumps([part.tokens.as_row() for part in of.tree.parts[:n]])) for n in (12, 24)]
    assert sizes[1] < 2.4 * sizes[0] and sum(map(len, branches)) > 4 * sum(len(part.tokens) for part in of.tree.parts)


def test_contexts_that_share_a_part_are_not_each_others_replies() -> None:
    of = client()
    keep_recent(of, 6)
    assert [node.number for node in of.tree.nodes if node.is_continued] == [0, 1]
    with_user = [*[A, said("made up")], B]
    first, second = (of.ask([*with_user[:2], news])[0] for news in (B, C))
    assert second.parent is of.tree.nodes[-2] and second.keep < second.parent.start and first.drift == second.drift
    assert second.continued is None and len(of.check()) == 6


@pytest.mark.parametrize(
    ("first", "second", "shares"), [(PRESERVED, PRESERVED, True), (PRESERVED, THINKS, False), (THINKS, THINKS, False)]
)
def test_reasoning_in_the_context_decides_what_is_shared(first: ChatOptions, second: ChatOptions, shares: bool) -> None:
    of = client()
    context = [A, Message("assistant", "two", reasoning="r")]
    of.ask([*context, B], "r</think>two<|user|>", options=first)
    at, _ = of.ask([*context, C], "r</think>two<|user|>", options=second)
    assert (at.parent is not None) == shares
    at, _ = of.ask([context[0], replace(context[1], reasoning="other"), C], "r</think>two<|user|>", options=first)
    assert at.parent is None
    of.check()


@pytest.mark.parametrize("after", [[], [Tool({"type": "function", "function": {"name": "g"}})], [TOOL, TOOL]])
def test_other_tools_are_another_prompt(after: list[Tool]) -> None:
    of = client()
    _, reply = of.ask([A], tools=[TOOL])
    at, _ = of.ask([A, reply, B], tools=after)
    assert at.drift == "new" and at.parent is None and len(of.check()) == 2


def test_a_conversation_that_ends_with_a_reply_is_rendered() -> None:
    of = client()
    _, reply = of.ask([A])
    at, _ = of.ask([A, reply], "three<|user|>")
    assert at.drift in ("fork", "realign") and at.reason == "no message is new"
    of.check()


# ---- errors and costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logprobs", [[math.nan, -1.0], [-1.0, -math.inf], [-1.0], []])
def test_a_token_without_a_log_probability_is_not_recorded(logprobs: list[float]) -> None:
    of = client()
    at = of.attach([A])
    with pytest.raises(ValueError, match="branch 0"):
        of.tree.record(at, GenerationOutput([5, 6], logprobs, "stop", 0), said("x"))
    assert not of.tree.nodes and of.attach([A, said("x"), B]).drift == "new"


def test_versions_are_those_of_each_token() -> None:
    of = client()
    output = GenerationOutput([5, 6, 7], [-1.0] * 3, "stop", 4, [(3, 2), (4, 1)])
    node = of.tree.record(of.attach([A]), output, said("x"))
    assert node.tokens.versions[-3:].tolist() == [3, 3, 4] and of.tree.branches()[0].oldest_version == 3


def test_what_cannot_be_rendered_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_thinking and clear_thinking only"):
        client().attach([A], options=ChatOptions(extra={"x": 1}))


def test_a_turn_costs_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the turns render twice the tokens and hash the history, which the client sends, once per request."""
    counts = []
    for turns in (20, 40):
        rendered, hashed, of = 0, 0, client()
        next_turn, link = TEMPLATE.next_turn, keys.link

        def counting(*given, next_turn=next_turn, **named):
            nonlocal rendered
            found = next_turn(*given, **named)
            rendered += len(found.rendered)
            return found

        def linking(*given, link=link):
            nonlocal hashed
            hashed += 1
            return link(*given)

        monkeypatch.setattr(TEMPLATE, "next_turn", counting, raising=False)
        monkeypatch.setattr("arcforge_serving.gateway.tree.link", linking)
        messages = talk(of, turns)
        monkeypatch.undo()
        assert hashed == sum(range(1, 2 * turns, 2)) + turns and len(messages) == 2 * turns
        counts.append((rendered, sum(len(node.tokens) for node in of.tree.nodes)))
    assert all(twice <= 2.2 * once for once, twice in zip(*counts, strict=True))

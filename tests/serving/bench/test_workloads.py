import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.errors import ConfigError, DataError
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.bench.configs import (
    AgentWorkloadConfig,
    FileWorkloadConfig,
    RandomWorkloadConfig,
    SharedPrefixWorkloadConfig,
)
from arcforge_serving.bench.workloads import (
    Message,
    Texts,
    agent_workload,
    file_workload,
    random_workload,
    shared_prefix_workload,
)


def prompts(sessions):
    return [session.turns[0].messages[0].content for session in sessions]


def test_the_registered_workloads_are_these():
    assert registry().names("workload") == ["agent", "file", "random", "shared_prefix"]
    assert registry().get("workload", "agent").load() is agent_workload


def test_lengths_fill_their_ranges_and_the_seed_decides_all():
    config = RandomWorkloadConfig(requests=200, input_tokens=[3, 6], output_tokens=[2, 4])
    sessions = random_workload(config, Texts(1))
    assert {len(prompt.split()) for prompt in prompts(sessions)} == {3, 4, 5, 6}
    assert {session.turns[0].output_tokens for session in sessions} == {2, 3, 4}
    assert sessions == random_workload(config, Texts(1)) != random_workload(config, Texts(2))


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 300), seed=st.integers(0, 100))
def test_a_tokenizer_makes_lengths_right_to_the_last_word(tokens, seed):
    tokenizer = small_tokenizer()
    texts = Texts(seed, tokenizer)
    words = texts.text(tokens).split()
    assert len(tokenizer.encode(" ".join(words))) >= tokens > len(tokenizer.encode(" ".join(words[:-1])))


@pytest.mark.parametrize(("share", "common"), [(0.0, 0), (0.9, 36), (1.0, 40)])
def test_groups_begin_alike_and_nothing_else_does(share, common):
    config = SharedPrefixWorkloadConfig(requests=9, groups=3, input_tokens=40, share=share, output_tokens=5)
    words = [prompt.split() for prompt in prompts(shared_prefix_workload(config, Texts(0)))]
    assert {len(w) for w in words} == {40}
    for group in range(3):
        assert len({tuple(w[:common]) for w in words[group::3]}) == 1
        if share < 1:
            assert len({tuple(w[: common + 4]) for w in words[group::3]}) == 3
    if common:
        assert len({tuple(w[:common]) for w in words}) == 3


def test_sessions_of_agents_share_the_system_prompt_and_go_on_with_results():
    config = AgentWorkloadConfig(
        sessions=20, turns=[1, 4], system_tokens=8, task_tokens=[3, 3], result_tokens=[5, 6], tool_seconds=0.5
    )
    sessions = agent_workload(config, Texts(3))
    assert len({session.turns[0].messages[0] for session in sessions}) == 1
    assert {len(session.turns) for session in sessions} == {1, 2, 3, 4}
    for session in sessions:
        assert session.pause == 0.5
        assert [m.role for m in session.turns[0].messages] == ["system", "user"]
        for turn in session.turns[1:]:
            (result,) = turn.messages
            lines = result.content.splitlines()
            assert (result.role, lines[0], lines[2]) == ("user", "<tool_result>", "</tool_result>")
            assert len(lines[1].split()) in (5, 6)


def write(tmp_path, *lines):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return FileWorkloadConfig(path=str(path), output_tokens=9)


def test_files_give_their_requests_in_order(tmp_path):
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    sessions = file_workload(write(tmp_path, {"prompt": "p", "max_tokens": 3}, "", {"messages": said}), Texts(0))
    assert [session.turns[0].output_tokens for session in sessions] == [3, 9]
    assert sessions[0].turns[0].messages == (Message("user", "p"),)
    assert sessions[1].turns[0].messages == (Message("system", "s"), Message("user", "u"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ([1], "line 2: must be an object with 'prompt' or 'messages'"),
        ({}, "line 2: must be an object"),
        ({"prompt": "a", "messages": []}, "line 2: must be an object"),
        ({"prompt": 3}, "line 2: 'prompt', 'role' and 'content' must be texts"),
        ({"messages": []}, "line 2: 'messages' must be a list that is not empty"),
        ({"messages": [{"role": "user"}]}, "line 2: 'prompt', 'role'"),
        ({"prompt": "a", "max_tokens": 0}, "line 2: 'max_tokens' must be a number of at least 1"),
        ({"prompt": "a", "max_tokens": True}, "line 2: 'max_tokens'"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, line, message):
    with pytest.raises(DataError, match=message):
        file_workload(write(tmp_path, {"prompt": "fine"}, line), Texts(0))


def test_a_file_that_is_empty_or_absent_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no request"):
        file_workload(write(tmp_path, ""), Texts(0))
    with pytest.raises(DataError, match="cannot be read"):
        file_workload(FileWorkloadConfig(path=str(tmp_path / "none")), Texts(0))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RandomWorkloadConfig(input_tokens=[5, 4]), "workload.input_tokens"),
        (lambda: RandomWorkloadConfig(output_tokens=[0, 4]), "workload.output_tokens"),
        (lambda: RandomWorkloadConfig(requests=0), "workload.requests"),
        (lambda: SharedPrefixWorkloadConfig(share=1.1), "workload.share"),
        (lambda: SharedPrefixWorkloadConfig(groups=0), "workload.groups"),
        (lambda: AgentWorkloadConfig(turns=[3]), "workload.turns"),
        (lambda: AgentWorkloadConfig(tool_seconds=-1.0), "workload.tool_seconds"),
        (lambda: FileWorkloadConfig(path="x", output_tokens=0), "workload.output_tokens"),
    ],
)
def test_values_that_cannot_be_are_refused(make, field):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field

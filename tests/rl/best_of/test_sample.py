"""Several tries at problems, by an engine that answers by a script: what is kept, what is not, and what it is worth."""

import json
import re
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.cli.main import run_job
from arcforge_core.configs import ConversationEnvironmentConfig
from arcforge_core.data.conversations.parse import parse
from arcforge_core.episodes.conversation_tasks import load_tasks
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.conversations import evaluate
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.best_of.figures import pass_at
from arcforge_rl.best_of.sample import sample
from arcforge_rl.configs.commands import ArithmeticConfig, SamplingConfig
from arcforge_rl.configs.environments import ToolMathConfig
from arcforge_rl.problems.tools import definition
from arcforge_rl.rollouts.records import KEPT, as_record
from support.scripted_engine import ScriptedEngine

USER = "<|user|>"


def asks(n, **fields):
    messages = [{"role": "user", "content": f"q{n}?"}, {"role": "assistant", "content": f"{n}"}]
    checker = {"name": "number", "arguments": {"answer": f"{n}"}}
    return {"source": "sums", "task": f"sums/{n}", "thinking": "off", "messages": messages, "checker": checker} | fields


@pytest.fixture
def tries(tmp_path, monkeypatch):
    """Tries problems with a script: a list of completions by number of the try."""

    def run(records, completions, **options):
        path = tmp_path / "problems.jsonl"
        path.write_text("\n".join(json.dumps(record) for record in records))
        seen = {}

        def script(prompt, params):
            if callable(completions):
                return completions(prompt)
            if prompt not in seen or params.seed not in seen[prompt]:
                seen.setdefault(prompt, []).append(params.seed)
            return completions[seen[prompt].index(params.seed) % len(completions)]

        tokenizer = small_tokenizer()
        monkeypatch.setattr(evaluate, "default_engine", lambda name, model: ScriptedEngine(tokenizer, script))
        model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=1200)
        options = {"max_new_tokens": 60} | options
        options.setdefault("samples", 0 if callable(completions) else len(completions))
        config = SamplingConfig(files=[str(path)], **options)
        return sample(model, tokenizer, config)

    return run


SAID = [f"I say 7{USER}", f"8{USER}", f"7{USER}", f"7{USER}", "7 " * 900, f"<think>7</think>7{USER}"]


def test_the_shortest_right_try_is_kept_and_every_other_has_its_reason(tries):
    found = tries([asks(7)], SAID)
    [selection] = found.selections
    assert [one.episode.messages[-1].content for one in selection.kept] == ["7"]
    assert [one.number for one in selection.kept] == [2]
    assert found.reasons == {
        "duplicates a kept rollout": 1,
        "is right, but others were preferred": 1,
        "wrong": 1,
        "truncated": 1,
        "does not follow its thinking mode": 1,
    }
    assert sum(found.reasons.values()) + len(selection.kept) == len(SAID), "none is dropped silently"


def test_all_right_ones_are_kept_once_each(tries):
    found = tries([asks(7)], SAID, per_problem=None)
    assert [one.episode.messages[-1].content for one in found.selections[0].kept] == ["7", "I say 7"]


def test_the_likeliest_goes_first(tries, monkeypatch):
    logprobs = {f"I say 7{USER}": -0.1, f"7{USER}": -0.5}
    generate = ScriptedEngine.generate

    def graded(self, prompts, params):
        outputs = generate(self, prompts, params)
        for output in outputs:
            said = self._tokenizer.decode(output.token_ids)
            output.logprobs[:] = [logprobs[said]] * len(output.token_ids)
        return outputs

    monkeypatch.setattr(ScriptedEngine, "generate", graded)
    found = tries([asks(7)], [SAID[0], SAID[2]], choose="likely")
    assert found.selections[0].kept[0].episode.messages[-1].content == "I say 7"


def test_figures_of_one_try_of_the_best_and_of_the_majority(tries):
    found = tries([asks(7), asks(8)], SAID[:4])
    assert found.figures["sums"] == found.figures["all"]
    figures = found.figures["all"]
    assert figures["problems"] == 2 and figures["kept"] == 2
    assert figures["pass@1"] == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert figures["pass@2"] == pytest.approx((1 + (1 - comb(3, 2) / comb(4, 2))) / 2)
    assert figures["pass@4"] == 1.0
    assert figures["maj@4"] == 0.5, "7 is what most say, whatever is around it"


def test_pass_at_k_draws_without_putting_back():
    assert pass_at(2, 2, 4) == pytest.approx(5 / 6)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_grows_with_k_and_is_the_share_for_one(count, data):
    right = data.draw(st.integers(0, count))
    shares = [pass_at(k, right, count) for k in range(1, count + 1)]
    assert shares[0] == pytest.approx(right / count) and shares == sorted(shares)
    assert shares[-1] == float(right > 0)


def test_kept_tries_are_records_that_can_be_trained_on_and_played_again(tries, tmp_path):
    found = tries([asks(7), asks(7, thinking="interleaved")], [f"7{USER}"])
    assert found.reasons == {"does not follow its thinking mode": 1} or found.reasons == {"wrong": 1}
    record = as_record(found.selections[0].kept[0])
    conversation = parse(record, "auto", "interleaved", mask_errors=True)
    assert conversation.task == "sums/7" and conversation.mode == "off" and len(conversation.checks) == 1
    assert "reasoning_content" not in record["messages"][-1]
    found.write(tmp_path, {})
    again = load_tasks([str(tmp_path / KEPT)], "files")
    assert len(again.tasks) == 1 and again.tasks[0].questions[0].check.arguments == {"answer": "7"}


CALL = "<tool_call>calculator<arg_key>{}</arg_key><arg_value>3+4</arg_value></tool_call><|observation|>"


@pytest.mark.parametrize(("argument", "reason"), [("expression", None), ("formula", "has calls that cannot be run")])
def test_dialogues_are_kept_with_their_results_unless_a_call_is_invalid(tries, argument, reason):
    def said(prompt):
        return f"I know.</think>7{USER}" if "<tool_response>" in prompt else f"I ask.</think>{CALL.format(argument)}"

    problem = asks(7, tools=[definition("calculator")], thinking="interleaved", files={"a": "b"})
    found = tries([problem], said, samples=1, max_new_tokens=150)
    assert found.reasons == ({reason: 1} if reason else {})
    for one in found.selections[0].kept:
        record = as_record(one)
        assert [m["role"] for m in record["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert record["messages"][2]["content"] == "7" and record["messages"][1]["reasoning_content"] == "I ask."
        assert record["tools"] == problem["tools"] and record["files"] == {"a": "b"}
        assert "checker" in record["messages"][3] and "checker" not in record["messages"][1]


def test_records_without_checkers_are_listed(tries):
    record = asks(7)
    del record["checker"]
    found = tries([record, asks(8)], [f"8{USER}"])
    assert [r.rule for r in found.rejections] == ["unchecked"]
    with pytest.raises(DataError, match="none of 1 records has a checker"):
        tries([record], [f"8{USER}"])


def test_a_chosen_environment_plays_the_records_and_repeats_no_field_of_the_command(tries):
    records = [asks(7)]
    found = tries(records, SAID, environment=ConversationEnvironmentConfig())
    assert [one.number for one in found.selections[0].kept] == [2]
    with pytest.raises(ConfigError, match=r"environment\.max_calls=3: is the command's own field"):
        tries(records, SAID, environment=ConversationEnvironmentConfig(max_calls=3))
    with pytest.raises(ConfigError, match=r"environment\.split='heldout': all records are played"):
        tries(records, SAID, environment=ConversationEnvironmentConfig(split="heldout"))


def test_a_wrong_choice_is_named():
    with pytest.raises(ConfigError, match="choose='long': must be one of short, likely"):
        SamplingConfig(choose="long")
    with pytest.raises(ConfigError, match="samples=0"):
        SamplingConfig(samples=0)


def test_the_command_writes_what_is_kept_and_what_is_not(tmp_path, monkeypatch, capsys):
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "model", small_tokenizer())
    (tmp_path / "p.jsonl").write_text(json.dumps(asks(7)))
    (tmp_path / "out" / KEPT).mkdir(parents=True)
    (tmp_path / "out" / KEPT / "old.jsonl").write_text("{}")
    tokenizer = small_tokenizer()
    monkeypatch.setattr(
        evaluate, "default_engine", lambda name, model: ScriptedEngine(tokenizer, lambda *args: f"7{USER}")
    )
    arguments = [f"checkpoint={tmp_path / 'model'}", f"files=[{tmp_path / 'p.jsonl'}]", "samples=2", "max_new_tokens=9"]
    monkeypatch.setattr("sys.argv", ["arcforge-sample", *arguments, f"output_dir={tmp_path / 'out'}"])
    assert run_job("sample") == 0
    assert [p.name for p in (tmp_path / "out" / KEPT).rglob("*.jsonl")] == ["sums.jsonl"]
    figures = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert figures["figures"]["all"]["pass@1"] == 1.0 and figures["rejected"] == {"duplicates a kept rollout": 1}
    assert len((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()) == 1
    assert "pass@1" in capsys.readouterr().out


def test_tasks_of_any_environment_are_tried(tmp_path, monkeypatch):
    tokenizer = small_tokenizer()

    def script(prompt, params):
        question = prompt.partition("=")[0].rpartition(">")[2]
        return f"{eval(question) + params.seed % 2}{USER}"

    monkeypatch.setattr(evaluate, "default_engine", lambda name, model: ScriptedEngine(tokenizer, script))
    model = small_model(vocab_size=TOKENIZER_SIZE)
    config = SamplingConfig(environment=ArithmeticConfig(digits=1), tasks=5, samples=6, max_new_tokens=9)
    found = sample(model, tokenizer, config)
    figures = found.figures["math"]
    assert figures["problems"] == 5 and 0 < figures["pass@1"] < figures["pass@6"] and 0 < figures["kept"] <= 5
    found.write(tmp_path, {})
    loaded = load_records(tmp_path / KEPT / "reasoning" / "math.jsonl")
    assert len(loaded) == figures["kept"]
    for record in loaded:
        question, answer = (message["content"] for message in record["messages"])
        assert eval(question.rstrip("=")) == int(answer) and record["task"] == f"arithmetic/{question.rstrip('=')}"
        assert parse(record, "auto", "interleaved", mask_errors=True).mode == "off"
    rejected = load_records(tmp_path / "rejected.jsonl")
    assert len(rejected) == 30 - figures["kept"] and all(row["branches"] and row["rewards"] for row in rejected)


def test_kept_tries_with_tools_name_them(monkeypatch):
    tokenizer = small_tokenizer()

    def script(prompt, params):
        expression = prompt.rpartition("<|user|>")[2]
        made = next(text for text in re.findall(r"[\d(][\d ()+*-]*\d\)?", expression) if len(text) > 3)
        if "<tool_response>" in prompt:
            return prompt.rpartition("<tool_response>")[2].partition("<")[0] + USER
        return CALL.format("expression").replace("3+4", made)

    monkeypatch.setattr(evaluate, "default_engine", lambda name, model: ScriptedEngine(tokenizer, script))
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=2000)
    options = {"environment": ToolMathConfig(tools=["calculator"]), "tasks": 2, "samples": 1}
    found = sample(model, tokenizer, SamplingConfig(**options, max_new_tokens=150))
    [record, *_] = [as_record(one) for selection in found.selections for one in selection.kept]
    assert record["tools"] == [definition("calculator")]
    assert [m["role"] for m in record["messages"]] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": ArithmeticConfig(), "files": ["x"]}, "files=.*environment=arithmetic plays no files"),
        ({"files": ["x"], "tasks": 3}, "tasks=3: is for environments without files"),
        ({"files": ["x"], "thinking": "on"}, "thinking='on': is for environments without files"),
        ({"thinking": "maybe"}, "thinking='maybe'"),
    ],
)
def test_options_that_do_not_fit_the_problems_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        sample(small_model(vocab_size=TOKENIZER_SIZE), small_tokenizer(), SamplingConfig(**options))


def load_records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]

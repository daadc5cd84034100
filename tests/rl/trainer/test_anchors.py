"""Expert-written replies in the policy's update: the exact gradient, the order, resuming, and refused input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.configs import CopyConfig, Glm5TemplateConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.conversation import BadRecord
from arcforge_core.contracts.data import Example
from arcforge_core.data.conversations.encode import LengthLimits
from arcforge_core.data.conversations.records import Row
from arcforge_core.episodes.agent import THINKING, ChatDialogue, TextDialogue, build_dialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError, ConfigError, DataError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.configs.anchors import AnchorConfig
from arcforge_rl.rewards.anchors import conversation_of, prompts_of
from arcforge_rl.trainer import module as module_of
from arcforge_rl.trainer.anchors import Anchors, build_anchors, encoded
from arcforge_rl.trainer.run import run
from support.rl_runs import metrics, weights

REPLIES = [("say it", "one two"), ("and this", "three"), ("more", "two two 1 2 3"), ("x", "y"), ("why", "one, one")]
LIMITS = LengthLimits(64, 1, cut=True)


def written(folder: Path, records: Any = REPLIES) -> str:
    lines = [json.dumps({"prompt": one[0], "reply": one[1]} if isinstance(one, tuple) else one) for one in records]
    (folder / "anchors.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "anchors.jsonl")


def gradients(monkeypatch: pytest.MonkeyPatch, config: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the gradients of a run's only update before they are clipped, and its row of metrics."""
    found: dict[str, torch.Tensor] = {}
    clip = module_of.clip_gradients

    def record(parameters: Any, limit: float) -> float:
        named = list(parameters)
        found.update({name: p.grad.clone() for name, p in named if p.grad is not None})
        return clip(named, limit)

    with monkeypatch.context() as patch:
        patch.setattr(module_of, "clip_gradients", record)
        made = run(config)
    return found, metrics(made.dir)[-1]


@pytest.mark.parametrize("most", [128, 8], ids=["one micro-batch", "one for each reply"])
def test_the_gradient_is_the_sum_of_that_of_the_policy_and_that_of_the_replies(
    small_run: Compose, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    options = ("trainer.max_steps=1", "evaluation.tasks=0", f"trainer.micro_batch_tokens={most}")
    alone, _ = gradients(monkeypatch, small_run(*options))
    anchored = (f"anchor.files=[{written(tmp_path)}]", "anchor.weight=0.3", "anchor.batch=5")
    together, row = gradients(monkeypatch, small_run(*options, *anchored))

    model, dialogue = load_pretrained(policy), build_dialogue(small_tokenizer(), "off")
    assert isinstance(dialogue, ChatDialogue)
    losses = []
    for prompt, reply in REPLIES:
        messages = (Message("user", prompt), Message("assistant", reply))
        before = dialogue.prompt(messages[:1], ()).ids
        ids = torch.tensor(dialogue.template.render(messages, (), dialogue.options, end_turn=True).ids)
        hidden_TD = model.hidden(ids[:-1], SequenceBatch.build([len(ids) - 1])).hidden_TD
        logprobs_TV = model.logits(hidden_TD).log_softmax(-1)
        losses.append(-logprobs_TV.gather(1, ids[1:, None])[len(before) - 1 :, 0])
    wanted = 0.3 * torch.cat(losses).mean()
    wanted.backward()
    assert float(row["anchor_loss"]) == pytest.approx(wanted.item(), rel=1e-5)
    sft = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert sft.keys() == alone.keys() == together.keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[name] + sft[name], atol=1e-6, rtol=1e-4)
    assert any(not torch.equal(together[name], alone[name]) for name in alone)


def test_each_reply_comes_once_before_one_comes_again() -> None:
    examples = [Example([1, 2, 3 + n], 1, trained=[False, False, True]) for n in range(5)]
    anchors = Anchors(examples, AnchorConfig(weight=1.0, files=["x"], batch=3), seed=4, micro_batch_tokens=64)
    taken = [example.ids[2] - 3 for _ in range(5) for example in anchors.take()]
    assert [sorted(taken[n : n + 5]) for n in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3
    assert taken[:5] != taken[5:10] or taken[5:10] != taken[10:]
    resumed = Anchors(examples, anchors.config, 4, 64)
    resumed.cursor = 6
    assert [example.ids[2] - 3 for example in resumed.take()] == taken[6:9]


def test_an_interrupted_run_takes_the_replies_that_would_have_come(small_run: Compose, tmp_path: Path) -> None:
    anchored = (f"anchor.files=[{written(tmp_path)}]", "anchor.weight=1", "anchor.batch=3", "evaluation.tasks=0")
    whole = run(small_run(*anchored, "trainer.updates=2", "trainer.max_steps=4", "name=whole"))
    cut = (*anchored, "trainer.updates=2", "trainer.checkpoint_every=1", "name=cut")
    run(small_run(*cut, "trainer.max_steps=2"))
    rest = run(small_run(*cut, "trainer.max_steps=4", "resume=latest"))
    losses = [[row["anchor_loss"] for row in metrics(f.dir)] for f in (whole, rest)]
    assert losses[0] == losses[1] and len(set(losses[0])) == 4
    first, second = weights(whole.dir), weights(rest.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ArcforgeError, match=r"anchor\.batch was 3, now 2"):
        run(small_run(*cut, "anchor.batch=2", "trainer.max_steps=5", "resume=latest"))


def test_the_replies_become_likely(small_run: Compose, tmp_path: Path) -> None:
    anchored = (f"anchor.files=[{written(tmp_path)}]", "anchor.weight=1", "anchor.batch=5", "evaluation.tasks=0")
    found = run(small_run(*anchored, "trainer.max_steps=10", "optimizer.lr=0.01"))
    losses = [float(row["anchor_loss"]) for row in metrics(found.dir)]
    assert losses[-1] < 0.8 * losses[0]


def test_conversations_are_rendered_as_rollouts_are() -> None:
    tokenizer = small_tokenizer()
    template = build_chat_template(tokenizer, Glm5TemplateConfig())
    dialogue = ChatDialogue(template, THINKING["off"])
    (example,) = encoded(conversation_of(Row("f", 1, {"prompt": "one", "reply": "two"})), dialogue, LIMITS)
    assert example.trained is not None
    prompt = dialogue.prompt(conversation_of(Row("f", 1, {"prompt": "one", "reply": "x"})).messages[:1], ()).ids
    assert list(example.ids[: len(prompt)]) == list(prompt)
    learnt = [token for token, trained in zip(example.ids, example.trained, strict=True) if trained]
    assert learnt[-1] in template.stop_ids and tokenizer.decode(learnt[:-1]) == "two"
    assert not any(example.trained[: len(prompt)])
    (plain,) = encoded(conversation_of(Row("f", 1, {"prompt": "a", "reply": "two"})), TextDialogue(tokenizer), LIMITS)
    assert plain.trained is not None and plain.ids[-1] == tokenizer.eos_id and not plain.trained[1]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("anchor.weight=0.1",), r"anchor\.files=\[\]: must name files"),
        (("anchor.files=[x.jsonl]",), r"anchor\.weight=0\.0: must be above 0"),
        (("anchor.weight=-1", "anchor.files=[x.jsonl]"), r"anchor\.weight=-1\.0: must be finite"),
        (("anchor.weight=nan", "anchor.files=[x.jsonl]"), r"anchor\.weight=nan: must be finite"),
        (("anchor.weight=1", "anchor.files=[x.jsonl]", "anchor.batch=0"), r"anchor\.batch=0"),
    ],
)
def test_impossible_options_are_refused(small_run: Compose, options: tuple[str, ...], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        small_run(*options)


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        ({"prompt": "p"}, "prompt and reply must be texts"),
        ({"prompt": "p", "reply": " "}, "prompt and reply must be texts"),
        ({"messages": [{"role": "user", "content": "p"}]}, "no reply of an assistant"),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning": "r"}]}, "rollout.thinking=off"),
        ({"prompt": "p", "reply": "r" * 500}, "tokens are more than"),
        ({"text": "p"}, "must have messages"),
    ],
)
def test_records_that_are_no_replies_are_left_out_with_the_reason(
    tmp_path: Path, record: Any, refused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dialogue, model = build_dialogue(small_tokenizer(), "off"), small_model(0, vocab_size=TOKENIZER_SIZE)

    def read(*records: Any) -> Anchors | None:
        config = AnchorConfig(1.0, [written(tmp_path, records)], max_tokens=60)
        return build_anchors(config, dialogue, model, {}, 0, 64)

    with pytest.raises(DataError, match=f"no reply to learn from.*{refused}"):
        read(record)
    found = read(record, *REPLIES)
    assert found is not None and len(found.examples) == len(REPLIES)
    assert "1 left out: " in capsys.readouterr().err


def test_without_a_chat_template_an_anchor_is_one_reply() -> None:
    row = Row("f", 1, {"messages": [{"role": "assistant", "content": "a"}] * 2})
    with pytest.raises(BadRecord, match="a prompt and one reply"):
        encoded(conversation_of(row), TextDialogue(small_tokenizer()), LIMITS)
    with pytest.raises(BadRecord, match="tokens are more than 64"):
        long = Row("f", 1, {"prompt": "p", "reply": "r" * 500})
        encoded(conversation_of(long), TextDialogue(small_tokenizer()), LIMITS)


def test_held_out_prompts_are_refused_as_anchors(small_run: Compose, tmp_path: Path) -> None:
    prompts = prompts_of(CopyEnvironment(CopyConfig(split="heldout")), 4)
    asked = next(prompt for prompt, number in prompts.items() if number == 2)
    path = written(tmp_path, [*REPLIES, (f" {asked}", "what it says")])
    with pytest.raises(ConfigError, match=r"anchors\.jsonl:6.*the prompt of held-out task 2"):
        run(small_run("anchor.weight=1", f"anchor.files=[{path}]"))

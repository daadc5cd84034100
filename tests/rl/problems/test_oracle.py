"""Every source's conversations can be played: the record's own words are right, with tools run again."""

import pytest

from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.schema import PlayConfig
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.data.conversations.records import Row
from arcforge_core.episodes.conversation_tasks import Loaded, make_task
from arcforge_core.eval.conversations import evaluate
from arcforge_core.eval.conversations.figures import measure
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_rl.configs.commands import SOURCES
from arcforge_rl.configs.environments import SandboxConversationsConfig
from arcforge_rl.environments.sandbox_conversations import SandboxConversations
from arcforge_rl.problems.problem import HELDOUT
from arcforge_rl.problems.write import Maker
from arcforge_rl.sandbox.sync import Desk

pytestmark = pytest.mark.slow(reason="makes problems of all sources and runs their tools in sandboxes, twice")


class Oracle:
    """Says the record's messages, in order, as the template renders them."""

    weight_version = 0

    def __init__(self, template, conversation):
        self._template, self._conversation = template, conversation
        self._left = [n for n, message in enumerate(conversation.messages) if message.role == "assistant"]

    def generate(self, prompts, params):
        number = self._left.pop(0)
        seen, tools = self._conversation.messages[: number + 1], self._conversation.tools
        rendered = self._template.render(seen, tools, self._conversation.options, end_turn=True)
        written = zip(rendered.ids, rendered.authors, rendered.messages, strict=True)
        ids = [i for i, author, message in written if author == "assistant" and message == number]
        assert ids[-1] in params[0].stop_token_ids
        return [GenerationOutput(ids, [0.0] * len(ids), "stop", 0)]

    def update_weights(self, state, *, version=None, checksum=None):
        raise NotImplementedError


@pytest.fixture(scope="module")
def desk():
    with Desk() as desk:
        yield desk


@pytest.mark.parametrize("name", SOURCES)
def test_the_records_own_words_are_right(desk, monkeypatch, name):
    monkeypatch.setattr("arcforge_rl.problems.dialogues.FAILURES", 0.5)
    tokenizer = small_tokenizer()
    template = build_chat_template(tokenizer)
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=60_000)
    tasks = [make_task(Row("r.jsonl", n, record)) for n, record in enumerate(Maker(name, HELDOUT, 3, desk).records(4))]
    environment = SandboxConversations(SandboxConversationsConfig(split="all"), Loaded(tasks, {}))
    played = []
    for task in environment.tasks:
        engine = Oracle(template, task.conversation)
        monkeypatch.setattr(evaluate, "default_engine", lambda name, model, engine=engine: engine)
        [one] = evaluate.sample_tasks(model, tokenizer, PlayConfig(batch_size=1), environment, [task])
        assert [m.content for m in one.episode.messages] == [m.content for m in task.conversation.messages]
        played.append(one)
    figures = measure(played)
    assert figures["answers"] and figures["exact"] == 1.0
    assert figures["truncated"] == figures["too_many_calls"] == 0.0
    assert figures.get("calls_valid", 1.0) == 1.0
    assert figures.get("thinking_on", 1.0) == figures.get("thinking_off", 1.0) == 1.0

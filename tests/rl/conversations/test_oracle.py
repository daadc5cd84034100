"""Every source's conversations can be played: a player that says what the record says is right, with tools run anew."""

import pytest

from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.schema import PlayConfig
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.data.conversations.records import Row
from arcforge_core.eval.conversations.figures import measure
from arcforge_core.eval.conversations.items import make_item
from arcforge_core.eval.conversations.play import Player
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs import SOURCES, SandboxToolboxConfig
from arcforge_rl.conversations.played_tools import SandboxToolbox
from arcforge_rl.conversations.problem import HELDOUT
from arcforge_rl.conversations.write import Maker
from arcforge_rl.sandbox.desk import Desk

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
def places():
    with Desk() as desk, SandboxToolbox(SandboxToolboxConfig()) as toolbox:
        yield desk, toolbox


@pytest.mark.parametrize("name", SOURCES)
def test_the_records_own_words_are_right(places, monkeypatch, name):
    monkeypatch.setattr("arcforge_rl.conversations.dialogues.FAILURES", 0.5)
    desk, toolbox = places
    template = build_chat_template(small_tokenizer())
    played = []
    for n, record in enumerate(Maker(name, HELDOUT, 3, desk).records(4)):
        item = make_item(Row("r.jsonl", n, record))
        player = Player(Oracle(template, item.conversation), template, toolbox, PlayConfig(batch_size=1), 60_000)
        [one] = player.play([(item, 0)])
        assert [m.content for m in one.messages] == [m.content for m in item.conversation.messages]
        played.append(one)
    figures = measure(played)
    assert figures["exact"] == 1.0 and figures["truncated"] == figures["too_many_calls"] == 0.0
    assert figures.get("calls_valid", 1.0) == 1.0
    assert figures.get("thinking_on", 1.0) == figures.get("thinking_off", 1.0) == 1.0

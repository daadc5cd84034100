"""Runs the suite over every chat template that the registry lists, and over templates that the Jinja one reads."""

import pytest

from arcforge_core import registry
from arcforge_core.testing import ChatTemplateSuite
from arcforge_core.testing.chat_cases import with_tokens
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.templates import built_in

TOKENS = {
    "": (),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}
OPTIONS = {"jinja": [{"template": "chatml"}, {"template": "llama3"}]}
VARIANTS = [(name, options) for name in registry().names("chat_template") for options in [{}, *OPTIONS.get(name, [])]]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join([v[0], *(f"{k}={x}" for k, x in v[1].items())]))
class TestChatTemplate(ChatTemplateSuite):
    @pytest.fixture
    def template(self, variant):
        name, options = variant
        component = registry().get("chat_template", name)
        tokenizer = with_tokens(small_tokenizer(), TOKENS[options.get("template", "")], built_in("glm5"))
        return component.load()(component.load_schema()(**options), tokenizer)

import json

import pytest

from arcforge_core.chat.glm5 import Glm5Template
from arcforge_core.chat.jinja import JinjaTemplate
from arcforge_core.chat.load import build_chat_template, load_chat_template
from arcforge_core.configs import Glm5TemplateConfig, JinjaTemplateConfig
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.testing.chat_cases import with_tokens
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.templates import built_in
from arcforge_core.tokenizer.tokenizer import CHAT_TEMPLATE

GLM5 = built_in("glm5")


def test_our_tokenizers_speak_glm5(tmp_path):
    small_tokenizer().save(tmp_path)
    assert (tmp_path / CHAT_TEMPLATE).read_text() == GLM5
    loaded = load_chat_template(tmp_path)
    assert isinstance(loaded, Glm5Template) and loaded.jinja == GLM5


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (None, Glm5Template),
        ("{# said otherwise #}" + GLM5.replace("keep_all", "keep").replace("seen", "found"), Glm5Template),
        (GLM5.replace("message.content.strip()", "content"), Glm5Template),
        (GLM5.replace("'</think>' + content.strip()", "'</think>' + content"), JinjaTemplate),
        (GLM5.replace("'<think>' + reasoning.strip()", "'<think>' + reasoning"), JinjaTemplate),
        (GLM5.replace("keep_all or", ""), JinjaTemplate),
        (GLM5.replace("'|>' + content", "'|>\\n' + content"), JinjaTemplate),
        (GLM5.replace("enable_thinking is defined and not enable_thinking", "false"), JinjaTemplate),
        (GLM5.replace("loop.previtem.role != 'tool'", "true"), JinjaTemplate),
    ],
)  # fmt: skip
def test_a_template_that_writes_the_same_is_glm5(template, kind):
    assert type(build_chat_template(with_tokens(small_tokenizer(), (), template))) is kind


def test_another_template_is_taken_as_it_is(tmp_path):
    tokens = ("<|im_start|>", "<|im_end|>")
    with_tokens(small_tokenizer(), tokens, built_in("chatml")).save(tmp_path)
    assert isinstance(load_chat_template(tmp_path), JinjaTemplate)
    assert isinstance(load_chat_template(tmp_path, Glm5TemplateConfig()), Glm5Template)
    assert load_chat_template(tmp_path, JinjaTemplateConfig(template="glm5")).jinja == GLM5


def test_the_template_may_stand_in_the_settings(tmp_path):
    tokens = ("<|im_start|>", "<|im_end|>")
    with_tokens(small_tokenizer(), tokens, built_in("chatml")).save(tmp_path)
    (tmp_path / CHAT_TEMPLATE).unlink()
    settings = tmp_path / "tokenizer_config.json"
    for stated in (
        built_in("chatml"),
        [{"name": "tool_use", "template": "x"}, {"name": "default", "template": built_in("chatml")}],
    ):
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": stated}))
        assert load_chat_template(tmp_path).jinja == built_in("chatml")


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_chat_template(tmp_path)
    lacking = with_tokens(small_tokenizer(), ())
    lacking.special.pop("<arg_key>")
    with pytest.raises(ConfigError, match="must be set: the tokenizer has no chat template"):
        build_chat_template(lacking)

import json

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_serving.server.shared.starters import Starters, read_starters


def test_a_checkpoint_without_the_file_suggests_nothing(tmp_path):
    assert read_starters(tmp_path) == Starters(suggestions=[], tools=[])


def test_what_a_checkpoint_suggests_is_read(tmp_path):
    given = {"suggestions": ["What is 1+1?"], "tools": ["calculator"], "base": False}
    (tmp_path / "page.json").write_text(json.dumps(given))
    assert read_starters(tmp_path).model_dump() == given


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "page.json: : Invalid JSON"),
        ('{"sugestions": []}', "page.json: sugestions: Extra inputs"),
        ('{"tools": ["shell"]}', "page.json: tools.0: Input should be 'calculator'"),
        ('{"suggestions": [1]}', "page.json: suggestions.0: Input should be a valid string"),
        (json.dumps({"suggestions": ["?"] * 9}), "page.json: suggestions: List should have at most 8 items"),
    ],
)
def test_a_file_that_is_something_else_is_named_with_its_field(tmp_path, text, said):
    (tmp_path / "page.json").write_text(text)
    with pytest.raises(CheckpointError, match=said.replace("[", r"\[")):
        read_starters(tmp_path)

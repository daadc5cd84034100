import pytest

from arcforge_core.checkpoint.starters import BASE, is_base, write_starters


def test_a_base_model_says_so(tmp_path):
    write_starters(tmp_path, BASE)
    assert is_base(tmp_path)


def test_nothing_to_say_writes_nothing(tmp_path):
    write_starters(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    assert not is_base(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"base": "yes"}'])
def test_anything_else_is_no_base_model(tmp_path, text):
    (tmp_path / "page.json").write_text(text)
    assert not is_base(tmp_path)

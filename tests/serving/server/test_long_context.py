"""The long-context suite on our own server gives what it gives on the engine itself."""

import json

import pytest

from arcforge_core.config.schema import EvalConfig
from arcforge_core.configs import FilesDataConfig, LongContextSuiteConfig, SimpleEngineConfig, TorchCpuConfig
from arcforge_core.eval.long_context.endpoint import Endpoint
from arcforge_core.eval.long_context.run import Grid, engine_completer
from arcforge_core.eval.long_context.tasks import ExampleMaker
from arcforge_core.eval.run import evaluate
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from support.runs import write_corpus
from support.servers import listening, small_state

TEXTS = [f"text {n}: " + " ".join(f"word{n * m}" for m in range(200)) for n in range(3)]


@pytest.fixture(scope="module")
def served():
    """(engine, tokenizer, URL) of a small model; the server has an engine of its own."""
    model, tokenizer = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=512), small_tokenizer()
    with listening(small_state(tokenizer, model)) as (_, address):
        yield SimpleEngine(SimpleEngineConfig(), model), tokenizer, address


def test_the_server_completes_as_the_engine_does(served):
    engine, tokenizer, url = served
    maker = ExampleMaker(TEXTS, tokenizer)
    examples = Grid(lengths=(450,), depths=(0.5,), samples=2).examples(maker, ("single", 450, 0.5))
    with Endpoint(url, "small") as endpoint:
        said = endpoint(examples)
    assert [text.strip() for text in said] == [t.strip() for t in engine_completer(engine, tokenizer)(examples)]
    assert any(said)


def test_the_command_measures_it(served, tmp_path):
    _, tokenizer, url = served
    tokenizer.save(tmp_path / "tokenizer")
    data = FilesDataConfig(paths=[str(write_corpus(tmp_path / "texts"))], heldout=0.3)
    options = {"tasks": ["single"], "lengths": [400], "depths": [0.5], "samples": 1, "output": str(tmp_path / "out")}
    suite = LongContextSuiteConfig(endpoint=url, model="small", tokenizer=str(tmp_path / "tokenizer"), **options)
    evaluate(EvalConfig(suite, None, data, TorchCpuConfig()))
    settings = json.loads((tmp_path / "out" / "long_context.json").read_text())["settings"]
    assert settings["subject"] == f"small at {url}"


def test_its_refusals_are_passed_on(served):
    _, tokenizer, url = served
    [example] = Grid(samples=1).examples(ExampleMaker(TEXTS, tokenizer), ("single", 600, 0.5))
    with (
        Endpoint(url) as endpoint,
        pytest.raises(Exception, match=r"HTTP 400: This model's maximum context length is 512 tokens\. However, "),
    ):
        endpoint([example])

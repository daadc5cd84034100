from types import SimpleNamespace

import pytest

from arcforge_core import save_pretrained
from arcforge_core.config.schema import EvalConfig
from arcforge_core.configs import (
    FilesDataConfig,
    LongContextSuiteConfig,
    MixtureDataConfig,
    ReferenceAttentionConfig,
    TorchCpuConfig,
)
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ArcforgeError, ConfigError, DataError
from arcforge_core.eval.long_context.report import read_report
from arcforge_core.eval.run import evaluate
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import small_config
from support.listening import listening
from support.runs import write_corpus

QUICK = {"tasks": ["single", "common_words"], "lengths": [200, 300], "depths": [0.5], "samples": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of an untrained model, its data config and corpus."""
    root = tmp_path_factory.mktemp("long")
    data = FilesDataConfig(paths=[str(write_corpus(root / "corpus"))], cache_dir=str(root / "cache"), heldout=0.3)
    corpus = build_data(data, model_vocab_size=512, progress=False)
    model = build_model(small_config(vocab_size=512, max_position_embeddings=320), ReferenceAttentionConfig())
    save_pretrained(model, root / "model", corpus.tokenizer)
    return root / "model", data, corpus


def config_of(saved, checkpoint=True, **options):
    suite = LongContextSuiteConfig(**{**QUICK, **options})
    return EvalConfig(suite, str(saved[0]) if checkpoint else None, saved[1], TorchCpuConfig())


@pytest.fixture
def server():
    """A server that answers 1 to each prompt, or what is put into `answers`; and the bodies it was sent."""

    found = SimpleNamespace(bodies=[], keys=[], limit=10**9)

    def post(request):
        found.keys.append(request.headers.get("Authorization"))
        found.bodies.append(request.body())
        request.answer(500 if len(found.bodies) > found.limit else 200, {"choices": [{"text": "1"}]})

    with listening(post) as found.url:
        yield found


def test_measures_a_checkpoint_and_goes_on(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = evaluate(config_of(saved))
    assert set(result.figures) == {"score", "score_200", "score_300"}
    assert result.dir.parent.as_posix() == "outputs/long_context"
    assert (result.dir / "long_context.html").is_file()
    printed = capsys.readouterr()
    assert "common_words" in printed.out and saved[2].tokenizer.sha256[:12] in printed.out
    assert f"results go to {result.dir}" in printed.err and "long-context cells: 4" in printed.err
    monkeypatch.setattr("arcforge_core.generation.engine.generate", lambda *args: pytest.fail("measured again"))
    assert evaluate(config_of(saved)) == result
    with pytest.raises(pytest.fail.Exception):
        evaluate(config_of(saved, seed=1))  # another evaluation, another folder


def test_fills_prompts_with_the_held_out_texts_of_the_corpus(saved, tmp_path, server):
    evaluate(config_of(saved, checkpoint=False, endpoint=server.url, output=str(tmp_path), tasks=["single"]))
    heldout = "\n".join(d.text for d in saved[2].heldout_documents())
    for body in server.bodies:
        lines = body["prompt"].splitlines()[1:-4]
        whole = [line for line in lines if line and "The code of" not in line]
        assert sum(line in heldout for line in whole) >= len(whole) - 1 > 2


def test_measures_an_endpoint(saved, tmp_path, server, monkeypatch, capsys):
    monkeypatch.setenv("ARCFORGE_API_KEY", "sesame")
    options = {"endpoint": server.url, "model": "glm", "output": str(tmp_path / "out")}
    result = evaluate(config_of(saved, checkpoint=False, **options))
    assert result.dir == tmp_path / "out"
    assert len(server.bodies) == 2 * 2 * 2 and {body["model"] for body in server.bodies} == {"glm"}
    assert set(server.keys) == {"Bearer sesame"}
    printed = capsys.readouterr().out
    assert f"glm at {server.url}" in printed and "approximate tokens" in printed
    assert not [file for file in result.dir.iterdir() if b"sesame" in file.read_bytes()]


def test_lengths_at_an_endpoint_are_counted_by_a_tokenizer(saved, tmp_path, server):
    options = {"endpoint": server.url, "tokenizer": str(saved[0]), "output": str(tmp_path), "lengths": [400]}
    evaluate(config_of(saved, checkpoint=False, **options))
    tokenizer = saved[2].tokenizer
    for body in server.bodies:
        assert 390 <= 1 + len(tokenizer.encode(body["prompt"])) + body["max_tokens"] <= 400
    assert read_report(tmp_path).settings["lengths_in"] == f"tokens of tokenizer {tokenizer.sha256[:12]}"


def test_a_failing_endpoint_leaves_the_finished_cells(saved, tmp_path, server):
    config = config_of(saved, checkpoint=False, endpoint=server.url, output=str(tmp_path))
    server.limit = 5
    with pytest.raises(ArcforgeError, match=r"suite\.endpoint=http://127.*HTTP 500"):
        evaluate(config)
    assert len(read_report(tmp_path).cells) == 2
    server.limit, before = 10**9, len(server.bodies)
    evaluate(config)
    assert len(server.bodies) - before == 4 and len(read_report(tmp_path).cells) == 4


def test_refuses_what_cannot_be_measured(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"suite\.lengths=400: the model allows at most 320 positions"):
        evaluate(config_of(saved, lengths=[200, 400], output=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"length=60: the task common_words needs at least"):
        evaluate(config_of(saved, lengths=[60], tasks=["common_words"], output=str(tmp_path)))
    config = config_of(saved, output=str(tmp_path))
    config.data = FilesDataConfig(paths=saved[1].paths, heldout=0.0)
    with pytest.raises(DataError, match=r"data\.heldout=0"):
        evaluate(config)
    config.data = MixtureDataConfig(sources={"a": FilesDataConfig(paths=saved[1].paths)}, heldout=0.3)
    config.data.tokenizer.path = "x"
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.path='x'"):
        evaluate(config)

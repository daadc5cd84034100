import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arcforge_core.config.schema import TokenizerConfig
from arcforge_core.configs import FilesDataConfig
from arcforge_core.data.tokens import build
from arcforge_core.data.tokens.build import cache_root, verify_hashes
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from support.corpora import VOCAB_SIZE, tiny_corpus, write_texts


def config(folder: Path, **settings: object) -> FilesDataConfig:
    return FilesDataConfig(paths=[str(folder / "texts")], cache_dir=str(folder / "cache"), heldout=0.2, **settings)


def test_the_manifest_counts_what_is_there(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    (tmp_path / "texts" / "copy.py").write_bytes((tmp_path / "texts" / "000.py").read_bytes())
    (tmp_path / "texts" / "empty.py").touch()
    corpus = build_data(config(tmp_path, licence="MIT"), model_vocab_size=VOCAB_SIZE, progress=False)
    manifest = corpus.manifest
    assert manifest == json.loads((corpus.folder / "manifest.json").read_text())
    sides = [manifest["splits"][side]["files"] for side in ("train", "heldout")]
    assert sum(side["documents"] for side in sides) == 40
    assert manifest["dropped"] == {"duplicates": 1, "empty": 1}
    assert sum(side["bytes"] for side in sides) == sum(
        path.stat().st_size for path in (tmp_path / "texts").glob("[0-9]*.py")
    )
    assert sides[1]["bytes"] == len(corpus.heldout_bytes())
    assert manifest["licences"] == {"MIT": 40}
    assert manifest["tokenizer"]["sha256"] == corpus.tokenizer.sha256
    verify_hashes(corpus.folder)


def test_cached_work_is_used_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_texts(tmp_path / "texts")
    first = build_data(config(tmp_path), model_vocab_size=VOCAB_SIZE)
    stamp = (first.folder / "manifest.json").stat().st_mtime_ns
    assert "wrote shards" in capsys.readouterr().err
    second = build_data(config(tmp_path, packing="best_fit"), model_vocab_size=VOCAB_SIZE)
    assert capsys.readouterr().err.startswith(f"using cached shards {first.folder} (40 documents, ")
    assert (second.folder / "manifest.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("change", ["text", "vocabulary", "heldout"])
def test_what_the_shards_depend_on_builds_new_ones(tmp_path: Path, change: str) -> None:
    write_texts(tmp_path / "texts")
    settings = config(tmp_path)
    before = build_data(settings, model_vocab_size=VOCAB_SIZE, progress=False).folder
    if change == "text":
        (tmp_path / "texts" / "000.py").write_text("changed = True\n")
    elif change == "heldout":
        settings.heldout = 0.3
    size = VOCAB_SIZE - 5 if change == "vocabulary" else VOCAB_SIZE
    assert build_data(settings, model_vocab_size=size, progress=False).folder != before


@pytest.mark.parametrize("damage", ["truncated", "header", "gone", "manifest", "texts", "tokenizer"])
def test_damaged_shards_are_built_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    corpus = tiny_corpus(tmp_path)
    shard = corpus.folder / corpus.manifest["shards"][0]["file"]
    whole = shard.read_bytes()
    if damage == "truncated":
        shard.write_bytes(whole[:-3])
    elif damage == "header":
        shard.write_bytes(b"\0" + whole[1:])
    elif damage == "gone":
        shard.unlink()
    else:
        names = {"manifest": "manifest.json", "texts": "heldout.jsonl", "tokenizer": "tokenizer/tokenizer.json"}
        (corpus.folder / names[damage]).write_text("{")
    again = tiny_corpus(tmp_path)
    assert "cached shards are damaged and are rebuilt" in capsys.readouterr().err
    assert (again.folder / shard.name).read_bytes() == whole


def test_a_changed_byte_is_found_on_demand(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path)
    shard = corpus.folder / corpus.manifest["shards"][0]["file"]
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"{shard.name}: its contents differ from the manifest"):
        verify_hashes(corpus.folder)


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, *example: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build.ShardWriter, "add", full)
    with pytest.raises(DataError, match=r"data\.cache_dir: cannot write shards below .*: No space left on device"):
        tiny_corpus(tmp_path)
    assert [p.name for p in (tmp_path / "cache" / "data").iterdir() if not p.name.endswith(".lock")] == []
    monkeypatch.undo()
    assert tiny_corpus(tmp_path).manifest["shards"]


def test_a_killed_builds_leftovers_go(tmp_path: Path) -> None:
    folder = tiny_corpus(tmp_path).folder
    folder.rename(folder.with_name(f".{folder.name}.partial"))
    tiny_corpus(tmp_path)
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_builders_at_once_share_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_texts(tmp_path / "texts")
    with ThreadPoolExecutor(3) as pool:  # the lock is per open file, so threads test the same as processes
        built = list(pool.map(lambda _: build_data(config(tmp_path), model_vocab_size=VOCAB_SIZE).folder, range(3)))
    assert len(set(built)) == 1
    said = capsys.readouterr().err
    assert (said.count("wrote shards"), said.count("using cached shards")) == (1, 2)


def test_vocabularies_that_do_not_fit(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.vocab_size=400: .* model\.vocab_size=350"):
        build_data(config(tmp_path, tokenizer=TokenizerConfig(vocab_size=400)), model_vocab_size=350)
    trained = str(corpus.folder / "tokenizer")
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.path=.*: its 300 entries must fit .*=299"):
        build_data(config(tmp_path, tokenizer=TokenizerConfig(path=trained)), model_vocab_size=299)
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.vocab_size=300: must be omitted"):
        build_data(config(tmp_path, tokenizer=TokenizerConfig(path=trained, vocab_size=300)), model_vocab_size=300)
    with pytest.raises(DataError, match=r"vocab_size=60000: the training text supports only"):
        build_data(config(tmp_path), model_vocab_size=60000, progress=False)
    loaded = build_data(config(tmp_path, tokenizer=TokenizerConfig(path=trained)), model_vocab_size=999, progress=False)
    assert loaded.tokenizer.sha256 == corpus.tokenizer.sha256


def test_train_bytes_limits_what_the_tokenizer_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path / "texts")
    seen: list[int] = []
    monkeypatch.setattr(build, "SAMPLE_CHARACTERS", 50)
    original = build.train_tokenizer

    def spy(texts: object, vocab_size: int) -> Tokenizer:
        texts = list(texts)
        seen.append(sum(len(t.encode()) for t in texts))
        return original(texts, vocab_size)

    monkeypatch.setattr(build, "train_tokenizer", spy)
    for limit in (10**6, 8000):
        build_data(
            config(tmp_path, tokenizer=TokenizerConfig(train_bytes=limit)), model_vocab_size=VOCAB_SIZE, progress=False
        )
    assert seen[1] < 9600 < seen[0]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    assert cache_root(FilesDataConfig()) == tmp_path / "data"
    assert cache_root(FilesDataConfig(cache_dir="/elsewhere")) == Path("/elsewhere/data")
    monkeypatch.delenv("ARCFORGE_CACHE")
    assert cache_root(FilesDataConfig()) == Path.home() / ".cache" / "arcforge" / "data"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match=r"data\.cache_dir"):
        build_data(config(tmp_path), model_vocab_size=VOCAB_SIZE)


def test_a_cache_path_that_is_a_file_is_named(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"data\.cache_dir: cannot write shards below"):
        build_data(config(tmp_path), model_vocab_size=VOCAB_SIZE)

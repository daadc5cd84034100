import itertools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.configs import FilesDataConfig, HubDataConfig, MixtureDataConfig, StdlibDataConfig
from arcforge_core.data.sources.text import FilesSource, HubSource, MixtureSource, StdlibSource
from arcforge_core.errors import ConfigError, DataError


def files(*paths: Path, **settings: Any) -> FilesSource:
    return FilesSource(FilesDataConfig(paths=[str(p) for p in paths], **settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    (root / "sub").mkdir(parents=True)
    (root / "a.md").write_text("alpha\n")
    (root / "sub" / "b.py").write_text("beta = 1\n")
    (root / "rows.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "\\ud800"}\n')
    return root


def test_a_folder_gives_its_texts_and_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = files(folder, licence="MIT")
    documents = list(source.documents())
    assert [(d.key, d.text) for d in documents] == [
        ("corpus/a.md", "alpha\n"),
        ("corpus/rows.jsonl:0", "one"),
        ("corpus/sub/b.py", "beta = 1\n"),
    ]
    assert {(d.source, d.licence) for d in documents} == {("files", "MIT")}
    warned = capsys.readouterr().err
    assert "1 rows without text" in warned
    assert "1 rows that are not UTF-8" in warned


def test_binary_and_undecodable_files_are_counted_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.jsonl").unlink()
    for name in ("x.bin", "y.bin"):
        (folder / name).write_bytes(b"\0\1")
    (folder / "latin.txt").write_bytes(b"\xe9t\xe9")
    source = files(folder)
    for _ in range(2):
        assert len(list(source.documents())) == 2
    assert capsys.readouterr().err == (
        "files: skipped 1 not UTF-8 (e.g. corpus/latin.txt); 2 binary (e.g. corpus/x.bin)\n"
    )


@pytest.mark.parametrize(("content", "reason"), [(b"\0", "binary"), (b"\xff", "not UTF-8")])
def test_an_unreadable_file_named_by_the_user_is_an_error(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.paths='.*mine\.txt': {reason}"):
        list(files(path).documents())


def test_suffixes_filter_folders_not_named_files(folder: Path) -> None:
    source = files(folder, folder / "a.md", suffixes=[".py"])
    assert [d.text for d in source.documents()] == ["beta = 1\n", "alpha\n"]


def test_a_long_file_is_cut_into_documents(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("line\n" * 10)
    documents = list(files(path, document_bytes=20).documents())
    assert [d.text for d in documents] == ["line\n" * 4, "line\n" * 4, "line\n" * 2]
    assert documents[1].key.endswith("long.txt:1")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: files(), r"data\.paths=\[\]"),
        (lambda root: files(root / "gone"), r"data\.paths='.*gone': no such"),
        (lambda root: files(root, suffixes=[".rs"]), r"no file with a suffix in \['\.rs'\]"),
        (lambda root: MixtureSource(MixtureDataConfig()), r"data\.sources=\{\}"),
        (lambda root: HubSource(HubDataConfig()), r"data\.dataset=''"),
        (lambda root: StdlibSource(StdlibDataConfig(), root), "contains no .py files"),
    ],
)
def test_nothing_to_read_names_the_field(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(tmp_path)


def test_the_fingerprint_follows_content_and_settings(folder: Path) -> None:
    before = files(folder).fingerprint()
    assert files(folder).fingerprint() == before
    assert files(folder, document_bytes=9).fingerprint() != before
    (folder / "a.md").write_text("alpha!\n")
    assert files(folder).fingerprint() != before


def test_the_library_without_tests_and_packages(tmp_path: Path) -> None:
    for name in ("json/decoder.py", "test/test_x.py", "json/tests/t.py", "site-packages/p.py", "_sysconfigdata_x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")

    documents = list(StdlibSource(StdlibDataConfig(), tmp_path).documents())
    assert {d.licence for d in documents} == {"PSF-2.0"}
    topics = [d for d in documents if d.key.startswith("pydoc_data/topics/")]
    assert len(topics) > 50
    assert [d.key for d in documents if d not in topics] == ["json/decoder.py"]


@pytest.mark.nightly(reason="tokenises the standard library")
def test_the_running_library_is_there() -> None:
    source = StdlibSource(StdlibDataConfig())
    keys = {d.key for d in source.documents()}
    assert {"json/decoder.py", "ast.py", "pydoc_data/topics/assert"} <= keys
    assert not [k for k in keys if "site-packages" in k or k.startswith("test/")]
    assert source.fingerprint() == StdlibSource(StdlibDataConfig()).fingerprint()


def test_functions_stand_behind_their_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import x\ndef f(a):\n    return a\n")

    def sources(share: float) -> list[tuple[str, str, str | None]]:
        documents = StdlibSource(StdlibDataConfig(functions=share), tmp_path).documents()
        return [(d.key, d.source, d.part_of) for d in documents if not d.key.startswith("pydoc_data")]

    assert sources(0.5) == [("a.py", "stdlib", None), ("a.py:0", "stdlib_functions", "a.py")]
    assert sources(0.0) == [("a.py", "stdlib", None)]
    with_functions, without = (StdlibSource(StdlibDataConfig(functions=share), tmp_path) for share in (0.5, 0.0))
    assert (with_functions.weights, without.weights) == ({"stdlib": 0.5, "stdlib_functions": 0.5}, None)
    assert with_functions.fingerprint() != without.fingerprint()


def test_a_mixture_keeps_the_parts_of_a_source() -> None:
    config = MixtureDataConfig(sources={"python": StdlibDataConfig(functions=0.25)}, weights={"python": 2.0})
    source = MixtureSource(config)
    assert source.weights == {"python/stdlib": 1.5, "python/stdlib_functions": 0.5}
    documents = list(itertools.islice(source.documents(), 50))
    assert {d.source for d in documents} == set(source.weights)
    part = next(d for d in documents if d.part_of)
    assert part.part_of in {d.key for d in documents}


def test_a_mixture_names_its_parts(folder: Path, tmp_path: Path) -> None:
    part = FilesDataConfig(paths=[str(folder)], suffixes=[".py"])
    other = FilesDataConfig(paths=[str(folder / "a.md")])
    source = MixtureSource(MixtureDataConfig(sources={"code": part, "prose": other}, weights={"code": 3.0}))
    assert source.weights == {"code": 3.0, "prose": 1.0}
    assert [(d.source, d.key.split("/")[0]) for d in source.documents()] == [("code", "code"), ("prose", "prose")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"cod": 1.0}}, r"data\.weights\.cod=1\.0: no source .* did you mean 'code'"),
        ({"weights": {"code": 0.0}}, "greater than 0"),
        ({"weights": {"code": float("nan")}}, "greater than 0"),
        ({"sources": {"inner": MixtureDataConfig()}}, "a mixture holds plain sources"),
        ({"sources": {"inner": FilesDataConfig(heldout=0.2)}}, r"data\.sources\.inner\.heldout=0\.2: .* data\.heldout"),
    ],
)
def test_settings_of_a_mixture_that_could_not_act_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixtureDataConfig(**{"sources": {"code": FilesDataConfig()}, **settings})


def test_suffixes_without_a_dot_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.suffixes='py'"):
        FilesDataConfig(suffixes=["py"])


class FakeRows:
    """What `datasets.load_dataset` returns, as far as HubSource uses it."""

    _fingerprint = "abc"
    column_names = ("text", "n")

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in names} for row in self.rows]


def test_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, split: str) -> FakeRows:
        if split != "train":
            raise ValueError(f"Unknown split {split!r}")
        return FakeRows([{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "two", "n": 3}])

    fake = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    source = HubSource(HubDataConfig(dataset="own/texts", licence="MIT"))
    assert [(d.key, d.text, d.licence) for d in source.documents()] == [
        ("own/texts:0", "one", "MIT"),
        ("own/texts:2", "two", "MIT"),
    ]
    assert source.fingerprint() != HubSource(HubDataConfig(dataset="other", licence="MIT")).fingerprint()
    with pytest.raises(DataError, match=r"data\.split='tests': Unknown split"):
        HubSource(HubDataConfig(dataset="own/texts", split="tests"))
    with pytest.raises(DataError, match=r"data\.text_field='body': own/texts has the columns text, n"):
        HubSource(HubDataConfig(dataset="own/texts", text_field="body"))


def test_a_hub_data_set_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"arcforge-core\[datasets\]"):
        HubSource(HubDataConfig(dataset="own/texts"))


def test_rows_of_a_damaged_file_in_a_folder_are_an_error(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps({"other": 1}))
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        list(files(folder).documents())

"""Runs the data suite over core's sources; a corpus of another plugin is for that plugin's own tests."""

import json
import sys
import types

import pytest

from arcforge_core import registry
from arcforge_core.configs import (
    ConversationsDataConfig,
    FilesDataConfig,
    HubDataConfig,
    MixtureDataConfig,
    RetrievalDataConfig,
    StdlibDataConfig,
)
from arcforge_core.data.sources import retrieval
from arcforge_core.data.sources.text import FilesSource
from arcforge_core.testing import DataSuite
from support.corpora import write_texts


def files(folder, **options):
    return FilesDataConfig(paths=[str(folder)], **options)


def mixture(*folders):
    return MixtureDataConfig(sources={f"part{n}": files(folder) for n, folder in enumerate(folders)})


def conversations(folder, **options):
    """Each of the folder's texts is what the assistant says."""
    texts = sorted(folder.glob("*.py"))
    chats = [[{"role": "user", "content": t.name}, {"role": "assistant", "content": t.read_text()}] for t in texts]
    path = folder.with_suffix(".json")
    if not path.exists():
        path.write_text(json.dumps([{"messages": chat} for chat in chats]))
    return ConversationsDataConfig(chat=[str(path)], **options)


CONFIGS = {
    "conversations": lambda a, b: (conversations(a), conversations(b)),
    "conversations, filtered": lambda a, b: (conversations(a), conversations(a, filters=["format"])),
    "files": lambda a, b: (files(a), files(b)),
    "files, cut": lambda a, b: (files(a, document_bytes=100), files(a, document_bytes=200)),
    "files, licence": lambda a, b: (files(a, licence="MIT"), files(a)),
    "hub": lambda a, b: (HubDataConfig(dataset="one"), HubDataConfig(dataset="two")),
    "mixture": lambda a, b: (mixture(a, b), mixture(b, a)),
    "retrieval": lambda a, b: (RetrievalDataConfig(episodes=50), RetrievalDataConfig(episodes=50, seed=1)),
    "stdlib": lambda a, b: (StdlibDataConfig(), StdlibDataConfig(functions=0.0)),
}


class Rows(list):
    """What `datasets.load_dataset` returns, as far as the source uses it."""

    column_names = ("text",)
    _fingerprint = "abc"

    def select_columns(self, names):
        return self


@pytest.fixture(params=CONFIGS)
def configs(request, tmp_path, monkeypatch):
    hub = types.SimpleNamespace(load_dataset=lambda name, split: Rows({"text": f"{name} {n}"} for n in range(9)))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    filler = files(write_texts(tmp_path / "filler", seed=3))  # the standard library takes a second to read
    monkeypatch.setattr(retrieval, "StdlibSource", lambda config: FilesSource(filler))
    return CONFIGS[request.param](write_texts(tmp_path / "a", seed=1), write_texts(tmp_path / "b", seed=2))


def maker(config):
    return lambda: registry().get("data", config.name).load()(config)


class TestData(DataSuite):
    @pytest.fixture
    def make_source(self, configs):
        return maker(configs[0])

    @pytest.fixture
    def make_other(self, configs):
        return maker(configs[1])


def test_every_source_of_core_is_run():
    ours = {c.name for c in registry() if c.kind == "data" and c.distribution.startswith("arcforge-core")}
    assert ours == {name.partition(",")[0] for name in CONFIGS}

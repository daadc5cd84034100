"""vLLM's tests of its HTTP server, run against `arcforge-serve`: a pytest plugin that replaces vLLM itself.

Their servers become servers of the demo's model, one for each name. Tests that have none use vLLM's classes, and are
not collected; those in ``excluded.txt`` ask for something that is vLLM's own, each with a reason.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import anthropic
import openai
import pytest
from transformers import PreTrainedTokenizerFast

import arcforge_core
from arcforge_hw.configs import CpuConfig
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.serve import load_state
from support.servers import listening

EXCLUDED = Path(__file__).parent / "excluded.txt"
DEMO = Path(arcforge_core.__file__).parent / "demo_model"
SERVERS = {"server", "client", "server_fixture"}
"""Fixtures of tests that ask a server."""
SECONDS = 120
TEMPLATE = "chat_template.jinja"


class RemoteOpenAIServer:
    """vLLM's class of this name: the address of a server, and clients of it. Those of one name share a server."""

    DUMMY_API_KEY = "none"
    _addresses: ClassVar[dict[str, str]] = {}
    _open = ExitStack()

    def __init__(self, model: str, args: list[str], **_: object) -> None:
        name = args[args.index("--served-model-name") + 1] if "--served-model-name" in args else model
        if name not in self._addresses:
            folder = DEMO if "Qwen3" in model else without_reasoning()
            config = ServeConfig(PagedEngineConfig(), CpuConfig(), checkpoint=str(folder), served_name=name)
            _, self._addresses[name] = self._open.enter_context(listening(load_state(config)))
        self.url_root = self._addresses[name]

    @classmethod
    def stop_all(cls) -> None:
        """Ends the servers."""
        cls._open.close()

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        """The server is kept for the next module."""

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(**self._options("/v1", options))

    def get_async_client(self, **options: object) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._options("/v1", options))

    def get_async_client_anthropic(self, **options: object) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._options("", options))

    def _options(self, path: str, options: dict[str, object]) -> dict[str, object]:
        fixed = {"base_url": self.url_root + path, "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": SECONDS, **options, **fixed}


@cache
def without_reasoning() -> Path:
    """Returns a copy of the demo's model whose turns do not begin with reasoning, as those of most vLLM tests."""
    folder = Path(tempfile.mkdtemp(prefix="arcforge-entrypoints-"))
    shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    (folder / TEMPLATE).write_text("{%- set enable_thinking = false -%}" + (DEMO / TEMPLATE).read_text())
    return folder


def get_tokenizer(tokenizer_name: str, **_: object) -> PreTrainedTokenizerFast:
    """vLLM's function of this name: the tokenizer of the only model that there is."""
    return PreTrainedTokenizerFast.from_pretrained(DEMO)


def download_weights_from_hf(name: str, **_: object) -> str:
    """vLLM's function of this name: nothing is to be downloaded."""
    return name


class ModelConfig:
    """vLLM's class of this name, for the number of token ids."""

    def __init__(self, **_: object) -> None:
        self._vocabulary = json.loads((DEMO / "config.json").read_text())["model"]["vocab_size"]

    def get_vocab_size(self) -> int:
        return self._vocabulary


KNOWN = {
    **{each.__name__: each for each in (get_tokenizer, download_weights_from_hf, ModelConfig)},
    "__version__": arcforge_core.__version__,
    "envs": SimpleNamespace(VLLM_USE_RUST_FRONTEND=False),
    "VLLM_USE_RUST_FRONTEND": False,  # where a test has imported the module before
}


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of vLLM: one whose names mean nothing, except those of `KNOWN`."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "vllm" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class Stub(ModuleType):
    """A module that has whatever is imported from it."""

    def __getattr__(self, name: str) -> object:
        if name not in KNOWN and name.startswith("__"):
            raise AttributeError(name)
        return KNOWN[name] if name in KNOWN else MagicMock(name=name)


sys.meta_path.insert(0, Stubs())
utils = Stub("tests.utils")
utils.RemoteOpenAIServer = RemoteOpenAIServer
utils.ROCM_EXTRA_ARGS = []
sys.modules["tests.utils"] = utils


def excluded() -> dict[str, str]:
    """Returns the reasons of tests that do not apply, by their names: a test, one of its cases, or a model's name."""
    lines = [line for line in EXCLUDED.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("  ", 1) for line in lines)


def names_of(item: pytest.Item) -> set[str]:
    """Returns the names under which a test may be excluded."""
    name = item.nodeid.removeprefix("tests/entrypoints/")
    test, _, case = name.partition("[")
    return {name, test, f"[{case}"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests that ask a server, without those that do not apply; every exclusion must exclude something."""
    asking = [item for item in items if SERVERS & set(getattr(item, "fixturenames", ()))]
    reasons = excluded()
    left = [item for item in asking if not names_of(item) & reasons.keys()]
    found, files = set().union(*map(names_of, asking)), {item.nodeid.partition("::")[0] for item in items}
    stale = [name for name in reasons if name not in found and f"tests/entrypoints/{name.partition('::')[0]}" in files]
    if stale:
        raise pytest.UsageError(f"excluded.txt names no test: {', '.join(stale)}")
    config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
    items[:] = left


def pytest_unconfigure() -> None:
    """Ends the servers."""
    RemoteOpenAIServer.stop_all()

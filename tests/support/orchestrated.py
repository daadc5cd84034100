"""Orchestrators in processes of their own, for tests: their sources, and the server that they ask."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.serving_engine import EngineStats
from arcforge_core.episodes.agent import TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment, ExactEnvironment
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.collection import AsynchronousConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.orchestrator.process.child import Given, build_source
from arcforge_rl.orchestrator.source import AsynchronousSource
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.sampler import Sampler, build_environment
from support.policies import PAIR, reward_even

ADMIN = "admin-of-the-run"


@contextmanager
def serving(policy: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the address of a server of a policy, in a thread of this process, and a function that ends it and
    starts another one with the first weights; its admin key is in the variables.

    It shares no prefixes: rows of `attention=reference` depend on the chunk that computes them (docs/numerics.md).
    """
    from arcforge_core.configs import TorchCpuConfig
    from arcforge_core.ops.hardware import build_hardware
    from arcforge_serving.configs import PagedEngineConfig
    from arcforge_serving.engine.paged import PagedEngine
    from arcforge_serving.server.gate.auth import Keys, digest_of
    from arcforge_serving.server.gate.guard import Guard
    from arcforge_serving.server.serve import state_of
    from support.servers import listening

    present = ExitStack()

    def start(port: int) -> str:
        model, tokenizer = load_with_tokenizer(policy, build_hardware(TorchCpuConfig()), True, "float32")
        engine = PagedEngine(PagedEngineConfig(cache_tokens=4096, prefix_cache=False), model)
        state = state_of(engine, tokenizer, "policy")
        state.guard = Guard(Keys(admins=(digest_of(ADMIN),)))
        present.callback(engine.close)
        return present.enter_context(listening(state, shutdown_seconds=0.0, port=port))[1]

    address = start(0)

    def restart() -> None:
        present.close()
        start(int(address.rpartition(":")[2]))

    os.environ["ARCFORGE_ENGINE_KEY"] = ADMIN
    try:
        yield address, restart
    finally:
        del os.environ["ARCFORGE_ENGINE_KEY"]
        present.close()


def build_learnable(given: Given) -> AsynchronousSource:
    """The product's source; chance earns rewards in ``environment=copy``."""
    ExactEnvironment.exact = reward_even  # type: ignore[method-assign,assignment]  # this process ends with the source
    return build_source(given)


def build_pair(given: Given) -> AsynchronousSource:
    """The product's source; ``environment=copy`` is one of two agents."""
    for name, value in PAIR.items():
        setattr(CopyEnvironment, name, value)  # this process ends with the source
    return build_source(given)


class Silent:
    """An engine whose requests never end."""

    weight_version = 0

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to close."""

    def stats(self) -> EngineStats:
        return EngineStats(0, 0)

    def submit(self, prompt: Sequence[int], params: SamplingParams, **given: Any) -> list[Any]:
        class Stream:
            async def output(self) -> GenerationOutput:
                await asyncio.Event().wait()
                raise AssertionError("nothing ends it")

            def cancel(self) -> None:
                """Nothing runs."""

        return [Stream()]


def silent_sampler(config: RlConfig) -> Sampler:
    """Returns a sampler whose rollouts never end."""
    tasks, curriculum = build_environment(config.environment), Curriculum(config.curriculum, config.seed)
    return Sampler(config, Silent(), TextDialogue(small_tokenizer()), 500, tasks, tasks, curriculum)  # type: ignore[arg-type]


def build_silent(given: Given) -> AsynchronousSource:
    """A source whose rollouts never end."""
    assert isinstance(given.config.collection, AsynchronousConfig)
    return AsynchronousSource(given.config.collection, silent_sampler(given.config))


def build_hanging(given: Given) -> AsynchronousSource:
    """A source whose loop hangs from its beginning on, in the first life."""
    source, marked = build_silent(given), Path(given.config.output_dir) / "hung"

    def begin(*arguments: Any, **named: Any) -> None:
        AsynchronousSource.begin(source, *arguments, **named)
        if not marked.exists():
            marked.touch()
            source.on_loop(threading.Event().wait)  # type: ignore[arg-type]

    source.begin = begin  # type: ignore[method-assign,assignment]
    return source

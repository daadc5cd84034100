"""The engine of ``engine=paged``: continuous batching over a paged cache with shared prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from arcforge_core.config.schema import check_choice
from arcforge_core.contracts.engine import GenerationOutput, Matcher, SamplingParams
from arcforge_core.contracts.serving_engine import EngineLimits, EngineStats
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import params_per_prompt
from arcforge_core.generation.weights import install_weights, next_version, stage_weights
from arcforge_core.model.adapt.prepared import prepare_weights
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.adapt.state import ordinary_shapes
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.driver import Driver
from arcforge_serving.engine.errors import IntegrityError, QueueFullError
from arcforge_serving.engine.exchange import PageExchange
from arcforge_serving.engine.grammar import Grammars
from arcforge_serving.engine.loop import StepLoop
from arcforge_serving.engine.sequence import SequenceState
from arcforge_serving.engine.stream import Stream
from arcforge_serving.engine.weights import state_in


class PromptSource(Protocol):
    """Has prompts computed elsewhere before they are queued; see `arcforge_serving.disaggregation.roles.DecodeRole`."""

    def begin(self, tokens: Sequence[int], then: Callable[[], None], wait: bool, salt: str = "") -> None:
        """Fetches the pages of a prompt, then calls `then`; with `wait`, before it returns."""

    def close(self) -> None:
        """Fetches nothing more."""


class PagedEngine:
    """Generates; implements `arcforge_core.contracts.serving_engine.ServingEngine`.

    Without `start`, the calling thread drives the engine: `generate`, or `step` again and again. After it, a thread of
    its own does, and all methods may be called from any thread.

    Args:
        config: see `PagedEngineConfig`.
        model: nothing else may change or train it meanwhile; it is quantised with ``config.weights``, and its weights
            take the layouts of the chip's kernels, in place.

    Attributes:
        exchange: pages from and for other processes.
        prefill: fetches the pages of prompts before they are queued; None computes every prompt here.
        trace: times of the last steps.
    """

    takes_adapters = True

    def __init__(self, config: PagedEngineConfig, model: CausalLM) -> None:
        quantise_model(model, config.weights)
        prepare_weights(model)
        self.config, self.model = config, model
        self.driver = Driver(config, model)
        self.scheduler, self.store, self.trace = self.driver.scheduler, self.driver.store, self.driver.trace
        self.loop = StepLoop(self.driver, self._fail_all)
        self.exchange = PageExchange(self.loop, self.driver)
        self.prefill: PromptSource | None = None
        self._arriving: Counter[str] = Counter()  # sequences by owner that were submitted and are not queued yet
        self._prefilling: dict[int, SequenceState] = {}  # those of them whose prompts are computed elsewhere
        self._checksums: dict[int, tuple[object, int]] = {}

    @property
    def limits(self) -> EngineLimits:
        """The largest request that is accepted."""
        config = self.model.config
        itemsize = max(4, self.model.dtype.itemsize)
        return EngineLimits(
            vocabulary=config.vocab_size,
            tokens=min(config.max_position_embeddings, self._cache_tokens),
            waiting=self.config.max_waiting,
            weight_bytes=sum(itemsize * shape.numel() for shape in ordinary_shapes(self.model).values()),
        )

    @property
    def weight_version(self) -> int:
        """Version of the weights: the number of updates, where they named none."""
        return self.driver.weight_version

    @property
    def records_experts(self) -> bool:
        """Whether requests may ask for the experts of tokens."""
        return self.config.record_experts

    @property
    def paused(self) -> bool:
        """Whether requests wait for `resume`."""
        return self.loop.paused

    @property
    def alive(self) -> bool:
        """Whether requests are accepted."""
        return not self.loop.closed

    @property
    def started(self) -> bool:
        """Whether a thread drives the engine."""
        return self.loop.threaded

    @property
    def _cache_tokens(self) -> int:
        return self.scheduler.pages.count * self.config.page_size

    # ---- driving -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts a thread that drives the engine."""
        self.loop.start()

    def step(self) -> bool:
        """Drives one step in the calling thread; returns whether there was one to launch or to handle."""
        return self.loop.step()

    def close(self) -> None:
        """Accepts no more requests, ends the present ones with the reason ``abort``, and frees the second tier."""
        self.loop.close(self._abort_all)
        if self.prefill is not None:
            self.prefill.close()
        self.driver.close()

    def _fail_all(self, error: Exception) -> None:
        for sequence in [*self.scheduler.running, *self.scheduler.queued(), *self._prefilling.values()]:
            sequence.finished = True
            sequence.stream.fail(error)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract. ``max_waiting`` does not limit these requests."""
        if not self.loop.threaded and self.paused:
            raise ConfigError("paused", True, "resume the engine before generating")
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        requests = [self._sequences(prompt, param) for prompt, param in zip(prompts, per_prompt, strict=True)]
        streams = [stream for request in requests for stream in self._submit(request, bounded=False)]
        try:
            while not self.loop.threaded and any(not stream.done for stream in streams):
                self.step()
            return [stream.result() for stream in streams]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        owner: str = "",
        salt: str = "",
        session: str = "",
    ) -> list[Stream]:
        """Queues a request.

        Args:
            prompt: token ids.
            params: how to sample.
            priority: higher ones run first, and may preempt lower ones.
            owner: who the request is for; owners take turns.
            salt: the request shares cached prefixes with requests of the same salt only.
            session: name of the conversation that it continues; ``engine.prefix_at_update=keep`` reads it.

        Returns:
            A stream for each of the ``params.n`` sequences.

        Raises:
            ConfigError: the request cannot be served.
            QueueFullError: too many sequences wait.
            ClosedError: `close` was called.
        """
        params_per_prompt(self.model.config, [prompt], params)
        if params.n > self.config.max_waiting:
            raise ConfigError("n", params.n, f"must be at most engine.max_waiting={self.config.max_waiting}")
        return self._submit(self._sequences(prompt, params, priority, owner, salt, session), bounded=True)

    def _sequences(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        owner: str = "",
        salt: str = "",
        session: str = "",
    ) -> list[SequenceState]:
        """Returns the ``params.n`` sequences of a request that fits into the cache."""
        if len(prompt) + params.max_new_tokens > self._cache_tokens:
            accepted = f"prompt ({len(prompt)} tokens) and output must fit into a cache of {self._cache_tokens} tokens"
            raise ConfigError("max_new_tokens", params.max_new_tokens, accepted)
        first = params.experts_from
        if first is not None and not (self.config.record_experts and first < len(prompt)):
            accepted = "needs engine.record_experts=true"
            if self.config.record_experts:
                accepted = f"must be less than {len(prompt)}, the length of the prompt"
            raise ConfigError("experts_from", first, accepted)
        vocabulary = self.model.config.vocab_size
        sequences = [SequenceState(prompt, params, index, vocabulary, priority) for index in range(params.n)]
        for sequence in sequences:
            sequence.owner, sequence.salt, sequence.session = owner, salt, session
        return sequences

    def _submit(self, sequences: list[SequenceState], *, bounded: bool) -> list[Stream]:
        for sequence in sequences:
            sequence.refusable = bounded
            sequence.stream.on_cancel(partial(self.loop.post_abort, partial(self.driver.abort, sequence)))
        enqueue = partial(self._enqueue, sequences)
        prefill = None if sequences[0].params.prompt_logprobs else self.prefill
        with self.loop.lock:
            self.loop.check_open()
            if bounded:
                self._check_room(sequences[0].owner, len(sequences))
            self._arriving[sequences[0].owner] += len(sequences)
            if prefill is None:
                self.loop.post_locked(enqueue)
            else:
                self._prefilling |= {id(sequence): sequence for sequence in sequences}
        if prefill is not None:
            then, wait = partial(self.loop.post, enqueue), not self.loop.threaded
            prefill.begin(sequences[0].tokens, then, wait, sequences[0].salt)
        self.loop.wake()
        return [sequence.stream for sequence in sequences]

    def _check_room(self, owner: str, count: int) -> None:
        """Refuses sequences that find the queue full, unless their owner has less than its share of it.

        Raises:
            QueueFullError: says which bound is reached.
        """
        config, queued = self.config, Counter(dict(self.scheduler.queue.counts)) + self._arriving
        own = config.max_waiting_per_owner
        if own is not None and queued[owner] + count > own:
            raise QueueFullError(f"{queued[owner]} sequences of an owner wait; engine.max_waiting_per_owner={own}")
        share = config.max_waiting // len(queued.keys() | {owner})
        if queued.total() + count > config.max_waiting and queued[owner] + count > share:
            raise QueueFullError(f"{queued.total()} sequences wait; engine.max_waiting={config.max_waiting}")

    def _enqueue(self, sequences: list[SequenceState]) -> None:
        with self.loop.lock:
            self._arriving -= Counter({sequences[0].owner: len(sequences)})
            for sequence in sequences:
                self._prefilling.pop(id(sequence), None)
        for sequence in sequences:
            if not sequence.finished:  # cancelled before it was queued
                sequence.rank = self.scheduler.rank(sequence.owner, sequence.priority, sequence.most)
                self.scheduler.enqueue(sequence)
        for sequence in self.scheduler.surplus():
            self.driver.refuse(sequence)

    def abort(self) -> None:
        """Ends all requests, running and waiting, with the reason ``abort``, and with them a pause that waits."""
        self.loop.post_abort(self._abort_all)
        self.loop.between_steps(self._abort_all)  # those submitted before this call, too

    def _abort_all(self) -> None:
        with self.loop.lock:
            prefilling = list(self._prefilling.values())
        for sequence in prefilling:
            self.driver.abort(sequence)
        self.driver.abort_all()

    def preempt(self, count: int) -> None:
        """Takes the pages of the last `count` running sequences; they are recomputed, and outputs stay the same."""
        self.loop.between_steps(partial(self._preempt, count))

    def _preempt(self, count: int) -> None:
        for sequence in sorted(self.scheduler.running, key=lambda each: each.rank)[-count:]:
            self.scheduler.preempt(sequence)

    # ---- pauses and weights ------------------------------------------------------------------------------------------

    def pause(self, mode: str = "keep") -> None:
        """Launches no step until `resume`; requests that are submitted meanwhile wait.

        Args:
            mode: what happens to present requests: ``abort`` ends them, ``wait`` finishes them first, ``keep`` leaves
                them where they are.
        """
        check_choice("mode", mode, ("abort", "wait", "keep"))
        self.loop.between_steps(partial(self._pause, mode))

    def _pause(self, mode: str) -> None:
        if mode == "abort":
            self._abort_all()
        while mode == "wait" and not self.paused and self.alive and self.driver.advance():
            self.loop.run_aborts()
        self.loop.paused = True

    def resume(self) -> None:
        """Continues after `pause`."""
        self.loop.between_steps(self._resume)

    def _resume(self) -> None:
        self.loop.paused = False

    def json_matcher(self, tokenizer: Tokenizer, schema: Mapping[str, Any]) -> Callable[[], Matcher]:
        """Returns a `SamplingParams.matcher` for replies that are JSON of a schema.

        Args:
            tokenizer: of the model.
            schema: JSON schema.

        Raises:
            ConfigError: see `Grammars.json_schema`.
        """
        return Grammars(tokenizer, self.limits.vocabulary).json_schema(schema)

    def flush(self) -> None:
        """Forgets all prefixes; running requests keep their own."""
        self.loop.between_steps(self.scheduler.tree.turn)

    def update_weights(
        self,
        state: Mapping[str, Tensor],
        *,
        version: int | None = None,
        checksum: str | None = None,
        reset: bool = False,
    ) -> None:
        """Replaces the weights between two steps; see the contract.

        Running requests continue with the new weights, on the cache entries that the old ones computed. Requests that
        have no token yet compute their prompts again, and later ones find no prefix of the old weights: a first token
        never depends on two versions. Sessions that began before are excepted with ``engine.prefix_at_update=keep``.
        """
        new = next_version(self.weight_version, version, reset)
        staged = stage_weights(self.model, state, f"weight update {new}", checksum)  # while generation continues
        self.loop.between_steps(partial(self._reset, staged, new) if reset else partial(self._install, staged, version))

    def _reset(self, staged: Mapping[str, Tensor], version: int) -> None:
        self.driver.weight_version = version - 1
        self._install(staged, version)

    def _install(self, staged: Mapping[str, Tensor], version: int | None) -> None:
        new = next_version(self.weight_version, version)
        install_weights(self.model, staged)
        self.driver.weight_version = new
        for sequence in [each for each in self.scheduler.running if len(each.tokens) == each.prompt_length]:
            self.scheduler.preempt(sequence)
        self.scheduler.updated()

    def update_weights_from(
        self, folder: str | Path, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        """`update_weights` from the folder of a checkpoint or run.

        Raises:
            CheckpointError: also when the folder holds another model, or none.
        """
        state = state_in(folder, self.model)
        self.update_weights(state, version=version, checksum=checksum, reset=reset)

    # ---- inspection --------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Returns what the engine holds and has done, at one moment, without stopping it."""
        scheduler = self.scheduler
        private = sum(len(s.pages) - len(s.nodes) for s in list(scheduler.running))
        pages, speculation = scheduler.pages, self.driver.speculation
        drafts, accepted = speculation.checked.total(), list(speculation.accepted)
        return EngineStats(
            running=len(scheduler.running), waiting=scheduler.waiting + self._arriving.total(),
            pages=pages.count, free_pages=pages.free, cached_pages=pages.count - pages.free - private,
            page_size=self.config.page_size, prefix_reuse=self.driver.prefix_reuse,
            evicted_pages=scheduler.tree.evicted,
            generated_tokens=self.driver.generated, steps=self.driver.steps,
            busy_seconds=self.loop.busy_seconds,
            speculation=self.driver.drafting, drafts=drafts,
            draft_tokens=sum(k * times for k, times in list(speculation.checked.items())),
            accepted_by_position=accepted, accepted_length=1 + sum(accepted) / drafts if drafts else 1.0,
            weight_version=self.weight_version,
            paused=self.paused, **asdict(scheduler.counters),
        )  # fmt: skip

    def check(self, checksums: bool = False) -> None:
        """Checks that every page is free, in the prefix tree or a sequence's, exactly once.

        Args:
            checksums: also that shared pages are unchanged since the last call with ``checksums=True``.

        Raises:
            IntegrityError: names the pages.
        """
        self.loop.between_steps(partial(self._check, checksums))

    def _check(self, checksums: bool) -> None:
        faults = self.scheduler.faults()
        if checksums:
            self.driver.worker.catch_up()
            before = self._checksums
            self._checksums = {
                node.page: (node, self.store.checksum(node.page))
                for node in self.scheduler.tree.nodes()
                if node.page is not None
            }
            for page, (node, crc) in self._checksums.items():
                if page in before and before[page][0] is node and before[page][1] != crc:
                    faults.append(f"page {page} is shared and has changed")
        if faults:
            raise IntegrityError("; ".join(faults[:8]))

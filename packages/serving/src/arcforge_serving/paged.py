"""The engine of ``engine=paged``: continuous batching over a paged cache with shared prefixes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.config.schema import check_choice
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.engine import params_per_prompt
from arcforge_core.model.quantised import quantise_model
from arcforge_core.model.weights import install_weights, next_version, stage_weights
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.driver import Driver
from arcforge_serving.errors import ClosedError, IntegrityError, QueueFullError
from arcforge_serving.kvcache.radix import Node
from arcforge_serving.sequence import Sequence
from arcforge_serving.stream import Stream

if TYPE_CHECKING:
    from arcforge_serving.disaggregation.roles import DecodeRole


@dataclass(frozen=True)
class Stats:
    """What an engine holds and has done.

    Attributes:
        running, waiting: sequences.
        pages, free_pages, cached_pages: all, those that hold nothing, and those of the prefix tree.
        page_size: tokens of a page.
        prefix_reuse: ``on``, or why prefixes are not shared.
        prompt_tokens, cached_tokens: of all admitted prompts, and how many of them were not computed again.
        evicted_pages, restored_pages: pages dropped for others, and those that came back from the second tier.
        preemptions: sequences that lost their pages and were computed again.
        generated_tokens: tokens given to readers.
        steps: steps computed.
        speculation: ``on``, or why no tokens are drafted.
        drafts, draft_tokens: how often drafts were checked, of one sequence each time, and how many they were.
        accepted_by_position: how many of the first, second, ... drafts were accepted.
        accepted_length: tokens that a sequence got on average where drafts were checked: accepted ones and the one
            that the main model gives anyway; 1 before the first.
        weight_version: of the weights.
        paused: whether the engine stands still.
    """

    running: int
    waiting: int
    pages: int
    free_pages: int
    cached_pages: int
    page_size: int
    prefix_reuse: str
    prompt_tokens: int
    cached_tokens: int
    evicted_pages: int
    restored_pages: int
    preemptions: int
    generated_tokens: int
    steps: int
    speculation: str
    drafts: int
    draft_tokens: int
    accepted_by_position: list[int]
    accepted_length: float
    weight_version: int
    paused: bool


class PagedEngine:
    """Generates; implements `arcforge_core.contracts.engine.Engine`.

    Without `start`, the calling thread drives the engine: `generate`, or `step` again and again. After it, a thread of
    its own does, and all methods may be called from any thread.

    Args:
        config: see `PagedEngineConfig`.
        model: while the engine works nothing else may change or train it; with ``config.weights`` it is quantised in
            place.
    """

    def __init__(self, config: PagedEngineConfig, model: CausalLM) -> None:
        quantise_model(model, config.weights)
        self.config, self.model = config, model
        self.driver = Driver(config, model)
        self.scheduler, self.store, self.trace = self.driver.scheduler, self.driver.store, self.driver.trace
        self.paused = False
        self.prefill: DecodeRole | None = None
        self._checksums: dict[int, tuple[object, int]] = {}
        self._driving = threading.RLock()  # whoever drives
        self._inbox: deque[Callable[[], None]] = deque()
        self._ends: deque[Callable[[], None]] = deque()  # what ends requests does not wait behind the inbox
        self._arriving = 0
        self._coming: dict[int, Sequence] = {}  # whose prompts are computed elsewhere
        self._arrivals = threading.Lock()  # guards the four above, and that nothing arrives behind the end
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def weight_version(self) -> int:
        """Version of the weights."""
        return self.driver.weight_version

    # ---- requests ----------------------------------------------------------------------------------------------------

    def generate(self, prompts: Seq[Seq[int]], params: SamplingParams | Seq[SamplingParams]) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract. The bound of the queue does not count here."""
        if self._thread is None and self.paused:
            raise ConfigError("paused", True, "resume the engine before generating")
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        requests = [self._request(prompt, param) for prompt, param in zip(prompts, per_prompt, strict=True)]
        streams = [stream for request in requests for stream in self._submit(request, "", bounded=False)]
        try:
            while self._thread is None and any(not stream.done for stream in streams):
                self.step()
            return [stream.result() for stream in streams]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def submit(self, prompt: Seq[int], params: SamplingParams, *, priority: int = 0, owner: str = "") -> list[Stream]:
        """Queues a request.

        Args:
            prompt: token ids.
            params: how to sample.
            priority: higher ones go first, and may take the pages of lower ones.
            owner: on whose behalf; owners take turns.

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
        return self._submit(self._request(prompt, params, priority), owner, bounded=True)

    def _request(self, prompt: Seq[int], params: SamplingParams, priority: int = 0) -> list[Sequence]:
        """Returns the sequences of a request that fits into the cache."""
        room = self.scheduler.pages.count * self.config.page_size
        if len(prompt) + params.max_new_tokens > room:
            accepted = f"prompt and output may have {room} tokens, what the cache holds; the prompt has {len(prompt)}"
            raise ConfigError("max_new_tokens", params.max_new_tokens, accepted)
        vocabulary = self.model.config.vocab_size
        return [Sequence(prompt, params, index, vocabulary, priority) for index in range(params.n)]

    def _submit(self, sequences: list[Sequence], owner: str, *, bounded: bool) -> list[Stream]:
        for sequence in sequences:
            sequence.stream.on_cancel(partial(self._post_end, partial(self.driver.abort, sequence)))

        def arrive() -> None:
            with self._arrivals:
                self._arriving -= len(sequences)
                for sequence in sequences:
                    self._coming.pop(id(sequence), None)
            for sequence in sequences:
                if not sequence.finished:  # cancelled before it came
                    sequence.rank = self.scheduler.rank(owner, sequence.priority, sequence.most)
                    self.scheduler.enqueue(sequence)

        with self._arrivals:
            if self._closed:
                raise ClosedError("the engine was closed")
            waiting = self._arriving + self.scheduler.waiting
            if bounded and waiting + len(sequences) > self.config.max_waiting:
                raise QueueFullError(f"{waiting} sequences wait; engine.max_waiting={self.config.max_waiting}")
            self._arriving += len(sequences)
            prefill = None if sequences[0].params.prompt_logprobs else self.prefill
            if prefill is None:
                self._inbox.append(arrive)
            else:
                self._coming |= {id(sequence): sequence for sequence in sequences}
        if prefill is not None:
            prefill.begin(sequences[0].tokens, partial(self._post, arrive), wait=self._thread is None)
        self._news.set()
        return [sequence.stream for sequence in sequences]

    def _post(self, arrive: Callable[[], None]) -> None:
        with self._arrivals:
            self._inbox.append(arrive)
        self._news.set()

    def _abort_all(self) -> None:
        with self._arrivals:
            coming = list(self._coming.values())
        for sequence in coming:
            self.driver.abort(sequence)
        self.driver.abort_all()

    def abort(self) -> None:
        """Ends all requests, running and waiting, with the reason ``abort``; a pause that waits for them is over."""
        self._post_end(self._abort_all)
        self._control(self._abort_all)  # those that come before it, too

    def preempt(self, count: int) -> None:
        """Takes the pages of the last `count` running sequences; they are computed again, and outputs stay the same."""

        def take_pages() -> None:
            for sequence in sorted(self.scheduler.running, key=lambda each: each.rank)[-count:]:
                self.scheduler.preempt(sequence)

        self._control(take_pages)

    # ---- weights and standing still ----------------------------------------------------------------------------------

    def update_weights(
        self, state: Mapping[str, Tensor], *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """Replaces the weights between two steps; see the contract.

        Requests that are running go on with the new weights and the entries that the old ones computed. Nothing that
        the old weights computed is found by requests that start afterwards.
        """

        what = f"weight update {next_version(self.weight_version, version)}"
        staged = stage_weights(self.model, state, what, checksum)  # generation goes on meanwhile

        def update() -> None:
            new = next_version(self.weight_version, version)
            install_weights(self.model, staged)
            self.driver.weight_version = new
            self.scheduler.tree.turn()

        self._control(update)

    def update_weights_from(
        self, folder: str | Path, *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """`update_weights` from the folder of a checkpoint or run.

        Raises:
            CheckpointError: also when the folder holds another model, or none.
        """
        checkpoint = open_checkpoint(find_checkpoint(folder))
        if (checkpoint.config, checkpoint.attention) != (self.model.config, self.model.attention):
            raise CheckpointError(f"{folder} holds a model of other sizes or attention")
        # read once and for all: what is checked is what is copied, whatever becomes of the files
        state = {name: checkpoint.state[name].clone() for name in checkpoint.state.shapes}
        self.update_weights(state, version=version, checksum=checksum)

    def pause(self, mode: str = "keep") -> None:
        """Stands still until `resume`; requests that come meanwhile wait.

        Args:
            mode: what happens to requests that are there: ``abort`` ends them, ``wait`` finishes them first, ``keep``
                leaves them where they are.
        """
        check_choice("mode", mode, ("abort", "wait", "keep"))

        def stand_still() -> None:
            if mode == "abort":
                self._abort_all()
            while mode == "wait" and not self.paused and not self._closed and self.driver.advance():
                self._take(self._ends)
            self.paused = True

        self._control(stand_still)

    def resume(self) -> None:
        """Goes on after `pause`."""

        def go_on() -> None:
            self.paused = False

        self._control(go_on)

    def flush(self) -> None:
        """Forgets all prefixes; requests that are running keep their own."""
        self._control(self.scheduler.tree.turn)

    # ---- pages that come from elsewhere, or go there -----------------------------------------------------------------

    def known_pages(self, tokens: Seq[int]) -> int:
        """Returns how many pages of a prompt are in memory."""
        return len(self._in_memory(tokens))

    def export_pages(self, tokens: Seq[int], first: int) -> tuple[int, list[Tensor]]:
        """Returns the version of the weights, and the records of a prompt's pages from number `first` on, as far as
        they are there.

        A record is what `PageStore.read` returns; the prompt's last token belongs to none of them.
        """
        found: list[Tensor] = []
        version = 0

        def read() -> None:
            nonlocal version
            self.driver.worker.catch_up()
            version = self.weight_version
            for node in self._in_memory(tokens)[first:]:
                assert node.page is not None
                found.append(self.store.read(node.page))

        self._control(read)
        return version, found

    def import_pages(self, tokens: Seq[int], first: int, version: int, records: Seq[Tensor]) -> int:
        """Puts a prompt's pages, from number `first` on, where requests find them.

        Args:
            tokens: ids of the prompt.
            first: number of the first page; those before it must be there still.
            version: of the weights that have computed them; pages of others are left out.
            records: see `export_pages`.

        Returns:
            How many were put there: those that were not there, as far as there was room.
        """
        taken: list[int] = []

        def write() -> None:
            tree, pages = self.scheduler.tree, self.scheduler.pages
            nodes = self._in_memory(tokens)
            if version != self.weight_version or len(nodes) < first:
                return
            self.driver.worker.catch_up()
            root, known = tree.root, len(nodes)
            tree.use(nodes)
            for number in range(known, first + len(records)):
                tree.evict(1)
                if not pages.free:
                    break
                (page,) = pages.take(1, nodes[-1].page if nodes else None)
                self.store.write(page, records[number - first])
                nodes.append(tree.add(nodes[-1] if nodes else root, tree.key(tokens, number), page))
                taken.append(page)
            tree.release(nodes, root)

        self._control(write)
        return len(taken)

    def _in_memory(self, tokens: Seq[int]) -> list[Node]:
        nodes = self.scheduler.tree.match(tokens, (len(tokens) - 1) // self.config.page_size)
        return list(takewhile(lambda node: node.page is not None, nodes))

    # ---- looking -----------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Returns what the engine holds and has done; figures of one moment, taken without stopping it."""
        scheduler = self.scheduler
        private = sum(len(s.pages) - len(s.nodes) for s in list(scheduler.running))
        pages, speculation = scheduler.pages, self.driver.speculation
        drafts, accepted = speculation.checked.total(), list(speculation.accepted)
        return Stats(
            running=len(scheduler.running), waiting=scheduler.waiting + self._arriving,
            pages=pages.count, free_pages=pages.free, cached_pages=pages.count - pages.free - private,
            page_size=self.config.page_size, prefix_reuse=self.driver.prefix_reuse,
            evicted_pages=scheduler.tree.evicted,
            generated_tokens=self.driver.generated, steps=self.driver.steps,
            speculation=self.driver.drafting, drafts=drafts,
            draft_tokens=sum(k * times for k, times in list(speculation.checked.items())),
            accepted_by_position=accepted, accepted_length=1 + sum(accepted) / drafts if drafts else 1.0,
            weight_version=self.weight_version,
            paused=self.paused, **asdict(scheduler.counters),
        )  # fmt: skip

    def check(self, checksums: bool = False) -> None:
        """Checks that every page is free, in the tree or a sequence's, exactly once.

        Args:
            checksums: also that shared pages are what they were at the last call with this set.

        Raises:
            IntegrityError: that is not so.
        """

        def look() -> None:
            faults = self.scheduler.faults()
            if checksums:
                self.driver.worker.catch_up()
                seen = self._checksums
                self._checksums = {
                    node.page: (node, self.store.checksum(node.page))
                    for node in self.scheduler.tree.nodes()
                    if node.page is not None
                }
                for page, (node, crc) in self._checksums.items():
                    if page in seen and seen[page][0] is node and seen[page][1] != crc:
                        faults.append(f"page {page} is shared and has changed")
            if faults:
                raise IntegrityError("; ".join(faults[:8]))

        self._control(look)

    # ---- driving -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Has a thread of its own drive the engine."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="arcforge-engine", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Takes no more requests, ends those that are there with the reason ``abort``, and frees the second tier."""
        with self._arrivals:
            if not self._closed:
                self._closed = True
                self._inbox.append(self.driver.settle)
                self._inbox.append(self._abort_all)
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        else:
            with self._driving:
                self._take_arrivals()
        if self.prefill is not None:
            self.prefill.close()
        self.driver.close()

    def step(self) -> bool:
        """Takes what has arrived, launches a step and handles the results of the one before.

        Returns:
            Whether there was a step to launch or to handle.
        """
        with self._driving:
            self._take_arrivals()
            return not self.paused and self.driver.advance()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return not self._closed

    def _drive(self) -> None:
        try:
            while True:
                self._news.clear()
                if self.step():
                    continue
                with self._arrivals:
                    if self._closed and not self._inbox and not self._ends:
                        return
                self._news.wait()
        except Exception as error:  # a fault of ours: nobody may be left waiting for this thread
            with self._arrivals:
                self._closed = True
            self._take_arrivals()
            for sequence in [*self.scheduler.running, *self.scheduler.queued(), *self._coming.values()]:
                sequence.finished = True
                sequence.stream.fail(error)
            raise

    def _take_arrivals(self) -> None:
        self._take(self._ends)
        self._take(self._inbox)

    def _take(self, actions: deque[Callable[[], None]]) -> None:
        while actions:
            actions.popleft()()

    def _post_end(self, action: Callable[[], None]) -> None:
        """Has the driving thread end something before its next step, be it one that a pause waits for."""
        with self._arrivals:
            if not self._closed:
                self._ends.append(action)
        self._news.set()

    def _control(self, action: Callable[[], None]) -> None:
        """Does something between two steps, with none being computed, and waits for it."""
        if self._thread is None:
            with self._driving:
                self._take_arrivals()
                self.driver.settle()
                action()
            return
        done: Future[None] = Future()

        def act() -> None:
            try:
                self.driver.settle()
                action()
            except Exception as error:  # it is the caller's; the thread goes on
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._arrivals:
            if self._closed:
                raise ClosedError("the engine was closed")
            self._inbox.append(act)
        self._news.set()
        done.result()

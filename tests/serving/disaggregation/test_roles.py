"""Where a prompt is computed changes when tokens come, and nothing else."""

import threading
from math import prod

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GdnConfig, GqaConfig, MlaConfig
from arcforge_core.contracts.attention import CacheEntry
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import small_config
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.disaggregation.contract import PageRecords, PageRequest, TransferError
from arcforge_serving.disaggregation.roles import DecodeRole, PrefillRole
from arcforge_serving.engine.paged import PagedEngine

VARIANTS = {
    "mla": MlaConfig(), "dsa": DsaConfig(), "gqa": GqaConfig(),
    "dsa, int8": DsaConfig(index_cache="int8", latent_cache="int8"),
}  # fmt: skip
PROMPT = [n * 7 % 61 for n in range(42)]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0.9, seed=3)
SIZE = 4


def build(attention=VARIANTS["dsa"], seed=0):
    torch.manual_seed(seed)
    return build_model(small_config(), attention, Ops(select_hardware("torch_cpu"), deterministic=True)).eval()


def paged(model, **options):
    return PagedEngine(PagedEngineConfig(**{"page_size": SIZE, "cache_tokens": 400, **options}), model)


class Local:
    """Pages from an engine of this process, without a socket."""

    def __init__(self, role):
        self.fetch = role.pages

    def close(self):
        pass


class Pair:
    """A decode engine, and a prefill engine of the same weights that was started."""

    def __init__(self, attention=VARIANTS["dsa"], connector=None, **options):
        self.prefill, self.decode = paged(build(attention), **options), paged(build(attention), **options)
        self.prefill.start()
        self.role = PrefillRole(self.prefill)
        self.decode.prefill = DecodeRole(self.decode, connector or Local(self.role))

    @property
    def stats(self):
        return self.decode.prefill.stats

    def close(self):
        for engine in (self.decode, self.prefill):
            if engine.alive:
                engine.check(checksums=True)
                engine.close()


@pytest.fixture
def pair(request):
    made = Pair(**getattr(request, "param", {}))
    yield made
    made.close()


def same(found, wanted):
    """The same but for what was found in the cache."""
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert found.finish_reason == wanted.finish_reason


def bytes_of_a_token(model, mtp):
    """Counted from the layers' own descriptions."""
    specs = [*model.cache_spec(), *([model.mtp_cache_spec()] if mtp else [])]
    entries = [entry for spec in specs for entry in spec]
    assert all(isinstance(entry, CacheEntry) for entry in entries)
    return sum(prod(entry.shape) * (entry.dtype or model.dtype).itemsize for entry in entries)


@pytest.mark.parametrize("attention", VARIANTS)
@pytest.mark.parametrize("drafts", [0, 2])
def test_outputs_are_one_engines_and_the_bytes_those_of_the_cache(attention, drafts):
    options = {"draft_tokens": drafts, "drafting": "always"} if drafts else {}
    pair = Pair(VARIANTS[attention], **options)
    (wanted,) = paged(build(VARIANTS[attention]), **options).generate([PROMPT], PARAMS)
    (found,) = pair.decode.generate([PROMPT], PARAMS)
    same(found, wanted)
    tokens = (len(PROMPT) - 1) // SIZE * SIZE
    assert found.cached_tokens == tokens == pair.stats.tokens
    assert pair.stats.bytes == tokens * bytes_of_a_token(pair.decode.model, drafts)
    assert pair.stats.pages == tokens // SIZE
    assert (pair.stats.fetches, pair.stats.failures) == (1, 0)
    assert pair.decode.driver.scheduler.counters.prompt_tokens == len(PROMPT)
    pair.close()


def test_only_what_is_missing_is_moved(pair):
    pair.decode.generate([PROMPT[:21]], PARAMS)
    assert pair.stats.tokens == 20
    longer = [*PROMPT[:21], 1, 2, 3, 4, 5]
    (found,) = pair.decode.generate([longer], PARAMS)
    assert pair.stats.tokens == 24 and found.cached_tokens == 24
    pair.decode.generate([longer], PARAMS)
    pair.decode.generate([[1, 2, 3]], PARAMS)  # not even a page
    assert pair.stats.fetches == 2


def test_sequences_of_one_prompt_share_what_came(pair):
    params = SamplingParams(max_new_tokens=6, seed=1, n=3)
    wanted = paged(build()).generate([PROMPT], params)
    for found, each in zip(pair.decode.generate([PROMPT], params), wanted, strict=True):
        same(found, each)
    assert pair.stats.fetches == 1


def test_prompts_whose_log_probs_are_wanted_are_computed_here(pair):
    params = SamplingParams(max_new_tokens=4, prompt_logprobs=True)
    (found,) = pair.decode.generate([PROMPT], params)
    assert len(found.prompt_logprobs) == len(PROMPT) - 1 and pair.stats.fetches == 0


def test_many_requests_at_once_of_engines_with_threads(pair):
    prompts = [[(n * k + k) % 61 for n in range(10 + 3 * k)] for k in range(1, 13)]
    wanted = paged(build()).generate(prompts, PARAMS)
    pair.decode.start()
    streams = [stream for prompt in prompts for stream in pair.decode.submit(prompt, PARAMS)]
    for stream, each in zip(streams, wanted, strict=True):
        same(stream.result(30), each)
    assert pair.stats.fetches == len(prompts) and pair.stats.failures == 0


def test_what_there_is_no_room_for_is_computed_again():
    pair = Pair(cache_tokens=56)
    (found,) = pair.decode.generate([PROMPT], PARAMS)
    wanted = paged(build()).generate([PROMPT], PARAMS)[0]
    same(found, wanted)
    other = [n + 1 for n in PROMPT]
    (found,) = pair.decode.generate([other], PARAMS)
    same(found, paged(build()).generate([other], PARAMS)[0])
    pair.close()


# ---- what goes wrong -------------------------------------------------------------------------------------------------


class Failing:
    """A connector that fails N times, then forwards."""

    def __init__(self, times, role=None):
        self.left, self.role = times, role

    def fetch(self, asked):
        if self.left:
            self.left -= 1
            raise TransferError("it was told to")
        return self.role.pages(asked)

    def close(self):
        pass


@pytest.mark.parametrize(("times", "moved"), [(1, 40), (2, 0)])
def test_a_prompt_is_asked_for_again_and_then_computed_here(times, moved):
    connector = Failing(times)
    pair = Pair(connector=connector)
    connector.role = pair.role
    (found,) = pair.decode.generate([PROMPT], PARAMS)
    same(found, paged(build()).generate([PROMPT], PARAMS)[0])
    assert (found.cached_tokens, pair.stats.tokens, pair.stats.failures) == (moved, moved, times)
    pair.close()


def asked(pair, **changes):
    fields = {"first": 0, "version": 0, "page_bytes": pair.decode.store.page_bytes}
    return PageRequest(tuple(PROMPT), **{**fields, **changes})


def test_other_weights_and_other_pages_are_refused(pair):
    with pytest.raises(TransferError, match="version 0, 1 is requested"):
        pair.role.pages(asked(pair, version=1))
    with pytest.raises(TransferError, match="a page has"):
        pair.role.pages(asked(pair, page_bytes=1))
    pair.prefill.close()
    with pytest.raises(TransferError, match="closed"):
        pair.role.pages(asked(pair))


def test_what_old_weights_computed_is_not_used(pair):
    """The weights are replaced while a prompt is on its way."""
    state = build(seed=1).state_dict()
    pages = pair.role.pages(asked(pair))

    class Late:
        def fetch(self, asked):
            pair.decode.update_weights(state)
            return pages

        def close(self):
            pass

    pair.decode.prefill = DecodeRole(pair.decode, Late())
    (found,) = pair.decode.generate([PROMPT], PARAMS)
    same(found, paged(build(seed=1)).generate([PROMPT], PARAMS)[0])
    assert found.cached_tokens == 0 and pair.stats.pages == 0


def test_pages_behind_a_prefix_that_has_gone_are_left_out(pair):
    pages = pair.role.pages(asked(pair, first=3))
    assert len(pages.records) == 7
    assert pair.decode.exchange.insert(PROMPT, 3, 0, pages.records) == 0
    assert pair.decode.stats().cached_pages == 0


class Held:
    """A connector that waits to be let go."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def fetch(self, asked):
        self.asked.set()
        self.go.wait(20)
        return PageRecords(asked.first, asked.version, [])

    def close(self):
        self.go.set()


@pytest.mark.parametrize("how", ["cancel", "abort", "pause", "close"])
def test_requests_on_the_way_can_be_ended(how):
    held = Held()
    pair = Pair(connector=held)
    pair.decode.start()
    (stream,) = pair.decode.submit(PROMPT, PARAMS)
    assert held.asked.wait(10)
    assert pair.decode.stats().waiting == 1
    match how:
        case "cancel":
            stream.cancel()
        case "abort":
            pair.decode.abort()
        case "pause":
            pair.decode.pause("abort")
        case "close":
            pair.decode.close()
    assert stream.result(10).finish_reason == "abort"
    held.go.set()
    if how != "close":
        pair.decode.resume()
        same(pair.decode.generate([PROMPT], PARAMS)[0], paged(build()).generate([PROMPT], PARAMS)[0])
        assert pair.decode.stats().waiting == 0
    pair.close()


def test_engines_whose_pages_do_not_hold_everything_are_refused():
    with pytest.raises(ConfigError, match="state per sequence"):
        PrefillRole(paged(build(GdnConfig())))
    with pytest.raises(ConfigError, match="prefix_cache=false"):
        DecodeRole(paged(build(), prefix_cache=False), Held())

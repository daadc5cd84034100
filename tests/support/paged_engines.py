"""Paged engines of small models, and what their outputs must be."""

import torch

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0)


def paged(model=None, **options):
    """Returns an engine with pages of 4 tokens."""
    return PagedEngine(PagedEngineConfig(**{"page_size": 4, **options}), model or small_model())


def run(engine):
    """Steps until nothing is left."""
    while engine.step():
        pass


def simple(model, prompt, params=GREEDY):
    """Returns the output of the engine that has no cache of pages."""
    return SimpleEngine(SimpleEngineConfig(), model).generate([prompt], params)[0]


def assert_of_the_model(model: CausalLM, prompt, output):
    """The log-probs are those of one forward pass of the present weights."""
    logprobs_SV = continuation_logits(model, prompt, output.token_ids).log_softmax(-1)
    wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)

"""The suite of every engine over HTTP: our server, and imitations of vLLM's and SGLang's. What they cannot do is
refused by name."""

from dataclasses import replace

import pytest

from arcforge_core.errors import ConfigError
from arcforge_core.testing.engine_suite import GREEDY, PROMPTS, CountsDown
from arcforge_core.testing.serving_engine_suite import ServingEngineSuite
from support.marks import nightly_case


class RemoteSuite(ServingEngineSuite):
    def test_matcher_restricts_the_tokens(self, engine):
        with pytest.raises(ConfigError, match=r"matcher.*follows no grammar"):
            engine.generate(PROMPTS, replace(GREEDY, matcher=CountsDown))


@pytest.mark.parametrize("stream", [True, nightly_case(False)])
class TestArcforge(RemoteSuite):
    @pytest.fixture
    def engine(self, ours, stream):
        return ours(stream=stream)


class TestExternalServers(RemoteSuite):
    @pytest.mark.parametrize(
        "changes",
        [
            {"presence_penalty": 1.9},
            {"frequency_penalty": 1.5},
            {"repetition_penalty": 2.0},
            {"logit_bias": {7: 4.0, 8: 3.5, 9: -50.0}},
        ],
    )
    def test_penalties_and_biases(self, engine, model, changes):
        if engine.config.name == "sglang" and "repetition_penalty" in changes:
            with pytest.raises(ConfigError, match=r"repetition_penalty=2\.0: engine=sglang takes 1 to 1"):
                engine.generate(PROMPTS, replace(GREEDY, **changes))
            return
        super().test_penalties_and_biases(engine, model, changes)

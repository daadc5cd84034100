import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core import save_pretrained
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.engine_suite import EngineSuite
from arcforge_core.testing.small_models import small_model
from arcforge_serving import Engine, SamplingParams

GREEDY = SamplingParams(max_new_tokens=5, temperature=0.0)


class TestEngine(EngineSuite):
    @pytest.fixture
    def model(self) -> CausalLM:
        return small_model()

    @pytest.fixture
    def engine(self, model: CausalLM) -> Engine:
        return Engine(model)


def test_a_path_serves_as_the_model_itself(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path / "model")
    from_path, from_model = (Engine(m).generate([[1, 2]], GREEDY)[0] for m in (tmp_path / "model", small_model()))
    assert from_path.token_ids == from_model.token_ids
    assert from_path.logprobs == pytest.approx(from_model.logprobs, abs=1e-5)


def test_missing_checkpoint_and_another_engine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Engine(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"engine='simple': must be paged.*build_engine"):
        Engine(small_model(), engine=SimpleEngineConfig())


def test_paged_still_gives_the_engine_with_a_warning() -> None:
    engine = Engine(small_model())
    with pytest.warns(FutureWarning, match=r"Engine\.paged is the Engine itself"):
        assert engine.paged is engine


def test_import_is_light() -> None:
    program = (
        "import sys, arcforge_serving, arcforge_serving.configs; assert not {'torch', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

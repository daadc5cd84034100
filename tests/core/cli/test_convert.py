import subprocess
import sys

import pytest

from arcforge_core import configs, save_pretrained
from arcforge_core.checkpoint.hf import ARCHITECTURES
from arcforge_core.checkpoint.pretrained import open_checkpoint
from arcforge_core.cli import convert as cli
from arcforge_core.configs import ConvertConfig
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_model


def test_converts_and_says_what_was_written(tmp_path, capsys):
    save_pretrained(small_model(), tmp_path / "ours")
    arguments = ["--to", "glm4_moe_lite", "--dtype", "bfloat16", "--max-shard-size", "20KB"]
    assert cli.main([str(tmp_path / "ours"), str(tmp_path / "hf"), *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path / 'hf'}: glm4_moe_lite, ") and "values" in out
    assert "writing:" in err and "verifying:" in err
    assert open_checkpoint(tmp_path / "hf").architecture == "glm4_moe_lite"
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "glm_moe_dsaa"], "did you mean 'glm_moe_dsa'"),
        (["--dtype", "int4"], "dtype='int4': must be one of float32, bfloat16, float16, int8"),
        (["--max-shard-size", "many"], "max_shard_size='many': must be a number with KB, MB or GB"),
        ([], "neither a model"),
    ],
)
def test_errors_of_the_user(tmp_path, capsys, arguments, message):
    assert cli.main([str(tmp_path / "nowhere"), str(tmp_path / "hf"), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("1.5 mb", 1_500_000), ("20KB", 20_000), ("7", 7)])
def test_sizes(text, size):
    assert ConvertConfig("a", "b", max_shard_size=text).max_shard_bytes() == size


@pytest.mark.parametrize("text", ["0", "", "GB", "-1GB", "5TB", "0.1", "5G"])
def test_no_sizes(text):
    with pytest.raises(ConfigError, match="max_shard_size"):
        ConvertConfig("a", "b", max_shard_size=text)


def test_architectures_of_the_help_are_those_that_there_are():
    assert tuple(sorted(("arcforge", *ARCHITECTURES))) == configs.ARCHITECTURES


def test_help_does_not_wait_for_torch():
    code = "import sys; from arcforge_core.cli.convert import main\ntry: main(['--help'])\n"
    code += "finally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: arcforge-convert") and done.stdout.endswith("False\n")

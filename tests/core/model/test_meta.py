import subprocess
import sys

from torch import nn

from arcforge_core.model.meta import meta_device


def test_modules_have_shapes_and_no_values() -> None:
    with meta_device():
        layer, table = nn.Linear(3, 5), nn.Embedding(7, 2)
    assert layer.weight.is_meta
    assert layer.weight.shape == (5, 3)
    assert layer.bias.is_meta
    assert table.weight.is_meta
    assert not nn.Linear(3, 5).weight.is_meta


def test_the_compiler_is_not_imported() -> None:
    program = (
        "import sys; from torch import nn; from arcforge_core.model.meta import meta_device\n"
        "with meta_device(): nn.Embedding(7, 2); nn.Linear(3, 5)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

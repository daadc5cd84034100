"""The example chip plugin, installed as a wheel beside ours: it shows up everywhere and its kernels run."""

import json
import os
import subprocess
import sys
from csv import DictReader
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "acme_npu"
SIMULATED = {"ACME_NPU_SIMULATE": "1"}
CORE_ONLY = ("attention=reference", "optimizer=torch_adamw", "schedule=constant")


@pytest.fixture(scope="module")
def environment(install):
    return install("arcforge-core", "arcforge-attention", "acme-arcforge-npu")


def test_it_is_listed(environment):
    listing = json.loads(environment.run("arcforge-plugins", "--json").stdout)
    acme = next(p for p in listing["plugins"] if p["distribution"] == "acme-arcforge-npu 2.3.0")
    assert [(c["kind"], c["name"]) for c in acme["components"]] == [("hardware", "acme_npu")]


def test_help_shows_backend_and_preset(environment):
    lines = environment.run("arcforge-train", "--help").stdout.splitlines()
    shown = [line.split()[0] for line in lines if line.endswith("[acme-arcforge-npu 2.3.0]")]
    assert shown == ["acme_npu", "acme_npu_fast"]


def test_the_preset_reaches_the_config(environment):
    result = environment.run("arcforge-train", *CORE_ONLY, "hardware=acme_npu_fast", "--cfg", "job", "-p", "hardware")
    assert result.returncode == 0, result.stderr
    assert "name: acme_npu\n" in result.stdout
    assert "tile: 128\n" in result.stdout


def test_a_bad_value_names_the_field(environment):
    result = environment.run("arcforge-train", *CORE_ONLY, "hardware=acme_npu", "hardware.tile=wide")
    assert result.returncode == 2
    assert "hardware.tile" in result.stderr


def test_without_the_chip_the_reason_is_given(environment):
    result = environment.run("arcforge-conformance", "hardware=acme_npu")
    assert result.returncode == 2
    assert "not usable here: no Acme driver" in result.stderr


def test_blocking_removes_it(environment):
    result = environment.run("arcforge-train", "--help", ARCFORGE_BLOCK_PLUGINS="acme-arcforge-npu")
    assert result.returncode == 0
    assert "acme" not in result.stdout


@pytest.mark.nightly
def test_the_whole_conformance_command_passes_on_a_device_of_its_own(environment):
    result = environment.run("arcforge-conformance", "hardware=acme_npu", "--full", "--json", **SIMULATED)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    verdicts = {(row["op"], row["dtype"]): row["verdict"] for row in rows}
    assert {row["verdict"] for row in rows} == {"pass", "declined"}
    assert verdicts["model weight round trip", ""] == verdicts["device fp8", ""] == "pass"
    for op in ("rms_norm", "swiglu", "attention_varlen", "linear"):
        assert verdicts[op, "float32"] == "pass"
        assert verdicts[op, "bfloat16"] == "declined"


COUNT_CALLS = """
import dataclasses, json, os, torch
from acme_arcforge_npu.backend import AcmeNpu
from acme_arcforge_npu.configs import AcmeNpuConfig
from arcforge_core.config.compose import compose
from arcforge_core.model.adapt.prepared import prepare_weights
from arcforge_core.model.build import build_model
from arcforge_core.ops import Ops

calls = {}
plain_kernels = AcmeNpu.kernels

def counted(kernel):
    def fn(*args):
        calls[kernel.op] = calls.get(kernel.op, 0) + 1
        return kernel.fn(*args)
    return dataclasses.replace(kernel, fn=fn)

AcmeNpu.kernels = lambda self: [counted(kernel) for kernel in plain_kernels(self)]
config = compose(["model=tiny", "attention=gqa", "optimizer=torch_adamw", "schedule=constant"])
logits = []
acme = AcmeNpu(AcmeNpuConfig(tile=8, simulate=True))
acme.confirm()
for hardware, device in ((None, "cpu"), (acme, "acme")):
    torch.manual_seed(0)
    model = build_model(config.model, config.attention, Ops(hardware)).eval().to(device)
    names = prepare_weights(model)
    with torch.inference_mode():
        ids = torch.arange(40).reshape(2, 20) % config.model.vocab_size
        logits.append(model(ids.to(device)).logits.cpu())
found = {"calls": calls, "error": float((logits[0] - logits[1]).abs().max()), "prepared": len(names)}
print(json.dumps(found), flush=True)
os._exit(0)  # torch's threads sometimes abort an interpreter that exits
"""


@pytest.mark.slow(reason="imports torch in a fresh process and builds two models")
def test_a_model_calls_its_kernels_and_says_the_same(environment):
    result = environment.run("python", "-c", COUNT_CALLS)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found["calls"]) == {"rms_norm", "swiglu", "attention_varlen", "linear"}
    assert found["prepared"] > 10
    assert min(found["calls"].values()) >= 2
    assert 0 < found["error"] < 1e-4  # other algorithms round otherwise; exactly equal would mean the reference ran


SERVED = """
import json, os, sys
from pathlib import Path
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.generation.engine import build_engine
from arcforge_core.ops import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.train.state import checkpoints

(run,) = [path.parent for path in Path(sys.argv[1]).rglob("metrics.csv")]
found = []
for name in ("acme_npu", "torch_cpu"):
    hardware = select_hardware(name)
    model = load_pretrained(checkpoints(run)[-1], ops=Ops(hardware)).eval().to(hardware.identity.device)
    engine = build_engine(SimpleEngineConfig(), model)
    outs = engine.generate([list(range(2, 40)), [5, 7]], SamplingParams(max_new_tokens=12, temperature=0.0))
    found.append([model.device.type, [out.token_ids for out in outs]])
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.nightly
def test_it_trains_a_model_and_serves_it_with_the_host_s_tokens(environment, tmp_path):
    sizes = ("max_steps=3", "sequence_length=64", "micro_batch_tokens=128", "eval_tokens=256", "sample_tokens=4")
    names = ["experiment=smoke", "model=tiny", "hardware=acme_npu", *CORE_ONLY, f"output_dir={tmp_path}"]
    names += [f"trainer.{size}" for size in sizes]
    run = environment.run("arcforge-train", *names, **SIMULATED)
    assert run.returncode == 0, run.stderr
    served = environment.run("python", "-c", SERVED, str(tmp_path), **SIMULATED)
    assert served.returncode == 0, served.stderr
    (chip, ours), (host, theirs) = json.loads(served.stdout.splitlines()[-1])
    assert (chip, host) == ("acme", "cpu") and ours == theirs


WEIGHTS = """
import json, sys
from pathlib import Path
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.train.state import checkpoints

models = []
for folder in sys.argv[1:]:
    (run,) = [path.parent for path in Path(folder).rglob("metrics.csv")]
    models.append(load_pretrained(checkpoints(run)[-1]).state_dict())
chip, host = models
print(max(float((chip[name] - value).abs().max()) for name, value in host.items()))
"""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_processes_train_what_two_of_the_host_train(environment, tmp_path):
    sizes = (
        "max_steps=3",
        "sequence_length=64",
        "micro_batch_tokens=128",
        "eval_tokens=256",
        "samples=0",
        "log_every=1",
    )
    names = ["experiment=smoke", "model=tiny", *CORE_ONLY, "trainer.precision=fp32", "schedule.warmup=0"]
    names += [f"trainer.{size}" for size in sizes]
    two = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    train = str(environment.folder / "bin" / "arcforge-train")
    rows = []
    for hardware in ("acme_npu", "torch_cpu"):
        folder = tmp_path / hardware
        run = environment.run(
            "python", *two, train, *names, f"hardware={hardware}", f"output_dir={folder}", **SIMULATED
        )
        assert run.returncode == 0, run.stderr
        (table,) = folder.rglob("metrics.csv")  # only the first process writes
        figures = list(DictReader(table.read_text().splitlines()))
        rows.append([float(row[name]) for row in figures for name in ("tokens", "loss", "grad_norm")])
    chip, host = rows
    assert chip == pytest.approx(host, rel=1e-5) and len(chip) == 9
    compared = environment.run("python", "-c", WEIGHTS, str(tmp_path / "acme_npu"), str(tmp_path / "torch_cpu"))
    assert compared.returncode == 0, compared.stderr
    assert 0 < float(compared.stdout.splitlines()[-1]) < 2e-5  # equal bits would mean that the host computed


@pytest.mark.nightly
def test_its_own_tests_pass():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    variables = {**os.environ, "PYTHONPATH": str(EXAMPLE / "src")}
    result = subprocess.run(command, cwd=EXAMPLE, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout


def test_it_pins_core_by_range_and_never_torch():
    text = (EXAMPLE / "pyproject.toml").read_text()
    assert 'dependencies = ["arcforge-core>=0.1,<0.3"]' in text

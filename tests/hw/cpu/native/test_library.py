"""Building and finding the C++ kernels: once for the same sources, and a reason where it cannot be done."""

import subprocess

import pytest
import torch

import arcforge_hw.cpu.native as native
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops.cxx import cxx
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.configs import CpuConfig
from arcforge_hw.cpu.backend import Cpu

SIZES = {"heads": 2, "key_dim": 8, "latent_dim": 6, "topk": 2}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A library of one function, in a folder of its own, that nobody has asked for yet."""
    (tmp_path / "one.cpp").write_text('extern "C" int arcforge_vector_bytes() { return 32; }\n')
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "SOURCES", ("one.cpp",))
    monkeypatch.setattr(native, "HEADERS", ())
    monkeypatch.setattr(native, "measured_flags", list)
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "cache"))
    native.library.cache_clear()
    yield tmp_path
    native.library.cache_clear()


def chosen(op):
    """Returns the kernel that a module would get, and the reasons against others."""
    ops = Ops(Cpu(CpuConfig()))
    ops.bind(OpCall(op, "cpu", torch.float32, True, SIZES))
    [choice] = ops.choices.values()
    return choice.kernel, dict(choice.rejected)


@pytest.mark.parametrize("op", ["indexer_topk", "sparse_mla", "mla_decode"])
def test_compiled_kernels_come_first(op):
    assert chosen(op)[0] == f"cpu.{op}.native"


@pytest.mark.parametrize(
    ("op", "instead"), [("indexer_topk", "blocks"), ("sparse_mla", "blocks"), ("mla_decode", "tiled")]
)
def test_without_a_compiler_torch_runs_and_says_so(op, instead, small, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel, rejected = chosen(op)
    assert kernel == f"cpu.{op}.{instead}"
    assert "no-such-compiler not found" in rejected[f"cpu.{op}.native"]
    assert caplog.text.count("no-such-compiler not found") == 1 and "run instead, slower" in caplog.text


def test_a_compiler_may_be_several_words(small, monkeypatch):
    monkeypatch.setenv("CXX", f"env {' '.join(cxx())} -Wall")
    assert native.library().verdict()


def test_without_a_compiler_the_probe_tells_what_is_lost(monkeypatch):
    """That is what `arcforge doctor` prints."""
    backend = Cpu(CpuConfig())
    assert "compiler" not in backend.probe().reason
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = backend.probe().reason
    assert backend.probe().ok
    assert "no-such-compiler not found (install g++ or set CXX)" in reason
    assert (
        "attention_decode, attention_varlen, hadamard, index_prolog, indexer_kl, indexer_topk, linear, "
        "linear_cross_entropy, mla_absorb, mla_decode, mla_epilog, mla_prolog, mlp, moe" in reason
    )


def test_sources_that_do_not_compile_are_a_reason(small, caplog):
    (small / "one.cpp").write_text("this is no C++\n")
    assert "error: " in native.library().reason
    assert "torch's operators run instead" in caplog.text
    assert not list((small / "cache" / "native").iterdir())


def test_a_cache_that_cannot_be_written_is_a_reason(small, monkeypatch):
    (small / "file").write_text("")
    monkeypatch.setenv("ARCFORGE_CACHE", str(small / "file"))
    assert "cannot build the C++ kernels" in native.library().reason


def test_it_is_compiled_once_and_again_when_a_source_changes(small, capsys):
    first = native.built(cxx())
    assert native.built(cxx()) == first
    assert capsys.readouterr().err.count("compiling C++ kernels") == 1
    (small / "one.cpp").write_text('extern "C" int arcforge_vector_bytes() { return 64; }\n')
    second = native.built(cxx())
    assert second != first
    assert native.ctypes.CDLL(str(second)).arcforge_vector_bytes() == 64


def test_a_build_that_is_cut_off_leaves_nothing(small, monkeypatch):
    real = subprocess.run

    def cut(command, **options):
        if "--version" in command:
            return real(command, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(native.subprocess, "run", cut)
    with pytest.raises(KeyboardInterrupt):
        native.library()
    assert not list((small / "cache" / "native").iterdir())


def test_tensors_that_c_cannot_read_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        native.pointers(torch.zeros(4, 6)[:, ::2])
    with pytest.raises(ValueError, match="one dtype"):
        native.check_dtypes(torch.zeros(1), torch.zeros(1).double())


@pytest.mark.parametrize(("flags", "rates", "chosen"), [
    ("fma avx512_bf16", "pairs=1,wide_pairs=2", ["-DWIDE_PAIRS"]),
    ("fma avx512_bf16", "pairs=2,wide_pairs=1", []),
    ("fma", "pairs=1,wide_pairs=2", []),  # no such instruction
])  # fmt: skip
def test_a_measurement_chooses_how_bfloat16_is_multiplied(monkeypatch, flags, rates, chosen):
    monkeypatch.setattr(native, "processor", lambda: f"flags: {flags}")
    monkeypatch.setenv("ARCFORGE_CALIBRATION", rates)
    assert native.measured_flags() == chosen
    words = {0: "C++ multiplies bf16 in pairs", 1: "C++ multiplies bf16 in fp32"}[len(chosen)]
    assert native.explained() == (f"{words} (ARCFORGE_CALIBRATION)" if "bf16" in flags else "")


@pytest.mark.skipif("avx512_bf16" not in native.processor(), reason="the processor does not multiply pairs")
def test_pairs_are_measured_once_and_fast(monkeypatch, tmp_path):
    monkeypatch.delenv("ARCFORGE_CALIBRATION", raising=False)
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    rates = native.measure_pairs()
    assert all(1e9 < rate < 5e11 for rate in rates.values())
    flags = native.measured_flags()
    monkeypatch.setattr(native, "measure_pairs", lambda: {"pairs": 0.0, "wide_pairs": 1.0})
    assert native.measured_flags() == flags
    monkeypatch.setattr(native, "cxx", lambda: ["another"])  # which may know fewer instructions
    assert native.measured_flags() == ["-DWIDE_PAIRS"]


def test_other_options_are_another_library(small):
    assert native.built(cxx(), ["-DWIDE_PAIRS"]) != native.built(cxx())

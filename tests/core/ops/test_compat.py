import torch

from arcforge_core.ops.compat import fast_bf16


def test_bf16_is_fast_where_the_processor_has_instructions(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for supported in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda s=supported: s)
        fast_bf16.cache_clear()
        assert fast_bf16("cpu") is supported
        assert fast_bf16("cuda") is True
    monkeypatch.undo()
    fast_bf16.cache_clear()


def test_other_processors_are_asked_through_onednn(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    fast_bf16.cache_clear()
    assert fast_bf16("cpu") is True
    monkeypatch.undo()
    fast_bf16.cache_clear()

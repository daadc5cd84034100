import torch

from arcforge_core.contracts.attention import CacheEntry, StateEntry
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_serving.engine.kvcache.store import PageStore, keeps_state, page_bytes

SPECS = [
    (CacheEntry("latent", (5,)), CacheEntry("index_key", (3,), torch.bfloat16)),
    (CacheEntry("key", (2, 2), window=4), StateEntry("state", (2,))),
]


def store():
    sizes = {"pages": 3, "sequences": 2, "page_size": 4}
    return PageStore(SPECS, **sizes, dtype=torch.float32, device="cpu")


def test_a_record_is_every_entry_of_every_layer():
    first, second = store(), store()
    for layer in first.layers:
        for rows in layer.entries.values():
            rows.copy_(torch.randn(rows.shape))
    assert first.page_bytes == page_bytes(SPECS, torch.float32, 4) == 4 * (5 * 4 + 3 * 2 + 4 * 4)
    record = first.read(1)
    assert record.shape == (first.page_bytes,)
    second.write(2, record)
    for ours, theirs in zip(first.layers, second.layers, strict=True):
        for name, rows in ours.entries.items():
            assert torch.equal(rows[4:8], theirs.entries[name][8:12])
            assert not theirs.entries[name][:8].any()
    assert first.checksum(1) == second.checksum(2) != first.checksum(2)
    for layer in first.layers:  # no entry is left out
        for rows in layer.entries.values():
            before = first.checksum(1)
            rows[5] += 1
            assert first.checksum(1) != before


def test_states_are_per_sequence():
    assert keeps_state(SPECS)
    assert not keeps_state(SPECS[:1])
    assert store().layers[1].states["state"].shape == (2, 2)


def test_scattered_pages_are_read_in_order():
    layer = store().layers[0]
    layer.entries["latent"].copy_(torch.arange(12.0)[:, None].expand(12, 5))
    batch = SequenceBatch.build(
        [1, 2], [5, 2], write_slots_T=torch.zeros(3, dtype=torch.int64), pages_NP=torch.tensor([[2, 0], [1, 1]])
    )
    (group,) = batch.plan.groups()
    assert layer.read("latent", batch, group)[:, 0].tolist() == [8, 9, 10, 11, 0, 1, 4, 5, 6, 7]
    assert layer.read("latent", batch, group, window=3)[:, 0].tolist() == [11, 0, 1, 4, 5, 6, 7]

"""The conformance suite of attention variants: subclass it and provide the fixture `attention_config`.

class TestAcme(AttentionSuite):
    @pytest.fixture
    def attention_config(self):
        return AcmeAttentionConfig()

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, LayerCache, StateEntry, WritesCache
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import Ops, bind_ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config

LENGTHS = (13, 1, 22, 5)
"""Documents of a packed batch; some are longer than the suite's index_topk, one is a single token."""


class AttentionSuite:
    """Checks of every variant: causality, separation of documents, the same results with and without a cache."""

    without_gradient: tuple[str, ...] = ("indexer.",)
    """Prefixes of the names of parameters without a gradient from the language-model loss."""

    @pytest.fixture
    def attention_config(self) -> AttentionConfig:
        """The variant to test; a subclass returns its config."""
        raise NotImplementedError("provide the fixture `attention_config` in your subclass")

    @pytest.fixture
    def model_config(self) -> ModelConfig:
        """Sizes of the layer; a subclass may override them."""
        return small_config(num_attention_heads=4, num_key_value_heads=2, index_n_heads=4)

    @pytest.fixture
    def layer(self, attention_config: AttentionConfig, model_config: ModelConfig) -> Any:
        """The layer with fixed weights, its ops bound to this machine's best backend."""
        return build_layer(attention_config, model_config)

    def test_packed_documents_are_separate(self, layer: Any, model_config: ModelConfig) -> None:
        """A packed document's output equals that of the document alone."""
        x_TD = inputs(sum(LENGTHS), model_config)
        packed_TD = run(layer, x_TD, SequenceBatch.build(LENGTHS), model_config).out_TD
        parts = x_TD.split(LENGTHS)
        single = [run(layer, part, SequenceBatch.build([len(part)]), model_config).out_TD for part in parts]
        close(packed_TD, torch.cat(single))

    def test_attention_is_causal(self, layer: Any, model_config: ModelConfig) -> None:
        """Outputs depend on earlier tokens only, and do depend on them."""
        x_TD, batch = inputs(20, model_config), SequenceBatch.build([20])
        changed_TD = x_TD.clone()
        changed_TD[11:] += 1.0
        before, after = (run(layer, x, batch, model_config).out_TD for x in (x_TD, changed_TD))
        close(before[:11], after[:11])
        assert not torch.allclose(before[11:], after[11:], atol=1e-3)
        changed_TD = x_TD.clone()
        changed_TD[0] += 1.0
        assert not torch.allclose(run(layer, changed_TD, batch, model_config).out_TD[1], before[1], atol=1e-4)

    @pytest.mark.parametrize("steps", [(9, *[1] * 13), (4, 7, 3, 8), (1, 21), (22,)], ids=str)
    def test_cached_steps_equal_one_forward_pass(
        self, layer: Any, model_config: ModelConfig, steps: tuple[int, ...]
    ) -> None:
        """Prefill, chunks with a past and single tokens give the outputs of the whole sequence."""
        x_TD = inputs(sum(steps), model_config)
        whole_TD = run(layer, x_TD, SequenceBatch.build([len(x_TD)]), model_config).out_TD
        cache = new_cache(layer, [len(x_TD)])
        outs = [run(layer, x, cache.batch([0], [len(x)]), model_config, cache) for x in x_TD.split(steps)]
        close(torch.cat([out.out_TD for out in outs]), whole_TD)

    def test_mixed_groups_in_one_batch(self, layer: Any, model_config: ModelConfig) -> None:
        """A prompt, a decoding sequence and a chunk with a past share a batch, in any order."""
        lengths, pasts = (14, 18, 20, 6), (13, 7, 0, 0)
        whole = inputs(sum(lengths), model_config).split(lengths)
        cache = new_cache(layer, lengths)
        for n, past in enumerate(pasts):
            if past:
                run(layer, whole[n][:past], cache.batch([n], [past]), model_config, cache)
        order = (2, 0, 3, 1)
        new = [whole[n][pasts[n] :] for n in order]
        batch = cache.batch(order, [len(x) for x in new])
        assert all((batch.plan.prompt, batch.plan.decode, batch.plan.chunk)), "the test needs all three groups"
        mixed_TD = run(layer, torch.cat(new), batch, model_config, cache).out_TD
        for n, out_TD in zip(order, mixed_TD.split([len(x) for x in new]), strict=True):
            wanted_TD = run(layer, whole[n], SequenceBatch.build([lengths[n]]), model_config).out_TD
            close(out_TD, wanted_TD[pasts[n] :])

    def test_page_order_has_no_effect(self, layer: Any, model_config: ModelConfig) -> None:
        """Scattered and interleaved pages of several sequences give the same outputs as consecutive pages."""
        x, outs = [inputs(length, model_config) for length in (40, 49, 63)], []
        for scattered in (False, True):
            cache, steps = new_cache(layer, [len(x_TD) for x_TD in x]), []
            if scattered:
                order = torch.randperm(int(cache.pages_NP.max()) + 1, generator=torch.Generator().manual_seed(3))
                cache.pages_NP = order[cache.pages_NP]
            for start, stop in ((0, 30), (30, 31), (31, 34), (34, 40)):
                batch = cache.batch(range(3), [stop - start] * 3)
                new_TD = torch.cat([x_TD[start:stop] for x_TD in x])
                steps.append(run(layer, new_TD, batch, model_config, cache).out_TD)
            outs.append(torch.cat(steps))
        close(outs[1], outs[0])

    def test_cache_spec_describes_written_entries(self, layer: Any, model_config: ModelConfig) -> None:
        """Names, shapes and dtypes of `cache_spec` match the written entries."""
        written: dict[str, Tensor] = {}

        class Recorder:
            def write(self, batch: SequenceBatch, **values_T: Tensor) -> None:
                written.update(values_T)

            def read(self, name: str, batch: SequenceBatch, group: Group, window: int | None = None) -> Tensor:
                return group.take(written[name])

            def read_state(self, name: str, batch: SequenceBatch, group: Group) -> Tensor:
                raise AssertionError("a prompt has no state to read")

            def write_state(self, name: str, batch: SequenceBatch, group: Group, value_N: Tensor) -> None:
                written[name] = value_N

        batch = SequenceBatch.build([3, 12])
        layer(inputs(15, model_config), batch, Recorder(), rope=rope(batch, model_config))
        spec = {e.name: (2 if isinstance(e, StateEntry) else 15, *e.shape) for e in layer.cache_spec()}
        assert {name: tuple(value.shape) for name, value in written.items()} == spec
        for entry in layer.cache_spec():
            assert written[entry.name].dtype == (entry.dtype or torch.float32)

    def test_written_entries_equal_those_of_forward(self, layer: Any, model_config: ModelConfig) -> None:
        """`write_cache`, or where there is none a whole `forward`, writes the entries of `forward` in two parts."""
        x_TD, parts_TD = inputs(19, model_config), inputs(19, model_config).split((15, 4))
        attended, written = new_cache(layer, [19]), new_cache(layer, [19])
        for part_TD in parts_TD:
            run(layer, part_TD, attended.batch([0], [len(part_TD)]), model_config, attended)
        if isinstance(layer, WritesCache):
            for part_TD in parts_TD:
                batch = written.batch([0], [len(part_TD)])
                with torch.no_grad():
                    layer.write_cache(part_TD, batch, written.layers[0], rope=rope(batch, model_config))
        else:
            run(layer, x_TD, written.batch([0], [19]), model_config, written)
        for name, rows in attended.layers[0].entries.items():
            close(written.layers[0].entries[name], rows)

    def test_gradients_reach_inputs_and_weights(self, layer: Any, model_config: ModelConfig) -> None:
        """Every weight that the loss depends on has a finite, nonzero gradient."""
        x_TD = inputs(sum(LENGTHS), model_config).requires_grad_()
        out_TD = run(layer, x_TD, SequenceBatch.build(LENGTHS), model_config).out_TD
        out_TD.square().sum().backward()
        assert x_TD.grad is not None and bool(x_TD.grad.abs().sum(-1).all())
        for name, parameter in layer.named_parameters():
            if name.startswith(self.without_gradient):
                assert parameter.grad is None, f"{name} has a gradient"
            else:
                assert parameter.grad is not None, f"{name} has no gradient"
                assert bool(parameter.grad.isfinite().all()) and bool(parameter.grad.any()), name

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_kernels_equal_the_references(
        self, attention_config: AttentionConfig, model_config: ModelConfig, dtype: torch.dtype
    ) -> None:
        """This machine's kernels and the naive references give the same outputs and gradients."""
        results = []
        for ops in (None, Ops(None)):
            layer = build_layer(attention_config, model_config, dtype, ops)
            x_TD = inputs(sum(LENGTHS), model_config).to(dtype).requires_grad_()
            out_TD = run(layer, x_TD, SequenceBatch.build(LENGTHS), model_config).out_TD
            reached = [p for n, p in layer.named_parameters() if not n.startswith(self.without_gradient)]
            results.append((out_TD, *torch.autograd.grad(out_TD.square().sum(), [x_TD, *reached])))
        for ours, wanted in zip(*results, strict=True):
            close(ours, wanted, 1e-10 if dtype == torch.float64 else 2e-5)

    def test_two_runs_are_bit_identical(self, layer: Any, model_config: ModelConfig) -> None:
        """The same inputs give the same bits, gradients included."""
        results = []
        for _ in range(2):
            x_TD = inputs(sum(LENGTHS), model_config).requires_grad_()
            out_TD = run(layer, x_TD, SequenceBatch.build(LENGTHS), model_config).out_TD
            results.append((out_TD, *torch.autograd.grad(out_TD.sum(), [x_TD, layer.o_proj.weight])))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_bfloat16_activations_on_float32_weights(
        self, attention_config: AttentionConfig, model_config: ModelConfig
    ) -> None:
        """Mixed precision keeps the activations' dtype; a document too short for a selection stays close to fp32."""
        layer = build_layer(attention_config, model_config)
        x_TD, batch = inputs(7, model_config), SequenceBatch.build([7])
        exact_TD = run(layer, x_TD, batch, model_config).out_TD
        bind(layer, torch.bfloat16)
        out_TD = run(layer, x_TD.bfloat16(), batch, model_config).out_TD
        assert out_TD.dtype == torch.bfloat16
        close(out_TD.float(), exact_TD, 5e-2)
        longer = SequenceBatch.build(LENGTHS)
        assert bool(
            run(layer, inputs(sum(LENGTHS), model_config).bfloat16(), longer, model_config).out_TD.isfinite().all()
        )

    def test_roles_name_parameters(self, layer: Any) -> None:
        """Roles name existing parameters, and their rows add up."""
        for roled in collect_roles(layer):
            if roled.role.parts:
                assert roled.parameter.shape[-2] == roled.role.num_heads * sum(roled.role.parts), roled.name

    def test_training_flops(self, layer: Any) -> None:
        """MFU needs a count for each query, which does not fall as keys increase."""
        flops_T = layer.training_flops(torch.tensor([1.0, 2.0, 7.0, 7.0, 90.0], dtype=torch.float64))
        assert flops_T.shape == (5,) and flops_T.dtype == torch.float64
        assert float(flops_T[0]) > 0 and flops_T.tolist() == sorted(flops_T.tolist())

    def test_layers_can_be_copied(self, layer: Any, model_config: ModelConfig) -> None:
        """A deep copy computes the same."""
        x_TD, batch = inputs(5, model_config), SequenceBatch.build([5])
        close(run(copy.deepcopy(layer), x_TD, batch, model_config).out_TD, run(layer, x_TD, batch, model_config).out_TD)

    def test_a_past_without_its_cache_is_refused(self, layer: Any, model_config: ModelConfig) -> None:
        """The layer raises an error rather than use the wrong keys."""
        cache = new_cache(layer, [6])
        run(layer, inputs(5, model_config), cache.batch([0], [5]), model_config, cache)
        with pytest.raises(ValueError, match="cache"):
            run(layer, inputs(1, model_config), cache.batch([0], [1]), model_config)


def build_layer(
    config: AttentionConfig, model: ModelConfig, dtype: torch.dtype = torch.float32, ops: Ops | None = None
) -> Any:
    """Returns the registered layer with weights of a fixed seed; `ops` None means this machine's best backend."""
    target = registry().get("attention", config.name).load()
    target.check(config, model)
    layer: nn.Module = target(config, model, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter.shape[-1] if parameter.ndim > 1 else 25
            parameter.copy_(noise * fan_in**-0.5 + (parameter.ndim < 2))
    return bind(layer.to(dtype), dtype, ops)


def bind(layer: Any, dtype: torch.dtype, ops: Ops | None = None) -> Any:
    """Binds the ops of the layer and of its parts; returns the layer."""
    binder = (ops or Ops(select_hardware("auto"))).binder(dtype, "cpu")
    bind_ops(layer, binder)
    return layer


def inputs(tokens: int, model: ModelConfig) -> Tensor:
    """Returns normed hidden states [T, D] from a fixed seed."""
    return torch.randn(tokens, model.hidden_size, generator=torch.Generator().manual_seed(tokens))


def rope(batch: SequenceBatch, model: ModelConfig) -> tuple[Tensor, Tensor]:
    """Returns the rotary tables of a batch."""
    return rope_tables(batch.positions_T, model.qk_rope_head_dim, model.rope_theta)


def new_cache(layer: Any, max_lengths: Sequence[int]) -> PagedCache:
    """Returns an empty cache of one layer with small pages."""
    return PagedCache([layer.cache_spec()], list(max_lengths), dtype=torch.float32, page_size=4)


def run(
    layer: Any, x_TD: Tensor, batch: SequenceBatch, model: ModelConfig, cache: PagedCache | None = None
) -> AttentionOutput:
    """Runs the layer on a batch."""
    entries: LayerCache | None = None if cache is None else cache.layers[0]
    with torch.set_grad_enabled(x_TD.requires_grad):
        out: AttentionOutput = layer(x_TD, batch, entries, rope=rope(batch, model))
    return out


def close(got: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    """Asserts that the largest difference is within `tolerance` of the largest value."""
    got, wanted = got.detach(), wanted.detach()
    error = float((got - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-30)
    assert error <= tolerance, f"relative error {error:.1e} is over {tolerance:.0e}"

"""Stand-ins of torch_npu's operators take the arguments of the published schemas, in their order."""

import inspect

import pytest
import torch

from arcforge_core.testing.fake_chip.npu.library import GRADIENTS, function_of
from arcforge_core.testing.fake_chip.npu.schemas import SCHEMAS

PARSED = {schema.name: schema for schema in map(torch._C.parse_schema, SCHEMAS)}


@pytest.mark.parametrize("name", PARSED)
def test_a_stand_in_has_the_schema_s_arguments(name):
    wanted = {a.name: a for a in PARSED[name].arguments}
    given = inspect.signature(function_of(name)).parameters
    others = [p for p in given.values() if p.kind is p.VAR_KEYWORD]
    named = [p for p in given.values() if p not in others]
    assert [p.name for p in named if p.kind is not p.KEYWORD_ONLY] == [
        n for n, a in wanted.items() if not a.kwarg_only and n in given
    ]
    assert {p.name for p in named} <= wanted.keys()
    assert others or {p.name for p in named} == wanted.keys()
    for p in named:
        if p.name in wanted and p.default is not p.empty and wanted[p.name].has_default_value():
            default = wanted[p.name].default_value
            assert p.default == default or (default in ([], None) and p.default is None), (name, p.name)


def test_operators_have_the_gradients_that_torch_npu_registers():
    assert PARSED.keys() >= GRADIENTS.keys()
    for name in GRADIENTS:
        ways = {f"{name}_backward", f"{name}_grad", f"{name}_grad_v2"}
        assert ways & PARSED.keys(), f"{name} has no gradient operator"

"""A time limit is the work's doing only where a healthy machine was shown; otherwise there is no verdict."""

import asyncio

import pytest

from arcforge_core.contracts.environment import NoVerdict
from arcforge_rl.execution.lateness import verdict_in_time


@pytest.mark.parametrize(
    ("verdicts", "healthy", "wanted", "asked"),
    [
        (["right"], [], "right", "w"),
        ([None, "right"], [True], "right", "wcw"),  # a busy moment harms no agent
        ([None, None], [True], None, "wcw"),
        ([None], [False], NoVerdict, "wc"),
    ],
)
def test_who_is_late(verdicts, healthy, wanted, asked):
    order = []

    async def judge():
        order.append("w")
        return verdicts.pop(0)

    async def control():
        order.append("c")
        return healthy.pop(0)

    async def found():
        return await verdict_in_time(judge, control, "the tests of x")

    if wanted is NoVerdict:
        with pytest.raises(NoVerdict, match=r"the tests of x did not end in time, neither"):
            asyncio.run(found())
    else:
        assert asyncio.run(found()) == wanted
    assert "".join(order) == asked and not verdicts and not healthy

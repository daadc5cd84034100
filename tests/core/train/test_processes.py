"""Gradients and plain values that processes exchange."""

import torch

from arcforge_core.train import processes


def test_a_gradient_that_only_another_process_has_is_summed_too(monkeypatch):
    """As all processes name what they have, and take the names in one order."""
    parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in ("ours", "none", "both", "its")}
    for name in ("ours", "both"):
        parameters[name].grad = torch.ones(2)
    order = []

    class Sent:
        def wait(self):
            """Is there."""

    def add(gradient, async_op):
        order.append(next(name for name, of in parameters.items() if of.grad is gradient))
        gradient += {"both": 4.0, "its": 2.0, "ours": 0.0}[order[-1]]
        return Sent()

    monkeypatch.setattr(processes, "place", lambda: (0, 2))
    monkeypatch.setattr(processes, "gather", lambda value: [value, {"its", "both"}])
    monkeypatch.setattr(processes.dist, "all_reduce", add)
    processes.add_gradients(parameters.items())
    found = {name: None if of.grad is None else of.grad.tolist() for name, of in parameters.items()}
    assert found == {"ours": [1.0, 1.0], "none": None, "both": [5.0, 5.0], "its": [2.0, 2.0]}
    assert order == ["both", "its", "ours"]


def test_parts_make_the_whole(monkeypatch):
    items, parts = list(range(7)), []
    for rank in range(3):
        monkeypatch.setattr(processes, "place", lambda rank=rank: (rank, 3))
        parts.append(processes.part(items))
    assert sorted(item for some in parts for item in some) == items
    monkeypatch.setattr(processes, "gather", lambda value: parts)
    assert processes.whole(parts[0]) == items


def test_alone_nothing_is_exchanged():
    assert processes.place() == (0, 1)
    assert processes.gather("x") == ["x"]
    assert processes.whole([1, 2]) == [1, 2] == list(processes.part([1, 2]))
    with processes.connected():
        assert processes.place() == (0, 1)
    parameter = torch.nn.Parameter(torch.zeros(2))
    processes.add_gradients([("weight", parameter)])
    assert parameter.grad is None

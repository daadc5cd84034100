"""The conformance suite of optimizers: subclass it and provide the fixtures `config` and, if not registered, `target`.

class TestAcme(OptimizerSuite):
    @pytest.fixture
    def config(self):
        return AcmeOptimizerConfig()

The weights are those of a small model; gradients are random, so that no step needs a forward pass.
"""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from arcforge_core.config.schema import OptimizerConfig
from arcforge_core.contracts.optimizer import ROLES, OptimizerFactory, ParameterRole, RoledParameter, collect_roles
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.optimizer import DECAYED_ROLES


class OptimizerSuite:
    """Checks of every optimizer: it supports every role, uses its groups' learning rates and resumes bit for bit."""

    decayed_roles: tuple[str, ...] = DECAYED_ROLES
    """Roles with weight decay; weights of other roles do not decay."""

    @pytest.fixture
    def config(self) -> OptimizerConfig:
        """The config to test; a subclass returns it."""
        raise NotImplementedError("provide the fixture `config` in your subclass")

    @pytest.fixture
    def target(self, config: OptimizerConfig) -> OptimizerFactory:
        """The factory of the optimizer: the registered component of the config's name."""
        found: OptimizerFactory = registry().get("optimizer", config.name).load()
        return found

    @pytest.fixture
    def parameters(self) -> list[RoledParameter]:
        """Weights of every role."""
        found = collect_roles(small_model())
        found.append(RoledParameter("temperature", nn.Parameter(torch.tensor([1.5])), ParameterRole("scalar")))
        assert {item.role.role for item in found} == set(ROLES)
        return found

    def test_every_weight_is_in_one_group(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """Groups contain every weight that requires a gradient once, with its name, and no other."""
        frozen = next(item for item in parameters if item.role.role == "matrix")
        frozen.parameter.requires_grad_(False)
        groups = target(config, parameters).param_groups
        grouped = [pair for group in groups for pair in zip(group["names"], group["params"], strict=True)]
        wanted = {item.name: item.parameter for item in parameters if item is not frozen}
        assert sorted(name for name, _ in grouped) == sorted(wanted)
        assert all(parameter is wanted[name] for name, parameter in grouped)

    def test_groups_have_their_peak_rate(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """`base_lr` is set, positive, and equals the learning rate until the trainer sets another."""
        for group in target(config, parameters).param_groups:
            assert group["base_lr"] > 0
            assert group["lr"] == group["base_lr"]

    def test_a_step_changes_weights_with_gradients_only(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """Every role is updated; a weight without a gradient does not change, decay included."""
        resting = {next(item.name for item in parameters if item.role.role == role) for role in ("expert", "norm")}
        before = values(parameters)
        step(target(replace(config, weight_decay=0.5), parameters), parameters, 0, skip=resting)
        still = {name for name, value in values(parameters).items() if torch.equal(value, before[name])}
        assert still == resting

    def test_rate_zero_changes_nothing(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """The trainer's ``lr`` applies from the first step on: a warm-up starts at 0."""
        optimizer, before = target(replace(config, weight_decay=0.5), parameters), values(parameters)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        step(optimizer, parameters, 0)
        same(values(parameters), before)

    def test_weight_decay_affects_its_roles_only(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """With the same gradients, decay pulls weights of `decayed_roles` to zero and changes no bit of the rest."""
        results = []
        for decay in (0.0, 0.5):
            own = copy.deepcopy(parameters)
            step(target(replace(config, weight_decay=decay), own), own, 0)
            results.append(values(own))
        for item in parameters:
            plain, decayed = (result[item.name] for result in results)
            if item.role.role in self.decayed_roles:
                pull = float(((plain - decayed) * item.parameter.detach()).sum())
                assert pull > 0, f"{item.name} ({item.role.role}) is not pulled to zero"
            else:
                assert torch.equal(plain, decayed), f"{item.name} ({item.role.role}) is decayed"

    def test_loss_decreases(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """Ten steps on half the squared norm of all weights reduce every weight's norm."""
        optimizer, before = target(replace(config, weight_decay=0.0), parameters), values(parameters)
        for _ in range(10):
            for item in parameters:
                item.parameter.grad = item.parameter.detach().clone()
            optimizer.step()
        for name, value in values(parameters).items():
            assert float(value.norm()) < float(before[name].norm()), name

    def test_two_runs_are_bit_identical(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """The same weights and gradients give the same bits."""
        results = []
        for _ in range(2):
            own = copy.deepcopy(parameters)
            optimizer = target(config, own)
            for n in range(3):
                step(optimizer, own, n)
            results.append(values(own))
        same(*results)

    def test_resumed_equals_uninterrupted(
        self, config: OptimizerConfig, target: OptimizerFactory, parameters: list[RoledParameter]
    ) -> None:
        """A new optimizer that loads the saved `state_dict` continues bit for bit; the state is plain data."""
        optimizer = target(config, parameters)
        for n in range(3):
            step(optimizer, parameters, n)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        others = copy.deepcopy(parameters)
        resumed = target(config, others)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for n in range(3, 6):
            step(optimizer, parameters, n)
            step(resumed, others, n)
        same(values(others), values(parameters))
        for ours, wanted in zip(resumed.param_groups, optimizer.param_groups, strict=True):
            assert (ours["names"], ours["base_lr"]) == (wanted["names"], wanted["base_lr"])


def step(optimizer: optim.Optimizer, parameters: list[RoledParameter], number: int, skip: Any = ()) -> None:
    """Takes a step on random gradients; weights named in `skip` and frozen weights get none."""
    generator = torch.Generator().manual_seed(number)
    for item in parameters:
        gradient = torch.randn(item.parameter.shape, generator=generator)
        item.parameter.grad = gradient if item.parameter.requires_grad and item.name not in skip else None
    optimizer.step()


def values(parameters: list[RoledParameter]) -> dict[str, Tensor]:
    """Returns copies of the weights by name."""
    return {item.name: item.parameter.detach().clone() for item in parameters}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Asserts that all weights are equal bit for bit."""
    assert not [name for name in left if not torch.equal(left[name], right[name])]

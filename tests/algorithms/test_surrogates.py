"""Both forms of the surrogate: their gradients, curvatures and measurements against definitions written out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from rl_training.algorithms.parts.surrogates import AutogradSurrogate, ClosedFormSurrogate, Surrogate
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatGroup, FlatParameters
from rl_training.models.mlp_actor_critic import MLPActorCritic, Shape
from rl_training.ops.distributions import FORBIDDEN, action_distribution
from rl_training.types import SpaceInfo

ROWS = 6
KINDS = {
    "discrete": SpaceInfo((3,), "float32", "discrete", (), 3, (3,), (0,)),
    "multi_discrete": SpaceInfo((3,), "float32", "multi_discrete", (2,), 5, (3, 2), (0, 0)),
    "multi_binary": SpaceInfo((3,), "float32", "multi_binary", (2,), 4, (2, 2), (0, 0)),
    "continuous": SpaceInfo((3,), "float32", "continuous", (2,), 2, (), (), (-1.0, -1.0), (1.0, 1.0)),
}
POLICIES = pytest.mark.parametrize(
    ("kind", "masked"),
    [(kind, masked) for kind in KINDS for masked in (False, True) if kind != "continuous" or not masked],
)


class Case:
    """A small policy at some observations, with what it did there and how that went."""

    def __init__(self, kind: str, masked: bool, activation: str = "tanh", hidden: tuple[int, ...] = (5, 4)) -> None:
        torch.manual_seed(3)
        self.info, rng = KINDS[kind], np.random.default_rng(0)
        shape = Shape(hidden, activation, False, (-0.3,) * self.info.action_size)
        self.network = MLPActorCritic(3, self.info.action_size, shape, continuous=self.info.continuous)
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        named = dict(self.network.named_parameters())
        self.policy = {name: leaf for name, leaf in named.items() if not name.startswith("value")}
        value = [leaf for name, leaf in named.items() if name.startswith("value")]
        self.flat = FlatParameters([*self.policy.values(), *value])
        self.group: FlatGroup = self.flat.split(sum(leaf.numel() for leaf in self.policy.values()))[0]
        self.distribution = action_distribution(self.info)
        self.obs = rng.standard_normal((ROWS, 3)).astype(np.float32)
        self.mask = self._mask(rng) if masked else None
        self.action, _ = self.distribution.sample(self.params().detach().numpy(), rng)
        self.advantage = rng.standard_normal(ROWS).astype(np.float32)

    def _mask(self, rng: np.random.Generator) -> np.ndarray:
        """One choice of each factor is forbidden in every second row, not always the same."""
        mask = np.ones((ROWS, self.info.action_size), np.bool_)
        starts = np.cumsum([0, *self.info.action_counts[:-1]])
        for row, (start, count) in itertools.product(
            range(0, ROWS, 2), zip(starts, self.info.action_counts, strict=True)
        ):
            mask[row, start + rng.integers(count)] = False
        return mask

    def params(self, parameters: dict[str, Tensor] | None = None) -> Tensor:
        params = functional_call(self.network, parameters or {}, torch.from_numpy(self.obs))[0]
        return params if self.mask is None else params.masked_fill(~torch.from_numpy(self.mask), FORBIDDEN)

    def surrogate(self, form: str, ent_coef: float = 0.0) -> Surrogate:
        if form == "closed_form":
            engine = ActorCriticEngine(self.network, self.info)
            rows = (self.obs, self.action, self.mask)
            return ClosedFormSurrogate(engine, self.group, rows, self.advantage, ent_coef)
        action, advantage = torch.from_numpy(self.action), torch.from_numpy(self.advantage)
        return AutogradSurrogate(
            self.params, list(self.policy.values()), self.distribution, action, advantage, ent_coef
        )

    def gradient(self, scalar: Tensor) -> np.ndarray:
        parts = torch.autograd.grad(scalar, list(self.policy.values()), retain_graph=True, allow_unused=True)
        filled = [
            torch.zeros_like(leaf) if part is None else part
            for leaf, part in zip(self.policy.values(), parts, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in filled]).numpy()

    def possible_actions(self, row: int) -> list[tuple[Any, float]]:
        """All actions with their probabilities; or nodes and weights by which polynomials of noise are integrated."""
        params = self.params()[row].detach().numpy().astype(np.float64)
        if self.info.continuous:
            nodes, weights = np.polynomial.hermite_e.hermegauss(4)
            pairs = itertools.product(zip(nodes, weights / weights.sum(), strict=True), repeat=2)
            mean, std = params[:2], np.exp(params[2:])
            return [(mean + std * [a, b], wa * wb) for (a, wa), (b, wb) in pairs]
        choices = list(itertools.product(*(range(count) for count in self.info.action_counts)))
        actions = [choice[0] if self.info.action_kind == "discrete" else list(choice) for choice in choices]
        rows = torch.from_numpy(params).expand(len(actions), -1)
        return list(zip(actions, self.distribution.log_prob(rows, torch.tensor(actions)).exp().tolist(), strict=True))

    def dense_fisher(self) -> np.ndarray:
        """The mean over rows of E[s s'], where s is the gradient of an action's log-probability."""
        total = np.zeros((self.group.data.numel(),) * 2)
        for row in range(ROWS):
            for action, weight in self.possible_actions(row):
                given = torch.as_tensor(np.array([action]), dtype=torch.float32 if self.info.continuous else None)
                score = self.gradient(self.distribution.log_prob(self.params()[row : row + 1], given).sum())
                total += weight * np.outer(score, score) / ROWS
        return total


FORMS = pytest.mark.parametrize("form", ["autograd", "closed_form"])


@FORMS
@POLICIES
def test_products_are_those_of_the_fisher_matrix(form: str, kind: str, masked: bool) -> None:
    case = Case(kind, masked)
    matrix, surrogate = case.dense_fisher(), case.surrogate(form)
    assert np.abs(matrix).max() > 0.05
    for direction in np.random.default_rng(5).standard_normal((3, len(matrix))):
        np.testing.assert_allclose(surrogate.fisher_product(direction), matrix @ direction, rtol=2e-4, atol=2e-5)


@POLICIES
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("hidden", [(), (6,), (7, 5, 4)], ids=str)
def test_both_forms_have_the_same_curvature(kind: str, masked: bool, activation: str, hidden: tuple[int, ...]) -> None:
    case = Case(kind, masked, activation, hidden)
    forms = [case.surrogate(form, ent_coef=0.1) for form in ("autograd", "closed_form")]
    for direction in np.random.default_rng(5).standard_normal((2, case.group.data.numel())):
        wanted, given = (form.fisher_product(direction) for form in forms)
        np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-5)


@FORMS
@POLICIES
def test_where_the_ratio_is_one_the_gradient_is_the_plain_policy_gradient(form: str, kind: str, masked: bool) -> None:
    case = Case(kind, masked)
    params = case.params()
    log_prob = case.distribution.log_prob(params, torch.from_numpy(case.action))
    plain = (log_prob * torch.from_numpy(case.advantage)).mean() + 0.3 * case.distribution.entropy(params).mean()
    surrogate = case.surrogate(form, ent_coef=0.3)
    np.testing.assert_allclose(surrogate.gradient, case.gradient(plain), rtol=2e-4, atol=1e-6)
    assert surrogate.start.policy_loss == pytest.approx(-case.advantage.mean(), abs=1e-6)
    assert surrogate.start.kl == 0.0


@FORMS
@POLICIES
def test_a_policy_that_moved_is_measured_against_the_old_one(form: str, kind: str, masked: bool) -> None:
    case = Case(kind, masked)
    surrogate, old = case.surrogate(form), case.params().detach().double()
    assert surrogate.measure() == pytest.approx(surrogate.start, abs=1e-6)
    case.group.data.add_(0.4 * torch.randn(case.group.data.shape, generator=torch.Generator().manual_seed(1)))
    new, action = case.params().detach().double(), torch.from_numpy(case.action)
    ratio = (case.distribution.log_prob(new, action) - case.distribution.log_prob(old, action)).exp()
    change = surrogate.measure()
    assert change.kl > 0.01
    assert change.kl == pytest.approx(case.distribution.kl(old, new).mean().item(), rel=1e-4)
    assert change.policy_loss == pytest.approx(-(ratio * torch.from_numpy(case.advantage)).mean().item(), rel=1e-4)
    assert change.entropy == pytest.approx(case.distribution.entropy(new).mean().item(), rel=1e-4)

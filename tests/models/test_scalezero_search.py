"""Searches in the world model: kept keys and values equal the whole sequence read again; compiled equals torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.models.scalezero import ScaleZeroNetwork
from rl_training.models.scalezero_engine import CompiledWorldModel
from rl_training.models.scalezero_search import TorchWorldModel
from rl_training.ops.search import GumbelRule, Leaves, Puct, Roots, Searcher
from rl_training.ops.two_hot import expected
from rl_training.types import Array
from scalezero_worlds import before_roots, stir, world

SIMULATIONS, COUNT, DISCOUNT = 20, 5, 0.97
RULES: list[Puct | GumbelRule] = [Puct(), GumbelRule(), Puct(normalization="tree", unvisited="mean")]
FORMS = [TorchWorldModel, CompiledWorldModel]
WORLDS: dict[str, dict[str, Any]] = {
    "simnorm": {},
    "layer norm": {"latent_norm": "layer_norm"},
    "no context": {"context_length": 1},
    "long context, more heads": {"context_length": 6, "heads": 4},
    "dense": {"experts": 0},
    "one expert, three layers": {"experts": 1, "layers": 3},
    "wide": {"width": 40, "latent_group": 5, "expert_size": 50, "layers": 1},
}


class Recomputed:
    """The same model without anything kept: every node's whole sequence is read again, in float64."""

    def __init__(self, network: ScaleZeroNetwork, task: str, given: tuple[Array, Array, Array]) -> None:
        self.network, self.heads = network.double(), network.heads_of(task)
        latents, actions, absent = given
        self.paths = [
            [(torch.from_numpy(latents[b, absent[b] :]).double(), torch.from_numpy(actions[b, absent[b] :]))]
            for b in range(len(latents))
        ]

    def features(self, latents: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        network = self.network
        tokens = [piece for pair in zip(latents, network.actions[actions], strict=False) for piece in pair]
        tokens += [latents[-1]] if len(latents) > len(actions) else []
        return network.transformer(torch.stack(tokens)[None]).features[0, -1]

    def roots(self) -> Roots:
        with torch.no_grad():
            said = [self.heads.predict(self.features(*path[0])) for path in self.paths]
        value = expected(torch.stack([each.value for each in said]).float(), self.network.shape.value_support)
        policy = torch.stack([each.policy for each in said]).float()
        return Roots(np.zeros((len(said), 1), np.float32), policy.numpy(), value.numpy())

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        rewards, policies, values = [], [], []
        with torch.no_grad():
            for path, parent, chosen in zip(self.paths, embedding[:, 0], action, strict=True):
                latents, actions = path[int(parent)]
                actions = torch.cat([actions, torch.tensor([int(chosen)])])
                after = self.heads.follow(self.features(latents, actions))
                latents = torch.cat([latents, self.network.normalized(after.latent)[None]])
                said = self.heads.predict(self.features(latents, actions))
                path.append((latents, actions))
                rewards.append(after.reward.float())
                policies.append(said.policy.float().numpy())
                values.append(said.value.float())
        shape, count = self.network.shape, len(rewards)
        return Leaves(
            expected(torch.stack(rewards), shape.reward_support).numpy(),
            np.full(count, DISCOUNT, np.float32),
            np.full((count, 1), simulation, np.float32),
            np.stack(policies),
            expected(torch.stack(values), shape.value_support).numpy(),
        )


def gumbel(rule: Puct | GumbelRule, actions: int) -> Array | None:
    drawn = np.random.default_rng(5).gumbel(size=(COUNT, actions)).astype(np.float32)
    return drawn if isinstance(rule, GumbelRule) else None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", WORLDS)
def test_kept_keys_and_values_equal_reading_everything_again(form: Any, kind: str) -> None:
    # Returns of about 1, since the bound is absolute: float32 rounds larger ones by more. A weight of values below 1
    # does not magnify that in the policy.
    settings = {"value_limit": 4.0, "reward_limit": 1.0} | WORLDS[kind]
    network = world(**settings)
    given = before_roots(network, "large", COUNT)
    model = form(network, "large", DISCOUNT, SIMULATIONS)
    plain = Recomputed(world(**settings), "large", given)
    rule = GumbelRule(c_scale=0.02)
    found = []
    for each, roots in ((model, model.roots(*given)), (plain, plain.roots())):
        searcher = Searcher(rule, SIMULATIONS, 4)
        result = searcher(each, roots, gumbel=gumbel(rule, 4))
        found.append((roots.logits, roots.value, result.q, result.value, result.policy, result.visits))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_the_compiled_search_equals_that_of_torch(rule: Puct | GumbelRule) -> None:
    network = world(stages=2)
    network.begin_stage(["large"])
    stir(network, 0.1)
    given = before_roots(network, "large", COUNT)
    found = []
    for form in FORMS:
        model = form(network, "large", DISCOUNT, SIMULATIONS)
        roots = model.roots(*given)
        mask = np.ones((COUNT, 4), np.bool_)
        mask[1] = False  # not searched
        mask[2, 1] = False
        result = Searcher(rule, SIMULATIONS, 4)(model, roots._replace(mask=mask), gumbel=gumbel(rule, 4))
        found.append(result)
        assert not result.visits[1].any()
        assert result.visits[2, 1] == 0
    np.testing.assert_array_equal(found[0].visits, found[1].visits)
    np.testing.assert_allclose(found[0].q, found[1].q, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[0].policy, found[1].policy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_actions_that_a_task_does_not_have_are_chosen_nowhere(form: Any, rule: Puct | GumbelRule) -> None:
    network = world()
    given = before_roots(network, "small", COUNT)
    model = form(network, "small", DISCOUNT, SIMULATIONS, actions=network.n_actions)
    roots = model.roots(*given)._replace(mask=np.repeat(network.action_mask().numpy()[:1], COUNT, axis=0))
    searcher = Searcher(rule, SIMULATIONS, network.n_actions)
    result = searcher(model, roots, gumbel=gumbel(rule, 4))
    assert not result.visits[:, 2:].any()
    assert not result.policy[:, 2:].any()
    assert (result.visits.sum(axis=1) == SIMULATIONS).all()
    for root in range(COUNT):
        # Columns of nodes: parent, action.
        assert searcher._tree.nodes[root, 1:, 1].max() < 2


@pytest.mark.parametrize("form", FORMS)
def test_what_a_root_finds_does_not_depend_on_the_others(form: Any) -> None:
    # More than go through the layers together; with returns of about 1, as float32 rounds larger ones by more.
    network, many = world(value_limit=4.0, reward_limit=1.0), 20
    given = before_roots(network, "large", many)
    model = form(network, "large", DISCOUNT, SIMULATIONS)
    together = Searcher(GumbelRule(), SIMULATIONS, 4)(model, model.roots(*given))
    for root in (0, 17):
        alone = model.roots(*(array[root : root + 1] for array in given))
        result = Searcher(GumbelRule(), SIMULATIONS, 4)(model, alone)
        np.testing.assert_array_equal(result.visits[0], together.visits[root])
        np.testing.assert_allclose(result.q[0], together.q[root], rtol=1e-5, atol=1e-6)


def test_new_weights_and_new_roots_leave_nothing_of_the_old_ones() -> None:
    network = world()
    model = CompiledWorldModel(network, "large", DISCOUNT, SIMULATIONS)
    searcher = Searcher(GumbelRule(), SIMULATIONS, 4)
    searcher(model, model.roots(*before_roots(network, "large", COUNT, seed=1)))
    stir(network)
    given = before_roots(network, "large", COUNT, seed=2)
    fresh = CompiledWorldModel(network, "large", DISCOUNT, SIMULATIONS)
    again = searcher(model, model.roots(*given))
    wanted = Searcher(GumbelRule(), SIMULATIONS, 4)(fresh, fresh.roots(*given))
    np.testing.assert_array_equal(again.q, wanted.q)


def test_a_compiled_model_complains_of_what_does_not_fit() -> None:
    network = world()
    model = CompiledWorldModel(network, "small", DISCOUNT, 5)
    latents, actions, absent = before_roots(network, "small", 2)
    with pytest.raises(ValueError, match="for 3 steps"):
        model.roots(latents[:, 1:], actions, absent)
    with pytest.raises(ValueError, match="from 0 to 3"):
        model.roots(latents, actions + 9, absent)
    with pytest.raises(ValueError, match="from 0 to 2"):
        model.roots(latents, actions, absent + 3)
    roots = model.roots(latents, actions, absent)
    with pytest.raises(ValueError, match="5 simulations and 2 actions"):
        Searcher(Puct(), 6, 2)(model, roots)

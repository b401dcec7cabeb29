"""The world model of several tasks: what tokens see, experts, adapters and stages."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.models.adapters import AdaptedWeight, AdapterShape, adapted
from rl_training.models.experts import Experts, Routing, balance_loss, expert_loads, swiglu
from rl_training.models.flat import FlatWeights, Follower, Learner
from rl_training.models.scalezero import ScaleZeroNetwork
from rl_training.models.scalezero_engine import CompiledWorldModel
from rl_training.models.scalezero_search import TorchWorldModel
from rl_training.models.transformer import Past, Transformer, TransformerShape
from rl_training.types import SpaceInfo, UserError
from scalezero_worlds import TASKS, before_roots, stir, vector_task, world

ADAPTER = AdapterShape(2, 4.0)
IMAGE = SpaceInfo((36, 36, 3), "uint8", "discrete", (), 3, (3,), (0,))


def transformer(context: int = 3, layers: int = 2) -> Transformer:
    torch.manual_seed(0)
    made = Transformer(TransformerShape(16, layers, 2, context, 12, 3, ADAPTER))
    stir(made)
    return made


def tokens(count: int = 2, length: int = 9) -> Tensor:
    return torch.randn(count, length, 16, generator=torch.Generator().manual_seed(3))


def sequence(network: ScaleZeroNetwork, task: str = "large") -> tuple[Tensor, Tensor]:
    """What the heads say along windows of five steps, as one vector of each kind."""
    generator = torch.Generator().manual_seed(1)
    info = network.tasks[task]
    obs = torch.randn(12, *info.obs_shape, generator=generator)
    actions = torch.randint(0, info.action_size, (2, 5), generator=generator)
    read = network.read(network.encode(task, obs).view(2, 6, -1), actions, stage=network.stage_of(task))
    heads = network.heads_of(task)
    said = (*heads.predict(read.features[:, 0::2]), *heads.follow(read.features[:, 1::2]))
    return torch.cat([part.flatten() for part in said]), read.features


# What tokens see


@pytest.mark.parametrize("context", [1, 2, 3])
def test_a_token_sees_whole_steps_back_to_its_context_and_nothing_ahead(context: int) -> None:
    network, x = transformer(context, layers=1), tokens()
    x.requires_grad_()
    for place in range(9):
        (slope,) = torch.autograd.grad(network(x).features[:, place].square().sum(), x)
        seen = slope.abs().sum(dim=(0, 2)) > 0.0
        first = 2 * (place // 2 - context + 1)
        assert seen.tolist() == [max(first, 0) <= other <= place for other in range(9)]


def test_only_the_distance_between_tokens_counts() -> None:
    network, x = transformer(context=2, layers=1), tokens()
    whole = network(x).features
    torch.testing.assert_close(whole[:, 4:], network(x[:, 2:]).features[:, 2:], rtol=1e-5, atol=1e-5)


def test_absent_steps_change_nothing_and_are_nowhere_nan() -> None:
    network, x = transformer(), tokens()
    absent = torch.tensor([4, 0])
    other = x.clone()
    other[0, :4] = 7.0
    one, two = network(x, absent).features, network(other, absent).features
    torch.testing.assert_close(one[0, 4:], network(x[:1, 4:]).features[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one[:, 4:], two[:, 4:])
    torch.testing.assert_close(one[1], network(x).features[1])
    assert not one.isnan().any()


@pytest.mark.parametrize("context", [1, 3])
def test_token_after_token_with_kept_keys_equals_the_whole_sequence(context: int) -> None:
    network, x = transformer(context), tokens()
    whole = network(x)
    for place in range(9):
        sees = min(network.shape.reach - 2 + place % 2, place)
        lines = [[x[:, place - sees : place].flip(1) for x in part] for part in whole.past]
        features, own = network.step(x[:, place], Past(*lines), torch.zeros(2, sees, dtype=torch.bool))
        torch.testing.assert_close(features, whole.features[:, place], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(own.keys[-1][:, 0], whole.past.keys[-1][:, place], rtol=1e-5, atol=1e-5)


# Tasks


def test_tasks_have_encoders_and_heads_of_their_own_and_actions_of_one_table() -> None:
    network = world({**TASKS, "seen": IMAGE}, width=16)
    assert network.n_actions == 4
    assert network.action_mask().tolist() == [[True, True, False, False], [True] * 4, [True, True, True, False]]
    images = torch.zeros(2, 36, 36, 3, dtype=torch.uint8)
    assert network.encode("seen", images).shape == network.encode("small", torch.zeros(2, 3)).shape == (2, 16)
    assert network.heads_of("seen").predict(torch.zeros(2, 16)).policy.shape == (2, 3)


@pytest.mark.parametrize("norm", ["simnorm", "layer_norm"])
def test_latents_are_normalized(norm: str) -> None:
    latent = world(latent_norm=norm).encode("small", torch.randn(5, 3))
    if norm == "simnorm":
        torch.testing.assert_close(latent.view(5, 4, 4).sum(dim=-1), torch.ones(5, 4))
    else:
        torch.testing.assert_close(latent.mean(dim=-1), torch.zeros(5), atol=1e-6, rtol=0.0)


def test_rewards_and_values_are_zero_before_they_are_learned() -> None:
    heads = ScaleZeroNetwork(TASKS, world().shape).heads_of("small")
    features = torch.randn(4, 16)
    assert not heads.predict(features).value.any()
    assert not heads.follow(features).reward.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"width": 18}, "multiple of latent_group=4"), ({"width": 20, "heads": 3}, "multiple of heads")],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        world(**settings)


def test_continuous_actions_are_refused() -> None:
    arm = SpaceInfo((3,), "float32", "continuous", (1,), 1, (), (), (-1.0,), (1.0,))
    with pytest.raises(UserError, match="task arm: the actions are continuous"):
        world({"arm": arm})


# Experts


def mixture(experts: int = 4) -> Experts:
    torch.manual_seed(0)
    return Experts(16, 12, experts, ADAPTER)


def test_sparse_dispatch_equals_the_dense_formula_and_the_router_gets_a_gradient() -> None:
    part, x = mixture(), torch.randn(50, 16)
    out, routing = part(x)
    assert routing is not None
    probability = (x @ part.router).softmax(dim=-1)
    every = torch.stack([swiglu(x, part.expert_in(0)[e], part.expert_out(0)[e]) for e in range(4)], dim=1)
    only = torch.nn.functional.one_hot(probability.argmax(dim=-1), 4) * probability
    dense = swiglu(x, part.shared_in(0), part.shared_out(0)) + (only[..., None] * every).sum(dim=1)
    torch.testing.assert_close(out, dense)
    assert len(set(routing.choice.tolist())) > 1
    slopes = [torch.autograd.grad(y.square().sum(), [part.router, part.expert_in.base]) for y in (out, dense)]
    torch.testing.assert_close(slopes[0], slopes[1])
    assert float(slopes[0][0].norm()) > 1e-3


def test_the_router_learns_to_prefer_the_better_expert() -> None:
    part, x = mixture(2), torch.randn(64, 16)
    with torch.no_grad():
        part.router.zero_()
        part.router[0] = torch.tensor([0.1, -0.1])
        wanted = swiglu(x, part.shared_in(0), part.shared_out(0)) + swiglu(
            x, part.expert_in(0)[0], part.expert_out(0)[0]
        )
    optimizer = torch.optim.Adam([part.router], lr=0.05)

    def preference() -> float:
        return float((x @ part.router.detach()).softmax(dim=-1)[:, 0].mean())

    before = preference()
    for _ in range(100):
        optimizer.zero_grad()
        (part(x)[0] - wanted).square().mean().backward()
        optimizer.step()
    assert preference() > before + 0.2


def test_one_expert_equals_a_dense_part_and_none_is_one() -> None:
    part, x = mixture(1), torch.randn(9, 16)
    gates = [weight.chunk(2, dim=-1) for weight in (part.shared_in(0), part.expert_in(0)[0])]
    into = torch.cat([gates[0][0], gates[1][0], gates[0][1], gates[1][1]], dim=-1)
    out = torch.cat([part.shared_out(0), part.expert_out(0)[0]])
    torch.testing.assert_close(part(x)[0], swiglu(x, into, out))
    none = mixture(0)
    assert none(x)[1] is None
    torch.testing.assert_close(none(x)[0], swiglu(x, none.shared_in(0), none.shared_out(0)))


def test_loads_and_balance_loss_by_hand() -> None:
    probability = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]])
    routing = Routing(probability, probability.argmax(dim=-1))
    assert expert_loads(routing).tolist() == [0.75, 0.25]
    assert expert_loads(routing, slice(0, 2)).tolist() == [1.0, 0.0]
    # Shares 3/4 and 1/4, mean probabilities 0.6 and 0.4.
    assert float(balance_loss(routing)) == pytest.approx(2 * (0.75 * 0.6 + 0.25 * 0.4))
    even = Routing(torch.full((4, 2), 0.5), torch.tensor([0, 1, 0, 1]))
    assert float(balance_loss(even)) == 1.0


# Adapters and stages


def test_an_adapted_weight_by_hand() -> None:
    weight = AdaptedWeight(2, 2, adapter=AdapterShape(1, 3.0, 2))
    with torch.no_grad():
        weight.base.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        for index, (down, up) in enumerate(((1.0, 2.0), (3.0, 4.0))):
            weight.down[index].fill_(down)
            weight.up[index].fill_(up)
        weight.raw_scale[0].fill_(7.0)
        weight.raw_scale[1][0].fill_(0.5)
        weight.raw_scale[1][1].fill_(-100.0)
    first = 1.0 + 0.2 * float(torch.tensor(0.5).tanh())
    torch.testing.assert_close(weight(2), first * weight.base + 0.8 * 3.0 * 2.0 + 3.0 * 12.0)
    torch.testing.assert_close(weight(1), 1.2 * weight.base + 3.0 * 2.0)
    assert weight(0) is weight.base


@pytest.mark.parametrize("stages", [1, 2])
def test_a_stage_changes_no_output_to_the_bit(stages: int) -> None:
    network = world(stages=3)
    for _ in range(stages):
        before = sequence(network)[0]
        network.begin_stage(["large"])
        assert torch.equal(sequence(network)[0], before)
        stir(network)
        assert not torch.equal(sequence(network)[0], before)


def test_frozen_tensors_stay_and_only_the_new_stage_is_trained() -> None:
    network = world(stages=3)
    network.begin_stage(["large"])
    stir(network)
    network.begin_stage(["large"])
    learner = Learner(network, FlatWeights(network.trained_parameters()))
    target = Follower(learner)
    before = copy.deepcopy(network.state_dict())
    names = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    for _ in range(3):
        learner.differentiate(sequence(network)[0].square().mean())
        learner.descend(0.1)
        target.follow(0.5)
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == names
    growing = [name for name, part in network.named_modules() if isinstance(part, AdaptedWeight)]
    added = {f"{name}.{part}.1" for name in growing for part in ("down", "up", "raw_scale")}
    assert {name for name in names if name.startswith("transformer.")} == added
    assert not any(name.startswith(("encoders.0.", "heads.0.", "actions")) for name in names)
    assert any(name.startswith("encoders.1.") for name in names)
    assert any(name.startswith("heads.1.") for name in names)
    assert learner.parameters.data.numel() == sum(p.numel() for p in network.trained_parameters())
    frozen = set(before) - names
    assert all(torch.equal(target.module.state_dict()[name], before[name]) for name in frozen)
    assert not torch.equal(target.module.state_dict()[min(moved)], before[min(moved)])


def test_a_state_rebuilds_its_stage() -> None:
    network = world(stages=3)
    network.begin_stage(["large"])
    stir(network)
    network.begin_stage(["large"])
    stir(network)
    again = world(seed=5, stages=3)
    again.load_state_dict(network.state_dict())
    assert (again.stage, again.trained_tasks) == (2, ("large",))
    assert torch.equal(sequence(again)[0], sequence(network)[0])
    flags = [[(name, p.requires_grad) for name, p in made.named_parameters()] for made in (network, again)]
    assert flags[0] == flags[1]
    again.load_state_dict(world(stages=3).state_dict())
    assert (again.stage, again.trained_tasks) == (0, ("small", "large"))
    adapters = (".down.", ".up.", ".raw_scale.")
    trained = {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in again.named_parameters() if not any(part in name for part in adapters)}


def test_a_task_that_left_is_read_as_it_was_whatever_is_learned_later() -> None:
    network = world(stages=3)
    network.begin_stage(["small", "large"])
    stir(network)
    given = before_roots(network, "small", 4)
    forms = (TorchWorldModel, CompiledWorldModel)
    before = [form(network, "small", 0.9, 4).roots(*given) for form in forms]
    network.begin_stage(["large"])
    assert (network.stage_of("small"), network.stage_of("large")) == (1, 2)
    stir(network)
    for form, known in zip(forms, before, strict=True):
        again = form(network, "small", 0.9, 4).roots(*before_roots(network, "small", 4))
        np.testing.assert_array_equal(again.logits, known.logits)
        np.testing.assert_array_equal(again.value, known.value)


def test_there_are_as_many_stages_as_there_is_room_for() -> None:
    network = world(stages=2)
    network.begin_stage(["large"])
    with pytest.raises(ValueError, match="stage 1 is the last one"):
        network.begin_stage(["large"])


def test_a_task_that_left_cannot_come_back() -> None:
    network = world(stages=3)
    network.begin_stage(["large"])
    with pytest.raises(ValueError, match="'small'"):
        network.begin_stage(["small", "large"])


def test_unknown_tasks_of_a_stage_are_refused() -> None:
    with pytest.raises(ValueError, match="'other'"):
        world({"one": vector_task(2, 2)}, stages=2).begin_stage(["other"])


def test_all_matrices_of_the_transformer_but_the_router_can_grow() -> None:
    network = world()
    growing = {id(weight.base) for weight in adapted(network.transformer)}
    others = {name for name, parameter in network.transformer.named_parameters() if id(parameter) not in growing}
    norms = ("first_norm", "second_norm", "norm")
    expected = {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}
    assert {".".join(name.split(".")[-2:]) for name in others} == expected | {"attention.distance", "experts.router"}

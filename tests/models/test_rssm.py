"""The state of a world model: its layers against dense ones, resets, alignment of actions, noise and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from rl_training.models.rssm import RSSM, SIZES, UNIMIX, WorldSize, WorldState
from rl_training.models.rssm_layers import (
    BlockGRU,
    BlockLinear,
    NormedLinear,
    OutputMLP,
    plain_linear,
    truncated_normal_,
)
from rl_training.ops.latents import kl_losses
from worlds import SMALL, uniforms

TOKENS, ACTIONS, T, B = 7, 2, 6, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model(size: WorldSize = SMALL) -> RSSM:
    torch.manual_seed(0)
    return RSSM(size, ACTIONS, TOKENS)


def sequence(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, tokens and uniform numbers."""
    return normal(T, B, ACTIONS, seed=seed), normal(T, B, TOKENS, seed=seed + 1), uniforms(T, B, SMALL.stoch)


NEVER = torch.zeros(T, B, dtype=torch.bool)


# Layers


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_initial_weights_are_cut_at_two_deviations_and_have_the_variance_of_the_fan_in(scale: float) -> None:
    torch.manual_seed(0)
    weight = truncated_normal_(torch.empty(400, 500), 500, scale)
    wanted = scale / math.sqrt(500)
    assert float(weight.std()) == pytest.approx(wanted, rel=0.01)
    # The bound is two deviations of the normal before the cut, which made it narrower: not two.
    bound = 2.0 * wanted / 0.8796
    assert 0.99 * bound < float(weight.abs().max()) <= bound * (1.0 + 1e-4)


def test_a_scale_of_0_is_a_layer_that_says_nothing() -> None:
    layer = plain_linear(5, 4, 0.0)
    assert not layer.weight.any()
    assert not layer.bias.any()


def test_a_normed_layer_worked_by_hand() -> None:
    layer = NormedLinear(2, 2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        layer.norm.weight.copy_(torch.tensor([1.0, 2.0]))
    # The mean square of 3 and 4 is 12.5.
    x = torch.tensor([3.0, 8.0]) / math.sqrt(12.5 + 1e-4)
    torch.testing.assert_close(layer(torch.ones(2)), x * torch.sigmoid(x))


def dense_of(layer: BlockLinear) -> Tensor:
    """The weight of a dense layer `[outputs, inputs]`: zeros outside of the blocks."""
    return torch.block_diag(*layer.weight.detach())


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_a_block_layer_equals_a_dense_one_with_a_block_diagonal_weight(lead: tuple[int, ...]) -> None:
    layer = BlockLinear(12, 8, 4)
    nn.init.normal_(layer.bias)
    x = normal(*lead, 12)
    wanted = nn.functional.linear(x, dense_of(layer), layer.bias)
    torch.testing.assert_close(layer(x), wanted)


def test_the_fan_in_of_a_block_layer_is_that_of_the_whole_layer() -> None:
    torch.manual_seed(0)
    block, dense = BlockLinear(800, 400, 8), plain_linear(800, 400)
    assert float(block.weight.detach().std()) == pytest.approx(float(dense.weight.detach().std()), rel=0.02)


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="10 inputs and 8 outputs cannot be cut into 4 blocks"):
        BlockLinear(10, 8, 4)


def dense_gru(unit: BlockGRU, state: Tensor, inputs: Tensor) -> Tensor:
    """The same unit with dense layers, whose weights are zeros between blocks and are laid out for plain columns."""
    deter, width, blocks = state.shape[-1], inputs.shape[-1], unit.blocks
    own = deter // blocks
    hidden_state, hidden_inputs = torch.zeros(deter, deter), torch.zeros(deter, width)
    gates = torch.zeros(3, deter, deter)
    bias = torch.zeros(3, deter)
    for k in range(blocks):
        rows = slice(k * own, (k + 1) * own)
        weight = unit.hidden.weight.detach()[k]
        hidden_state[rows, rows], hidden_inputs[rows] = weight[:, :own], weight[:, own:]
        for gate in range(3):
            gates[gate, rows, rows] = unit.gates.weight.detach()[k, gate * own : (gate + 1) * own]
            start = (3 * k + gate) * own
            bias[gate, rows] = unit.gates.bias.detach()[start : start + own]
    x = state @ hidden_state.T + inputs @ hidden_inputs.T + unit.hidden.bias
    x = x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * unit.norm.weight
    x = x * torch.sigmoid(x)
    reset, candidate, update = (x @ gates[gate].T + bias[gate] for gate in range(3))
    share = torch.sigmoid(update - 1.0)
    return share * torch.tanh(torch.sigmoid(reset) * candidate) + (1.0 - share) * state


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_the_block_unit_equals_a_dense_one(blocks: int) -> None:
    torch.manual_seed(0)
    unit = BlockGRU(16, 5, blocks)
    for parameter in unit.parameters():
        nn.init.normal_(parameter, 0.1, 0.5)
    state, inputs = normal(4, 3, 16), normal(4, 3, 5, seed=1)
    torch.testing.assert_close(unit(state, inputs), dense_gru(unit, state, inputs))


def test_blocks_see_each_other_only_through_the_norm() -> None:
    unit = BlockGRU(16, 5, 4)
    hidden = unit.hidden(torch.cat([normal(4, 4), normal(1, 5, seed=1).expand(4, 5)], dim=-1).flatten())
    moved = normal(4, 4)
    moved[2] += 1.0
    after = unit.hidden(torch.cat([moved, normal(1, 5, seed=1).expand(4, 5)], dim=-1).flatten())
    assert ((after != hidden).view(4, 4).any(-1)).tolist() == [False, False, True, False]


def test_before_learning_a_state_is_mostly_kept() -> None:
    unit = BlockGRU(16, 5, 4)
    for parameter in unit.gates.parameters():
        nn.init.zeros_(parameter)
    state = normal(3, 16)
    # Gates of 0: the share of the candidate, which is 0, is sigmoid(-1) = 27%.
    torch.testing.assert_close(unit(state, normal(3, 5)), (1.0 - 1.0 / (1.0 + math.e)) * state)


# Sizes


def test_sizes_are_those_of_the_paper() -> None:
    for name, deter in {"1m": 512, "12m": 2048, "25m": 3072, "50m": 4096, "100m": 6144, "200m": 8192}.items():
        size = SIZES[name]
        assert (size.deter, size.stoch, size.blocks) == (deter, 32, 8)
        assert size.units == size.hidden
        assert size.hidden == deter // 8
    assert [SIZES[name].classes for name in ("1m", "12m", "25m", "50m", "100m", "200m")] == [4, 16, 24, 32, 48, 64]
    assert SIZES["xxs"] == WorldSize(deter=256, hidden=64, classes=8, units=64, depth=4, stoch=16, blocks=8)


# States


def test_a_state_before_an_episode_is_zeros() -> None:
    state = model().initial(B)
    assert state.deter.shape == (B, 24)
    assert state.stoch.shape == (B, 3, 5)
    assert not state.features.any()
    assert state.features.shape == (B, SMALL.features)


def test_shapes_of_a_sequence_and_of_a_dream() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    assert seen.state.deter.shape == (T, B, 24)
    assert seen.state.stoch.shape == seen.posterior.shape == (T, B, 3, 5)
    assert seen.state.features.shape == (T, B, SMALL.features)
    assert torch.equal(seen.state.stoch.detach().sum(-1), torch.ones(T, B, 3))
    torch.testing.assert_close(seen.posterior.exp().sum(-1), torch.ones(T, B, 3))
    assert rssm.prior(seen.state.deter).shape == (T, B, 3, 5)
    after, prior = rssm.imagine(seen.last, actions[0], uniform[0])
    assert after.deter.shape == (B, 24)
    assert after.stoch.shape == prior.shape == (B, 3, 5)
    assert torch.equal(seen.last.deter, seen.state.deter[-1])


def test_every_latent_has_its_uniform_share() -> None:
    rssm = model()
    for head in (rssm.prior_head, rssm.posterior_head):
        nn.init.constant_(head.out.bias, 0.0)
        with torch.no_grad():
            head.out.bias.view(3, 5)[:, 1] = 1000.0
    actions, tokens, uniform = sequence()
    # One in 125 numbers lies in the share of the last class: it is drawn, against all evidence.
    uniform = torch.full_like(uniform, 1.0 - UNIMIX / 5.0 / 2.0)
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    torch.testing.assert_close(seen.posterior.exp().amin(), torch.tensor(UNIMIX / 5.0))
    assert (seen.state.stoch[..., 4] == 1.0).all()
    after, prior = rssm.imagine(seen.last, actions[0], uniform[0])
    torch.testing.assert_close(prior.exp().amin(), torch.tensor(UNIMIX / 5.0))
    assert (after.stoch[..., 4] == 1.0).all()
    # Posterior and prior agree to the bit, so the divergence is 0, not a difference of rounding errors.
    assert kl_losses(seen.posterior, rssm.prior(seen.state.deter), 0.0)[2].abs().max() < 1e-5


@pytest.mark.parametrize("start", [0, 1, 4, T - 1])
def test_after_a_first_step_everything_is_as_in_a_fresh_sequence(start: int) -> None:
    """State, latent and previous action are forgotten where an episode begins, in that row alone."""
    rssm = model()
    actions, tokens, uniform = sequence()
    first = NEVER.clone()
    first[start, 1] = True
    before = WorldState(normal(B, 24, seed=5), normal(B, 3, 5, seed=6))
    seen = rssm.observe(before, actions, tokens, first, uniform)
    fresh_actions = actions[start:].clone()
    fresh_actions[0] = 0.0
    fresh = rssm.observe(rssm.initial(B), fresh_actions, tokens[start:], NEVER[start:], uniform[start:])
    torch.testing.assert_close(seen.state.features[start:, 1], fresh.state.features[:, 1])
    torch.testing.assert_close(seen.posterior[start:, 1], fresh.posterior[:, 1])
    # The other rows go on, and the row itself was another before.
    without = rssm.observe(before, actions, tokens, NEVER, uniform)
    others = [0, 2]
    torch.testing.assert_close(seen.state.features[:, others], without.state.features[:, others])
    torch.testing.assert_close(seen.state.features[:start, 1], without.state.features[:start, 1])
    assert not torch.allclose(seen.state.deter[start, 1], without.state.deter[start, 1])


def test_what_was_no_number_is_forgotten_too() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    before = WorldState(torch.full((B, 24), math.nan), torch.full((B, 3, 5), math.nan))
    actions[0] = math.nan
    first = NEVER.clone()
    first[0] = True
    assert rssm.observe(before, actions, tokens, first, uniform).state.features.isfinite().all()


def test_no_gradient_crosses_the_beginning_of_an_episode() -> None:
    rssm = model()
    actions, tokens, uniform = (leaf.requires_grad_() for leaf in sequence())
    first = NEVER.clone()
    first[3] = True
    seen = rssm.observe(rssm.initial(B), actions, tokens, first, uniform)
    by_tokens, by_actions = torch.autograd.grad(seen.state.deter[-1].square().sum(), [tokens, actions])
    assert not by_tokens[:3].any()
    assert not by_actions[:4].any()
    assert by_tokens[3:5].abs().sum(-1).gt(0.0).all()
    assert by_actions[4:].abs().sum(-1).gt(0.0).all()


def test_an_action_acts_on_the_observation_after_it() -> None:
    """`previous_action[t]` reaches the state of observation t, and nothing before it."""
    rssm = model()
    actions, tokens, uniform = sequence()
    moved = actions.clone()
    moved[2] += 0.5
    one, other = (rssm.observe(rssm.initial(B), chosen, tokens, NEVER, uniform) for chosen in (actions, moved))
    assert torch.equal(one.state.deter[:2], other.state.deter[:2])
    assert (one.state.deter[2] != other.state.deter[2]).any(-1).all()
    # An observation reaches the latent of its own step, and what is remembered one step later.
    moved = tokens.clone()
    moved[2] += 10.0
    other = rssm.observe(rssm.initial(B), actions, moved, NEVER, uniform)
    assert torch.equal(one.state.deter[:3], other.state.deter[:3])
    assert (one.posterior[2] != other.posterior[2]).flatten(1).any(-1).all()


def test_a_sequence_in_two_pieces_is_the_same_sequence() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    first = NEVER.clone()
    first[1, 0] = first[4, 2] = True
    whole = rssm.observe(rssm.initial(B), actions, tokens, first, uniform)
    head = rssm.observe(rssm.initial(B), actions[:2], tokens[:2], first[:2], uniform[:2])
    tail = rssm.observe(head.last, actions[2:], tokens[2:], first[2:], uniform[2:])
    torch.testing.assert_close(torch.cat([head.state.features, tail.state.features]), whole.state.features)


def test_a_dream_remembers_as_observing_does() -> None:
    """With the same latent, action and memory, both ways lead to the same memory and the same prior."""
    rssm = model()
    actions, tokens, uniform = sequence()
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    state = WorldState(seen.state.deter[2], seen.state.stoch[2])
    after, prior = rssm.imagine(state, actions[3], uniform[3])
    torch.testing.assert_close(after.deter, seen.state.deter[3])
    torch.testing.assert_close(prior, rssm.prior(seen.state.deter)[3])


def test_large_actions_are_scaled_to_1_and_small_ones_are_left() -> None:
    rssm = model()
    state = rssm.imagine(rssm.initial(1), torch.tensor([[0.3, -0.4]]), uniforms(1, 3))[0]
    at = {scale: rssm.advance(state, torch.tensor([[scale, -0.4]])) for scale in (1.0, 3.0, 1000.0, 0.5)}
    torch.testing.assert_close(at[1.0], at[3.0])
    torch.testing.assert_close(at[1.0], at[1000.0])
    assert not torch.allclose(at[1.0], at[0.5])
    # The scale is no way for a gradient: a larger action looks as if it would still matter.
    action = torch.tensor([[4.0, 0.5]], requires_grad=True)
    reference = torch.tensor([[1.0, 0.5]], requires_grad=True)
    (ours,) = torch.autograd.grad(rssm.advance(state.detached(), action).sum(), action)
    (theirs,) = torch.autograd.grad(rssm.advance(state.detached(), reference).sum(), reference)
    assert ours.all()
    torch.testing.assert_close(ours, theirs / torch.tensor([4.0, 1.0]))


# Noise and gradients


def test_the_same_noise_gives_the_same_states_and_no_generator_is_asked() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    torch.manual_seed(1)
    one = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    other = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    assert torch.equal(one.state.features, other.state.features)
    different = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniforms(T, B, 3, seed=9))
    assert not torch.equal(one.state.stoch, different.state.stoch)


def test_every_weight_learns_from_a_sequence() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    dynamics, representation, _ = kl_losses(seen.posterior, rssm.prior(seen.state.deter), 0.0)
    (dynamics + representation + (seen.state.features * normal(T, B, SMALL.features)).sum(-1)).sum().backward()
    for name, parameter in rssm.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0.0, name


def test_each_divergence_teaches_its_side() -> None:
    """The dynamics loss does not reach the posterior of its own step, nor the representation loss the prior."""
    rssm = model()
    actions, tokens, uniform = sequence()
    posterior_weights, prior_weights = list(rssm.posterior_head.parameters()), list(rssm.prior_head.parameters())
    seen = rssm.observe(rssm.initial(B), actions[:1], tokens[:1], NEVER[:1], uniform[:1])
    dynamics, representation, _ = kl_losses(seen.posterior, rssm.prior(seen.state.deter), 0.0)
    for loss, taught, left in (
        (dynamics, prior_weights, posterior_weights),
        (representation, posterior_weights, prior_weights),
    ):
        gradients = torch.autograd.grad(loss.sum(), taught + left, retain_graph=True, allow_unused=True)
        assert all(gradient is not None and gradient.any() for gradient in gradients[: len(taught)])
        assert all(gradient is None for gradient in gradients[len(taught) :])


def test_a_gradient_passes_through_latents_as_through_their_probabilities() -> None:
    """Straight through: what a latent would change, if it were its probabilities."""
    rssm = model()
    tokens, weight = normal(1, B, TOKENS), normal(B, 3, 5, seed=8)
    actions, uniform = normal(1, B, ACTIONS), uniforms(1, B, 3)
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER[:1], uniform)
    weights = list(rssm.posterior_head.parameters())
    ours = torch.autograd.grad((seen.state.stoch[0] * weight).sum(), weights, retain_graph=True)
    theirs = torch.autograd.grad((seen.posterior[0].exp() * weight).sum(), weights)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_a_state_without_a_gradient_has_none() -> None:
    rssm = model()
    actions, tokens, uniform = sequence()
    seen = rssm.observe(rssm.initial(B), actions, tokens, NEVER, uniform)
    assert seen.state.features.requires_grad
    assert not seen.state.detached().features.requires_grad


def test_an_mlp_with_outputs_starts_as_it_is_asked_to() -> None:
    torch.manual_seed(0)
    x = normal(50, 6)
    assert not OutputMLP(6, 2, 8, 4, scale=0.0)(x).any()
    torch.manual_seed(0)
    loud = OutputMLP(6, 2, 8, 4)(x)
    torch.manual_seed(0)
    torch.testing.assert_close(OutputMLP(6, 2, 8, 4, scale=0.01)(x), 0.01 * loud)

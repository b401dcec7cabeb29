"""Categorical latents: the uniform share in samples and divergences, samples from given numbers, stopped gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.latents import (
    categorical_entropy,
    categorical_kl,
    index_of,
    kl_losses,
    mixed_log_probs,
    one_hot,
    sample_index,
    straight_through,
)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_uniform_share_worked_by_hand() -> None:
    # softmax is 3/4 and 1/4; 0.9 of it and 0.1 / 2 of the uniform.
    probabilities = mixed_log_probs(torch.tensor([math.log(3.0), 0.0]), 0.1).exp()
    torch.testing.assert_close(probabilities, torch.tensor([0.725, 0.275]))


def test_no_class_has_less_than_its_uniform_share() -> None:
    probabilities = mixed_log_probs(torch.tensor([1000.0, 0.0, -1000.0, 0.0]), 0.01).exp()
    torch.testing.assert_close(probabilities, torch.tensor([0.9925, 0.0025, 0.0025, 0.0025]))


def test_without_a_share_it_is_the_logarithm_of_softmax() -> None:
    logits = normal(3, 4, scale=50.0)
    assert torch.equal(mixed_log_probs(logits, 0.0), logits.log_softmax(-1))


@pytest.mark.parametrize("unimix", [0.0, 0.01, 1.0])
def test_forbidden_classes_have_no_probability_and_no_gradient(unimix: float) -> None:
    logits = normal(5, 4).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    log_probs = mixed_log_probs(logits, unimix, mask)
    probabilities = log_probs.exp()
    possible = mask.any(-1)
    assert (probabilities[~mask & possible[:, None]] == 0.0).all()
    torch.testing.assert_close(probabilities[possible].sum(-1), torch.ones(4))
    smallest = unimix / mask.sum(-1, keepdim=True).clamp(min=1)
    assert (probabilities >= smallest - 1e-6)[mask].all()
    entropy = categorical_entropy(log_probs[possible])
    assert entropy.isfinite().all()
    entropy.sum().backward()
    assert logits.grad is not None
    assert (logits.grad[~mask] == 0.0).all()
    index = sample_index(log_probs, torch.full((5,), 0.999))
    assert mask[possible].gather(1, index[possible, None]).all()


def test_a_full_mask_changes_nothing() -> None:
    logits = normal(6, 5)
    torch.testing.assert_close(
        mixed_log_probs(logits, 0.01, torch.ones(6, 5).bool()), mixed_log_probs(logits, 0.01), rtol=0.0, atol=1e-6
    )


def test_a_row_without_any_allowed_class_gives_numbers() -> None:
    log_probs = mixed_log_probs(normal(1, 3), 0.01, torch.zeros(1, 3).bool())
    assert (log_probs == FORBIDDEN).all()
    assert sample_index(log_probs, torch.tensor([0.5])).item() in (0, 1, 2)


def test_samples_worked_by_hand() -> None:
    log_probs = torch.tensor([0.5, 0.25, 0.25]).log().expand(6, 3)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.999])
    assert sample_index(log_probs, uniform).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_class_without_probability_is_never_drawn() -> None:
    log_probs = torch.tensor([0.0, 0.6, 0.0, 0.4, 0.0, 0.0]).log()
    uniform = torch.cat([torch.tensor([0.0, 1.0 - 2.0**-24, 1.0]), torch.linspace(0.0, 1.0, 997)])
    assert set(sample_index(log_probs.expand(1000, 6), uniform).tolist()) == {1, 3}


@given(st.integers(2, 9), st.integers(0, 2**31), st.floats(0.0, 20.0))
def test_even_numbers_give_every_class_its_probability(classes: int, seed: int, scale: float) -> None:
    log_probs = mixed_log_probs(normal(classes, seed=seed, scale=scale), 0.01)
    uniform = (torch.arange(4000) + 0.5) / 4000
    share = one_hot(sample_index(log_probs.expand(4000, classes), uniform), classes).mean(0)
    # Each class has an interval of the uniform numbers: its ends are off by at most one of them.
    torch.testing.assert_close(share, log_probs.exp(), rtol=0.0, atol=2.0 / 4000)


def test_samples_are_drawn_from_the_mixed_distribution() -> None:
    """The uniform share is in what is drawn, not only in the divergence."""
    log_probs = mixed_log_probs(torch.tensor([100.0, 0.0]), 0.5)
    assert sample_index(log_probs.expand(2, 2), torch.tensor([0.7, 0.8])).tolist() == [0, 1]


def test_indices_say_everything_about_one_hot_rows() -> None:
    index = torch.tensor([[0, 2, 3], [1, 3, 0]], dtype=torch.uint8)
    rows = one_hot(index, 3)
    assert rows.dtype == torch.float32
    assert rows.sum(-1).tolist() == [[1, 1, 0], [1, 0, 1]]
    assert torch.equal(index_of(rows), index)
    with pytest.raises(ValueError, match="one byte"):
        index_of(torch.zeros(1, 256))


def test_straight_through_is_the_sample_to_the_bit_with_the_gradient_of_probabilities() -> None:
    logits = normal(50, 4, 8, scale=3.0).requires_grad_()
    log_probs = mixed_log_probs(logits, 0.01)
    rows = one_hot(sample_index(log_probs, torch.rand(50, 4, generator=torch.Generator().manual_seed(1))), 8)
    sample = straight_through(rows, log_probs)
    assert torch.equal(sample, rows)
    weight = normal(50, 4, 8, seed=2)
    (ours,) = torch.autograd.grad((sample * weight).sum(), logits, retain_graph=True)
    (theirs,) = torch.autograd.grad((log_probs.exp() * weight).sum(), logits)
    assert torch.equal(ours, theirs)
    assert ours.abs().sum() > 0.0


def test_entropy_and_divergence_equal_those_of_torch() -> None:
    p, q = (mixed_log_probs(normal(7, 3, 5, seed=seed, scale=4.0), 0.01) for seed in (0, 1))
    theirs_p, theirs_q = Categorical(logits=p), Categorical(logits=q)
    torch.testing.assert_close(categorical_entropy(p), theirs_p.entropy())
    torch.testing.assert_close(categorical_kl(p, q), kl_divergence(theirs_p, theirs_q).sum(-1))


def test_the_uniform_share_keeps_the_divergence_small() -> None:
    certain = torch.tensor([[100.0, 0.0]])
    with_share, without = (
        categorical_kl(mixed_log_probs(certain, unimix), mixed_log_probs(-certain, unimix)) for unimix in (0.01, 0.0)
    )
    assert without.item() == pytest.approx(100.0)
    assert with_share.item() == pytest.approx(0.99 * math.log(0.995 / 0.005), rel=1e-3)


def pair(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    posterior, prior = (normal(1, 4, 6, seed=seed, scale=scale).requires_grad_() for seed in (0, 1))
    return posterior, prior


def test_each_side_of_the_divergence_teaches_one_distribution() -> None:
    posterior, prior = pair(3.0)
    dynamics, representation, divergence = kl_losses(
        mixed_log_probs(posterior, 0.01), mixed_log_probs(prior, 0.01), 1.0
    )
    assert divergence.item() > 1.0
    assert not divergence.requires_grad
    torch.testing.assert_close(dynamics.detach(), divergence)
    torch.testing.assert_close(representation.detach(), divergence)
    by_prior, by_posterior = torch.autograd.grad(dynamics.sum(), [prior, posterior], allow_unused=True)
    assert by_prior.abs().sum() > 0.0
    assert by_posterior is None
    by_prior, by_posterior = torch.autograd.grad(representation.sum(), [prior, posterior], allow_unused=True)
    assert by_prior is None
    assert by_posterior.abs().sum() > 0.0


def test_the_gradients_of_the_two_sides_are_those_of_the_whole_divergence() -> None:
    posterior, prior = pair(3.0)
    logs = mixed_log_probs(posterior, 0.01), mixed_log_probs(prior, 0.01)
    wanted = torch.autograd.grad(categorical_kl(*logs).sum(), [posterior, prior], retain_graph=True)
    dynamics, representation, _ = kl_losses(*logs, 0.0)
    ours = torch.autograd.grad((dynamics + representation).sum(), [posterior, prior])
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_free_nats_bound_the_sum_over_the_latent() -> None:
    """A latent may be above the bound though none of its categoricals is."""
    posterior, prior = pair(0.6)
    logs = mixed_log_probs(posterior, 0.01), mixed_log_probs(prior, 0.01)
    each = (logs[0].exp() * (logs[0] - logs[1])).sum(-1).detach()
    whole = float(each.sum())
    bound = float(each.max()) * 1.01
    assert bound < whole
    dynamics, representation, divergence = kl_losses(*logs, bound)
    assert dynamics.item() == representation.item() == pytest.approx(whole)
    assert torch.autograd.grad(dynamics.sum(), prior, retain_graph=True)[0].abs().sum() > 0.0
    # Below the bound the losses are the bound, without a gradient; what is reported is the divergence.
    dynamics, representation, divergence = kl_losses(*logs, whole * 1.01)
    assert dynamics.item() == representation.item() == pytest.approx(whole * 1.01)
    assert divergence.item() == pytest.approx(whole)
    for loss, leaf in ((dynamics, prior), (representation, posterior)):
        assert not torch.autograd.grad(loss.sum(), leaf, retain_graph=True)[0].any()

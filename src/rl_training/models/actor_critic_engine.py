"""`MLPActorCritic` without autograd: acting, and the forward and backward passes of the on-policy algorithms."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_engine import (
    KINDS,
    ActingMLP,
    MLPEngine,
    Workspace,
    gradients_of,
    kind_of,
    linears,
    matrix_of,
    views_of,
)
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.kernels import acting, heads
from rl_training.types import Array, SpaceInfo

# The log-probabilities of all choices and None, or the means and log deviations of a Gaussian.
PolicyOutputs = tuple[Array, Array | None]


class CompiledActing:
    """Policy outputs, values and sampled actions for a few rows; it only reads the weights, without gradients."""

    def __init__(self, network: MLPActorCritic, flat: Tensor, info: SpaceInfo) -> None:
        torsos = (network.policy_torso, network.policy_head), (network.value_torso, network.value_head)
        self._policy, self._value = (ActingMLP(linears(*each), flat, kind_of(each[0])) for each in torsos)
        self._log_std: Array | None = None if network.log_std is None else network.log_std.detach().numpy()
        self._counts = np.array(info.action_counts, np.int64)
        self._one_choice = info.action_kind == "discrete"

    def outputs(self, obs: Array, mask: Array | None = None) -> tuple[Array, Array]:
        """Policy outputs `[B, A]` and values `[B]`."""
        x = matrix_of(obs)
        return self.heads(x, x, mask)

    def heads(self, policy_input: Array, value_input: Array, mask: Array | None) -> tuple[Array, Array]:
        """Policy outputs `[B, A]` and values `[B]` from separate inputs for policy and value."""
        return _forbid(self._policy(policy_input), mask), self._value(value_input)[:, 0]

    def draw(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions sampled from policy outputs, and their log-probabilities."""
        if self._log_std is None:
            uniform = rng.random((len(params), self._counts.size))
            action, log_prob = acting.sample_categorical(params, self._counts, uniform)
            return action[:, 0] if self._one_choice else action, log_prob
        noise = rng.standard_normal(params.shape, dtype=np.float32)
        return acting.sample_gaussian(params, self._log_std, noise)

    def log_prob(self, params: Array, action: Array) -> Array:
        """The log-probabilities `[B]` of actions; it overwrites the policy outputs."""
        log_prob, entropy = np.empty((2, len(params)), np.float32)
        if self._log_std is None:
            choices = action[:, None] if self._one_choice else action
            heads.categorical_forward(params, self._counts, choices, log_prob, entropy)
        else:
            heads.gaussian_forward(params, self._log_std, action, log_prob, entropy)
        return log_prob


class ActorCriticEngine:
    """Likelihoods and values of a batch, and their gradients."""

    def __init__(self, network: MLPActorCritic, info: SpaceInfo) -> None:
        torsos = (network.policy_torso, network.policy_head), (network.value_torso, network.value_head)
        self._policy_layers = linears(*torsos[0])
        self.policy, self.value = (
            MLPEngine(views_of(layers), kind_of(torso), gradients_of(layers))
            for torso, layers in ((each[0], linears(*each)) for each in torsos)
        )
        self.log_std: Array | None = None
        if network.log_std is not None:
            assert network.log_std.grad is not None
            self.log_std = network.log_std.detach().numpy()
            self._d_log_std = network.log_std.grad.numpy()
            self._log_std_parameter = network.log_std
        self._counts = np.array(info.action_counts, np.int64)
        self._one_choice = info.action_kind == "discrete"
        self._action: Array = np.zeros(0)
        self._params: Array = np.zeros(0)
        self._columns = Workspace((), [1, 1])

    def evaluate(self, obs: Array, action: Array, mask: Array | None = None) -> tuple[Array, Array, Array]:
        """Log-probabilities and entropies of actions, and values, each `[N]`; observations are `[N, ...]`."""
        return *self.likelihood(obs, action, mask), self.values(obs)

    def likelihood(self, obs: Array, action: Array, mask: Array | None = None) -> tuple[Array, Array]:
        """Log-probabilities and entropies of actions, each `[N]`."""
        x = matrix_of(obs)
        self._action = action[:, None] if self._one_choice else action
        self._params = _forbid(self.policy.forward(x), mask)
        self._columns.resize(len(x))
        log_prob, entropy = (column[:, 0] for column in self._columns.arrays)
        if self.log_std is None:
            heads.categorical_forward(self._params, self._counts, self._action, log_prob, entropy)
        else:
            heads.gaussian_forward(self._params, self.log_std, action, log_prob, entropy)
        return log_prob, entropy

    def values(self, obs: Array) -> Array:
        """Values `[N]`."""
        return self.value.forward(matrix_of(obs))[:, 0]

    def backward(self, d_log_prob: Array, d_entropy: float, d_value: Array) -> None:
        """Write the gradients of all parameters, given those of the results of `evaluate` (one for all entropies)."""
        self.likelihood_backward(d_log_prob, d_entropy)
        self.value.backward(d_value[:, None])

    def likelihood_backward(self, d_log_prob: Array, d_entropy: float) -> None:
        """Write the gradients of the policy's parameters, after `likelihood`."""
        if self.log_std is None:
            heads.categorical_backward(self._params, self._counts, self._action, d_log_prob, d_entropy)
        else:
            heads.gaussian_backward(self._params, self.log_std, self._action, d_log_prob, d_entropy, self._d_log_std)
        self.policy.backward(self._params)

    def policy_outputs(self) -> PolicyOutputs:
        """Copies of the policy outputs of the latest `likelihood`; its next call overwrites the originals."""
        return self._params.copy(), None if self.log_std is None else self.log_std.copy()

    def divergence(self, old: PolicyOutputs) -> float:
        """The mean KL(old || new) of old policy outputs and those of the latest `likelihood`."""
        params, log_std = old
        if self.log_std is None or log_std is None:
            return float(heads.categorical_kl(params, self._params))
        return float(heads.gaussian_kl(params, log_std, self._params, self.log_std))

    def clone_gradient(self, outputs: Array, old_params: Array, weight: float, mask: Array | None = None) -> float:
        """Turn policy outputs `[N, A]` into the gradient of `weight` times the mean KL from old parameters `[N, P]`.

        Also writes the gradient of the log deviations, if there are any. Returns the KL.
        """
        if self.log_std is None:
            return float(heads.categorical_clone(_forbid(outputs, mask), self._counts, old_params, weight))
        means, deviations = old_params[:, : self.log_std.size], old_params[0, self.log_std.size :]
        return float(heads.gaussian_clone(outputs, self.log_std, means, deviations, weight, self._d_log_std))

    def fisher_product(self, outputs: PolicyOutputs, direction: Array) -> None:
        """Write the policy's Fisher information times a direction, flat like the parameters, to its gradients.

        `outputs` are those of the latest `likelihood`. The Fisher matrix is the mean of J' M J over its rows: J is the
        Jacobian of the outputs with respect to the parameters, M the Fisher matrix of the outputs in closed form.
        """
        params, log_std = outputs
        layers = self._policy_layers
        tangent = self.policy.tangent([(_part(direction, at.weight), _part(direction, at.bias)) for at in layers])
        if log_std is None:
            heads.categorical_fisher(params, self._counts, tangent)
        else:
            tangent *= np.exp(-2.0 * log_std) / len(tangent)
            np.multiply(_part(direction, self._log_std_parameter), 2.0, out=self._d_log_std)
        self.policy.backward(tangent)


def within_reach(network: MLPActorCritic, info: SpaceInfo) -> bool:
    """Whether an engine can compute these MLPs, with float32 weights on a CPU, on these observations."""
    floats = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in network.parameters())
    layers = (*network.policy_torso, *network.value_torso)
    known = all(type(layer) in KINDS or isinstance(layer, nn.Linear) for layer in layers)
    plain = floats and known and not network.state_dependent_noise
    return plain and (info.obs_dtype == "float32" or info.packed)


def _part(flat: Array, parameter: Tensor) -> Array:
    """The part of a flat array at the position that a parameter has in the flat buffer."""
    start = parameter.storage_offset()
    return flat[start : start + parameter.numel()].reshape(parameter.shape)


def _forbid(logits: Array, mask: Array | None) -> Array:
    if mask is not None:
        np.copyto(logits, FORBIDDEN, where=~mask)
    return logits

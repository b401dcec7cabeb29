"""From the networks of Stable-Baselines3 to ours: the same layers under other names, in other units where these differ.

Four differences are evened out. Critics there see observations before actions, here actions come first. A Gaussian
policy there computes actions in the environment's units, also if the bounds are not symmetric. Images there may stay
unscaled (`normalize_images=False`). And an action that is on or off has one output there, here one for each choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.parts.actor_critic_policy import PolicyModelConfig
from rl_training.experiment.config import Config
from rl_training.runtime.sb3.files import Model
from rl_training.types import Array, SpaceInfo, UserError

Dense = list[tuple[Array, Array]]  # the weights and biases of a chain of layers
Named = dict[str, Array]


class Weights:
    """The weights of a file, each of which must be used: what is left belongs to a network that is none of ours."""

    def __init__(self, model: Model) -> None:
        self.place = repr(str(model.path))
        self._arrays = dict(model.weights)

    def has(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str) -> Array:
        if name not in self._arrays:
            raise UserError(
                f"{self.place}: its policy has no weights {name!r}; it is not one of the policies of this kind"
            )
        return self._arrays.pop(name)

    def layer(self, name: str) -> tuple[Array, Array]:
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if weight.ndim != 2 or bias.shape != weight.shape[:1] or weight.size == 0:
            raise UserError(f"{self.place}: its {name!r:.80} is no layer of an MLP: it has the shape {weight.shape}")
        return weight, bias

    def chain(self, prefix: str) -> Dense:
        """The layers of an MLP, which are every other module of a sequence."""
        pattern = re.compile(re.escape(prefix) + r"\.([0-9]{1,4})\.weight")
        found = sorted(int(match[1]) for match in map(pattern.fullmatch, self._arrays) if match)
        if found != list(range(0, 2 * len(found), 2)):
            raise UserError(f"{self.place}: {prefix!r} has other layers than those of an MLP, so it is none of ours")
        return [self.layer(f"{prefix}.{index}") for index in found]

    def under(self, prefix: str) -> Named:
        """All weights of a module, by the rest of their names."""
        names = [name for name in self._arrays if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._arrays.pop(name) for name in names}

    def finish(self) -> None:
        if self._arrays:
            raise UserError(
                f"{self.place}: its policy has the weights {next(iter(self._arrays))!r:.80}, which ours have not"
            )


def _sizes(chain: Dense) -> list[int]:
    return [len(bias) for _, bias in chain]


@dataclass(frozen=True)
class ActorCritic:
    """The networks of PPO and A2C."""

    encoder: Named
    value_encoder: Named
    policy: Dense
    value: Dense
    action_head: tuple[Array, Array]
    value_head: tuple[Array, Array]
    log_std: Array | None

    @classmethod
    def read(cls, weights: Weights, variables: Mapping[str, Array]) -> ActorCritic:
        shared, own = weights.under("features_extractor."), weights.under("pi_features_extractor.")
        encoder, value = shared or own, weights.under("vf_features_extractor.")
        is_one = all(np.array_equal(array, value.get(name, array)) for name, array in encoder.items())
        networks = cls(
            encoder,
            {} if is_one else value,
            weights.chain("mlp_extractor.policy_net"),
            weights.chain("mlp_extractor.value_net"),
            weights.layer("action_net"),
            weights.layer("value_net"),
            weights.take("log_std") if weights.has("log_std") else None,
        )
        weights.finish()
        return networks

    def settings(self) -> dict[str, Any]:
        policy, value = _sizes(self.policy), _sizes(self.value)
        sizes = {"hidden_sizes": policy if policy == value else {"policy": policy, "value": value}}
        sde = {"use_sde": True} if self.log_std is not None and self.log_std.ndim == 2 else {}
        return sizes | sde | ({"share_encoder": False} if self.value_encoder else {})

    def states(self, config: Config, info: SpaceInfo, image_scale: float) -> States:
        weight, bias = self.action_head
        log_std = self.log_std
        if info.continuous and log_std is not None and len(bias) == info.action_size:
            model = config.model
            assert isinstance(model, PolicyModelConfig)
            low, high = np.asarray(info.action_low, np.float64), np.asarray(info.action_high, np.float64)
            unit = model.unit(info)
            reach = (high - low) / 2.0 * (1.0 if unit is None else unit.astype(np.float64))
            weight, bias = weight / reach[:, None], (bias - (high + low) / 2.0) / reach
            log_std = log_std - np.log(reach)
        elif set(info.action_counts) == {2} and 2 * len(bias) == info.action_size:  # MultiBinary
            weight, bias = (
                np.stack([np.zeros_like(on), on], axis=1).reshape(-1, *on.shape[1:]) for on in (weight, bias)
            )
        heads = _torso("policy_torso.", self.policy) | _torso("value_torso.", self.value)
        heads |= _layer("policy_head.", (weight, bias)) | _layer("value_head.", self.value_head)
        heads |= {} if log_std is None else {"log_std": log_std}
        if info.obs_kind != "vector":
            heads = _prefixed("heads.", heads) | _encoder(self.encoder, info, image_scale)
            heads |= _prefixed("value_", _encoder(self.value_encoder, info, image_scale))
        return States(_prefixed("network.", heads))


@dataclass(frozen=True)
class QNetworks:
    """The networks of DQN."""

    encoder: Named
    chain: Dense
    target_encoder: Named
    target: Dense

    @classmethod
    def read(cls, weights: Weights, variables: Mapping[str, Array]) -> QNetworks:
        networks = cls(
            weights.under("q_net.features_extractor."),
            weights.chain("q_net.q_net"),
            weights.under("q_net_target.features_extractor."),
            weights.chain("q_net_target.q_net"),
        )
        weights.finish()
        _refuse_empty(weights, networks.chain, networks.target)
        return networks

    def settings(self) -> dict[str, Any]:
        return {"hidden_sizes": _sizes(self.chain)[:-1]}

    def states(self, config: Config, info: SpaceInfo, image_scale: float) -> States:
        own, target = (
            _prefixed("layers.", _network(chain, encoder, info, image_scale))
            for chain, encoder in ((self.chain, self.encoder), (self.target, self.target_encoder))
        )
        return States(_prefixed("network.", own), followers={"network": target})


@dataclass(frozen=True)
class Actor:
    """An actor or its target: the last layer is the head."""

    encoder: Named
    chain: Dense

    def state(self, info: SpaceInfo, image_scale: float) -> Named:
        return _network(self.chain, self.encoder, info, image_scale)


@dataclass(frozen=True)
class Critics:
    """An ensemble of critics of one shape."""

    encoder: Named
    chains: list[Dense]

    @classmethod
    def read(cls, weights: Weights, name: str) -> Critics:
        encoder = weights.under(f"{name}.features_extractor.")
        chains: list[Dense] = []
        while weights.has(f"{name}.qf{len(chains)}.0.weight"):
            chains.append(weights.chain(f"{name}.qf{len(chains)}"))
        if len({tuple(layer.shape for layer, _ in chain) for chain in chains}) != 1:
            raise UserError(f"{weights.place}: its {name!r} has no critics, or some of different shapes")
        return cls(encoder, chains)

    def state(self, info: SpaceInfo, image_scale: float) -> Named:
        state: Named = {}
        for index, layers in enumerate(zip(*self.chains, strict=True)):
            stacked = np.stack([weight for weight, _ in layers])
            if index == 0:  # observations and actions change places
                stacked = np.roll(stacked, info.action_size, axis=2)
            state[f"members.weights.{index}"] = stacked
            state[f"members.biases.{index}"] = np.stack([bias for _, bias in layers])
        return state | _encoder(self.encoder, info, image_scale)


@dataclass(frozen=True)
class ContinuousNetworks:
    """The networks of SAC and TQC, of TD3 and DDPG, which have a target of their actor too."""

    actor: Actor
    target_actor: Actor | None
    critics: Critics
    target_critics: Critics
    log_ent_coef: Array | None = None

    @classmethod
    def read(cls, weights: Weights, variables: Mapping[str, Array]) -> ContinuousNetworks:
        target: Actor | None = None
        if weights.has("actor.log_std"):
            raise UserError(f"{weights.place}: was trained with use_sde, which only ppo and a2c have here")
        if weights.has("actor.log_std.weight"):
            actor = _soft_actor(weights)
        else:
            actor, target = (
                Actor(weights.under(f"{name}.features_extractor."), weights.chain(f"{name}.mu"))
                for name in ("actor", "actor_target")
            )
            _refuse_empty(weights, actor.chain, target.chain)
        networks = cls(
            actor,
            target,
            Critics.read(weights, "critic"),
            Critics.read(weights, "critic_target"),
            variables.get("log_ent_coef"),
        )
        weights.finish()
        return networks

    def settings(self) -> dict[str, Any]:
        first = self.critics.chains[0]
        policy, value = _sizes(self.actor.chain)[:-1], _sizes(first)[:-1]
        sizes = policy if policy == value else {"policy": policy, "value": value}
        outputs = len(first[-1][1])
        return {"hidden_sizes": sizes, "n_critics": len(self.critics.chains)} | (
            {"n_quantiles": outputs} if outputs > 1 else {}
        )

    def states(self, config: Config, info: SpaceInfo, image_scale: float) -> States:
        followers = {"critic": self.target_critics.state(info, image_scale)}
        if self.target_actor is not None:
            followers["actor"] = self.target_actor.state(info, image_scale)
        learners = {"critic": self.critics.state(info, image_scale)}
        if self.log_ent_coef is not None and str(getattr(config.algorithm, "ent_coef", "")).startswith("auto"):
            learners["ent_coef"] = {"log": self.log_ent_coef.reshape(1)}
        return States(_prefixed("actor.", self.actor.state(info, image_scale)), learners, followers)


def _soft_actor(weights: Weights) -> Actor:
    """An actor whose one head returns means and log deviations, where there are two heads there."""
    mean, log_std = weights.layer("actor.mu"), weights.layer("actor.log_std")
    head = np.concatenate([mean[0], log_std[0]]), np.concatenate([mean[1], log_std[1]])
    return Actor(weights.under("actor.features_extractor."), [*weights.chain("actor.latent_pi"), head])


def _refuse_empty(weights: Weights, *chains: Dense) -> None:
    if not all(chains):
        raise UserError(f"{weights.place}: its policy is not one of the policies of this kind: layers are missing")


@dataclass(frozen=True)
class States:
    """The weights as our networks name them: those of the policy, of further learners, and of target networks."""

    policy: Named
    learners: Mapping[str, Named] | None = None
    followers: Mapping[str, Named] | None = None


Networks = ActorCritic | QNetworks | ContinuousNetworks


def read_networks(algo: str, model: Model) -> Networks:
    """The networks of a model of this algorithm."""
    kinds: dict[str, type[Networks]] = {"ppo": ActorCritic, "a2c": ActorCritic, "dqn": QNetworks}
    return kinds.get(algo, ContinuousNetworks).read(Weights(model), model.variables)


def _prefixed(prefix: str, arrays: Named) -> Named:
    return {prefix + name: array for name, array in arrays.items()}


def _layer(prefix: str, layer: tuple[Array, Array]) -> Named:
    return {f"{prefix}weight": layer[0], f"{prefix}bias": layer[1]}


def _torso(prefix: str, chain: Dense) -> Named:
    return {
        name: array
        for index, layer in enumerate(chain)
        for name, array in _layer(f"{prefix}{2 * index}.", layer).items()
    }


def _network(chain: Dense, encoder: Named, info: SpaceInfo, image_scale: float) -> Named:
    """An MLP with its head, and the encoder before it."""
    return _torso("torso.", chain[:-1]) | _layer("head.", chain[-1]) | _encoder(encoder, info, image_scale)


def _encoder(theirs: Named, info: SpaceInfo, image_scale: float) -> Named:
    """The convolutions of images: one network, or one for every image of a Dict."""
    images = [part.name for part in info.parts if part.kind == "image" and part.name]
    ours: Named = {}
    for name, array in theirs.items():
        place = ""
        if name.startswith("extractors."):
            key = next((key for key in images if name.startswith(f"extractors.{key}.")), None)
            place = f"images.{images.index(key)}." if key is not None else "extractors."
            name = name.removeprefix(f"extractors.{key}.")
        kind, _, rest = name.partition(".")
        scale = image_scale if (kind, rest) == ("cnn", "0.weight") else 1.0
        ours[f"encoder.{place}{ {'cnn': 'layers', 'linear': 'head'}.get(kind, kind) }.{rest}"] = array * scale
    return ours


def load_networks(algorithm: Algorithm, states: States, place: str, env_id: str) -> None:
    """Put the weights into a new algorithm; what it has besides keeps its initial state."""
    policy = algorithm.policy.policy_state()
    own = {name: tensor for name, tensor in policy.items() if not name.startswith("obs_normalizer.")}
    network = _fitted(states.policy, own, place, env_id)
    algorithm.policy.load_policy_state(policy | network)
    training = algorithm.training_state()
    for name, arrays in (states.learners or {}).items():
        module = training["learners"][name]["module"]
        training["learners"][name]["module"] = _fitted(arrays, module, place, env_id)
    for name, arrays in (states.followers or {}).items():
        training["followers"][name] = _fitted(arrays, training["followers"][name], place, env_id)
    algorithm.load_training_state(training)


def _fitted(arrays: Named, wanted: Mapping[str, Tensor], place: str, env_id: str) -> dict[str, Tensor]:
    """The arrays as tensors, if they have the names and shapes of a network of ours."""
    for name in {**wanted, **arrays}:
        there = arrays[name].shape if name in arrays else None
        here = tuple(wanted[name].shape) if name in wanted else None
        if there != here:
            differ = f"have the shape {there} there and {here} here"
            if there is None or here is None:
                differ = f"are only {'here' if there is None else 'there'}"
            advice = "give the environment that it was trained in, with the same wrappers and frame_stack"
            if "encoder." in name:
                advice = f"images are read as by CnnPolicy, with NatureCNN, here; else {advice}"
            raise UserError(f"{place}: does not fit env={env_id!r}: the weights {name!r} {differ}; {advice}")
    return {
        name: torch.from_numpy(np.ascontiguousarray(arrays[name])).to(tensor.dtype) for name, tensor in wanted.items()
    }

"""Searches of the same roots in the same model: the compiled search of ours, and mctx on JAX.

Model and roots are random numbers of NumPy. A search is all of what acting wants from it: noise on the root, the
simulations, the policy to learn and the action to take. Libraries are imported inside of the functions, so that a
process loads one side only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainers import Advance

if TYPE_CHECKING:
    from rl_training.ops.search import PackedModel
    from rl_training.types import Array


@dataclass(frozen=True)
class Task:
    """What is searched, and how. The numbers of the rules are the defaults of both libraries."""

    rule: Literal["gumbel", "puct"]
    roots: int
    simulations: int
    width: int = 64  # of latents and of the hidden layer of each network
    bins: int = 21  # of rewards and values
    actions: int = 2
    limit: float = 10.0  # of the bins, on the compressed scale
    discount: float = 0.997
    considered: int = 16
    dirichlet_alpha: float = 0.3
    dirichlet_fraction: float = 0.25


# Random models grow trees between balanced ones and mere chains. With this seed the depth is like that of the searches
# of a model that has learned CartPole for some thousand steps: 25 simulations go 4 to 5 steps deep on average.
SEED = 6


class Problem(NamedTuple):
    """A model and the roots of a search in it."""

    layers: dict[str, tuple[Array, Array]]  # weights [in, out] and biases, in the order of a PackedModel
    embedding: Array  # [B, width]
    logits: Array  # [B, A]
    value: Array  # [B]


class Found(NamedTuple):
    """What a search found of its roots."""

    action: Array  # [B]
    policy: Array  # [B, A]: the target of learning
    visits: Array  # [B, A]
    value: Array  # [B]


class Noise(NamedTuple):
    """Random numbers of one search of ours."""

    logits: Array  # [B, A]: those of the roots, with Dirichlet noise if the rule wants it
    gumbel: Array | None  # [B, A]
    uniform: Array | None  # [B]


def problem(task: Task, seed: int = SEED) -> Problem:
    """The model and the roots of a task: the same numbers for every side.

    Unlike the first weights of a training, those of rewards and values are not 0: searches go to different depths.
    """
    import numpy as np

    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> tuple[Array, Array]:
        weights = rng.normal(size=(inputs, outputs)) * np.sqrt(2.0 / inputs)
        return weights.astype(np.float32), (0.1 * rng.normal(size=outputs)).astype(np.float32)

    width, outputs = task.width, {"next": task.width, "reward": task.bins, "policy": task.actions, "value": task.bins}
    layers = {"dynamics": layer(width + task.actions, width)}
    layers |= {name: layer(width, outputs[name]) for name in ("next", "reward")}
    layers["prediction"] = layer(width, width)
    layers |= {name: layer(width, outputs[name]) for name in ("policy", "value")}
    return Problem(
        layers,
        rng.random((task.roots, width), np.float32),
        rng.standard_normal((task.roots, task.actions), np.float32),
        rng.standard_normal(task.roots, np.float32),
    )


class OurSearch:
    """The compiled search of a packed model."""

    def __init__(self, task: Task, given: Problem) -> None:
        import numpy as np

        from rl_training.ops import search

        self._task, self._given, self._functions = task, given, search
        self._rng = np.random.default_rng(0)
        self._model = packed(task, given)
        self._roots = search.Roots(given.embedding, given.logits, given.value)
        rule = search.GumbelRule(task.considered) if task.rule == "gumbel" else search.Puct()
        self._searcher = search.Searcher(rule, task.simulations, task.actions)

    def draw(self) -> Noise:
        """The noise of a search, drawn as the policies of the package do."""
        task, logits, rng = self._task, self._given.logits, self._rng
        if task.rule == "gumbel":
            return Noise(logits, rng.gumbel(size=logits.shape).astype(logits.dtype), None)
        mixed = self._functions.dirichlet_logits(logits, None, task.dirichlet_alpha, task.dirichlet_fraction, rng)
        return Noise(mixed, None, rng.random(task.roots))

    def search(self, noise: Noise) -> Found:
        found = self._searcher(self._model, self._roots._replace(logits=noise.logits), gumbel=noise.gumbel)
        if noise.gumbel is not None:
            action = self._functions.gumbel_action(found, noise.gumbel)
        else:
            assert noise.uniform is not None
            action = self._functions.visit_action(found.visits, 1.0, noise.uniform)
        return Found(action, found.policy, found.visits, found.value)


def packed(task: Task, given: Problem) -> PackedModel:
    """The model as our compiled search reads it."""
    import numpy as np

    from rl_training.ops.kernels.acting import RELU
    from rl_training.ops.search import PackedModel
    from rl_training.ops.two_hot import Support

    sizes = [(*weights.shape, weights.size + bias.size) for weights, bias in given.layers.values()]
    ends = np.cumsum([size for _, _, size in sizes])
    return PackedModel(
        weights=np.concatenate([part.ravel() for layer in given.layers.values() for part in layer]),
        layers=np.array([(i, o, end - size) for (i, o, size), end in zip(sizes, ends, strict=True)], np.int64),
        hidden=(1, 1),
        kind=RELU,
        latent=task.width,
        action_size=0,
        reward_support=Support(task.limit, task.bins),
        value_support=Support(task.limit, task.bins),
        discount=task.discount,
    )


class MctxSearch:
    """The policies of mctx, compiled by JAX as a whole: the noise is drawn inside, from the number of the search."""

    def __init__(self, task: Task, given: Problem) -> None:
        jax, mctx = import_module("jax"), import_module("mctx")
        self._jax, self._task = jax, task
        policy = getattr(mctx, "gumbel_muzero_policy" if task.rule == "gumbel" else "muzero_policy")
        settings: dict[str, Any] = {"max_num_considered_actions": task.considered}
        if task.rule == "puct":
            settings = {"dirichlet_alpha": task.dirichlet_alpha, "dirichlet_fraction": task.dirichlet_fraction}
        self._given = jax.device_put(given)
        model = mctx_model(task)

        def run(given: Problem, number: Any) -> Found:
            root = mctx.RootFnOutput(prior_logits=given.logits, value=given.value, embedding=given.embedding)
            key = jax.random.key(number)
            found = policy(given.layers, key, root, model, num_simulations=task.simulations, **settings)
            summary = found.search_tree.summary()
            return Found(found.action, found.action_weights, summary.visit_counts, summary.value)

        self._run = jax.jit(run)

    def search(self, number: int) -> Found:
        """The search of this number, as arrays of NumPy."""
        found: Found = self._jax.device_get(self._run(self._given, number))
        return found

    def gumbel(self, number: int) -> Array:
        """The noise that the search of this number draws."""
        import numpy as np

        random = self._jax.random
        _, key = random.split(random.key(number))
        return np.asarray(random.gumbel(key, (self._task.roots, self._task.actions)))


def mctx_model(task: Task) -> Callable[..., Any]:
    """The model as mctx calls it, once per simulation for all roots."""
    jax, jnp, mctx = import_module("jax"), import_module("jax.numpy"), import_module("mctx")
    points = jnp.linspace(-task.limit, task.limit, task.bins)

    def number(logits: Any) -> Any:
        """The mean of a distribution over the points, and the inverse of h."""
        mean = jax.nn.softmax(logits) @ points
        size, slope = jnp.abs(mean), 1.002
        u = 2.0 * size / (slope + jnp.sqrt(slope * slope + 0.004 * size))
        return jnp.sign(mean) * u * (u + 2.0)

    def step(layers: dict[str, Any], key: Any, action: Any, embedding: Any) -> tuple[Any, Any]:
        def dense(name: str, x: Any) -> Any:
            weights, bias = layers[name]
            return x @ weights + bias

        entry = jnp.concatenate([embedding, jax.nn.one_hot(action, task.actions)], axis=1)
        features = jax.nn.relu(dense("dynamics", entry))
        raw, reward = dense("next", features), number(dense("reward", features))
        low = raw.min(axis=1, keepdims=True)
        scale = raw.max(axis=1, keepdims=True) - low
        latent = (raw - low) / jnp.where(scale < 1e-5, scale + 1e-5, scale)
        features = jax.nn.relu(dense("prediction", latent))
        answer = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.full_like(reward, task.discount),
            prior_logits=dense("policy", features),
            value=number(dense("value", features)),
        )
        return answer, latent

    return step


def our_search(*, unit: str, threads: int, task: Task) -> Advance:
    import torch

    torch.set_num_threads(threads)
    side = OurSearch(task, problem(task))
    return searching(task, lambda number: side.search(side.draw()))


def mctx_search(*, unit: str, threads: int, task: Task) -> Advance:
    """The number of threads is in the environment variables of the process, where JAX looks for it."""
    return searching(task, MctxSearch(task, problem(task)).search)


def searching(task: Task, search: Callable[[int], object]) -> Advance:
    """One unit is one simulation of one root; searches are numbered."""
    each, made = task.roots * task.simulations, 0

    def advance(count: int) -> int:
        nonlocal made
        searches = -(-count // each)
        for number in range(made, made + searches):
            search(number)
        made += searches
        return searches * each

    return advance

"""Images, Dict observations, several discrete choices, action masks and state-dependent exploration."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import chosen
from rl_training import A2C, PPO, UserError
from rl_training.models.actor_critic_engine import _forbid
from rl_training.models.encoders import IMAGE_ENCODERS, DictEncoder, ImageEncoder, ImpalaCNN
from rl_training.models.mlp_actor_critic import MLPActorCritic, Shape
from rl_training.ops.distributions import FORBIDDEN, Categorical, MultiCategorical
from rl_training.ops.kernels import acting
from rl_training.ops.observations import Unpacker, layout, pack, row_bytes
from rl_training.runtime.train import build
from rl_training.testing import TinyEnv, tiny_config
from rl_training.testing.contract import _reachable
from rl_training.types import ObsPart, SpaceInfo

EACH_ENCODER = pytest.mark.parametrize("encoder", IMAGE_ENCODERS.values(), ids=IMAGE_ENCODERS)


@EACH_ENCODER
@pytest.mark.parametrize("shape", [(4, 40, 44), (40, 44, 4), (40, 44), (3, 40, 44, 2)])
def test_image_layouts_become_channels(encoder: type[ImageEncoder], shape: tuple[int, ...]) -> None:
    cnn = encoder(shape, orthogonal=True, features=16)
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    out = cnn(images)
    assert out.shape == (2, 16)
    assert not torch.equal(out[0], out[1])


@EACH_ENCODER
def test_an_image_is_scaled_to_one_once(encoder: type[ImageEncoder]) -> None:
    cnn = encoder((1, 36, 36), orthogonal=True)
    seen: list[torch.Tensor] = []
    cnn.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    cnn(torch.full((1, 1, 36, 36), 255, dtype=torch.uint8))
    assert seen[0].max() == 1.0


@pytest.mark.parametrize("size", [8, 9, 15, 84])
def test_the_residual_network_is_that_of_the_paper(size: int) -> None:
    """Espeholt et al. 2018, figure 3: convolution, pooling and two residual units, three times; then 256 features."""
    torch.manual_seed(0)
    network = ImpalaCNN((4, size, size), orthogonal=False)
    images = torch.randint(0, 256, (3, 4, size, size), dtype=torch.uint8)
    functional, x = torch.nn.functional, images.float() / 255.0
    weights = iter(network.parameters())
    for channels in (16, 32, 32):
        x = functional.max_pool2d(functional.conv2d(x, next(weights), next(weights), padding=1), 3, 2, padding=1)
        assert x.shape[1] == channels
        for _ in range(2):
            inner = functional.conv2d(functional.relu(x), next(weights), next(weights), padding=1)
            x = x + functional.conv2d(functional.relu(inner), next(weights), next(weights), padding=1)
    assert x.shape[2] == x.shape[3] == -(-size // 8)
    out = functional.relu(functional.linear(functional.relu(x).flatten(1), next(weights), next(weights)))
    assert next(weights, None) is None
    assert out.shape == (3, 256) == (3, network.features)
    torch.testing.assert_close(network(images), out, rtol=1e-4, atol=1e-5)


def test_orthogonal_residual_units_keep_the_size_of_what_passes_through() -> None:
    torch.manual_seed(0)
    network = ImpalaCNN((4, 84, 84), orthogonal=True)
    images = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        before = network.layers[:2](images.float() / 255.0)
        after = network.layers[:-2](images.float() / 255.0)
    # With gains of sqrt(2) everywhere it would be 20.
    assert 0.5 < float(after.std() / before.std()) < 3.0


def test_who_has_image_networks_of_their_own_has_no_choice_of_others() -> None:
    for algo in ("muzero", "dreamer"):
        with pytest.raises(UserError, match="image_encoder: unknown key"):
            tiny_config(algo, image_encoder="impala")
    with pytest.raises(UserError, match="image_encoder='resnet': must be"):
        tiny_config("ppo", image_encoder="resnet")


@pytest.mark.parametrize("algo", ["ppo", "ppg", "recurrent_ppo", "gail", "impala", "appo", "dqn", "sac", "iql", "bc"])
def test_every_image_network_of_an_algorithm_is_the_one_asked_for(algo: str) -> None:
    run = build(tiny_config(algo, {"observations": "dict"}, image_encoder="impala"))
    modules = [module for module in found_modules(run.algorithm) if isinstance(module, ImageEncoder)]
    run.close()
    assert modules
    assert {type(module) for module in modules} == {ImpalaCNN}


def found_modules(algorithm: Any) -> list[torch.nn.Module]:
    """The networks of an algorithm, wherever it keeps them, with their parts."""
    roots = [part for part in _reachable(algorithm) if isinstance(part, torch.nn.Module)]
    return [module for root in roots for module in root.modules()]


def test_rollouts_keep_images_as_bytes() -> None:
    run = build(tiny_config("ppo", {"observations": "image"}))
    rollout = run.loop.rollout  # type: ignore[attr-defined]
    assert rollout.obs.dtype == np.uint8
    assert rollout.obs.shape[2:] == (36, 36, 1)
    run.close()


parts_strategy = st.lists(
    st.tuples(st.sampled_from(["float32", "uint8"]), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


@given(parts_strategy, st.integers(0, 6), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_and_unpacking_is_lossless(
    described: list[tuple[str, list[int]]], mask_size: int, batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = layout([ObsPart(f"part{i}", tuple(shape), dtype) for i, (dtype, shape) in enumerate(described)])
    info = SpaceInfo(
        (row_bytes(parts, mask_size),), "uint8", "discrete", (), 3, (3,), (0,), parts=parts, mask_size=mask_size
    )
    observations = [
        {part.name: (rng.normal(size=part.shape) * 100).astype(part.dtype) for part in parts} for _ in range(batch)
    ]
    masks = [rng.random(mask_size) < 0.5 for _ in range(batch)]
    rows = np.stack([pack(obs, mask, parts, mask_size) for obs, mask in zip(observations, masks, strict=True)])
    unpacker = Unpacker(info)
    inputs = unpacker.inputs(rows)
    for part in parts:
        np.testing.assert_array_equal(inputs[part.name], np.stack([obs[part.name] for obs in observations]))
    if mask_size:
        np.testing.assert_array_equal(unpacker.mask(rows), np.stack(masks))
    else:
        assert unpacker.mask(rows) is None


def test_dict_encoder_sees_every_part() -> None:
    parts = (ObsPart("a.b", (3,), "float32"), ObsPart("screen", (1, 36, 36), "uint8"))
    encoder = DictEncoder(parts, orthogonal=True)
    obs = {"a.b": torch.randn(2, 3), "screen": torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)}
    out = encoder(obs)
    assert out.shape == (2, encoder.features) == (2, 259)
    torch.testing.assert_close(out[:, :3], obs["a.b"])
    other = encoder(obs | {"screen": 255 - obs["screen"]})
    assert not torch.equal(out[:, 3:], other[:, 3:])


def test_normalising_dict_observations_scales_numbers_and_leaves_images_and_masks() -> None:
    run = build(tiny_config("ppo", {"observations": "dict", "masked": True}, normalize_obs=True))
    run.start()
    run.advance()
    algorithm: Any = run.algorithm
    rows = run.source.collector.obs  # type: ignore[attr-defined]
    scaled = algorithm.observer.scaled(rows)
    before, after = algorithm.observer.arrays(rows), algorithm.observer.arrays(scaled)
    assert not np.array_equal(before["numbers"], after["numbers"])
    np.testing.assert_array_equal(before["image"], after["image"])
    np.testing.assert_array_equal(algorithm.observer.mask(rows), algorithm.observer.mask(scaled))
    assert algorithm.observer.normalizer.moments.mean.shape == (3,)
    run.close()


def test_normalising_images_is_refused() -> None:
    with pytest.raises(UserError, match="normalize_obs=True: images"):
        build(tiny_config("ppo", {"observations": "image"}, normalize_obs=True))


def _mask(draw: st.DrawFn, counts: list[int], batch: int) -> np.ndarray[Any, Any]:
    rows = []
    for _ in range(batch):
        for count in counts:
            factor = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            factor[draw(st.integers(0, count - 1))] = True
            rows += factor
    return np.array(rows).reshape(batch, -1)


@st.composite
def masked_logits(draw: st.DrawFn) -> tuple[list[int], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    batch = draw(st.integers(1, 5))
    number = st.floats(-50, 50, width=32)
    logits = draw(st.lists(number, min_size=batch * sum(counts), max_size=batch * sum(counts)))
    return counts, np.array(logits, np.float32).reshape(batch, -1), _mask(draw, counts, batch)


@given(masked_logits(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_mask_never_lets_a_forbidden_action_through(
    case: tuple[list[int], np.ndarray[Any, Any], np.ndarray[Any, Any]], seed: int
) -> None:
    counts, logits, mask = case
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    masked = np.where(mask, logits, np.float32(FORBIDDEN))
    distribution = MultiCategorical(tuple(counts))
    rng = np.random.default_rng(seed)
    kernel, log_prob = acting.sample_categorical(
        _forbid(logits.copy(), mask), np.array(counts), rng.random((len(logits), len(counts)))
    )
    extreme, _ = acting.sample_categorical(
        masked, np.array(counts), np.full((len(logits), len(counts)), np.nextafter(1.0, 0.0))
    )
    for action in (kernel, extreme, distribution.sample(masked, rng)[0], distribution.mode(masked)):
        chosen = np.take_along_axis(mask, starts + action, axis=1)
        assert chosen.all()
    exact = distribution.log_prob(torch.from_numpy(masked), torch.from_numpy(kernel)).numpy()
    np.testing.assert_allclose(log_prob, exact, rtol=1e-4, atol=1e-4)
    assert np.isfinite(distribution.entropy(torch.from_numpy(masked)).numpy()).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_unit_interval_choose_something_possible(uniform: float) -> None:
    class Fixed:
        def random(self, size: int) -> np.ndarray[Any, Any]:
            return np.full(size, uniform)

    logits = np.array([[FORBIDDEN, 0.0, 1.0, FORBIDDEN]], np.float32)
    action, _ = Categorical(4).sample(logits, Fixed())  # type: ignore[arg-type]
    assert action[0] in (1, 2)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("observations", ["vector", "image", "dict"])
@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "multi_binary"])
def test_training_and_evaluation_obey_the_environments_masks(actions: str, observations: str, engine: str) -> None:
    """`TinyEnv` asserts that no forbidden action reaches it."""
    env = {"actions": actions, "observations": observations, "masked": True}
    run = build(tiny_config("ppo", env, engine=engine))
    run.start()
    run.advance()
    run.advance()
    assert run.info.mask_size == {"discrete": 3, "multi_discrete": 5, "multi_binary": 4}[actions]
    assert len(run.evaluate(3).returns) == 3
    run.close()


def test_the_environment_of_the_mask_tests_notices_a_forbidden_action() -> None:
    env = TinyEnv(masked=True)
    _, info = env.reset(seed=0)
    forbidden = np.flatnonzero(info["action_mask"] == 0)
    while not len(forbidden):
        _, _, _, _, info = env.step(1 + int(np.flatnonzero(info["action_mask"])[0]))
        forbidden = np.flatnonzero(info["action_mask"] == 0)
    with pytest.raises(AssertionError, match="forbidden"):
        env.step(1 + int(forbidden[0]))


class NoisyNetwork(torch.nn.Module):
    """A user's network with everything that behaves differently while training."""

    def __init__(self, info: SpaceInfo, config: Any) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 4))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layers(obs)
        return out[:, :3], out[:, 3]


def test_acting_and_evaluation_leave_dropout_and_batch_statistics_alone() -> None:
    run = build(tiny_config("ppo", model="test_breadth:NoisyNetwork"))
    run.start()
    run.advance()
    before = {name: tensor.clone() for name, tensor in run.algorithm.policy.policy_state().items()}
    obs = run.source.collector.obs  # type: ignore[attr-defined]
    first, second = (chosen(run.algorithm, obs, explore=False).action for _ in range(2))
    assert run.evaluate(2) == run.evaluate(2)
    np.testing.assert_array_equal(first, second)
    after = run.algorithm.policy.policy_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    run.advance()
    moved = run.algorithm.policy.policy_state()["network.layers.0.running_mean"]
    assert not torch.equal(before["network.layers.0.running_mean"], moved), "an update does move them"
    run.close()


class TooWide(NoisyNetwork):
    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers(obs), self.layers(obs)[:, 3]


class ColumnOfValues(NoisyNetwork):
    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        params, value = super().forward(obs)
        return params, value[:, None]


class OneOutput(NoisyNetwork):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(obs)[0]


@pytest.mark.parametrize(
    ("name", "gave"),
    [("TooWide", r"\[\(2, 4\), \(2,\)\]"), ("ColumnOfValues", r"\[\(2, 3\), \(2, 1\)\]"), ("OneOutput", "Tensor")],
)
def test_a_network_whose_outputs_do_not_fit_the_actions_is_refused(name: str, gave: str) -> None:
    with pytest.raises(
        UserError, match=rf"policy parameters \[B, 3\] and values \[B\]; for a batch of 2 it returned {gave}"
    ):
        build(tiny_config("ppo", model=f"test_breadth:{name}"))


def test_a_rollout_of_nothing_but_resets_is_no_update() -> None:
    """Native CartPole resets in a step of its own: with one step and one environment a rollout may be that step."""
    agent = A2C("CartPole-v1", n_steps=1, num_envs=1, hidden_sizes=[8], eval_episodes=1)
    agent.learn(60)
    assert agent.num_timesteps == 60
    assert agent.metrics["n_updates"] == 60


def test_vectors_of_bytes_are_numbers() -> None:
    class Ram(TinyEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 255, (16,), np.uint8)

        def _obs(self) -> Any:
            return np.full(16, int(self._time * 20), np.uint8)

    agent = PPO(Ram, n_steps=8, num_envs=2, hidden_sizes=[8], normalize_obs=True, eval_episodes=1)
    agent.learn(32)
    assert agent.predict(np.full(16, 200, np.uint8), deterministic=True)[0] in (1, 2, 3)


def test_a_dict_of_single_numbers() -> None:
    class Scalars(TinyEnv):
        def __init__(self) -> None:
            super().__init__()
            box = gym.spaces.Box(-np.inf, np.inf, (), np.float32)
            self.observation_space = gym.spaces.Dict({"position": box, "time": box})

        def _obs(self) -> Any:
            return {"position": np.float32(self._position), "time": np.float32(self._time)}

    agent = PPO(Scalars, n_steps=8, num_envs=2, hidden_sizes=[8], eval_episodes=1)
    agent.learn(32)
    assert agent.num_timesteps == 32


class MaskedAtTheEnd(TinyEnv):
    """Forbids everything once the episode is over, or from the start, or has a mask of the wrong size."""

    def __init__(self, fault: str = "none") -> None:
        super().__init__(masked=True)
        self._fault = fault

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated or self._fault == "nothing":
            info["action_mask"] = np.zeros(3, np.int8)
        if self._fault == "size":
            info["action_mask"] = np.ones(5, np.int8)
        return obs, reward, terminated, truncated, info


def test_a_mask_that_forbids_everything_is_fine_after_the_end() -> None:
    agent = PPO(MaskedAtTheEnd, n_steps=16, num_envs=2, hidden_sizes=[8], eval_episodes=1)
    agent.learn(64)
    assert agent.num_timesteps == 64


@pytest.mark.parametrize(("fault", "message"), [("nothing", "allows no action"), ("size", "5 entries")])
def test_a_bad_mask_is_said_plainly(fault: str, message: str) -> None:
    agent = PPO(lambda: MaskedAtTheEnd(fault), n_steps=16, num_envs=2, hidden_sizes=[8])
    with pytest.raises(UserError, match=message):
        agent.learn(64)


def test_a_tuple_of_masks_is_taken_for_several_choices() -> None:
    class TupleMasks(TinyEnv):
        def _info(self) -> dict[str, Any]:
            mask = super()._info()["action_mask"]
            return {"action_mask": (mask[:3], mask[3:])}

    agent = PPO(lambda: TupleMasks("multi_discrete", masked=True), n_steps=16, num_envs=2, hidden_sizes=[8])
    agent.learn(64)
    assert agent.config.spec.name == "ppo"


def test_predict_takes_masks_and_dict_observations() -> None:
    agent = PPO(lambda: TinyEnv("discrete", "dict", masked=True), n_steps=8, num_envs=2, hidden_sizes=[8])
    obs = TinyEnv("discrete", "dict").reset(seed=1)[0]
    for choice in range(3):
        mask = np.arange(3) == choice
        assert agent.predict(obs, action_masks=mask)[0] == 1 + choice  # the space starts at 1
    batch = {name: np.stack([value] * 4) for name, value in obs.items()}
    assert agent.predict(batch)[0].shape == (4,)
    with pytest.raises(UserError, match="must have 'numbers', 'image'"):
        agent.predict({"numbers": obs["numbers"]})
    with pytest.raises(UserError, match="trained without masks"):
        PPO("CartPole-v1", num_envs=1).predict(np.zeros(4), action_masks=np.ones(2))


def test_spaces_that_nobody_supports_are_named() -> None:
    class Strange(gym.Env[Any, Any]):
        def __init__(self, observation: bool) -> None:
            good = gym.spaces.Box(-1, 1, (2,), np.float32)
            self.observation_space = gym.spaces.Dict({"x": gym.spaces.Sequence(good)}) if observation else good
            self.action_space = gym.spaces.Discrete(2) if observation else gym.spaces.Text(3)  # type: ignore[assignment]

    with pytest.raises(UserError, match="observation 'x' is a Sequence, which is not supported"):
        PPO(lambda: Strange(True))
    with pytest.raises(UserError, match="actions of Text"):
        PPO(lambda: Strange(False))


def test_state_dependent_noise_has_the_variance_of_its_features() -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(3, 2, Shape((6,), "tanh", True, (-0.5, -0.5), True), continuous=True)
    assert network.log_std is not None
    assert network.log_std.shape == (6, 2)
    obs = torch.randn(5, 3)
    params, _, features = network.features(obs)
    expected = (features.square() @ (2 * network.log_std).exp() + 1e-6).sqrt()
    torch.testing.assert_close(params[:, 2:].exp(), expected)
    params[:, 2:].sum().backward()
    gradients = [parameter.grad for parameter in network.policy_torso.parameters()]
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    assert network.log_std.grad is not None
    assert network.log_std.grad.any()


def test_state_dependent_noise_is_held_and_drawn_as_asked() -> None:
    config = tiny_config("ppo", {"actions": "continuous"}, use_sde=True, sde_sample_freq=3)
    run = build(config)
    run.start()
    algorithm: Any = run.algorithm
    obs = run.source.collector.obs  # type: ignore[attr-defined]
    carry, actions, rng = None, [], np.random.default_rng(0)
    for _ in range(6):
        act = chosen(algorithm, obs, carry, rng=rng)
        carry = act.carry
        actions.append(act.action)
        params = algorithm.policy.acting.outputs(algorithm.observer.scaled(obs))[0]
        action = torch.from_numpy(algorithm.policy.to_network(act.action))
        exact = algorithm.distribution.log_prob(torch.from_numpy(params), action).numpy()
        np.testing.assert_allclose(act.records["log_prob"], exact, rtol=1e-4, atol=1e-5)
    run.close()
    for i, j, same in ((0, 1, True), (1, 2, True), (2, 3, False), (3, 4, True), (4, 5, True)):
        assert np.array_equal(actions[i], actions[j]) == same


def test_the_noise_of_many_draws_has_the_stated_deviation() -> None:
    config = tiny_config("ppo", {"actions": "continuous"}, use_sde=True, sde_sample_freq=1)
    run = build(config)
    run.start()
    algorithm: Any = run.algorithm
    obs = np.tile(run.source.collector.obs[:1], (2000, 1))  # type: ignore[attr-defined]
    params = algorithm.policy.acting.outputs(algorithm.observer.scaled(obs))[0]
    action = algorithm.policy.to_network(chosen(algorithm, obs).action)
    run.close()
    noise = (action - params[:, :2]) / np.exp(params[:, 2:])
    assert np.abs(noise.mean(axis=0)).max() < 0.08
    assert np.abs(noise.std(axis=0) - 1.0).max() < 0.06


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"use_sde": True}, "continuous"),
        ({"use_sde": True, "model": "rl_training.testing:LinearActorCritic"}, "default network"),
    ],
)
def test_state_dependent_noise_where_it_cannot_be(settings_: dict[str, Any], message: str) -> None:
    actions = "continuous" if "model" in settings_ else "discrete"
    with pytest.raises(UserError, match=message):
        build(tiny_config("ppo", {"actions": actions}, **settings_))

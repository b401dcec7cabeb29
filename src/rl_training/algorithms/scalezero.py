"""ScaleZero (arXiv:2509.07945) on UniZero (arXiv:2406.10667): one transformer world model that plans in several tasks.

Losses along windows of real steps. The transformer reads a window once, with the true observation at every step
(teacher forcing), and everything it says there is compared with what was seen or searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext
from rl_training.algorithms.gumbel_muzero import play_of
from rl_training.algorithms.multi_task import MultiTaskAlgorithm, named
from rl_training.algorithms.parts.reanalysis import reanalyze, with_search_values
from rl_training.algorithms.parts.stages import check_stages, gathered, reaches, spread, stage_ends
from rl_training.algorithms.parts.task_windows import (
    Outputs,
    TargetOutputs,
    TaskOutputs,
    loads_of,
    moments_in,
    observed,
    read_windows,
    seen_whole,
    sequence_batch,
    target_outputs,
    value_targets,
)
from rl_training.algorithms.parts.unroll_batch import Goals, actions_along, goals_of
from rl_training.algorithms.parts.value_range import RangeWatch
from rl_training.algorithms.parts.world_policy import WorldPolicy
from rl_training.algorithms.planning import PlanningLoopConfig
from rl_training.algorithms.scalezero_settings import (
    ScaleZeroConfig,
    ScaleZeroModelConfig,
    weights_of,
)
from rl_training.data.batches import Windows
from rl_training.data.memory import Memory
from rl_training.models.experts import Routing, balance_loss
from rl_training.models.flat import FlatWeights, Follower, Learner
from rl_training.models.scalezero import LatentNorm, ScaleZeroNetwork
from rl_training.ops.divergences import summed_divergence, summed_entropy
from rl_training.ops.fast_path import torch_alone
from rl_training.ops.two_hot import expected
from rl_training.types import Array, Capabilities, Metrics, Step, mean_metrics


class Terms(NamedTuple):
    """The parts of a loss, each a weighted sum over windows and steps."""

    policy: Tensor
    value: Tensor
    reward: Tensor
    latent: Tensor
    entropy: Tensor


def latent_divergence(predicted: Tensor, target: Tensor, weight: Tensor, norm: LatentNorm, group: int) -> Tensor:
    """How far latents `[..., D]`, of which `predicted` are not yet normalised, are from targets: a weighted sum.

    SimNorm: the mean over groups of KL(target, prediction). Layer norm: the mean of squared differences.
    """
    if norm == "simnorm":
        return summed_divergence(predicted, target, weight, group)
    apart = (nn.functional.layer_norm(predicted, predicted.shape[-1:]) - target).square().mean(dim=-1)
    return (weight * apart).sum()


def world_terms(outputs: TaskOutputs, goals: Goals[Tensor], target: Tensor, norm: LatentNorm, group: int) -> Terms:
    """The parts of UniZero's loss for one task (arXiv:2406.10667): cross-entropies, less their targets' entropies.

    `target` `[K, B, D]` are the next latents, of the target network's encoder; they are weighed as the rewards.
    """
    policy, value = outputs.prediction
    latent, reward = outputs.dynamics
    return Terms(
        summed_divergence(policy, goals.policy, goals.policy_weight),
        summed_divergence(value, goals.value, goals.value_weight),
        summed_divergence(reward, goals.reward, goals.reward_weight),
        latent_divergence(latent, target, goals.reward_weight, norm, group),
        summed_entropy(policy, goals.policy_weight),
    )


def task_loss(terms: Terms, cfg: ScaleZeroConfig) -> Tensor:
    """The weighted sum of a task's terms."""
    coefs = (cfg.policy_coef, cfg.value_coef, cfg.reward_coef, cfg.latent_coef, -cfg.ent_coef)
    stacked = torch.stack(terms)
    return stacked @ stacked.new_tensor(coefs)


def task_mean(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted mean of the tasks' losses, whatever the number of windows of each."""
    given = [weights[name] for name in losses]
    stacked = torch.stack(list(losses.values()))
    return stacked @ stacked.new_tensor([weight / sum(given) for weight in given])


def total_loss(losses: Tensor, routing: list[Routing], cfg: ScaleZeroConfig) -> Tensor:
    """The mean over tasks, and the mean of the layers' balance losses."""
    if not routing or cfg.balance_coef == 0.0:
        return losses
    spread = torch.stack([balance_loss(sent) for sent in routing]).sum()
    return torch.add(losses, spread, alpha=cfg.balance_coef / len(routing))


def scalezero_policy(context: PolicyContext) -> WorldPolicy:
    """Build only the policy."""
    cfg, model = context.config, context.model
    assert isinstance(cfg, ScaleZeroConfig)
    assert isinstance(model, ScaleZeroModelConfig)
    return WorldPolicy(context, play_of(cfg), model.shape(cfg.stages))


class Drawn(NamedTuple):
    """Windows of a task, and the states and actions along them as the model reads them."""

    windows: Windows
    obs: Array  # [K + n_step + 1, B, ...], scaled
    action: Array  # [K + n_step, B]
    reanalyzed: float  # the share that was searched again


class ScaleZero(MultiTaskAlgorithm):
    """Learns one world model from windows of all tasks, as many of each in every minibatch.

    A task counts as solved while the mean return of its last `solved_episodes` training episodes reaches its target.
    Solved tasks leave collection and training when the stage ends. Until then what they share with others changes, so
    they need training, and training needs experience of the policy as it has become.
    """

    cfg: ScaleZeroConfig
    policy: WorldPolicy

    def __init__(self, context: Context) -> None:
        super().__init__(context, scalezero_policy(context))
        check_stages(self.cfg, self.tasks, self.target_returns)
        self.network = self.policy.network
        self.stage_began = 0  # the update after which the stage began
        self.weights = weights_of(self.cfg, self.tasks)
        supports = self.network.shape.reward_support, self.network.shape.value_support
        self.ranges = {task: RangeWatch(*supports, two_player=False, task=task) for task in self.tasks}
        self._train_stage()

    def _train_stage(self) -> None:
        """What learns in this stage: an optimiser of all that is not frozen, and a target network as of now."""
        self.learner = Learner(self.network, FlatWeights(self.network.trained_parameters()))
        self.follower = Follower(self.learner)
        assert isinstance(self.follower.module, ScaleZeroNetwork)
        self.target = self.follower.module
        self.teachers = self.policy.planners_of(self.target)

    @property
    def prioritized(self) -> bool:
        return self.cfg.prioritized

    def reanalysis_bytes(self) -> int:
        return sum(teacher.bytes_needed(self.cfg.reanalyzed_states) for teacher in self.teachers.values())

    def active_tasks(self) -> Sequence[str]:
        """Those that no stage has left behind."""
        return self.network.trained_tasks

    def set_time_limit(self, task: str, steps: int | None) -> None:
        self.ranges[task].time_limit = steps

    def observe(self, task: str, steps: Sequence[Step]) -> None:
        self.policy.observers[task].observe(steps)
        self.ranges[task].see(np.concatenate([step.reward[step.real] for step in steps]), self.cfg.gamma)

    def hear(self, returns: Mapping[str, Sequence[float]]) -> Metrics:
        cfg, network, trained = self.cfg, self.network, self.network.trained_tasks
        solved = [
            task
            for task in self.tasks
            if task not in trained or reaches(self.target_returns.get(task), returns[task], cfg.solved_episodes)
        ]
        if stage_ends(cfg, trained, solved, network.stage, self.n_updates - self.stage_began):
            network.begin_stage([task for task in trained if task not in solved])
            self.stage_began = self.n_updates
            self._train_stage()
        return {"stage": float(network.stage), "solved_tasks": float(len(solved))}

    def learn_from(self, memories: Mapping[str, Memory], updates: int) -> Metrics:
        self.network.train()
        with torch_alone(self.policy.engine == "autograd"):
            found = [self.update(memories) for _ in range(updates)]
        self.network.eval()
        return mean_metrics(found)

    def update(self, memories: Mapping[str, Memory]) -> Metrics:
        cfg, steps = self.cfg, self.cfg.unroll_steps
        drawn = {task: self._draw(task, memories[task]) for task in self.network.trained_tasks if len(memories[task])}
        actions = {task: torch.from_numpy(part.action).to(self.network.actions.device) for task, part in drawn.items()}
        target = target_outputs(self.target, {task: self._tensors(task, drawn[task].obs) for task in drawn}, actions)
        outputs = read_windows(
            self.network,
            {task: self._tensors(task, drawn[task].obs[: steps + 1]) for task in drawn},
            {task: action[:steps] for task, action in actions.items()},
        )
        losses: dict[str, Tensor] = {}
        metrics: Metrics = {}
        for task, part in drawn.items():
            losses[task], its = self._task_loss(task, memories[task], part, target[task], outputs)
            metrics |= named(task, its)
        loss = total_loss(task_mean(losses, self.weights), outputs.routing, cfg)
        self.learner.differentiate(loss)
        norm = self.learner.parameters.clip_grad_norm(cfg.max_grad_norm)
        self.learner.descend(cfg.learning_rate)
        self.n_updates += 1
        if self.n_updates % cfg.target_update_interval == 0:
            self.follower.follow(cfg.target_tau)
        return metrics | {"loss": float(loss.detach()), "grad_norm": norm}

    def _draw(self, task: str, memory: Memory) -> Drawn:
        """Windows of a task, some of them searched again, with the states and actions that the model reads."""
        cfg, length = self.cfg, self.cfg.unroll_steps + self.cfg.n_step
        windows = memory.windows(
            cfg.batch_size, self.batch_rng, length=length, across_episodes=False, beta=cfg.per_beta
        )
        context = self.network.shape.transformer.context

        def search(again: Array) -> dict[str, Array]:
            moments = moments_in(windows, again, context)
            return self.policy.recorded(self.teachers[task].search(moments, self.batch_rng))

        seen = seen_whole(windows, cfg.unroll_steps, context)
        share = reanalyze(memory, windows, cfg.reanalyze_ratio, cfg.unroll_steps, self.batch_rng, search, seen)
        obs = observed(windows, length)
        scaled = self.policy.observers[task].scaled(obs.reshape(-1, *obs.shape[2:])).reshape(obs.shape)
        return Drawn(windows, scaled, actions_along(windows, length, self.tasks[task], self.batch_rng), share)

    def _tensors(self, task: str, obs: Array) -> Any:
        return self.policy.observers[task].tensors(obs.reshape(-1, *obs.shape[2:]))

    def _task_loss(
        self, task: str, memory: Memory, drawn: Drawn, target: TargetOutputs, outputs: Outputs
    ) -> tuple[Tensor, dict[str, float]]:
        cfg, shape, steps = self.cfg, self.network.shape, self.cfg.unroll_steps
        windows = drawn.windows
        value = value_targets(windows, target.value.cpu().numpy(), cfg.n_step, steps, cfg.gamma)
        first = windows.index[0]
        if cfg.search_value_age is not None:
            value = with_search_values(value, windows, memory.ages(first), cfg.search_value_age)
        batch = sequence_batch(windows, drawn.obs[: steps + 1], drawn.action[:steps], value)
        goals = goals_of(batch, shape.reward_support, shape.value_support).map(self.policy.observers[task].tensor)
        its = outputs.of_task[task]
        terms = world_terms(its, goals, target.latent[1 : steps + 1], shape.latent_norm, shape.group)
        loss = task_loss(terms, cfg)
        with torch.no_grad():
            guess = expected(its.prediction.value[0], shape.value_support).cpu().numpy()
        errors = np.abs(guess - value[0])
        if cfg.prioritized:
            memory.note(first, errors=errors, alpha=cfg.per_alpha)
        policy_kl, value_kl, reward_kl, latent_loss, _ = torch.stack(terms).detach().tolist()
        return loss, {
            "policy_kl": policy_kl,
            "value_kl": value_kl,
            "reward_kl": reward_kl,
            "latent_loss": latent_loss,
            "value_error": float(errors.mean()),
            "value_target_mean": float(value[0].mean()),
            "reanalyzed": drawn.reanalyzed,
        } | loads_of(outputs, task)

    def training_state(self) -> dict[str, Any]:
        return {
            "optimizer": spread(self.network, self.learner.optimizer.state_dict()),
            "target": self.follower.state_dict(),
            "stage_began": self.stage_began,
            "n_updates": self.n_updates,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        self._train_stage()  # of the stage that the network was loaded with
        self.learner.optimizer.load_state_dict(gathered(self.network, state["optimizer"]))
        self.follower.load_state_dict(state["target"])
        self.stage_began, self.n_updates = state["stage_began"], state["n_updates"]


SPEC = AlgorithmSpec(
    name="scalezero",
    family="multi_task",
    summary="One transformer world model that plans in several tasks",
    config=ScaleZeroConfig,
    loop=PlanningLoopConfig,
    model=ScaleZeroModelConfig,
    policy=scalezero_policy,
    build=ScaleZero,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("discrete",), multi_task=True),
)

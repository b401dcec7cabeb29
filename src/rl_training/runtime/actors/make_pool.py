"""Makes the pool of workers that a config asks for."""

from __future__ import annotations

import math
from typing import Any

from rl_training.algorithms.base import CollectingLoopConfig, Policy
from rl_training.data.disk import WINDOWS
from rl_training.data.ram import available_memory, readable
from rl_training.data.strips import Layout, strip_layout
from rl_training.experiment.config import Config
from rl_training.runtime.actors.engines import Engine, Inline
from rl_training.runtime.actors.pool import Pool, PoolPlan
from rl_training.runtime.actors.worker import WorkerPlan
from rl_training.runtime.envs.lent import Lender
from rl_training.runtime.envs.make import EnvFactory
from rl_training.types import UserError


def is_pooled(config: Config) -> bool:
    """Whether several workers gather, or one that is not the learner itself."""
    loop, run = config.loop, config.run
    if not isinstance(loop, CollectingLoopConfig) or not loop.collects:
        for key, usual in (("actors", "inline"), ("num_workers", 1)):
            if getattr(run, key) != usual:
                raise UserError(f"{key}={getattr(run, key)!r}: {run.algo} gathers nothing itself; leave it out")
        return False
    return run.actors != "inline" or run.num_workers > 1 or loop.rounds_ahead > 0


def make_pool(config: Config, factory: EnvFactory | None, policy: Policy) -> Pool:
    """The workers of a config, which gather for a policy in its task."""
    own = config.for_task(policy.task)
    run, loop = own.run, own.loop
    assert isinstance(loop, CollectingLoopConfig)
    if run.num_envs % run.num_workers:
        raise UserError(
            f"num_workers={run.num_workers}: must divide num_envs={run.num_envs}, so that each has as many environments"
        )
    if isinstance(factory, Lender):
        raise factory.cannot("workers have environments of their own (actors, num_workers, lag)")
    order = run.order if run.order != "auto" else "arrival" if run.actors == "ray" else "fixed"
    plan = PoolPlan(
        num_workers=run.num_workers,
        num_envs=run.num_envs,
        per_round=loop.rollouts_per_round(run.num_workers),
        lag=loop.rounds_ahead,
        fixed=order == "fixed",
        deadline=run.rollout_deadline,
        restarts=run.worker_restarts,
        alone=loop.rollouts_stand_alone,
    )
    engine = _engine(config, factory, policy, plan)
    try:
        engine.start()
    except BaseException:
        engine.close()
        raise
    return Pool(engine, policy, plan)


def _engine(config: Config, factory: EnvFactory | None, policy: Policy, plan: PoolPlan) -> Engine:
    loop, each = config.for_task(policy.task).loop, plan.num_envs // plan.num_workers
    assert isinstance(loop, CollectingLoopConfig)
    # The values that acting uses come with the weights, so workers need no schedules, nor the functions among them.
    settings = {key: value for key, value in config.given().items() if key not in config.scheduling}
    its: dict[str, Any] = {"task": policy.task, "spaces": policy.tasks} if policy.task else {}
    plans = [WorkerPlan(settings, factory, each, number, **its) for number in range(plan.num_workers)]
    layout = strip_layout(loop.steps_at_once, each, policy.info, policy.records(policy.info))
    if config.run.actors == "inline":
        return Inline(plans, layout)
    slots = math.ceil((plan.lag + 1) * plan.per_round / plan.num_workers)
    needed, available = Layout(layout).size * slots * plan.num_workers, available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"n_steps={loop.steps_at_once}: {slots * plan.num_workers} rollouts under way need {readable(needed)} of "
            f"RAM, and {readable(available)} are available; lower n_steps, lag or num_envs"
        )
    weights = policy.policy_state()
    if config.run.actors == "ray":
        from rl_training.runtime.actors.ray_engine import RayWorkers

        # Twice, since an object may wait to be freed; a few versions of the weights may be in use.
        store = 2 * needed + 8 * sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        address, frames = config.run.ray_address, loop.frame_stack
        return RayWorkers(plans, layout, address=address, frames=frames, patience=plan.deadline, store=store)
    if WINDOWS:
        raise UserError("actors='process': shares memory in a way that Windows does not have; use actors=inline")
    from rl_training.runtime.actors.processes import Processes

    return Processes(plans, layout, weights, slots=slots, patience=plan.deadline)

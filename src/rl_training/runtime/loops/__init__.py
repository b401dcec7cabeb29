"""One loop for each family of algorithms: `LOOPS` names the function that makes it."""

from __future__ import annotations

LOOPS = {
    "on_policy": "rl_training.runtime.loops.on_policy:make",
    "off_policy": "rl_training.runtime.loops.off_policy:make",
    "planning": "rl_training.runtime.loops.planning:make",
    "world_model": "rl_training.runtime.loops.world_model:make",
    "multi_task": "rl_training.runtime.loops.multi_task:make",
    "offline": "rl_training.runtime.loops.offline:make",
    "imitation": "rl_training.runtime.loops.imitation:make",
    "actor_learner": "rl_training.runtime.loops.on_policy:make",
}

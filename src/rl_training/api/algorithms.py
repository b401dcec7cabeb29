"""The agents, one class for each algorithm. What they can do is in `agent.py`.

`algorithms.pyi` beside this file says which settings each has: benchmarks/stubs.py writes it.
"""

from __future__ import annotations

from rl_training.api.agent import Agent as Agent


class PPO(Agent):
    """Proximal policy optimisation."""

    algo = "ppo"


class A2C(Agent):
    """Advantage actor-critic."""

    algo = "a2c"


class TRPO(Agent):
    """Trust region policy optimisation."""

    algo = "trpo"


class PPG(Agent):
    """Phasic policy gradient."""

    algo = "ppg"


class RecurrentPPO(Agent):
    """Recurrent proximal policy optimisation: an LSTM or a GRU."""

    algo = "recurrent_ppo"


class GAIL(Agent):
    """Generative adversarial imitation learning on PPO."""

    algo = "gail"


class IMPALA(Agent):
    """Actor-critic on rollouts of older policies, corrected by V-trace."""

    algo = "impala"


class APPO(Agent):
    """PPO on rollouts of older policies, corrected by V-trace."""

    algo = "appo"


class DQN(Agent):
    """Deep Q-learning: double, dueling, n-step, prioritised."""

    algo = "dqn"


class DDPG(Agent):
    """Deep deterministic policy gradient."""

    algo = "ddpg"


class TD3(Agent):
    """Twin delayed deep deterministic policy gradient."""

    algo = "td3"


class SAC(Agent):
    """Soft actor-critic."""

    algo = "sac"


class REDQ(Agent):
    """Randomized ensembled double Q-learning."""

    algo = "redq"


class TQC(Agent):
    """Truncated quantile critics."""

    algo = "tqc"


class BC(Agent):
    """Behaviour cloning."""

    algo = "bc"


class AWAC(Agent):
    """Advantage-weighted actor-critic."""

    algo = "awac"


class IQL(Agent):
    """Implicit Q-learning."""

    algo = "iql"


class CQL(Agent):
    """Conservative Q-learning."""

    algo = "cql"


class TD3BC(Agent):
    """TD3 whose actor stays near the data."""

    algo = "td3_bc"


class MuZero(Agent):
    """Tree search in a learned model."""

    algo = "muzero"


class GumbelMuZero(Agent):
    """MuZero whose search improves the policy with few simulations."""

    algo = "gumbel_muzero"


class EfficientZero(Agent):
    """MuZero with consistency, value prefixes and fresher targets."""

    algo = "efficientzero"


class ScaleZero(Agent):
    """One transformer world model that plans in several tasks."""

    algo = "scalezero"


class Dreamer(Agent):
    """A world model, whose dreams a policy learns from."""

    algo = "dreamer"

"""One loop per family, by its name."""

from __future__ import annotations

LOOPS = {
    "on_policy": "rl_training.runtime.loops.on_policy:OnPolicyLoop",
    "off_policy": "rl_training.runtime.loops.off_policy:OffPolicyLoop",
}

"""What a preset may claim, and how `rl-training verify` looks at it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.experiment.config import load_config
from rl_training.experiment.presets import preset_names
from rl_training.experiment.settings import Expected
from rl_training.runtime.verification import verify_preset
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.types import UserError
from run_helpers import Command, metrics_rows, tiny

LONG = [name for name in preset_names() if (expected := load_config(name).run.expected) and expected.long]
LAST_5 = {"return": 1.0, "measure": "last_5_evaluations", "seeds": [7]}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def preset(folder: Path, **changes: Any) -> Path:
    """A file with settings of a quick run, of 24 steps an update and an evaluation after each."""
    file = folder / "mine.yaml"
    config = load_config(tiny(num_envs=2, n_steps=12, eval_interval=24, total_timesteps=144, **changes))
    file.write_text(yaml.safe_dump(config.flat()))
    return file


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({}, "expected: needs 'return', or 'long: true' where nothing is claimed"),
        ({"long": True, "return": 9.0}, "expected: 'long' claims nothing, so there can be no 'return'"),
        ({"published": "9", "return": 9.0}, "expected: 'published' is for presets that are not measured here"),
        (
            {"return": 9.0, "measure": "best"},
            "expected.measure='best': must be one of final_policy, last_5_evaluations",
        ),
        ({"lang": True, "return": 9.0}, "did you mean 'long'"),
        ({"return": 9.0, "final_return": 8.0}, "expected: 'final_return' needs 'measure: last_5_evaluations'"),
    ],
)
def test_a_claim_is_a_return_or_nothing(expected: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        load_config("ppo", env_id="CartPole-v1", expected=expected)


def test_a_long_preset_can_be_read_again_from_its_run() -> None:
    config = load_config("ppo", env_id="CartPole-v1", expected={"long": True})
    assert config.run.expected == Expected(long=True)
    assert load_config(config.flat()).run.expected == config.run.expected


def test_the_long_presets_are_marked(command: Command) -> None:
    assert set(LONG) >= {"redq/hopper", "tqc/hopper", "sac/halfcheetah", "dqn/atari_pong"}
    said = command("presets")
    marked = {line.split()[0] for line in said.out.splitlines() if line.split()[1:4] == ["not", "measured", "here"]}
    assert marked == set(LONG)
    assert re.search(r"^redq/hopper +not measured here +125,000$", said.out, re.MULTILINE)
    assert said.out.endswith("\nnot measured here: nothing is claimed for it\n")


def test_what_somebody_else_reports_is_said_with_its_source(command: Command) -> None:
    figures = {name: expected.published for name in LONG if (expected := load_config(name).run.expected)}
    assert str(figures["efficientzero/atari_pong"]).startswith("20.1 at 100,000 steps")
    assert str(figures["efficientzero/atari_pong"]).endswith("(Ye et al. 2021)")
    lines = command("presets").out.splitlines()
    for name, published in figures.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.endswith(published or "0")


@pytest.mark.parametrize("name", LONG)
def test_a_long_preset_is_not_verified(name: str, command: Command, tmp_path: Path) -> None:
    said = command("verify", name)
    assert said.code == 2
    assert re.fullmatch(
        rf"error: {name}: is marked long: no evidence is claimed for its [\d,]+ steps, so there is nothing to verify; "
        rf"`rl-training train {name}` trains it\n",
        said.err,
    )
    assert (said.out, list(tmp_path.iterdir())) == ("", [])


def test_the_mean_of_the_last_five_evaluations(command: Command, tmp_path: Path) -> None:
    said = command("verify", preset(tmp_path, expected=LAST_5), "--quiet")
    assert said.code == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    returns = [row["eval_return_mean"] for row in metrics_rows(run_dir) if "eval_return_mean" in row]
    assert len(returns) == 6
    mean = sum(returns[1:]) / 5
    assert abs(mean - returns[-1]) > 0.1, "the two measures must differ for this to say anything"
    assert f"seed 7: return {mean:.2f} (mean of the last 5 evaluations) in " in said.out
    assert f"mean {mean:.2f}, expected at least 1: holds" in said.out


@pytest.mark.parametrize(("bar", "verdict", "code"), [(1.0, "holds", 0), (1e6, "does NOT hold", 1)])
def test_the_final_policy_beside_the_last_evaluations(
    bar: float, verdict: str, code: int, command: Command, tmp_path: Path
) -> None:
    said = command("verify", preset(tmp_path, expected=LAST_5 | {"final_return": bar, "episodes": 3}), "--quiet")
    assert said.code == code
    found = re.search(r"\(mean of the last 5 evaluations\), ([\d.]+) of the final policy in ", said.out)
    assert found is not None
    assert f"; final policies {found[1]}, expected at least {bar:g}: {verdict}" in said.out
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert f"{evaluate_checkpoint(run_dir, num_episodes=3)['eval_return_mean']:.2f}" == found[1]


def test_too_few_evaluations_are_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = preset(tmp_path, expected=LAST_5)
    words = r"expected.measure='last_5_evaluations': eval_interval=30 gives fewer than five .* total_timesteps=144"
    with pytest.raises(UserError, match=words):
        verify_preset(str(file), ["eval_interval=30"])
    with pytest.raises(UserError, match="eval_interval=None gives fewer than five"):
        verify_preset(str(file), ["eval_interval=null"])
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("override", ["env_id=Acrobot-v1", "env_kwargs.sutton_barto_reward=true", "time_limit=9"])
def test_a_claim_is_not_compared_with_another_environment(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^[a-z_]+=.*: ppo/cartpole claims its return with [a-z_]+=[^\n]*$"):
        verify_preset("ppo/cartpole", [override])
    assert not any(tmp_path.iterdir())


def test_a_run_that_ends_too_early_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = preset(tmp_path, expected=LAST_5, early_stopping={"target_value": 1.0, "sustained": 3})
    with pytest.raises(UserError, match=r"expected\.measure: the run ended after 3 evaluations; it needs 5"):
        verify_preset(str(file))

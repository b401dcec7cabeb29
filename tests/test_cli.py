"""The command: what it does, what it says, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rl_training import Callback, evaluate_checkpoint, train
from rl_training.cli import cli
from rl_training.experiment.config import load_config
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY
from run_helpers import Command, as_overrides, latest, metadata, metrics_rows, tiny

SMALL = ["num_envs=2", "n_steps=8", "batch_size=8", "n_epochs=1", "hidden_sizes=[8]", "total_timesteps=48"]
SMALL += ["eval_interval=null", "eval_episodes=2"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended; it is only read."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(eval_interval=96, keep_checkpoints=9), run_dir=run_dir)
    return run_dir


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.iterdir()
    return run_dir


# train


def test_train_a_preset(command: Command, tmp_path: Path) -> None:
    said = command("train", "ppo/cartpole", *SMALL)
    assert said.code == 0
    run_dir = only_run(tmp_path / "runs")
    assert run_dir.name.startswith("ppo__CartPole-v1__seed0__")
    config = latest(run_dir).meta["config"]
    assert config["gamma"] == 0.98, "the preset's value"
    assert config["num_envs"] == 2, "the override"
    # It says how well it did, and where the run and the checkpoint are.
    assert re.search(r"^return +-?\d+\.\d\d \+- \d+\.\d\d \(2 evaluation episodes\)$", said.out, re.MULTILINE)
    assert re.search(r"^steps +\d+ in \d+\.\d s \(completed\)$", said.out, re.MULTILINE)
    assert re.search(rf"^run +{re.escape(str(run_dir.relative_to(tmp_path)))}$", said.out, re.MULTILINE)
    shown = re.search(r"^checkpoint +(.+)$", said.out, re.MULTILINE)
    assert shown is not None
    assert (tmp_path / shown[1] / "meta.json").is_file()


def test_one_episode_is_one_episode(command: Command, tmp_path: Path) -> None:
    small = [setting for setting in SMALL if not setting.startswith("eval_")]
    said = command("train", "ppo/cartpole", *small, "eval_episodes=1", "eval_interval=32")
    assert said.code == 0
    assert " (1 evaluation episode)\n" in said.out
    assert re.search(r"evaluation return .* over 1 episode$", said.err, re.MULTILINE)
    said = command("eval", only_run(tmp_path / "runs"), "--episodes", "1")
    assert " over 1 episode (min " in said.out


def test_train_a_file_that_names_sac(command: Command, tmp_path: Path) -> None:
    settings = tiny(algo="sac", ent_coef=0.2, ent_coef_schedule=0.1, checkpoint_interval=1000)
    (tmp_path / "mine.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    assert 'algo: "sac"\nenv_id: "Pendulum-v1"' in (tmp_path / "mine.yaml").read_text()
    said = command("train", "mine.yaml", "total_timesteps=96", "seed=3", "--quiet")
    assert said.code == 0, said.err
    run_dir = only_run(tmp_path / "runs")
    assert run_dir.name.startswith("sac__Pendulum-v1__seed3__")
    assert re.search(r"^steps +96 in \d+\.\d s \(completed\)$", said.out, re.MULTILINE)
    row = metrics_rows(run_dir)[-1]
    assert (row["n_updates"], row["ent_coef"], row["replay_size"]) == (12.0, 0.1, 96.0)
    judged = command("eval", run_dir, "--episodes", 2)
    assert judged.code == 0
    assert judged.out.endswith("at step 96\n")
    assert command("resume", run_dir, "total_timesteps=120", "--quiet").code == 0
    assert latest(run_dir).meta["step"] == 120


def test_train_a_file_with_overrides(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("algo: a2c\nenv_id: CartPole-v1\nlearning_rate: 1e-2\nseed: 4\n")
    overrides = ["num_envs=2", "total_timesteps=40", "seed=5", "algo_kwargs.ent_coef=0.25", "early_stopping.patience=3"]
    said = command("train", "mine.yaml", *overrides, "eval_interval=20", "eval_episodes=1", "--quiet")
    assert said.code == 0
    config = latest(only_run(tmp_path / "runs")).meta["config"]
    assert (config["algo"], config["seed"], config["learning_rate"]) == ("a2c", 5, 0.01)
    assert config["ent_coef"] == 0.25
    assert config["early_stopping"][0]["patience"] == 3


def test_train_an_algorithm(command: Command, tmp_path: Path) -> None:
    said = command("train", "a2c", "env_id=Pendulum-v1", "num_envs=2", "total_timesteps=20", "eval_episodes=1")
    assert said.code == 0
    assert only_run(tmp_path / "runs").name.startswith("a2c__Pendulum-v1__seed0__")


def test_train_is_what_python_does(command: Command, tmp_path: Path) -> None:
    settings = tiny(learning_rate_schedule={"type": "linear", "end": 1e-5})
    assert command("train", "ppo", *as_overrides(settings), "output_dir=here").code == 0
    train(settings, run_dir=tmp_path / "there")
    assert metrics_rows(only_run(tmp_path / "here")) == metrics_rows(tmp_path / "there")


def test_quiet_shows_the_result_only(command: Command) -> None:
    loud = command("train", "ppo/cartpole", *SMALL)
    quiet = command("train", "ppo/cartpole", *SMALL, "--quiet")
    assert "evaluation return" in loud.err
    assert quiet.err == ""
    assert quiet.out.startswith("return")


def test_the_size_of_the_replay_is_said_before_it_is_taken(command: Command, tmp_path: Path) -> None:
    small = ["num_envs=2", "buffer_size=1000", "learning_starts=8", "hidden_sizes=[8]", "eval_episodes=1"]
    train_it = ["train", "sac", "env_id=Pendulum-v1", *small, "time_limit=4", "total_timesteps=12"]
    line = "the replay of 1000 transitions takes up to 39.1 KiB of RAM\n"
    assert command(*train_it).err.startswith(line)
    assert command(*train_it, "--seeds", "1,2").err.count(line) == 2
    assert command(*train_it, "--quiet").err == ""
    run_dir = sorted((tmp_path / "runs").glob("sac__*"))[0]
    assert command("resume", run_dir, "total_timesteps=16").err.startswith(line)


def test_a_second_run_never_overwrites_a_first(command: Command, tmp_path: Path) -> None:
    """Two processes' worth of one name in the same second."""
    import rl_training.experiment.manager as manager

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.time, "strftime", lambda form: "20260312-101112")
        for _ in range(2):
            assert command("train", "ppo/cartpole", *SMALL, "--quiet").code == 0
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name.split("__")[-1] for run in runs] == ["20260312-101112", "20260312-101112-2"]
    assert all(latest(run).meta["step"] >= 48 for run in runs)


def test_two_commands_that_start_together_get_a_folder_each(tmp_path: Path) -> None:
    """Real processes, in the same second as far as they are concerned."""
    program = "import time; time.strftime = lambda form: '20260312-101112'\nfrom rl_training.cli import main\nmain()\n"
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", program, "train", "ppo/cartpole", *SMALL],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in commands]
    assert [process.returncode for process in commands] == [0, 0], said
    assert len(list((tmp_path / "runs").iterdir())) == 2
    # Piped, it speaks in plain lines: no control characters, no cursor movements, no boxes.
    for output, progress in said:
        assert re.search(r"^step \d+: evaluation return .* over 2 episodes$", progress, re.MULTILINE)
        assert "\x1b" not in output + progress
        assert "\r" not in output + progress
        assert output.isascii()
        assert progress.isascii()


# resume and eval


def test_resume_goes_on_to_the_same_end(command: Command, tmp_path: Path) -> None:
    train(tiny(eval_interval=60, keep_checkpoints=20), run_dir=tmp_path / "run")
    before = latest(tmp_path / "run").meta["step"]
    said = command("resume", "run", "total_timesteps=480")
    assert said.code == 0
    assert said.err.startswith(f"resumed at step {before}: total_timesteps: 240 -> 480\n")
    assert re.search(r"^run +run$", said.out, re.MULTILINE)
    assert latest(tmp_path / "run").meta["step"] >= 480
    assert command("resume", "run/checkpoints/step_0", "--quiet").code == 0
    assert command("resume", "run", "--checkpoint", "best", "total_timesteps=600", "--quiet").code == 0


def test_resume_of_a_finished_run_is_the_users_mistake(command: Command, finished: Path) -> None:
    said = command("resume", finished)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "has ended" in said.err
    assert said.out == ""


def test_eval_says_what_evaluate_checkpoint_says(command: Command, finished: Path) -> None:
    said = command("eval", finished, "--episodes", 5)
    assert said.code == 0
    judged = evaluate_checkpoint(finished, num_episodes=5)
    assert said.out == (
        f"return {judged['eval_return_mean']:.2f} +- {judged['eval_return_std']:.2f} over 5 episodes "
        f"(min {judged['eval_return_min']:.2f}, max {judged['eval_return_max']:.2f}, "
        f"length {judged['eval_length_mean']:.1f}) at step {judged['step']:.0f}\n"
    )
    best = command("eval", finished, "--episodes", 1, "--checkpoint", "best")
    assert best.out.endswith(f"at step {latest(finished, 'best').meta['step']}\n")
    first = command("eval", finished / "checkpoints" / "step_0", "--episodes", 1)
    assert first.out.endswith("at step 0\n")


# list, describe, presets


def test_list_prints_the_capability_table(command: Command) -> None:
    said = command("list")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split()[:4] == ["algorithm", "family", "observations", "actions"]
    for name, entry in REGISTRY.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert entry.summary in line
        for word in (*entry.capabilities.observations, *entry.capabilities.actions, entry.family):
            assert word in line


@pytest.mark.parametrize("algo", list(REGISTRY))
def test_describe_prints_every_setting(algo: str, command: Command) -> None:
    from rl_training.experiment.fields import settings_of
    from rl_training.experiment.registry import load_spec

    said = command("describe", algo)
    assert said.code == 0
    lines = [line for line in said.out.splitlines() if line.split()[1:3] != ["type", "default"]]
    for name, setting in settings_of(load_spec(algo)).items():
        (line,) = [line for line in lines if re.match(rf"{name}( |$)", line)]
        assert setting.help in line
        assert ("*" in line.split("  ")[0]) == setting.schedulable
        for alias in setting.aliases:
            assert f"= {alias}" in line
    assert re.search(r"^learning_rate \* .*float .*at least 0", said.out, re.MULTILINE)
    spellings = {"ent_coef": r"ent_coef = entropy_coef \*", "train_every": "train_every = train_freq"}
    for name in spellings.keys() & settings_of(load_spec(algo)).keys():
        assert re.search(rf"^{spellings[name]} ", said.out, re.MULTILINE)


def test_describe_as_a_json_schema(command: Command) -> None:
    said = command("describe", "ppo", "--json")
    assert said.code == 0
    schema = json.loads(said.out)
    assert schema["required"] == ["env_id"]
    for key in ("learning_rate", "clip_range", "clip_coef_schedule", "entropy_coef_warmup_steps", "n_steps", "seed"):
        assert key in schema["properties"]
    assert schema["properties"]["gamma"]["maximum"] == 1.0
    assert "gamma_steps" not in schema["properties"]


def test_presets_lists_them_with_their_evidence(command: Command) -> None:
    said = command("presets")
    assert said.code == 0
    for name in preset_names():
        (line,) = [line for line in said.out.splitlines() if line.startswith(f"{name} ")]
        settings = load_config(name).run
        assert settings.expected is not None
        if not settings.expected.long:
            assert f">= {settings.expected.return_:g}" in line
        assert f"{settings.total_timesteps:,}" in line


# verify

VERIFIED = [*SMALL, "expected.episodes=3"]


def test_verify_holds(command: Command, tmp_path: Path) -> None:
    said = command("verify", "ppo/cartpole", *VERIFIED, "expected.return=1", "--seeds", "7,8")
    assert said.code == 0
    assert re.search(r"^seed 7: return \d+\.\d\d in \d+\.\d\d minutes$", said.out, re.MULTILINE)
    assert re.search(r"^seed 8: ", said.out, re.MULTILINE)
    assert re.search(r"^ppo/cartpole: mean \d+\.\d\d, expected at least 1: holds$", said.out, re.MULTILINE)
    names = sorted(path.name.split("__")[2] for path in (tmp_path / "runs").iterdir())
    assert names == ["seed7", "seed8"]


def test_verify_does_not_hold(command: Command) -> None:
    said = command("verify", "ppo/cartpole", *VERIFIED, "expected.return=501", "expected.seeds=[3]", "--quiet")
    assert said.code == 1
    assert "expected at least 501: does NOT hold" in said.out
    assert said.err == ""
    assert re.search(r"^seed 3: ", said.out, re.MULTILINE)


def test_verify_compares_the_mean_over_the_seeds(command: Command) -> None:
    said = command("verify", "ppo/cartpole", *VERIFIED, "expected.return=1", "--seeds", "1,2", "--quiet")
    values = [float(value) for value in re.findall(r"^seed \d: return (\S+)", said.out, re.MULTILINE)]
    mean = re.search(r"mean (\S+),", said.out)
    assert mean is not None
    assert float(mean[1]) == pytest.approx(sum(values) / 2, abs=0.011)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ppo/cartpole", "--seeds", "1,x"], "--seeds='1,x': must be whole numbers"),
        (["ppo", "env_id=CartPole-v1"], "verify one of its presets: ppo/acrobot"),
        (["ppo/cartpol"], "did you mean 'ppo/cartpole'?"),
    ],
)
def test_verify_mistakes(arguments: list[str], words: str, command: Command, tmp_path: Path) -> None:
    said = command("verify", *arguments)
    assert said.code == 2
    assert words in said.err
    assert not (tmp_path / "runs").exists()


# Exit codes and help


def test_a_mistake_of_usage_is_2(command: Command) -> None:
    for arguments in (["trian"], ["eval"], ["eval", "x", "--episodes", "0"], ["eval", "x", "--nonsense"]):
        said = command(*arguments)
        assert said.code == 2
        assert said.err.startswith("Usage: ")
        assert "Error: " in said.err
    assert "Did you mean 'train'?" in command("trian").err or "No such command 'trian'" in command("trian").err


class Interrupts(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)


class Terminates(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("name", ["Interrupts", "Terminates"])
def test_an_interruption_is_130(name: str, command: Command, tmp_path: Path) -> None:
    said = command("train", "ppo/cartpole", *SMALL, f"callbacks=[test_cli:{name}]")
    assert said.code == 130
    run_dir = only_run(tmp_path / "runs").relative_to(tmp_path)
    assert f"interrupted; continue with: rl-training resume {run_dir}" in said.err
    assert metadata(run_dir)["stop_reason"] == "interrupted"
    assert command("resume", run_dir, "callbacks=[]").code == 0


def test_a_failure_of_the_users_code_shows_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_failure.py").write_text(
        "from rl_training import Callback\n"
        "class Fails(Callback):\n"
        "    def on_step(self, run, metrics):\n"
        "        raise ZeroDivisionError('here')\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["train", "ppo/cartpole", *SMALL, "callbacks=[my_failure:Fails]"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_help_explains_every_command(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    for name, about in cli.commands.items():
        assert re.search(rf"^  {name} +\S", said.out, re.MULTILINE)
        help_of_one = command(name, "--help")
        assert help_of_one.code == 0
        assert about.help is not None
        assert about.help.splitlines()[0][:50] in help_of_one.out
    assert {"train", "eval", "resume", "list", "describe", "presets", "verify"} <= cli.commands.keys()
    assert "rl-training train ppo/cartpole" in said.out
    assert command("-h").out == said.out


def test_version(command: Command) -> None:
    import rl_training

    assert command("--version").out == f"rl-training, version {rl_training.__version__}\n"


# The display


class _Terminal:
    """A console that believes in being a terminal and remembers what it was told."""

    def __init__(self) -> None:
        import io

        from rich.console import Console

        self.stream = io.StringIO()
        self.console = Console(file=self.stream, force_terminal=True, width=120)


def test_on_a_terminal_there_is_a_live_line(tmp_path: Path) -> None:
    from rl_training.runtime.loggers import ProgressDisplay

    terminal = _Terminal()
    train(tiny(), run_dir=tmp_path / "run", callbacks=[ProgressDisplay(terminal.console)])
    shown = terminal.stream.getvalue()
    assert re.search(r"\d+/240 steps +[\d,]+ steps/s +return [\d.]+ +\d:\d\d left", shown)
    assert "evaluation return" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden, and shown again"


def test_the_cursor_comes_back_when_a_run_fails(tmp_path: Path) -> None:
    from rl_training.runtime.loggers import ProgressDisplay
    from run_helpers import Pulled, PullPlug

    terminal = _Terminal()
    with pytest.raises(Pulled):
        train(tiny(), run_dir=tmp_path / "run", callbacks=[ProgressDisplay(terminal.console), PullPlug(50)])
    assert terminal.stream.getvalue().count("\x1b[?25h") == 1


def test_plain_lines_tell_steps_speed_return_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from rl_training.runtime import loggers

    monkeypatch.setattr(loggers, "SECONDS_BETWEEN_LINES", 0.0)
    stream = io.StringIO()
    display = loggers.ProgressDisplay(Console(file=stream, width=20))
    train(tiny(total_timesteps=72, vectorization="sync"), run_dir=tmp_path / "run", callbacks=[display])
    lines = stream.getvalue().splitlines()
    assert [bool(re.fullmatch(r"\d+/72 steps  [\d,]+ steps/s  return \S+  \d:\d\d left", line)) for line in lines] == [
        True,
        True,
        False,
    ]
    assert lines[0].startswith("48/72"), "the first step only sets the clock: it may have compiled kernels"
    assert lines[-1].startswith("step 72: evaluation return")


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("rl-training")
    if not script.exists():
        pytest.skip("the package is not installed with its script")
    done = subprocess.run([script, "list"], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("algorithm")


def test_settings_of_the_command_are_the_settings_of_python() -> None:
    settings: dict[str, Any] = {"early_stopping": [{"patience": 2}], "eval_interval": 5, "env_kwargs": {"a": 1.5}}
    settings |= {"learning_rate_schedule": {"type": "step", "every": 10, "factor": 0.5}, "hidden_sizes": [4, 4]}
    written = load_config("ppo", [*as_overrides(settings), "env_id=CartPole-v1", "learning_rate=3e-4"])
    assert written == load_config(settings | {"algo": "ppo", "env_id": "CartPole-v1", "learning_rate": 3e-4})

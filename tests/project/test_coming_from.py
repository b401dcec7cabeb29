"""The page for those who come from other libraries: its script runs in both, and its tables miss no argument."""

from __future__ import annotations

import inspect
import io
import re
import runpy
import sys
import tokenize
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import click
import pytest

import rl_training
from rl_training import PPO, UserError, evaluate_policy
from rl_training.cli import cli
from rl_training.experiment.fields import Setting, settings_of
from rl_training.experiment.other_words import in_our_words, our_name
from rl_training.experiment.registry import REGISTRY, load_spec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming_from.md").read_text()
CLASSES = {
    "stable_baselines3": ("ppo", "a2c", "dqn", "sac", "td3", "ddpg"),
    "sb3_contrib": ("tqc", "trpo", "recurrent_ppo"),
}
ALGORITHMS = [algo for algos in CLASSES.values() for algo in algos]


def rows(header: str) -> list[list[str]]:
    """The rows of the table with this header."""
    lines = PAGE.splitlines()
    start = lines.index(header) + 2
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:end]]


def words(cell: str) -> list[str]:
    """What a cell has in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def names_of(cell: str) -> list[str]:
    return ALGORITHMS if cell == "all" else cell.split(", ")


def settings(algo: str) -> dict[str, Setting]:
    return dict(settings_of(load_spec(algo)))


def is_setting(word: str, algo: str) -> bool:
    known = settings(algo)
    aliases = {alias for setting in known.values() for alias in setting.aliases}
    base = word.removesuffix("_schedule")
    return word in known or word in aliases or (base != word and base in known and known[base].schedulable)


# The script


def script(*marks: str) -> str:
    """One of the two forms of the script: the lines without a mark, and those with one of these."""
    (block,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return "".join(line[1:] or "\n" for line in block.splitlines(keepends=True) if line[0] in (" ", "\n", *marks))


THEIRS, OURS = script("-"), script("+")


def code_words(text: str) -> list[str]:
    """Names, numbers and strings outside of import lines."""
    code = "".join(line for line in text.splitlines(keepends=True) if not re.match(r"import |from ", line))
    kinds = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
    return [token.string for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type in kinds]


def test_imports_and_three_words_are_changed() -> None:
    before, after = code_words(THEIRS), code_words(OURS)
    changes = [change for change in SequenceMatcher(a=before, b=after).get_opcodes() if change[0] != "equal"]
    assert sum(max(end - start, last - first) for _, start, end, first, last in changes) <= 3
    assert len(THEIRS.splitlines()) == 60
    assert "rl_training" not in THEIRS
    assert "stable_baselines3" not in OURS


def run_script(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str]) -> Any:
    """Run a script as a program, with one round of 256 steps; returns its names and what it printed."""
    (folder / "script.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["script.py", "1", "256"])
    names = runpy.run_path("script.py", run_name="__main__")
    return names, output.readouterr().out


def check_printed(printed: str) -> None:
    number = r"\d+\.\d"
    assert re.search(rf"^after round 1: {number} \+/- {number}$", printed, re.MULTILINE)
    assert re.search(rf"^the best model: returns \[({number}(, )?){{5}}\] in \d+ steps$", printed, re.MULTILINE)
    assert re.search(rf"^one more episode: {number}$", printed, re.MULTILINE)
    assert re.search(r"^actions for four observations: \[([01](, )?){4}\]$", printed, re.MULTILINE)


def test_the_script_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, printed = run_script(OURS, tmp_path, monkeypatch, capsys)
    check_printed(printed)
    assert names["model"].num_timesteps >= 512  # those of the best model, and as many again
    assert names["model"].config.run.num_envs == 8
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"best", "further"}
    names["model"].close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_script_runs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3", reason="runs a script with Stable-Baselines3")
    _, printed = run_script(THEIRS, tmp_path, monkeypatch, capsys)
    check_printed(printed)
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"best.zip", "further.zip"}


def test_evaluate_policy_is_the_agents_own_evaluation() -> None:
    agent = PPO("CartPole-v1", num_envs=2)
    found = agent.evaluate(5)
    assert evaluate_policy(agent, n_eval_episodes=5) == (found.mean, found.std)
    returns, lengths = evaluate_policy(agent, "CartPole-v1", 5, True, return_episode_rewards=True)
    assert (returns, lengths) == (list(found.returns), list(found.lengths))
    explored = agent.evaluate(5, deterministic=False)
    assert evaluate_policy(agent, None, 5, False)[0] == explored.mean
    with pytest.raises(UserError, match="model=3: must be an agent"):
        evaluate_policy(3)  # type: ignore[call-overload]
    agent.close()


# The tables


def arguments() -> Iterator[tuple[str, str, Any]]:
    """Every argument of the classes of Stable-Baselines3: the algorithm, the name and the default."""
    for library, algos in CLASSES.items():
        module = pytest.importorskip(library, reason="compares with Stable-Baselines3")
        for algo in algos:
            kind = getattr(module, "RecurrentPPO" if algo == "recurrent_ppo" else algo.upper())
            for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
                yield algo, name, parameter.default


def argument_rows() -> dict[tuple[str, str], str]:
    """What each argument of each algorithm is here."""
    found = {}
    for argument, of, here, about in rows("| argument | of | here | what to know |"):
        (name,) = words(argument)
        for algo in names_of(of):
            assert (algo, name) not in found, f"two rows for {name} of {algo}"
            found[algo, name] = here
            if here == "none" and name not in ("_init_setup_model",) and not name.endswith("_kwargs"):
                assert about, f"{name}: nothing says what to use instead"
    return found


def test_every_argument_has_a_row() -> None:
    assert set(argument_rows()) == {(algo, name) for algo, name, _ in arguments()}


def test_every_setting_in_the_rows_exists() -> None:
    for (algo, name), here in argument_rows().items():
        if here == "the same":
            assert name in settings(algo), (algo, name)
        elif here == "none":
            assert not is_setting(name, algo), f"{name} of {algo} is there"
        elif name != "env":
            assert words(here), (algo, name)
            assert all(is_setting(word, algo) for word in words(here)), (algo, name)


def test_what_the_notes_name_exists() -> None:
    known = {name for algo in ALGORITHMS for name in settings(algo)}
    theirs = {name for _, name, _ in arguments()} | {"net_arch", "activation_fn", "end", "fraction"}
    for *_, about in rows("| argument | of | here | what to know |"):
        for word in words(about):
            if re.fullmatch(r"[a-z_]+", word) and word not in ("auto", "episode_return_mean"):
                assert word.removesuffix("_schedule") in known | theirs, word


def test_entries_of_policy_kwargs_are_settings() -> None:
    known = {name for algo in REGISTRY for name in settings(algo)}
    for entry, here in rows("| entry | here |"):
        assert words(entry)
        assert all(word in known for word in words(here) if re.fullmatch(r"[a-z_]+", word)), entry


def test_defaults_that_differ() -> None:
    theirs = {(algo, name): default for algo, name, default in arguments()}
    for cell, here, there, of in rows("| setting | here | there | algorithms |"):
        (name,) = words(cell)
        for algo in names_of(of):
            default = settings(algo)[name].default
            shown = {True: "true", False: "false"}.get(default) if isinstance(default, bool) else None
            assert here == (shown or str(list(default) if isinstance(default, tuple) else default)), (algo, name)
            if (algo, name) in theirs:
                assert there.removesuffix(": random") == str(theirs[algo, name]).lower(), (algo, name)


def test_every_class_has_a_row() -> None:
    named = [word for cell, _ in rows_after("### Classes") for word in words(cell)]
    for library in CLASSES:
        module = pytest.importorskip(library, reason="compares with Stable-Baselines3")
        kinds = {name for name, kind in vars(module).items() if inspect.isclass(kind) and hasattr(kind, "learn")}
        assert kinds <= set(named)
    for _, here in rows_after("### Classes"):
        assert all(hasattr(rl_training, word) for word in words(here) if word.isupper())


def rows_after(heading: str) -> list[list[str]]:
    """The table of two columns below a heading."""
    table = PAGE[PAGE.index(f"{heading}\n") :]
    lines = table[table.index("| there | here |") :].splitlines()[2:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[:end]]


@pytest.mark.parametrize(
    "header",
    [
        "| argument | of | here |",
        "| argument of `ppo.py`, `dqn.py`, `sac_continuous_action.py` | of | here |",
        "| key of a config | of | here |",
    ],
    ids=["d3rlpy", "CleanRL", "LightZero"],
)
def test_settings_for_users_of_other_libraries_exist(header: str) -> None:
    for _, of, here in rows(header):
        before_notes = here.partition(":")[0].partition(";")[0]
        assert words(here)
        for algo in of.split(", "):
            for word in words(before_notes):
                assert is_setting(word, algo), (algo, word)


def test_names_of_lightzero_are_answered_as_the_table_says() -> None:
    for cell, of, here in rows("| key of a config | of | here |"):
        theirs, ours = words(cell), words(here.partition(";")[0])
        for algo in of.split(", "):
            for name, right in zip(theirs, ours, strict=False):
                answered = our_name(name, settings(algo))
                assert answered == right or name == right or right in (in_our_words(name, settings(algo)) or ""), name


def test_keywords_in_the_tables_are_settings() -> None:
    """`key=value` on our side, in all tables of two columns."""
    known = {name for algo in REGISTRY for name in settings(algo)}
    own = {"progress_bar", "callback", "deterministic", "env", "reset_num_timesteps"}
    for heading in (
        "### Methods and files",
        "### Helpers, wrappers and callbacks",
        "### RL Zoo",
        "## d3rlpy",
        "## LightZero",
    ):
        for there, here in rows_after(heading):
            assert there
            assert here
            for key in re.findall(r"(?<![\w-])([a-z_]+)(?:\.\w+)?=", " ".join(words(here))):
                assert key in known | own, f"{heading}: {key}"


def test_commands_on_the_page_exist() -> None:
    found = re.findall(r"`(rl-training [^`]+)`", PAGE)
    assert len(found) > 8
    for line in found:
        name, *rest = line.split()[1:]
        command: click.Command = cli.commands[name]
        if isinstance(command, click.Group):
            command = command.commands[rest.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, line


def test_hooks_in_the_table_exist() -> None:
    hooks = {word for _, here in rows_after("### Helpers, wrappers and callbacks") for word in words(here)}
    assert {word for word in hooks if re.fullmatch(r"on_\w+", word)} <= set(vars(rl_training.Callback))


def test_a_mistake_in_a_table_would_be_found() -> None:
    assert is_setting("clip_range", "ppo")
    assert is_setting("learning_rate_schedule", "sac")
    assert not is_setting("clip_rang", "ppo")
    assert not is_setting("n_epochs", "dqn")

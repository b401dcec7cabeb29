"""The words are true: every code block of the documents is run or checked, and the tables say what the code says.

A document is read like a session: its blocks run in order, in one empty folder, every Python block by itself. So that
this takes seconds, numbers are made small by three rules: `.learn(N)` learns 64 steps, `total_timesteps=N` and
`total_updates=N` become 160 (more than the run that the documents resume has), and `rl-training train` and `verify` get
the settings of `TINY`.
A Python block whose first line is a comment with a file's name, as in `# my_networks.py`, is that file.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from textwrap import indent

import pytest
from click.testing import CliRunner

from rl_training.cli import cli
from rl_training.experiment.config import load_config
from rl_training.experiment.fields import settings_of
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.experiment.schedules import KINDS
from rl_training.experiment.settings import EarlyStoppingRule
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import Interrupted, Run, build, train
from rl_training.testing import tiny_config
from rl_training.types import Metrics, UserError
from sb3_files import write_model, write_statistics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.is_file()
)

# What a run says if values do not fit; a test of its own compares it with what it really says.
TOO_LOW = (
    "value_limit=100: at gamma=0.997 over 500 steps, rewards as those so far add up to 259.1, which the model cannot "
    "represent; set it higher"
)
# Blocks that are only looked at, by document and first line: there is nothing in them to run, or another test does it.
SHOWN = {
    (
        "docs/coming_from.md",
        '"""Trains PPO on CartPole and keeps the best model; then loads it, plays with it and trains it further."""',
    ),
    ("docs/design.md", "src/rl_training/"),
    ("docs/resume.md", "runs/ppo__CartPole-v1__seed0__20260312-120000/"),
    ("docs/planning.md", TOO_LOW),
    ("docs/cluster.md", "learner's machine                                   every other machine"),
    ("docs/cluster.md", 'python -c "import secrets; print(secrets.token_hex(32))" > token'),
    ("docs/cluster.md", "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0"),
    ("docs/cluster.md", "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=/path/to/your/modules"),
    (
        "docs/cluster.md",
        "worker 3 on 10.0.0.2: cannot import 'my_envs', which the function of the environment needs; install it there, "
        "or put its folder on PYTHONPATH before `ray start`",
    ),
}

OFF_POLICY, OFFLINE, PLANNING, DREAMING = (
    [name for name, entry in REGISTRY.items() if entry.family == family]
    for family in ("off_policy", "offline", "planning", "world_model")
)
FAMILIES = {entry.family for entry in REGISTRY.values()}
TINY = ["num_envs=2", "total_timesteps=64", "eval_episodes=1"]


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    kind: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0].strip()

    @property
    def destination(self) -> tuple[str, str] | None:
        """The file of the package that the block belongs to, and where in it: the first line of a recipe's block."""
        match = re.fullmatch(r"# ((?:src|tests|docs)/\S+): (.+)", self.first_line)
        return (match[1], match[2]) if match else None

    def __str__(self) -> str:
        return f"{self.document}, line {self.line} ({self.kind})"


def blocks(document: str) -> list[Block]:
    found, opened = [], None
    for number, line in enumerate((ROOT / document).read_text().splitlines(), start=1):
        if line.startswith("```"):
            if opened is None:
                opened = (number, line.removeprefix("```").strip(), [])
            else:
                found.append(Block(document, opened[0], opened[1], "\n".join(opened[2]) + "\n"))
                opened = None
        elif opened is not None:
            opened[2].append(line)
        else:
            assert "```" not in line, f"{document}, line {number}: a fence that does not start its line"
    assert opened is None, f"{document}: a block is not closed"
    return found


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples in it and the files that the documents speak of; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    write_model(tmp_path / "ppo_cartpole.zip")
    write_statistics(tmp_path / "vecnormalize.pkl")
    (tmp_path / "ppo.yml").write_text(
        "CartPole-v1: {policy: MlpPolicy, n_envs: 8, n_steps: 32, learning_rate: lin_0.001}"
    )
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


class InterruptAt(Callback):
    """What Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if run.steps >= self.step:
            signal.raise_signal(signal.SIGINT)


def interrupted_run(path: Path) -> None:
    """What the documents resume and evaluate: it was stopped at step 64 of 96."""
    settings = {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "n_steps": 16, "total_timesteps": 96}
    with pytest.raises(Interrupted):
        train(settings | {"eval_interval": 32, "eval_episodes": 1}, run_dir=path, callbacks=[InterruptAt(64)])


def offline_run(path: Path) -> None:
    """What the documents go on from, online."""
    train(load_config("awac/pendulum", total_updates=8, eval_episodes=1), run_dir=path)


def planning_run(path: Path) -> None:
    """What the documents draw a search of."""
    small = {"num_envs": 2, "num_simulations": 4, "hidden_sizes": [8], "latent_size": 8, "eval_episodes": 1}
    long_enough = {"total_timesteps": 64, "learning_starts": 16, "batch_size": 8, "updates_per_step": 2.0}
    train({"algo": "gumbel_muzero", "env_id": ENV_OF[path.name.split("__")[1]]} | small | long_enough, run_dir=path)


def dreaming_run(path: Path) -> None:
    """What the documents draw dreams of."""
    small = {"num_envs": 2, "deter": 16, "hidden": 8, "units": 8, "stoch": 4, "classes": 4, "eval_episodes": 1}
    enough = {"total_timesteps": 64, "learning_starts": 16, "batch_size": 4, "batch_length": 8}
    train({"algo": "dreamer", "env_id": "CartPole-v1"} | small | enough, run_dir=path)


ENV_OF = {"CartPole-v1": "CartPole-v1", "pettingzoo-tictactoe_v3": "pettingzoo/tictactoe_v3"}

# The runs that the documents speak of, and how each is made.
RUNS_IN_THE_WORDS = {
    "runs/gumbel_muzero__CartPole-v1__seed0__20260312-120000": planning_run,
    "runs/gumbel_muzero__pettingzoo-tictactoe_v3__seed0__20260312-120000": planning_run,
    "runs/dreamer__CartPole-v1__seed0__20260312-120000": dreaming_run,
    "runs/ppo__CartPole-v1__seed0__20260312-120000": interrupted_run,
    "runs/awac__Pendulum-v1__seed0__20260312-120000": offline_run,
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_the_document_is_true(document: str, reader: Path) -> None:
    for block in blocks(document):
        check_block(block, reader)


def check_block(block: Block, folder: Path) -> None:
    if block.destination is not None:
        # A step of the recipe, which is followed at the end of this file.
        assert block.document == "CONTRIBUTING.md", f"{block}: only the recipe has blocks that belong into files"
    elif block.kind == "python":
        if re.fullmatch(r"# \w+\.py", block.first_line):
            (folder / block.first_line.removeprefix("# ")).write_text(block.text)
        run_python(block)
    elif block.kind == "bash":
        run_bash(block, folder)
    elif block.kind == "yaml":
        check_yaml(block, folder)
    else:
        assert (block.document, block.first_line) in SHOWN, f"{block}: a block that no test looks at"


def test_no_block_is_excused_that_is_not_there() -> None:
    assert {(block.document, block.first_line) for name in DOCUMENTS for block in blocks(name)} >= SHOWN


def small(text: str) -> str:
    """The same words with little work in them."""
    return re.sub(r"\.learn\([\d_]+", ".learn(64", re.sub(r"\btotal_(timesteps|updates)=[\d_]+", r"total_\1=160", text))


def run_python(block: Block) -> None:
    try:
        exec(compile(small(block.text), str(block), "exec"), {"__name__": "__block__"})
    except Exception as error:
        raise AssertionError(f"{block}: {error!r}") from error


def check_yaml(block: Block, folder: Path) -> None:
    file = folder / f"block_{block.line}.yaml"
    file.write_text(block.text)
    load_config(file)


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, split into words, without comments."""
    for line in block.text.splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words:
                yield words


def run_bash(block: Block, folder: Path) -> None:
    for words in commands(block):
        check = {
            "rl-training": run_command,
            "make": check_make,
            "pip": check_pip,
            "cd": lambda words, folder: os.chdir(folder / words[1]),
            "cp": lambda words, folder: [check_path(word) for word in (words[1], str(Path(words[2]).parent))],
            "python3": lambda words, folder: check_words(words, ["python3", "-m", "venv", ".venv"]),
            ".": lambda words, folder: check_words(words, [".", ".venv/bin/activate"]),
            ".venv/bin/pre-commit": check_pre_commit,
        }.get(words[0])
        assert check is not None, f"{block}: no test looks at the command {words[0]!r}"
        try:
            check(words, folder)
        except Exception as error:
            raise AssertionError(f"{block}: {' '.join(words)}: {error!r}") from error


def run_command(words: list[str], folder: Path) -> None:
    arguments = [small(word) for word in words[1:]]
    if "actors=ray" in arguments:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rl-training[ray]'")
    allowed = {0}
    if arguments[0] in ("train", "verify"):
        arguments = with_settings(arguments, tiny(arguments[1]))
    if arguments[0] == "verify":
        arguments += ["expected.episodes=1", "expected.seeds=[1]"]
        allowed = {0, 1}  # after so few steps it does not hold
    for run, make in RUNS_IN_THE_WORDS.items():
        if any(run in word for word in arguments):
            shutil.rmtree(folder / run, ignore_errors=True)
            make(folder / run)
    done = CliRunner().invoke(cli, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in allowed, done.output
    assert done.output


def with_settings(arguments: list[str], settings: list[str]) -> list[str]:
    """Arguments with settings in place of what they give themselves, since none may be given twice."""
    keys = {setting.partition("=")[0] for setting in settings}
    if "-n" in arguments:
        place = arguments.index("-n")
        arguments = [*arguments[:place], *arguments[place + 2 :]]
    return [*(word for word in arguments if word.partition("=")[0] not in keys), *settings]


def tiny(target: str) -> list[str]:
    """The settings that make little work of a preset, an algorithm or a file."""
    algo = target.partition("/")[0]
    if algo == "bc":
        return [setting for setting in TINY if not setting.startswith("num_envs=")]
    if algo in (*PLANNING, "scalezero"):
        return [*TINY, "num_simulations=2"]
    without_rollouts = [*OFF_POLICY, *OFFLINE, *DREAMING, "multi_task_dqn:SPEC"]
    return TINY if algo in without_rollouts else [*TINY, "n_steps=16"]


def check_words(words: list[str], expected: list[str]) -> None:
    assert words == expected


def check_path(path: str) -> None:
    assert (ROOT / path).exists(), f"{path} is not there"


def check_make(words: list[str], folder: Path) -> None:
    assert len(words) == 2
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[1] in targets, f"the Makefile has no target {words[1]!r}"


def check_pip(words: list[str], folder: Path) -> None:
    """The files, extras and packages that it names are there; nothing is installed."""
    rest = words[1:]
    assert rest.pop(0) == "install"
    while rest:
        word = rest.pop(0)
        if word == "-c":
            check_path(rest.pop(0))
        elif word == "-e":
            match = re.fullmatch(r"\.(?:\[([\w,]+)\])?", rest.pop(0))
            assert match is not None
            extras = set(match[1].split(",")) if match[1] else set()
            assert extras <= set(metadata("rl-training").get_all("Provides-Extra") or [])
        elif word == "--index-url":
            assert rest.pop(0).startswith("https://download.pytorch.org/whl/")
        else:
            assert word in required_packages()


def check_pre_commit(words: list[str], folder: Path) -> None:
    assert words[1:] == ["install"]
    check_path(".pre-commit-config.yaml")
    assert "pre-commit" in required_packages()


def required_packages() -> set[str]:
    """Those of the package and of its extras."""
    return {re.split(r"[^\w-]", line)[0] for line in metadata("rl-training").get_all("Requires-Dist") or []}


BAD_BLOCKS = {
    "a command that no test knows": ("bash", "curl https://example.org"),
    "a missing target": ("bash", "make tests"),
    "a missing extra": ("bash", 'pip install -e ".[everything]"'),
    "a missing file": ("bash", "pip install -c constraint.txt -e ."),
    "a foreign package": ("bash", "pip install d3rlpy"),
    "a misspelt setting": ("bash", "rl-training train ppo/cartpole sede=1"),
    "a misspelt option": ("bash", "rl-training eval runs --episode 3"),
    "a misspelt command": ("bash", "rl-training dataset inspekt random.npz"),
    "a run that is not there": ("bash", "rl-training train awac/pendulum from=runs/none"),
    "a misspelt preset": ("bash", "rl-training verify ppo/cartpool"),
    "Python that fails": ("python", "from rl_training import PPO2"),
    "a misspelt key": ("yaml", "algo: ppo\nenv_id: CartPole-v1\nent_coeff: 0.1"),
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_wrong_block_is_found(name: str, reader: Path) -> None:
    kind, text = BAD_BLOCKS[name]
    with pytest.raises((AssertionError, UserError)):
        check_block(Block("document", 1, kind, text + "\n"), reader)


def test_a_block_of_another_kind_is_found(reader: Path) -> None:
    with pytest.raises(AssertionError, match="no test looks at"):
        check_block(Block("README.md", 1, "ruby", "puts 1\n"), reader)


# Tables and links


def table(document: str, header: str) -> list[list[str]]:
    """The rows of the table with this header, without backquotes."""
    lines = (ROOT / document).read_text().splitlines()
    start = lines.index(header) + 2
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("|"))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[start:end]]


def test_algorithm_table_is_the_registry() -> None:
    rows = table("docs/algorithms.md", "| algorithm | family | observations | actions |")
    assert rows == [
        [name, entry.family, ", ".join(entry.capabilities.observations), ", ".join(entry.capabilities.actions)]
        for name, entry in REGISTRY.items()
    ]


def test_family_table_is_the_registry() -> None:
    rows = table("README.md", "| family | algorithms | in one line |")
    families = {family: [name for name, entry in REGISTRY.items() if entry.family == family] for family in FAMILIES}
    assert {re.sub(r"[ -]", "_", family): re.findall(r"\w+", names) for family, names, _ in rows} == families


def test_first_page_says_how_many_algorithms_there_are() -> None:
    assert re.search(r"PyTorch: (\d+) algorithms", (ROOT / "README.md").read_text())[1] == str(len(REGISTRY))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_page_can_be_reached_from_the_first(document: str) -> None:
    if document.startswith("docs/"):
        assert re.search(rf"\({re.escape(document)}[)#]", (ROOT / "README.md").read_text()), document


@pytest.mark.parametrize(
    ("document", "algorithms"),
    [("docs/presets.md", list(REGISTRY)), ("docs/planning.md", PLANNING), ("docs/dreamer.md", DREAMING)],
)
def test_preset_table_says_what_the_presets_say(document: str, algorithms: list[str]) -> None:
    rows = [preset_row(name) for name in preset_names() if name.partition("/")[0] in algorithms]
    lines = [f"| `{name}` | {' | '.join(cells)} |".replace("|  ", "| ") for name, *cells in rows]
    found = table(document, "| preset | bar | steps | measured | minutes per seed |")
    assert found == rows, "\n".join(["the table must be:", *lines])


def preset_row(name: str) -> list[str]:
    settings = load_config(name).run
    expected = settings.expected
    assert expected is not None
    steps = f"{settings.total_timesteps:,}"
    if expected.return_ is None:
        published = "" if expected.published is None else f"published: {expected.published}"
        return [name, "not measured here", steps, published, ""]
    measured = ", ".join(f"{value:g}" for value in expected.measured)
    if expected.seeds != (101, 102, 103):
        measured += f" (seed{'s' if len(expected.seeds) > 1 else ''} {', '.join(map(str, expected.seeds))})"
    if expected.measure == "last_5_evaluations":
        measured += ", mean of the last 5 evaluations"
    if expected.final_measured:
        measured += f"; {', '.join(f'{value:g}' for value in expected.final_measured)} of the final policy"
    return [name, f"{expected.return_:g}", steps, measured, f"{expected.minutes:g}"]


def test_settings_are_used_by_the_algorithms_that_the_tables_name() -> None:
    for document, header, algorithms, all_of_them in (
        ("README.md", "| setting | alias | schedule | warm-up | used by |", list(REGISTRY), "all"),
        ("docs/algorithms.md", "| setting | what it says | used by |", OFF_POLICY, "all six"),
        ("docs/offline.md", "| setting | what it says | offline algorithms |", OFFLINE, "all five"),
        ("docs/planning.md", "| setting | what it says | of these three |", PLANNING, "all three"),
    ):
        for names, *_, said in table(document, header):
            for name in re.findall(r"\w+", names):
                able = [algo for algo in algorithms if name in settings_of(load_spec(algo))]
                assert said == (all_of_them if able == algorithms else ", ".join(able)), name


def test_the_warning_in_the_documents_is_what_a_run_says(caplog: pytest.LogCaptureFixture) -> None:
    run = build(load_config("gumbel_muzero", env_id="CartPole-v1", value_limit=100, num_envs=2, num_simulations=2))
    run.start()
    run.advance()
    run.close()
    assert TOO_LOW in caplog.messages


@pytest.mark.parametrize(
    ("document", "algorithms"),
    [("docs/planning.md", PLANNING), ("docs/dreamer.md", DREAMING)],
    ids=["planning", "dreamer"],
)
def test_the_metrics_of_models_are_explained(document: str, algorithms: list[str]) -> None:
    """All that these algorithms report and DQN, with the same loop, does not."""
    reported = {algo: metrics_of(algo) for algo in (*algorithms, "dqn")}
    rows = table(document, "| metric | meaning |")
    explained = {name for names, _ in rows for name in re.findall(r"\w+", names)}
    masked = metrics_of(algorithms[0], masked=True)
    assert explained <= masked.union(*(reported[algo] for algo in algorithms))
    for algo in algorithms:
        assert reported[algo] - reported["dqn"] - {"ent_coef"} <= explained, algo


def metrics_of(algo: str, **env: bool) -> set[str]:
    run = build(tiny_config(algo, env))
    run.start()
    for _ in range(3):  # by then episodes have ended
        run.advance()
    run.close()
    return set(run.metrics)


def test_early_stopping_table_has_every_key_and_default() -> None:
    rows = {name: default for name, default, _ in table("docs/control_surface.md", "| key | default | meaning |")}
    fields = EarlyStoppingRule.model_fields
    written = {name: "" if field.default is None else f"{field.default}" for name, field in fields.items()}
    assert rows == {name: default.removesuffix(".0") for name, default in written.items()}


def test_schedule_table_has_every_kind() -> None:
    rows = table("docs/control_surface.md", "| type | takes | value at progress p = min(step / steps, 1) |")
    assert {kind: set(re.findall(r"`([a-z]+)`", f"`{takes}`")) for kind, takes, _ in rows} == KINDS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        file, _, heading = "".join(target).partition("#")
        if not file.startswith("https://"):
            path = (ROOT / document).parent / file if file else ROOT / document
            assert path.exists(), f"{document}: {file}"
            assert not heading or heading in headings(path), f"{document}: {file}#{heading}"


def headings(document: Path) -> set[str]:
    """What links to the headings of a page are made of."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_tree_in_the_design_is_the_package() -> None:
    """Every path in it exists; every module is in it, by itself or in a folder of which no file is named."""
    (tree,) = [block for block in blocks("docs/design.md") if block.first_line == "src/rl_training/"]
    named = set(paths_of(tree.text.splitlines()[1:]))
    package = ROOT / "src" / "rl_training"
    assert [path for path in named if not (package / path).exists()] == []
    modules = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.name != "__init__.py"]
    unnamed = []
    for module in modules:
        folder = module.rpartition("/")[0] + "/"
        listed = any(path != folder and path.startswith(folder) for path in named)
        if module not in named and (listed or folder not in named):
            unnamed.append(module)
    assert unnamed == [], f"the tree in docs/design.md lacks {', '.join(sorted(unnamed))}"


def paths_of(lines: list[str]) -> Iterator[str]:
    """The paths of a tree, of which each line has names, then two spaces or more and what they are."""
    folders: dict[int, str] = {0: ""}
    for line in lines:
        depth = len(line) - len(line.lstrip())
        folders = {above: path for above, path in folders.items() if above < depth}
        parent = folders[max(folders)]
        for name in re.split(r"\s{2,}", line.strip())[0].split():
            yield parent + name
            if name.endswith("/"):
                folders[depth] = parent + name


# The recipe


def test_recipe_for_an_algorithm_works(tmp_path: Path) -> None:
    """Every step of CONTRIBUTING.md in a copy of the project; then the command and the tests that see the algorithm."""
    copy = tmp_path / "copy"
    # Compiled kernels are taken along: a copy has the same sources, with the same dates.
    left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "runs", "dist", "build")
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    followed = 0
    for block in blocks("CONTRIBUTING.md"):
        if block.kind == "bash" and block.first_line.startswith("cp "):
            _, source, target = shlex.split(block.first_line)
            text = (copy / source).read_text()
            (copy / target).write_text(text.partition("\n\nif __name__")[0])
            followed += 1
        elif block.destination is not None:
            put(copy, block)
            followed += 1
    assert followed == 13
    name_on_the_first_page(copy)
    for tool in ("defaults", "stubs"):
        assert in_copy(copy, f"benchmarks/{tool}.py").returncode == 0
    command = ("-c", "from rl_training.cli import main; main()")
    done = in_copy(copy, *command, "train", "plain_pg/cartpole", *tiny("plain_pg"))
    assert done.returncode == 0, done.stderr
    assert len(list((copy / "runs").glob("plain_pg__CartPole-v1__seed0__*"))) == 1
    listed = in_copy(copy, *command, "list")
    assert re.search(
        r"^plain_pg +on_policy +vector +discrete, continuous .*Plain policy gradient$", listed.stdout, re.M
    )
    written = [*copy.glob("src/**/plain_pg*.py"), *copy.glob("tests/test_plain_pg_*.py")]
    assert len(written) == 4
    for check in (["check"], ["format", "--check"]):
        done = in_copy(copy, "-m", "ruff", *check, "--no-cache", *map(str, written))
        assert done.returncode == 0, done.stdout
    tests = [str(path) for name in SEE_THE_ALGORITHM for path in copy.glob(f"tests/**/test_{name}.py")]
    # One engine is enough here: the algorithm knows no other.
    only = "(plain_pg and not autograd) or table or tree or roadmap or settings_are_used or exported or every_algorithm"
    done = in_copy(copy, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-vv", "-k", f"{only} or stubs", *tests)
    assert done.returncode == 0, done.stdout
    for check in (
        "test_contract.py::test_contract[plain_pg-",
        "test_docs.py::test_the_tree_in_the_design",
        "test_docs.py::test_algorithm_table",
        "test_docs.py::test_family_table",
        "test_docs.py::test_preset_table",
        "test_docs.py::test_settings_are_used",
        "test_defaults_table.py::test_the_document_is_up_to_date",
        "test_package_smoke.py::test_roadmap",
        "test_signatures.py::test_the_stubs_are_up_to_date",
        "test_package_api_exports.py::test_every_algorithm_has_its_class[plain_pg]",
        "test_plain_pg_update.py",
        "test_plain_pg_trainer_smoke.py",
    ):
        assert check in done.stdout, f"{check} was not run:\n{done.stdout}"


SEE_THE_ALGORITHM = (
    "contract",
    "docs",
    "defaults_table",
    "package_smoke",
    "package_api_exports",
    "signatures",
    "plain_pg_update",
    "plain_pg_trainer_smoke",
)


def put(copy: Path, block: Block) -> None:
    """The block where its first line says."""
    path, where = block.destination or ("", "")
    file, text = copy / path, block.text.split("\n", 1)[1]
    if where == "the whole file":
        assert not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    elif where == "at the end":
        separator = "\n\n" if text.startswith("class ") else ""
        file.write_text(file.read_text() + separator + text)
    elif match := re.fullmatch(r'(after|before) "(.+)"', where):
        lines = file.read_text().splitlines(keepends=True)
        (place,) = [number for number, line in enumerate(lines) if line.startswith(match[2])]
        lines.insert(place + (match[1] == "after"), text)
        file.write_text("".join(lines))
    else:
        (name,) = re.fullmatch(r"at the end of (\w+)", where).groups()
        before, start, after = file.read_text().partition(f"\n{name}")
        inside, close, rest = after.partition("\n}\n")
        assert start, f"{path} has no {name}"
        assert close, f"{name} of {path} is no mapping"
        file.write_text(f"{before}{start}{inside}\n{indent(text.strip(), '    ')}{close}{rest}")


def name_on_the_first_page(copy: Path) -> None:
    """What the recipe says in words, of the first page's settings, families and number of algorithms."""
    readme = copy / "README.md"
    lines = readme.read_text().splitlines(keepends=True)
    (row,) = [number for number, line in enumerate(lines) if line.startswith("| `ent_coef` | `entropy_coef` |")]
    lines[row] = lines[row].replace(" |\n", ", plain_pg |\n")
    (row,) = [number for number, line in enumerate(lines) if line.startswith("| on-policy |")]
    family, names, line = lines[row].strip("|\n").split("|")
    lines[row] = f"|{family}|{names}, `plain_pg` |{line}|\n".replace("` , `", "`, `")
    text = "".join(lines)
    number = len(REGISTRY)
    readme.write_text(text.replace(f"PyTorch: {number} algorithms", f"PyTorch: {number + 1} algorithms"))


def in_copy(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy / "src")},
        capture_output=True,
        text=True,
        timeout=240,
    )

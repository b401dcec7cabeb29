"""The package as a whole: its words, its version, its files, its start-up, and what a build of it contains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest

import rl_training
from rl_training.experiment.presets import PRESET_FOLDER, preset_names
from rl_training.experiment.registry import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sysconfig.get_path("scripts")) / "rl-training"
HEAVY = ("torch", "gymnasium", "numpy", "numba", "pydantic", "omegaconf")


@pytest.mark.parametrize(
    "word",
    [
        "make train",
        "make test",
        "pip install -e .",
        "ent_coef_schedule",
        "entropy_coef_schedule",
        "ent_coef_warmup_steps",
        "clip_coef_schedule",
        "clip_range",
        "temperature_schedule",
        "eval_interval",
        "early_stopping",
        "awac",
        "total_updates",
        "done_means",
        "rl-training dataset inspect",
        "rl-training dataset convert",
        "rl-training dataset collect",
        "from=RUN",
        "eval_score",
        "eval_return_last5_mean",
        "dataset_return_mean",
        "bc_return_mean",
    ],
)
def test_readme_has_the_word(word: str) -> None:
    assert re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", (ROOT / "README.md").read_text())


def test_readme_says_that_fixed_values_still_work() -> None:
    words = " ".join((ROOT / "README.md").read_text().split())
    assert "Fixed `ent_coef`, `entropy_coef`, `clip_coef`, `clip_range` and `temperature` still work" in words


def test_readme_calls_clip_range_an_alias() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `clip_coef` |")]
    assert [row.split("|")[2].strip() for row in rows] == ["`clip_range`"]


def test_readme_shows_awac_with_evaluation_and_early_stopping() -> None:
    examples = re.findall(r"^```yaml\n(.+?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (example,) = [text for text in examples if text.startswith("algo: awac\n")]
    assert {"dataset", "eval_interval", "early_stopping"} <= set(re.findall(r"^(\w+):", example, re.MULTILINE))


def test_roadmap_says_what_is_in_the_package_in_the_order_in_which_it_was_built() -> None:
    roadmap = (ROOT / "docs" / "plans" / "2026-03-12-rl-expansion-roadmap-design.md").read_text()
    headings = re.findall(r"^## \d+\. (.+)$", roadmap, re.MULTILINE)
    here = [heading.endswith("(in the package)") for heading in headings]
    assert here == sorted(here, reverse=True), "what is here comes first"
    built = [heading.lower() for heading in headings if heading.endswith("(in the package)")]
    named = [word for heading in built for word in re.findall(r"\w+", heading) if word in REGISTRY]
    assert sorted(named) == sorted(REGISTRY)
    words = " ".join(roadmap.split())
    assert "BC and AWAC are in the package" in words
    assert re.search(
        "built: the on-policy core .*the off-policy family .*the offline family .*the rest of the on-policy family ",
        words,
    )


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    top = (ROOT / "README.md").read_text().splitlines()[:8]
    assert [line.split()[1] for line in top if line.startswith("make ")] == ["train", "test"]


@pytest.mark.parametrize(
    "name",
    [
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE",
        "docs/design.md",
        "docs/plans/2026-03-12-rl-expansion-roadmap-design.md",
    ],
)
def test_the_other_words_are_there(name: str) -> None:
    assert (ROOT / name).read_text().strip()


def test_changelog_has_its_sections() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:5] == ["Changelog", f"Unreleased ({rl_training.__version__})", "Breaking", "Added", "Fixed"]


def test_version_is_the_installed_one() -> None:
    assert rl_training.__version__ == version("rl-training")


def test_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="rl-training")
    assert script.value == "rl_training.cli:main"
    assert COMMAND.is_file()


def test_torch_is_constrained_and_has_a_floor() -> None:
    assert re.search(r"^torch==2\.13\.0$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (floor,) = [line for line in requires("rl-training") or [] if re.match(r"torch\b", line)]
    assert re.fullmatch(r"torch>=[\d.]+", floor)


def test_package_is_typed() -> None:
    assert (Path(rl_training.__file__).parent / "py.typed").is_file()


def test_configs_at_the_top_are_the_packaged_presets() -> None:
    top = ROOT / "configs"
    assert top.is_symlink()
    assert contents(top) == contents(PRESET_FOLDER)
    assert {f"{name}.yaml" for name in preset_names()} == contents(PRESET_FOLDER).keys()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_public_names_can_be_had() -> None:
    for name in rl_training.__all__:
        assert getattr(rl_training, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = rl_training.Nonsense  # type: ignore[attr-defined]


# The child says on its last line which of the heavy packages it has loaded.
REPORT = f"import sys; print('loaded', [name for name in {HEAVY!r} if name in sys.modules])"
RUN_COMMAND = """
import sys
from rl_training.cli import main
try:
    main()
except SystemExit as stop:
    assert stop.code == 0, stop.code
"""


def child(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert child(f"import rl_training; {REPORT}") == "loaded []\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list"], ["train", "--help"]], ids=" ".join)
def test_quick_commands_load_nothing_heavy(arguments: list[str]) -> None:
    assert child(RUN_COMMAND + REPORT, *arguments).endswith("\nloaded []\n")


def test_the_report_of_loaded_packages_can_fail() -> None:
    assert child(RUN_COMMAND + REPORT, "describe", "ppo").splitlines()[-1].startswith("loaded ['torch'")


def cpu_seconds(command: list[str | Path]) -> float:
    """User and system time of a child, the best of three: a busy machine slows the clock, but hardly this."""
    best = float("inf")
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        best = min(best, usage.ru_utime + usage.ru_stime)
    return best


def test_import_is_quick() -> None:
    bare = cpu_seconds([sys.executable, "-c", "pass"])
    assert cpu_seconds([sys.executable, "-c", "import rl_training"]) - bare < 0.1


@pytest.mark.parametrize("argument", ["--help", "list"])
def test_command_starts_quickly(argument: str) -> None:
    assert cpu_seconds([COMMAND, argument]) < 0.3


def test_builds_contain_every_preset_and_dataset_once(tmp_path: Path) -> None:
    """An sdist, and a wheel from it, built in a copy of the tree, without a network."""
    tree = tmp_path / "tree"
    left_out = {".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "dist", "build", "runs"}
    shutil.copytree(ROOT, tree, symlinks=True, ignore=lambda _, names: left_out & set(names) | {"__pycache__"})
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"rl_training-{rl_training.__version__}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        in_sdist = archive.getnames()
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = packed.namelist()
    for names in (in_sdist, in_wheel):
        files = Counter("/".join(name.split("/")[-2:]) for name in names)
        assert {name: files[f"{name}.yaml"] for name in preset_names()} == dict.fromkeys(preset_names(), 1)
        assert sum(name.endswith(".yaml") for name in names) == len(preset_names())
        assert sum(name.endswith(("rl_training/py.typed", "rl_training/api/algorithms.pyi")) for name in names) == 2
    # Presets and datasets, and nothing that is not in the tree.
    assert {name for name in in_wheel if name.startswith("rl_training/assets/")} == {
        f"rl_training/assets/{name}" for name in contents(PRESET_FOLDER.parent)
    }

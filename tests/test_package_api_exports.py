"""The names that the package promises, and the one way in which its layers import each other."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from offline_reference import AWAC_METRICS
from rl_training import api
from rl_training.algorithms.awac import awac_loss
from rl_training.algorithms.base import AlgorithmSpec
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY, load_spec

TESTS = Path(__file__).resolve().parent
PACKAGE = Path(rl_training.__file__).resolve().parent
EVERY_ALGORITHM = pytest.mark.parametrize("algo", list(REGISTRY))


# Exports


@pytest.mark.parametrize("name", rl_training.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    assert getattr(rl_training, name) is not None
    assert name in dir(rl_training)


def test_the_package_and_its_api_give_the_same_objects() -> None:
    for name in set(rl_training.__all__) - {"__version__"}:
        assert getattr(rl_training, name) is getattr(api, name)
    assert dir(rl_training) == sorted(rl_training.__all__)


def test_names_for_every_use_are_exported() -> None:
    promised = {"PPO", "A2C", "DQN", "DDPG", "TD3", "SAC", "REDQ", "TQC", "BC", "AWAC", "IQL", "CQL", "TD3BC"}
    promised |= {"train_td3_bc", *(f"train_{name.lower()}" for name in promised - {"TD3BC"})}
    promised |= {"train", "resume_training", "evaluate_checkpoint", "load_config"}
    assert promised | {"Callback", "UserError", "TrainResult"} <= set(rl_training.__all__)


def test_awac_is_registered_exported_and_packaged() -> None:
    assert REGISTRY["awac"].family == "offline"
    assert {"AWAC", "train_awac"} <= set(rl_training.__all__)
    assert "awac/pendulum" in preset_names()


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'PPQ'; it has A2C, "):
        rl_training.PPQ  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """Exports are loaded on first use, so the lists of the package and of its api are compared here."""
    assert set(rl_training.__all__) - {"__version__"} <= set(vars(api))
    assert (PACKAGE / "py.typed").is_file()


# The registry


@EVERY_ALGORITHM
def test_a_line_of_the_registry_is_its_spec(algo: str) -> None:
    spec, entry = load_spec(algo), REGISTRY[algo]
    assert isinstance(spec, AlgorithmSpec)
    assert (spec.name, spec.family, spec.summary) == (algo, entry.family, entry.summary)
    assert spec.capabilities == entry.capabilities
    assert entry.reference == f"rl_training.algorithms.{algo}:SPEC"
    assert spec.config.__doc__


@EVERY_ALGORITHM
def test_every_algorithm_has_its_trainer(algo: str) -> None:
    module = importlib.import_module(f"rl_training.runtime.{algo}_trainer")
    function = getattr(module, f"train_{algo}")
    assert getattr(rl_training, f"train_{algo}") is function
    assert _parameters(function) == {
        "config": ("POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        "run_dir": ("KEYWORD_ONLY", None),
        "resume": ("KEYWORD_ONLY", None),
        "callbacks": ("KEYWORD_ONLY", ()),
    }
    assert function.__annotations__["return"] == "TrainResult"


@EVERY_ALGORITHM
def test_every_algorithm_has_its_class(algo: str) -> None:
    classes = [value for value in vars(api).values() if inspect.isclass(value) and getattr(value, "algo", "") == algo]
    (found,) = classes
    assert issubclass(found, api.Agent)
    assert found.__name__.lower() == algo.replace("_", "")
    assert found.__name__ in rl_training.__all__
    for method in ("learn", "predict", "evaluate", "save", "load"):
        assert callable(getattr(found, method))


@EVERY_ALGORITHM
def test_every_algorithm_has_a_preset_and_tests(algo: str) -> None:
    assert [name for name in preset_names() if name.startswith(f"{algo}/")]
    assert (PACKAGE / "assets" / "configs" / algo).is_dir()
    smoke = "test_trainer_smoke.py" if algo == "ppo" else f"test_{algo}_trainer_smoke.py"
    for name in (f"test_{algo}_update.py", smoke):
        assert (TESTS / name).is_file(), name


# Names that are fixed


def _parameters(function: Any) -> dict[str, tuple[str, Any]]:
    signature = inspect.signature(function)
    return {name: (parameter.kind.name, parameter.default) for name, parameter in signature.parameters.items()}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "runtime.controls:resolve_entropy_coefficient",
            {"config": ..., "step": ..., "coefficient_key": "ent_coef", "default": 0.0},
        ),
        ("runtime.controls:resolve_clip_coefficient", {"config": ..., "step": ..., "default": 0.2}),
        ("runtime.controls:resolve_temperature", {"config": ..., "step": ..., "default": 1.0}),
        ("runtime.controls:build_control_callbacks", {"config": ...}),
        ("runtime.workflows:evaluate_checkpoint", {"path": ..., "num_episodes": None, "device": "auto"}),
        ("runtime.workflows:resume_training", {"path": ...}),
        ("runtime.loops.offline:_build_offline_dataset", {"config": ...}),
        ("runtime.schedules:parse_schedule", {}),
        ("runtime.train:build", {"config": ...}),
        ("runtime.train:run", {"run": ...}),
    ],
)
def test_fixed_functions_have_their_signatures(reference: str, expected: dict[str, Any]) -> None:
    module, _, name = reference.partition(":")
    found = _parameters(getattr(importlib.import_module(f"rl_training.{module}"), name))
    for position, (parameter, default) in enumerate(expected.items()):
        kind, actual = found[parameter]
        assert actual == (inspect.Parameter.empty if default is ... else default), parameter
        assert kind == ("POSITIONAL_OR_KEYWORD" if position == 0 else "KEYWORD_ONLY"), parameter


def test_the_soft_actor_critic_has_its_model() -> None:
    from rl_training.models.mlp_sac import MLPSACModel

    assert list(_parameters(MLPSACModel.action_logprobs)) == ["self", "obs", "actions"]


def test_advantage_weighting_has_its_loss() -> None:
    values = torch.zeros(2, 3)
    *_, metrics = awac_loss(values, values[0], values, values[0], awac_lambda=1.0)
    assert set(metrics) == AWAC_METRICS


def test_the_result_of_training_has_its_attributes(tmp_path: Path) -> None:
    from rl_training.runtime.train import TrainResult

    result = TrainResult({"step": 1.0}, tmp_path / "c", tmp_path, "completed")
    assert dict(result) == {"step": 1.0}
    assert (result.checkpoint, result.run_dir, result.stop_reason) == (tmp_path / "c", tmp_path, "completed")


@pytest.mark.parametrize(
    "name",
    [
        "training_controls",
        "callbacks",
        "checkpoint_workflows",
        "cli",
        "experiment_manager",
        "package_api_exports",
        "package_smoke",
        "public_api",
        "trainer_smoke",
    ],
)
def test_fixed_tests_exist(name: str) -> None:
    assert (TESTS / f"test_{name}.py").is_file()


@pytest.mark.parametrize("method", ["on_start", "on_step", "on_eval", "on_checkpoint", "on_end", "state_dict"])
def test_a_callback_has_its_hooks(method: str) -> None:
    assert callable(getattr(api.Callback, method))


# Layers

RANKS = {
    "types": 0,
    "ops": 1,
    "models": 2,
    "data": 2,
    "algorithms": 3,
    "experiment": 4,
    "runtime": 5,
    "api": 6,
    "testing": 7,
    "cli_options": 6,
    "cli_seeds": 7,
    "cli_check": 7,
    "cli_dataset": 7,
    "cli_plot": 7,
    "cli_results": 7,
    "cli_zoo": 7,
    "cli_train": 8,
    "cli": 9,
}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text())


def imported(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules of the package that a file imports, anywhere in it, below `rl_training.`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("rl_training."):
                yield node.lineno, name.removeprefix("rl_training.")


def test_imports_go_one_way() -> None:
    wrong = []
    seen = 0
    for path, tree in modules():
        layer = path.parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        assert layer in RANKS, f"{path}: in which layer is it?"
        for line, name in imported(path, tree):
            other = name.split(".")[0]
            if other not in RANKS:  # a name of the package itself, such as its version
                assert other in rl_training.__all__, f"{path}:{line}: {name}"
                continue
            seen += 1
            if RANKS[other] > RANKS[layer] or (RANKS[other] == RANKS[layer] and other != layer):
                wrong.append(f"{path}:{line}: {layer} imports {other}")
    assert wrong == []
    assert seen > 100


def test_loops_know_nothing_of_what_is_around_them() -> None:
    forbidden = (
        "runtime.controls",
        "runtime.callbacks",
        "runtime.checkpoint",
        "runtime.run",
        "runtime.train",
        "runtime.workflows",
    )
    found = 0
    for path, tree in modules():
        if path.parts[:2] == ("runtime", "loops"):
            found += 1
            for line, name in imported(path, tree):
                assert not name.startswith(forbidden), f"{path}:{line}: {name}"
    assert found >= 2


def test_listing_the_algorithms_imports_none_of_them() -> None:
    """Outside functions, the registry and what it needs import nothing of the layers that load torch."""
    tree = ast.parse((PACKAGE / "experiment" / "registry.py").read_text())
    top = ast.Module(
        body=[node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], type_ignores=[]
    )
    layers = {name.split(".")[0] for _, name in imported(Path("registry.py"), top)}
    assert layers == {"experiment", "types"}


def compared_constants(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings that something is compared with, by an operator or by a match."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        else:
            continue
        for side in sides:
            for part in ast.walk(side):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_algorithm_is_asked_for_by_name_outside_the_registry() -> None:
    for path, tree in modules():
        if path != Path("experiment/registry.py"):
            for line, text in compared_constants(tree):
                assert text not in REGISTRY, f"{path}:{line}: compares with {text!r}"


def test_the_search_for_names_finds_one() -> None:
    for source in ('if algo == "ppo": pass', 'x = "a2c" != name', 'if a in ("x", "ppo"): pass'):
        assert {text for _, text in compared_constants(ast.parse(source))} & set(REGISTRY)
    matching = "match algo:\n    case 'ppo':\n        pass\n"
    assert ("ppo") in {text for _, text in compared_constants(ast.parse(matching))}


# All that opens or parses a file, by the module or class that it is asked of; none of them runs what it finds.
READERS = {
    "json": {"loads"},
    "np": {"load", "frombuffer"},
    "yaml": {"safe_load"},
    "OmegaConf": {"load"},
    "safetensors": {"deserialize"},
    "torch": {"from_file", "frombuffer", "from_numpy"},
    "h5py": {"File"},
    "Replay": {"load"},
}
# They unpickle, or run what they are given.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "runpy", "codeop"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def complaints_about_readers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a file could be read by something that runs code from it."""
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    outside = {(alias.asname or alias.name).split(".")[0] for alias in imports} | READERS.keys()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in FORBIDDEN_MODULES)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        reads = name.startswith(("load", "from_file", "full_load", "unsafe_load", "read_pickle", "Unpickler"))
        unknown = reads and owner.split(".")[0] in outside and name not in READERS.get(owner, set())
        unpickles = called == "np.load" and options.get("allow_pickle") != "False"
        if unknown or unpickles or called in FORBIDDEN_CALLS:
            yield node.lineno, called


def test_nothing_that_reads_a_file_can_run_code_from_it() -> None:
    found = [f"{path}:{line}: {what}" for path, tree in modules() for line, what in complaints_about_readers(tree)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch.utils.x, dill",
        "torch.load(f, weights_only=True)",
        "torch.jit.load(f)",
        "import pandas as pd; pd.read_pickle(f)",
        "import anything; anything.load(f)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(f)",
        "yaml.unsafe_load(f)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_the_search_for_readers_finds_one(source: str) -> None:
    assert list(complaints_about_readers(ast.parse(source)))


def test_the_search_for_readers_lets_plain_ones_be() -> None:
    for source in ("json.loads(t)", "np.load(f, allow_pickle=False)", "module.load_state_dict(s)", "load_config(x)"):
        assert not list(complaints_about_readers(ast.parse(source)))

"""Several tasks in a config: their forms, their names, what they take from the run, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import task_worlds
from rl_training.experiment.config import Config, ConfigError, load_config
from rl_training.experiment.fields import json_schema, settings_of
from rl_training.experiment.registry import load_spec
from rl_training.experiment.tasks import name_from_id
from rl_training.experiment.trust import ELSEWHERE, EPISODES, POLICY, code_in
from rl_training.types import UserError
from task_worlds import EXAMPLES, SPEC, TWO


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def read(tasks: Any, *overrides: str, **settings: Any) -> Config:
    return load_config({"algo": SPEC, "tasks": tasks, **settings}, overrides)


def problems(tasks: Any, **settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tasks, **settings)
    return caught.value.problems


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "cartpole"),
        ("MiniGrid-Empty-5x5-v0", "minigrid-empty-5x5"),
        ("ALE/Pong-v5", "pong"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid-empty-5x5"),
        ("my_envs:make_walk", "make_walk"),
    ],
)
def test_an_id_names_its_task(env_id: str, name: str) -> None:
    assert name_from_id(env_id) == name
    assert read([env_id]).tasks == (name,)


def test_all_forms_say_the_same() -> None:
    full = read({"cartpole": {"env_id": "CartPole-v1"}, "acrobot": {"env_id": "Acrobot-v1"}})
    assert read(["CartPole-v1", "Acrobot-v1"]) == full
    assert read({"cartpole": "CartPole-v1", "acrobot": {"env_id": "Acrobot-v1"}}) == full
    assert load_config(full.flat()) == full
    assert full.flat()["tasks"] == {"cartpole": {"env_id": "CartPole-v1"}, "acrobot": {"env_id": "Acrobot-v1"}}
    assert full.run.title == "cartpole+acrobot"


def test_overrides_reach_into_tasks() -> None:
    both = ["CartPole-v1", "Acrobot-v1"]
    changed = read(both, "tasks.acrobot.num_envs=2", "tasks.acrobot.env_kwargs.x=1")
    assert changed.run.tasks is not None
    assert (changed.run.tasks["acrobot"].num_envs, changed.run.tasks["acrobot"].env_kwargs) == (2, {"x": 1})
    assert changed.run.tasks["cartpole"].num_envs is None
    assert read(both, "tasks.acrobot=null").tasks == ("cartpole",)
    assert read(both, "tasks.more=Pendulum-v1").tasks == ("cartpole", "acrobot", "more")
    assert read(both, "tasks=[MountainCar-v0]").tasks == ("mountaincar",)


def test_short_forms_are_written_out_before_tasks_are_changed() -> None:
    both, own = "tasks=[CartPole-v1, Acrobot-v1]", "tasks.acrobot.num_envs=2"
    for overrides in ([both, own], [own, both]):
        changed = load_config(SPEC, overrides)
        assert [changed.for_task(name).run.num_envs for name in ("cartpole", "acrobot")] == [8, 2]
    one = load_config(SPEC, ["tasks.cartpole=CartPole-v1", "tasks.cartpole.num_envs=3"])
    assert one.for_task("cartpole").run.num_envs == 3
    other = read(["CartPole-v1"], "tasks=[MountainCar-v0]", "tasks.mountaincar.num_envs=2")
    assert other.tasks == ("mountaincar",)
    assert read(["CartPole-v1"], "tasks=null", "tasks.pole.env_id=CartPole-v1").tasks == ("pole",)
    assert one.flat() == load_config(one.flat(), ["tasks.cartpole.num_envs=3"]).flat()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["hidden_sizes=[3]", "hidden_sizes.representation=[3]"], "hidden_sizes is no mapping then; give one of"),
        (["tasks.a=null", "tasks.a.env_id=CartPole-v1"], "tasks.a is no mapping then"),
        (["tasks=5", "tasks.a.env_id=CartPole-v1"], "tasks is no mapping then"),
        (["env_id=CartPole-v1", "env_id.x=1"], "env_id is no mapping then"),
        (["callbacks=[a]", "callbacks.7.x=1"], "cannot be read: list index out of range"),
    ],
)
def test_overrides_that_contradict_each_other_are_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_config("scalezero", overrides)
    assert str(caught.value).startswith(f"{overrides[0]} ")
    assert overrides[1] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_is_a_name_if_no_other_task_has_it() -> None:
    numbered = read({1: "CartPole-v1"}, "tasks.1.num_envs=3")
    assert numbered.replace(tasks={1: {"time_limit": 4}}).tasks == ("1",)
    assert problems({1: "X-v0", "1": "Y-v0"}) == ["tasks: 1 and '1' would both be named '1'"]
    assert problems({None: "X-v0"}) == ["tasks: None is no name of a task, which is a text"]
    assert problems({True: "X-v0"}) == ["tasks: True is no name of a task, which is a text"]


def test_tasks_of_a_file_can_be_taken_away_for_another_algorithm(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algo: scalezero\ntasks: [CartPole-v1]\neval_episodes: 3\n")
    config = load_config(file, ["algo=ppo", "env_id=CartPole-v1", "tasks=null"])
    assert (config.tasks, config.run.eval_episodes) == (("",), 3)
    with pytest.raises(ConfigError, match="tasks: ppo has none: it learns in one environment"):
        load_config(file, ["algo=ppo", "env_id=CartPole-v1"])


def test_a_task_has_what_it_gives_and_the_rest_from_the_run() -> None:
    own = {
        "env_id": "A-v0",
        "num_envs": 2,
        "time_limit": 5,
        "frame_stack": 3,
        "reward_clip": 0.5,
        "env_kwargs": {"a": 1},
    }
    shared = {"num_envs": 4, "time_limit": 9, "frame_stack": 2, "reward_clip": 1.0, "env_kwargs": {"b": 2}}
    config = read({"one": own, "other": "B-v0"}, **shared, env_packages=["math"], seed=3)
    one, other = config.for_task("one"), config.for_task("other")
    for found, wanted in ((one, own), (other, shared | {"env_id": "B-v0"})):
        flat = found.flat()
        assert {name: flat[name] for name in wanted} == wanted
        assert (flat["tasks"], flat["env_packages"], flat["seed"]) == (None, ["math"], 3)
        assert load_config(flat) == found


def test_one_environment_is_one_task_without_a_name() -> None:
    config = load_config({"algo": "ppo", "env_id": "CartPole-v1"})
    assert config.tasks == ("",)
    assert config.for_task("") is config
    assert config.run.title == "CartPole-v1"


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"a": {"env_idd": "X-v0"}}, "tasks.a.env_idd: unknown key; did you mean 'env_id'?"),
        ({"a": {"env_id": "X-v0", "num_envs": 0}}, "tasks.a.num_envs=0: must be at least 1"),
        *(
            (
                {"a": {"env_id": "X-v0", name: 1}},
                f"tasks.a.{name}: is a setting of the run, not of a task, which has env",
            )
            for name in ("seed", "vectorization", "learning_rate", "learning_rate_schedule", "buffer_size")
        ),
        ({"a": {"env_id": "X-v0", "max_episode_steps": 9}}, "tasks.a.max_episode_steps: unknown key; here it is 'time"),
        ({"a": {"env_id": "X-v0", "more": 1}}, "tasks.a.more: unknown key"),
        ({"a": {"env_id": ""}}, "tasks.a.env_id: must not be empty"),
        ({"a": ""}, "tasks.a.env_id: must not be empty"),
        ({"a": 5}, "tasks.a=5: must be a mapping, as in {env_id: CartPole-v1, num_envs: 4}, or an id"),
        ({"a": []}, "tasks.a=[]: must be a mapping, as in {env_id: CartPole-v1, num_envs: 4}, or an id"),
        ({"a": {"env_id": "X-v0", "score": 5}}, "tasks.a.score=5: must be a mapping, as in {low: 0, high: 450}"),
        ({"a": {"env_id": "X-v0", "score": [0, 1]}}, "tasks.a.score=[0, 1]: must be a mapping, as in {low: 0, high"),
        (
            {"score": {"env_id": "X-v0", "score": {"low": 1, "hihg": 5}}},
            "tasks.score.score.hihg: unknown key; did you mean 'high'?",
        ),
        ({"a": {"env_id": 5}}, "tasks.a.env_id=5: must be text"),
        ({"a": {"env_id": "X-v0", "score": {"low": 2, "high": 1}}}, "tasks.a.score: high=1 must be above low=2"),
        ({"a": {"env_id": "X-v0", "env_packages": "no-module"}}, "tasks.a.env_packages: 'no-module' is no module"),
        ({"a": {"env_id": "X-v0", "target_return": "much"}}, "tasks.a.target_return='much': must be a number"),
        (
            {"a" * 101: "X-v0"},
            "tasks: 'aaaaaaaaaaaaaaaaaaaa...' has 101 characters; the name of a task has at most 100",
        ),
        ({"a": {"env_id": "X-v0", "num_envs": True}}, "tasks.a.num_envs=True: must be a number"),
        ({"a": {"env_id": "X-v0", "num_envs": False}}, "tasks.a.num_envs=False: must be a number"),
        ({"a": {"env_id": "X-v0", "target_return": True}}, "tasks.a.target_return=True: must be a number"),
        ({"a": {"env_id": "X-v0", "score": {"low": True, "high": 2}}}, "tasks.a.score.low=True: must be a number"),
        ({"": {"env_idd": "X-v0"}}, "tasks: '' is no name of a task"),
        ({"a/b": "X-v0"}, "tasks: 'a/b' is no name of a task"),
        ({"a:X-v0": None}, "tasks: 'a:X-v0': a space is missing after the colon, as in a: X-v0"),
        (
            {"a": {"env_id": "X-v0", "num_envs:2": None}},
            "tasks.a.num_envs:2: unknown key; a space is missing after the colon, as in num_envs: 2",
        ),
        ({"walk": "X-v0", "Walk": "Y-v0"}, "tasks: 'walk' and 'Walk': the names of two tasks must differ"),
        (["X-v0", "X-v1"], "tasks: 'X-v0' and 'X-v1' would both be named 'x'; give names"),
        (["X-v0", "X-v0"], "tasks: 'X-v0' and 'X-v0' would both be named 'x'"),
        ({}, "tasks: names no task"),
        (3, "tasks: 3 is neither a list of ids nor a mapping, as in"),
        ([3], "tasks: [3] is neither a list of ids nor a mapping, as in"),
        ({"a": {}}, "tasks.a.env_id: is missing"),
        ({"lander": "X-v0", "lader": {"num_envs": 2}}, "tasks: 'lader' has no env_id; did you mean 'lander'?"),
    ],
)
def test_mistakes_are_named_by_their_full_key(tasks: Any, words: str) -> None:
    assert any(problem.startswith(words) for problem in problems(tasks)), problems(tasks)
    assert not any("\n" in problem for problem in problems(tasks))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"task_weights": {"cartpole": True}}, "task_weights.cartpole=True: must be a number"),
        ({"hidden_sizes": [8, True]}, "hidden_sizes.1=True: must be a number"),
        ({"hidden_sizes": {"representation": [True]}}, "hidden_sizes.representation.0=True: must be a number"),
        (
            {"eval_interval": 9, "early_stopping": {"patience": True}},
            "early_stopping.patience=True: must be a number",
        ),
        ({"env_timeout": False}, "env_timeout=False: must be a number"),
    ],
)
def test_a_switch_is_no_number_at_any_depth(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("scalezero", tasks=["CartPole-v1"], **settings)
    assert problem in caught.value.problems
    assert load_config("dqn", env_id="CartPole-v1", env_kwargs={"a": True}, her=None).run.env_kwargs == {"a": True}


def test_tasks_and_env_id_exclude_each_other() -> None:
    assert problems(["CartPole-v1"], env_id="CartPole-v1") == ["env_id='CartPole-v1' and tasks: give one of them"]
    assert problems(None)[0].startswith("env_id: is missing")


@pytest.mark.parametrize(
    ("algo", "override", "words"),
    [
        (SPEC, "task=[CartPole-v1]", "task: unknown key; here it is 'tasks'"),
        ("ppo", "task=CartPole-v1", "task: unknown key; here it is 'env_id'"),
        (SPEC, "tasks=null", "several are given as tasks, as in tasks=[CartPole-v1, Acrobot-v1]"),
        (SPEC, "env_id=[A-v1, B-v1]", "env_id=['A-v1', 'B-v1']: must be text; several are given as tasks, as in"),
        ("ppo", "env_id=[A-v1, B-v1]", "env_id=['A-v1', 'B-v1']: must be text"),
        (SPEC, "target_return=5", "target_return: is a setting of a task: tasks.NAME.target_return"),
        (SPEC, "score.low=5", "score: is a setting of a task: tasks.NAME.score"),
        ("ppo", "target_return=5", "target_return: unknown key"),
        ("ppo", "early_stopping=[5]", "early_stopping.0=5: must be a mapping, as in {metric: eval_return_mean, pat"),
    ],
)
def test_what_belongs_to_tasks_or_to_the_run_is_said(algo: str, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(algo, [override])
    assert words in str(caught.value)


def test_a_function_that_makes_the_environment_of_a_task_is_named() -> None:
    config = read({"one": task_worlds.Match, "two": {"env_id": task_worlds.Match, "num_envs": 2}})
    assert config == read({"one": "task_worlds:Match", "two": {"env_id": "task_worlds:Match", "num_envs": 2}})
    assert read([task_worlds.Match, "CartPole-v1"]).tasks == ("match", "cartpole")
    for tasks, key in (([lambda: None], "tasks"), ({"a": lambda: None}, "tasks.a")):
        with pytest.raises(UserError, match=f"^{key}='custom .*': no name leads back to it; define it in a module"):
            read(tasks)


def test_tasks_of_a_file_follow_the_same_rules(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"algo: {SPEC}\ntasks: [CartPole-v1, Acrobot-v1]\n")
    assert load_config(file, ["tasks.cartpole.num_envs=3"]).for_task("cartpole").run.num_envs == 3


def test_the_schema_and_the_table_have_them() -> None:
    spec = load_spec(SPEC)
    assert settings_of(spec)["tasks"].help
    schema = json_schema(spec)
    assert schema["anyOf"] == [{"required": ["env_id"]}, {"required": ["tasks"]}]
    assert {"type": "array", "items": {"type": "string"}} in schema["properties"]["tasks"]["anyOf"]
    assert schema["$defs"]["TaskConfig"]["properties"]["env_id"]
    assert json_schema(load_spec("ppo"))["required"] == ["env_id"]


def test_code_that_tasks_name_is_found() -> None:
    walk = {"env_id": "my_envs:Walk-v0", "env_packages": ["more_envs"], "env_kwargs": {"env_id": "inner:make"}}
    config = read({**TWO, "walk": walk, "plain": "CartPole-v1"})
    named = {
        ("tasks.two.env_id", "task_worlds:Match"),
        ("tasks.three.env_id", "task_worlds:Match"),
        ("tasks.walk.env_packages", "more_envs"),
        ("tasks.walk.env_id", "my_envs:Walk-v0"),
        ("tasks.walk.env_kwargs.env_id", "inner:make"),
    }
    assert set(code_in(config)) == {("algo", SPEC), *named}
    assert set(code_in(config, EPISODES)) == {("algo", SPEC), *named}
    assert set(code_in(config, ELSEWHERE)) == {("algo", SPEC), ("tasks.walk.env_packages", "more_envs")}
    assert set(code_in(config, POLICY)) == {("algo", SPEC)}

"""Pickles are interpreted, never run: what is read of them, and what is refused."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import UserError, from_sb3
from rl_training.data import pickled, ram
from rl_training.data.pickled import Made, Name, interpret
from rl_training.data.pickled_tensors import array_of, read_tensors
from rl_training.runtime.sb3.files import read_model, read_statistics
from sb3_files import DATA, saved, write_model, write_statistics, write_zip


class Harmful:
    """Would make a file if it were unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_plain_data_is_read(protocol: int) -> None:
    value = {"a": [1, -2, 2**70, 1.5, None, True, b"x", "text"], 3: (1, (2, 3, 4, 5)), "d": {"e": ()}}
    assert interpret(pickle.dumps(value, protocol)) == value
    assert sorted(interpret(pickle.dumps({4, 5}, protocol))) == [4, 5] if protocol > 3 else True


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_arrays_are_read(protocol: int) -> None:
    arrays = [
        np.arange(6.0).reshape(2, 3),
        np.float32(2),
        np.zeros((0, 3)),
        np.arange(3, dtype=">i4"),
        np.ones(4, bool),
    ]
    for array in arrays:
        read = array_of(interpret(pickle.dumps(array, protocol)))
        np.testing.assert_array_equal(read, array)
    with pytest.raises(ValueError, match="columns first"):
        array_of(interpret(pickle.dumps(np.asfortranarray(np.zeros((2, 3))), 4)))
    for other in (np.array(["x"]), np.array([object()]), [1.0], Made(Name("a", "b"), ())):
        with pytest.raises(ValueError, match="array"):
            array_of(interpret(pickle.dumps(other, protocol)) if not isinstance(other, Made) else other)


def test_nothing_is_called(tmp_path: Path) -> None:
    made = interpret(pickle.dumps(Harmful(tmp_path / "harm")))
    assert isinstance(made, Made)
    assert (str(made.by), made.arguments) == ("posix.mkdir", (str(tmp_path / "harm"),))
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_calls_something_in_the_weights_is_refused(tmp_path: Path) -> None:
    weights = OrderedDict({"action_net.weight": Harmful(tmp_path / "harm")})
    write_model(tmp_path / "model.zip", policy=saved(weights))
    with pytest.raises(UserError, match=r"'action_net.weight' is no tensor, but made by 'posix\.mkdir'"):
        from_sb3(tmp_path / "model.zip", "CartPole-v1")
    assert [file.name for file in tmp_path.iterdir()] == ["model.zip"]
    (tmp_path / "statistics.pkl").write_bytes(pickle.dumps(Harmful(tmp_path / "harm")))
    with pytest.raises(UserError, match="does not hold a VecNormalize"):
        read_statistics(tmp_path / "statistics.pkl")
    write_statistics(tmp_path / "statistics.pkl", clip_obs=Harmful(tmp_path / "harm"))
    with pytest.raises(UserError, match="in place of an array"):
        read_statistics(tmp_path / "statistics.pkl")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", [b"os system", b"posix system", b"builtins eval", b"builtins exec", b"subprocess run"])
def test_programs_of_well_known_attacks_are_only_noted(name: bytes, tmp_path: Path) -> None:
    """As weights, as a class of a tensor, and beside a valid VecNormalize: nothing happens but a message, or a note."""
    module, function = name.split()
    harm = f"open({str(tmp_path / 'harm')!r}, 'w')".encode()
    attack = b"c" + module + b"\n" + function + b"\n(X" + len(harm).to_bytes(4, "little") + harm + b"tR"
    made = interpret(attack + b".")
    assert (made.by, made.arguments) == (Name(module.decode(), function.decode()), (harm.decode(),))
    (tmp_path / "statistics.pkl").write_bytes(attack + b"0" + pickle.dumps(3))  # called, dropped, then a number
    with pytest.raises(UserError, match="does not hold a VecNormalize"):
        read_statistics(tmp_path / "statistics.pkl")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"}X\x01\x00\x00\x00w" + attack + b"s.")
    write_model(tmp_path / "model.zip", policy=buffer.getvalue())
    with pytest.raises(UserError, match="'w' is no tensor, but made by"):
        from_sb3(tmp_path / "model.zip", "CartPole-v1")
    assert not (tmp_path / "harm").exists()


def test_names_that_lead_out_of_the_archive_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    write_model(folder / "model.zip")
    with zipfile.ZipFile(folder / "model.zip", "a") as archive:
        for name in ("../evil", str(tmp_path / "evil"), "policy.pth/../../evil"):
            archive.writestr(name, b"evil")
    assert set(read_model(folder / "model.zip").weights)
    assert {path.name for path in tmp_path.rglob("*")} == {"inner", "model.zip"}


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "available_memory", lambda: 1 << 20)
    write_zip(tmp_path / "bomb.zip", {"data": b"{}", "policy.pth": bytes(8 << 20)}, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "bomb.zip").stat().st_size < 1 << 14
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it was read"))
    refused(tmp_path / "bomb.zip", "of RAM are available")


def test_extensions_and_other_opcodes_are_refused() -> None:
    for program, name in (
        (b"\x82\x01.", "EXT1"),
        (b"Pid\n.", "PERSID"),
        (b"(cos\nsystem\no.", "OBJ"),
        (b"(ios\nx\n.", "INST"),
    ):
        with pytest.raises(ValueError, match=name):
            interpret(program)


def test_programs_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "_MOST_OPCODES", 100)
    with pytest.raises(ValueError, match="more than 100 opcodes"):
        interpret(b"(" * 200)
    monkeypatch.setattr(pickled, "_LONGEST", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        interpret(b"(" * 200)


def test_deeply_nested_data_is_read_or_refused() -> None:
    """A hash of such a key would have no end, and its comparison neither."""
    depth = 200_000
    deep = b"\x80\x04)" + b"\x85" * depth
    assert isinstance(interpret(deep + b"."), tuple)
    with pytest.raises(ValueError, match="a key of it is of the type tuple"):
        interpret(b"\x80\x04}" + deep[2:] + b"Ns.")
    own = interpret(b"\x80\x04]\x94h\x00a.")  # a list that contains itself
    assert own[0] is own


@pytest.mark.parametrize(
    "program", [b"", b".", b"a.", b"(.", b"h\x05.", b"R.", b"b.", b"Nb.", b"N\x85u.", b"}(Nu.", b"0."]
)
def test_damaged_programs_are_refused(program: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        interpret(program)


def test_tensors_of_all_kinds() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "view": base[1:3, ::2],
        "turned": base.t(),
        "double": base.double(),
        "half": base.half(),
        "whole": torch.arange(5),
        "flags": torch.tensor([True, False]),
        "one": torch.tensor(3.5, requires_grad=True),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for name, array in read_tensors(saved(tensors)).items():
        np.testing.assert_array_equal(array, tensors[name].detach().numpy())
    with pytest.raises(ValueError, match="of a kind that is not read"):
        read_tensors(saved({"x": torch.ones(2, dtype=torch.bfloat16)}))
    for other in ({"x": 1}, [torch.ones(1)], {3: torch.ones(1)}):
        with pytest.raises(ValueError, match=r"no tensor|something else|no text"):
            read_tensors(saved(other))


def forged(tensors: dict[str, torch.Tensor], old: bytes, new: bytes) -> bytes:
    """A file of tensors in which a part of the program is replaced."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(tensors))) as before, zipfile.ZipFile(buffer, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            assert not name.endswith("data.pkl") or old in content
            after.writestr(name, content.replace(old, new) if name.endswith("data.pkl") else content)
    return buffer.getvalue()


def test_tensors_that_claim_more_than_is_stored() -> None:
    # A shape of (3,) with a stride of (1,): K3 and K1 in tuples of one.
    for new in (b"K\x04\x85", b"J\x00\x00\x00\x7f\x85", b"J\xff\xff\xff\xff\x85"):
        with pytest.raises(ValueError, match=r"more numbers than are stored|damaged"):
            read_tensors(forged({"x": torch.ones(3)}, b"K\x03\x85", new))
    with pytest.raises(ValueError, match="are missing"):
        read_tensors(forged({"x": torch.ones(3)}, b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x009"))
    with pytest.raises(ValueError, match="of a kind that is not read"):
        read_tensors(forged({"x": torch.ones(3)}, b"torch\nFloatStorage", b"other\nFloatStorage"))


def test_tensors_that_use_the_same_numbers_again_and_again() -> None:
    """Layers may be shared; a short file that names its numbers a thousand times would fill the RAM."""
    numbers = torch.ones(1000)
    assert len(read_tensors(saved(dict.fromkeys("abc", numbers)))) == 3
    with pytest.raises(ValueError, match="use the same numbers so often"):
        read_tensors(saved({str(name): numbers for name in range(1000)}))
    # The long numbers of a shape, whose product would be slow to compute.
    long = b"\x8b" + (100_000).to_bytes(4, "little") + b"\x01" * 100_000
    with pytest.raises(ValueError, match="a shape in it is damaged"):
        read_tensors(forged({"x": torch.ones(3)}, b"K\x03\x85", long + b"\x85"))


def test_compressed_or_overlapping_tensors_are_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data/0", bytes(1 << 20))
    with pytest.raises(ValueError, match="torch compresses none"):
        read_tensors(buffer.getvalue())


def refused(file: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_model(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_archives_that_are_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.zip"
    refused(file, "is missing")
    file.write_bytes(b"no archive")
    refused(file, "is damaged, or not what its name says")
    write_zip(file, {"data": b"{}"})
    refused(file, "not a model that Stable-Baselines3 saved: it has no 'policy.pth'")
    write_model(file, pytorch_variables=None)
    refused(file, "a version of Stable-Baselines3 before 1.0")
    write_model(file, policy=b"\x80\x02\x8a\nl\xfc\x9cF")
    refused(file, "is damaged")
    write_zip(file, {"data": b"[" * 100_000, "policy.pth": b"", "pytorch_variables.pth": b""})
    refused(file, "is damaged")
    write_zip(file, {"data": b"[]", "policy.pth": b"", "pytorch_variables.pth": b""})
    refused(file, "its 'data' is no dictionary")
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("data", b"{}")
    refused(file, "two parts of the name 'data'")
    write_zip(file, {"data": b"{}", "policy.pth": bytes(64), "pytorch_variables.pth": b""}, zipfile.ZIP_BZIP2)
    refused(file, "compressed by a method that is not read here")
    write_model(file)
    monkeypatch.setattr(ram, "available_memory", lambda: 100)
    refused(file, "of RAM are available")
    refused(tmp_path, "is a folder")


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model.zip", policy=saved({"log_std": torch.tensor([1.0, float("nan")])}))
    refused(tmp_path / "model.zip", "'log_std' have numbers that are not finite")


def test_a_model_made_without_the_library(tmp_path: Path) -> None:
    """The same as with the library's own files, where that is not installed."""
    networks = write_model(tmp_path / "model.zip")
    content = write_statistics(tmp_path / "vecnormalize.pkl")
    agent = from_sb3(tmp_path / "model.zip", "CartPole-v1", vec_normalize=tmp_path / "vecnormalize.pkl")
    obs = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    moments = content["obs_rms"]
    scaled = np.clip((obs - moments["mean"]) / np.sqrt(moments["var"] + 1e-8), -5.0, 5.0).astype(np.float32)
    policy = agent._run.algorithm.policy
    with torch.no_grad():
        logits, value = networks(torch.from_numpy(scaled))
        ours = policy.network(torch.from_numpy(policy.observer.scaled(obs)))
    torch.testing.assert_close(ours[0], logits, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(ours[1], value[:, 0], atol=1e-5, rtol=0.0)
    np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], logits.argmax(dim=1))
    config = agent.config.flat()
    assert (config["clip_coef"], config["hidden_sizes"], config["seed"]) == (0.3, [5, 6], 7)
    assert {name: config[name] for name in ("gamma", "n_steps", "batch_size")} == {
        name: DATA[name] for name in ("gamma", "n_steps", "batch_size")
    }
    agent.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip_obs": -1.0}, "its clip_obs is -1.0"),
        ({"clip_obs": 10**400}, "is damaged"),
        ({"norm_obs": 3}, "does not say what it normalizes"),
        ({"obs_rms": [1.0]}, "its obs_rms are not those of one array"),
        ({"obs_rms": {"mean": np.zeros(4), "var": np.ones(3), "count": 1.0}}, "its obs_rms are damaged"),
        ({"obs_rms": {"mean": np.zeros(4), "var": -np.ones(4), "count": 1.0}}, "a variance below 0"),
        ({"ret_rms": {"mean": np.float64(0), "var": np.float64("nan"), "count": 1.0}}, "its ret_rms are damaged"),
        ({"epsilon": np.ones(2)}, "is damaged"),
    ],
)
def test_damaged_statistics_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_statistics(tmp_path / "vecnormalize.pkl", **changes)
    with pytest.raises(UserError, match=words):
        read_statistics(tmp_path / "vecnormalize.pkl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gamma": 3.0}, "gamma"),
        ({"n_steps": "many"}, "n_steps"),
        ({"learning_rate": [1]}, None),
        ({"policy_kwargs": {"activation_fn": "<class 'my.Own'>"}}, "activation_fn"),
        ({"policy_kwargs": {"squash_output": True}}, "squash_output"),
        ({"policy_kwargs": None}, None),
        ({"cg_max_steps": 3}, "is not a model that is read"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(change: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    write_model(file, {**DATA, **change})
    if words is None:
        from_sb3(file, "CartPole-v1").close()
        return
    with pytest.raises(UserError, match=words) as caught:
        from_sb3(file, "CartPole-v1")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)

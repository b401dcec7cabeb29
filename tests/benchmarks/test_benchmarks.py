"""The benchmark runner: its arithmetic and tables against numbers worked by hand, its turns, and one tiny run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmark_helpers import BENCHMARKS, libraries, sides, speed, summary, works

README = (BENCHMARKS / "README.md").read_text()
Slice = summary.Slice

# Rounds in which we did 100, 200 and 300 units per second, and the peer 50, 40 and 100; twice that per CPU second for
# the peer, which had half a core.
OURS = [Slice(100, 1.0, 1.0, 50_000_000), Slice(100, 0.5, 0.5, 60_000_000), Slice(600, 2.0, 2.0, 70_400_000)]
PEER = [Slice(100, 2.0, 1.0, 10_000_000), Slice(120, 3.0, 1.5, 1_234_000_000), Slice(100, 1.0, 0.5, 1_234_000_000)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10.0, 4.0, 5.0, 6.0, 5.0], (4.0, 5.0, 5.0, 6.0, 10.0)),
        # A quarter of the way is 0.75 of the step from the first to the second.
        ([1.0, 2.0, 3.0, 5.0], (1.0, 1.75, 2.5, 3.5, 5.0)),
        ([1.0, 3.0], (1.0, 1.5, 2.0, 2.5, 3.0)),
        ([7.0], (7.0, 7.0, 7.0, 7.0, 7.0)),
    ],
)
def test_spread(values: list[float], expected: tuple[float, ...]) -> None:
    assert summary.spread(values) == summary.Spread(*expected)


def test_rates_on_both_clocks() -> None:
    assert summary.rates(PEER, "wall") == [50.0, 40.0, 100.0]
    assert summary.rates(PEER, "cpu") == [100.0, 80.0, 200.0]


def test_ratios_are_those_of_slices_of_one_round() -> None:
    assert summary.paired_ratios(OURS, PEER, "wall") == [2.0, 5.0, 3.0]
    assert summary.paired_ratios(OURS, PEER, "cpu") == [1.0, 2.5, 1.5]
    # The median of the ratios, 3, is not the ratio of the medians, 200 / 50 = 4.
    assert summary.spread(summary.paired_ratios(OURS, PEER, "wall")).median == 3.0


def test_slices_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        summary.paired_ratios(OURS, PEER[:2], "wall")


def test_share_of_a_core_weighs_slices_by_their_length() -> None:
    assert summary.core_share(PEER) == 0.5
    assert summary.core_share([Slice(1, 1.0, 1.0, 0), Slice(1, 3.0, 1.0, 0)]) == 0.5


def test_table_of_rates() -> None:
    assert summary.rates_table({"ours": OURS, "sb3": [Slice(12_345, 1.0, 0.5, 1), *PEER[1:]]}).splitlines() == [
        "       per second   per CPU second   share of a core   peak memory",
        "ours          200              200              100%         70 MB",
        "sb3           100              200               50%      1,234 MB",
    ]


def test_slow_rates_have_a_decimal() -> None:
    assert [summary.rate_text(rate) for rate in (7.46, 99.94, 100.4, 12_345.6)] == ["7.5", "99.9", "100", "12,346"]


def test_table_of_ratios() -> None:
    assert summary.ratios_table(OURS, PEER, "sb3").splitlines() == [
        "ours / sb3       median      quartiles   lowest to highest",
        "per second         3.00   2.50 to 4.00        2.00 to 5.00",
        "per CPU second     1.50   1.25 to 2.00        1.00 to 2.50",
    ]


def test_report_says_what_was_done_and_that_the_machine_was_busy() -> None:
    work = libraries.Work("Some training", 5, {}, unit="updates")
    alone = speed.report("some_work", work, 1000, 1, {"ours": OURS})
    assert alone.startswith("some_work: Some training\n3 rounds of 1,000 updates, one thread\n\n")
    assert "busy" not in alone
    assert "ours /" not in alone
    both = speed.report("some_work", work, 1000, 1, {"ours": OURS, "sb3": PEER})
    assert summary.ratios_table(OURS, PEER, "sb3") in both
    assert both.endswith("The machine was busy with other work: read the numbers per CPU second.")


def test_report_says_how_many_threads_and_what_differs() -> None:
    work = libraries.Work("Some training", 5, {}, note="The peer has no such thing")
    found = speed.report("some_work", work, 1000, 2, {"ours": OURS})
    head = "some_work: Some training\nThe peer has no such thing\n3 rounds of 1,000 environment steps, 2 threads\n\n"
    assert found.startswith(head)


def test_record_has_every_slice_and_the_ratios() -> None:
    work = libraries.Work("Some training", 5, {})
    found = json.loads(json.dumps(speed.record("some_work", work, 1000, 2, {"ours": OURS, "sb3": PEER})))
    assert found["sides"]["sb3"][1] == {"count": 120, "wall": 3.0, "cpu": 1.5, "peak": 1_234_000_000}
    assert found["ratios"] == {
        "sb3": {
            "wall": {"lowest": 2.0, "lower_quartile": 2.5, "median": 3.0, "upper_quartile": 4.0, "highest": 5.0},
            "cpu": {"lowest": 1.0, "lower_quartile": 1.25, "median": 1.5, "upper_quartile": 2.0, "highest": 2.5},
        }
    }
    assert set(found["versions"]) == {"rl-training", "stable-baselines3", "torch", "numpy", "gymnasium"}
    assert (found["slice_size"], found["threads"]) == (1000, 2)


def test_sides_take_turns_after_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    sources: dict[str, Path | None] = {"ours": None, "sb3": Path("src")}

    class FakeSide:
        def __init__(self, work: str, name: str, threads: int, folder: Path, src: Path | None) -> None:
            assert (work, threads, src) == ("some_work", 3, sources[name])
            self.name = name

        def advance(self, count: int) -> Any:
            calls.append((self.name, count))
            return Slice(len(calls), 1.0, 1.0, 1)

        def __enter__(self) -> FakeSide:
            return self

        def __exit__(self, *error: object) -> None:
            calls.append((f"{self.name} ends", 0))

    monkeypatch.setattr(speed, "Side", FakeSide)
    slices = speed.measure("some_work", sources, 10, rounds=2, threads=3)
    warm_up, turn = [("ours", 10), ("sb3", 10)], [("ours", 10), ("sb3", 10)]
    assert calls == [*warm_up, *turn, *turn, ("sb3 ends", 0), ("ours ends", 0)]
    # The warm-up, calls 1 and 2, is in no result.
    assert {name: [piece.count for piece in found] for name, found in slices.items()} == {"ours": [3, 5], "sb3": [4, 6]}


def test_slice_counts_what_was_done_and_both_clocks() -> None:
    def advance(count: int) -> int:
        time.sleep(0.05)
        return count + 3

    found = sides.train_slice(advance, 10)
    assert found.count == 13
    assert found.wall >= 0.05
    assert 0.0 <= found.cpu < 0.05
    assert found.peak > 10_000_000


def test_missing_peer_is_said_plainly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(speed.PEERS, "sb3", libraries.Peer("no_such_module", "no-such-package"))
    work = works.WORKS["ppo_cartpole"]
    assert speed.choose_sides(work, None, None) == {"ours": None}
    assert capsys.readouterr().err.splitlines() == [
        "sb3 does not take part: no-such-package is not installed (pip install -r benchmarks/requirements.txt)",
        "ours is measured alone",
    ]
    monkeypatch.setitem(speed.PEERS, "sb3", libraries.Peer("json", "json"))
    assert speed.choose_peers(work, None) == ["sb3"]
    assert capsys.readouterr().err == ""
    assert speed.choose_peers(work, []) == []


def test_peer_without_an_entry_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    work = libraries.Work("Only ours", 1, {"ours": works.ours})
    assert speed.choose_peers(work, ["sb3"]) == []
    assert "sb3 does not take part: it has no entry for this work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "name a work: ppo_cartpole, a2c_cartpole"),
        ("ppo_cartpol", "invalid choice: 'ppo_cartpol'"),
        ("ppo_cartpole --peers sb4", "'sb4' is unknown (known: sb3"),
        ("ppo_cartpole --rounds 0", "--rounds: invalid"),
        ("ppo_cartpole --threads 0", "--threads: invalid"),
        ("ppo_cartpole --against nowhere", "--against nowhere: holds no rl_training; give the src folder"),
        ("ppo_cartpole --json nowhere/file.json", "nowhere/file.json: there is no such folder"),
    ],
)
def test_mistakes(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        speed.parse(arguments.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_what_a_work_needs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(speed, "find_spec", lambda module: None)
    with pytest.raises(SystemExit):
        speed.parse(["ppo_halfcheetah"])
    assert "ppo_halfcheetah needs mujoco, which is not installed: pip install" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--list"])
    listed = capsys.readouterr().out
    assert [line for line in listed.splitlines() if not line.startswith(" ")] == list(works.WORKS)
    peers = [line.removeprefix("  peers: ") for line in listed.splitlines() if line.startswith("  peers: ")]
    found = dict(zip(works.WORKS, peers, strict=True))
    assert [found[name] for name in ("ppo_cartpole", "muzero_update", "gumbel_cartpole")] == ["sb3", "autograd", ""]


@pytest.mark.parametrize("threads", [1, 2])
def test_child_has_so_many_threads_of_everything(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(sides.subprocess, "Popen", lambda command, env, **rest: started.append((command, env)))
    sides.Side("ppo_cartpole", "ours", threads, tmp_path)
    command, env = started[0]
    assert command[2:] == ["ppo_cartpole", "ours", str(threads)]
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):
        assert env[library] == str(threads)


def test_child_builds_its_side_with_so_many_threads() -> None:
    code = """if True:
        import sides

        class Work:
            def build(self, side, threads):
                print("words of a library")
                return lambda count: count * threads

        sides.WORKS = {"some_work": Work()}
        sides.serve("some_work", "ours", "2")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], input="3\n50\n", cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert [json.loads(line)["count"] for line in done.stdout.splitlines()] == [6, 100]
    assert done.stderr == "words of a library\n"


def test_failed_side_says_why(tmp_path: Path) -> None:
    with pytest.raises(sides.SideFailed) as failure, sides.Side("no_such_work", "ours", 1, tmp_path) as side:
        side.advance(1)
    assert "ours ended with exit code 1; it said:\nTraceback" in str(failure.value)
    assert "KeyError: 'no_such_work'" in str(failure.value)


def test_parent_loads_nothing_heavy() -> None:
    """A child's peak memory starts with that of its parent."""
    code = (
        "import speed, sys; print([name for name in ('torch', 'numpy', 'gymnasium', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tiny_run_of_ours_alone(tmp_path: Path) -> None:
    command = "a2c_cartpole --peers none --rounds 2 --steps 200 --json result.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "speed.py"), *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "ours is measured alone" in done.stderr
    assert "2 rounds of 200 environment steps, one thread" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ratios"] == {}
    assert list(result["sides"]) == ["ours"]
    pieces = [Slice(**piece) for piece in result["sides"]["ours"]]
    assert len(pieces) == 2
    for piece in pieces:
        assert 200 <= piece.count < 240  # whole rollouts of at most 40
        assert 0.0 < piece.wall < 60.0
        assert 0.0 < piece.cpu < 60.0
        assert 50e6 < piece.peak < 5e9
    assert summary.rates_table({"ours": pieces}) in done.stdout


def test_readme_names_works_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "find_spec", lambda module: module)  # whatever is installed here
    monkeypatch.setattr(speed.Path, "is_dir", lambda path: True)  # and whatever is checked out beside it
    commands = re.findall(r"python benchmarks/speed\.py (.*)$", README, flags=re.MULTILINE)
    assert len(commands) >= len(works.WORKS)
    named = {speed.parse(shlex.split(command)).work for command in commands if "--list" not in command}
    assert named == set(works.WORKS)


def test_readme_has_every_work_with_its_unit_and_peers() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([a-z ]+) \| ([^|]*) \|$", README, flags=re.MULTILINE)
    found = {name: (unit, re.findall(r"`(\w+)`", peers)) for name, unit, peers in rows}
    assert found == {name: (work.unit, work.peers) for name, work in works.WORKS.items()}


def pinned(file: str) -> set[str]:
    lines = (BENCHMARKS / file).read_text().splitlines()
    return {line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")}


def test_requirements_name_every_peer() -> None:
    alone = {package for _, package, install in libraries.PEERS.values() if "requirements-no-deps" in install}
    assert pinned("requirements-no-deps.txt") == alone == {"d3rlpy", "imitation"}
    for _, package, install in libraries.PEERS.values():
        file = BENCHMARKS.parent / install.split()[-1]
        assert file.is_file()
        assert package in pinned(file.name) | {"torch"}  # rl-training brings torch
        assert install.split()[-1] in README
    assert all(peer in libraries.PEERS for work in works.WORKS.values() for peer in work.peers)

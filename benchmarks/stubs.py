"""Write src/rl_training/api/algorithms.pyi: the classes of all algorithms with every setting, for type checkers.

`python benchmarks/stubs.py` writes it from the config fields; `--check` only says whether the file is up to date.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from written import write_or_check

from rl_training.api import algorithms
from rl_training.api.agent import Agent
from rl_training.api.signatures import as_code, documentation_of, signature_of

FILE = Path(__file__).resolve().parents[1] / "src" / "rl_training" / "api" / "algorithms.pyi"
_INTRODUCTION = '''"""The agents, with their settings. Written by benchmarks/stubs.py from the config fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rl_training.api.agent import Agent as Agent
from rl_training.runtime.envs.given import Env
'''


def write_stubs() -> str:
    """The whole file."""
    kinds = [kind for kind in vars(algorithms).values() if inspect.isclass(kind) and issubclass(kind, Agent)]
    return "\n".join([_INTRODUCTION, *("\n".join(_class(kind)) for kind in kinds if kind.algo)])


def _class(kind: type[Agent]) -> list[str]:
    parameters = [as_code(parameter) for parameter in signature_of(kind.algo).parameters.values()]
    documented = textwrap.indent(documentation_of(kind.algo, kind.summary), "    ").lstrip()
    return [
        f"class {kind.__name__}(Agent):",
        f'    """{documented}',
        '    """',
        "",
        "    def __init__(",
        "        self,",
        f"        {parameters[0]},",
        "        *,",
        *(f"        {parameter}," for parameter in parameters[1:]),
        "    ) -> None: ...",
        "",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    return write_or_check(FILE, write_stubs(), "stubs.py", arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Pickles of other libraries as plain data: their opcodes are interpreted, and nothing that they name is called.

A pickle is a program for a small machine with a stack. This machine has the instructions that build data. Where the
program names a class or a function, there is only the name; where it calls one, there is only what would have been
called and with what. Nothing is imported, and nothing is looked up.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

_MOST_OPCODES = 1_000_000  # a policy's tensors take some thousands
_LONGEST = 64 << 20  # bytes of a program, without the numbers of tensors
_KEYS = (str, int, float, bytes, bool, type(None))  # a tuple could be nested so deeply that its hash has no end
_MARK = object()
_FLAWS = (IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, DeprecationWarning)


class Name(NamedTuple):
    """A name of code: only its two parts."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Reference(NamedTuple):
    """Something that is kept outside of the pickle, by what it is called there."""

    key: Any


@dataclass(eq=False)
class Made:
    """An object that a pickle would have made by a call, and what it would have put into it."""

    by: Any
    arguments: Any
    state: Any = None
    entries: dict[Any, Any] | None = None
    items: list[Any] | None = None


def interpret(program: bytes) -> Any:
    """What a pickle describes, with `Made` in place of objects; a ValueError if it is damaged or uses other opcodes."""
    if len(program) > _LONGEST:
        raise ValueError(f"it has {len(program)} bytes; at most {_LONGEST} are read")
    machine = _Machine()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # for escapes in text that no pickle has
        _run(program, machine)
    return machine.pop()


def _run(program: bytes, machine: _Machine) -> None:
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(program)):
            if count == _MOST_OPCODES:
                raise ValueError(f"it has more than {_MOST_OPCODES} opcodes")
            step = _STEPS.get(opcode.name)
            if step is None:
                raise ValueError(f"it has the opcode {opcode.name}, which plain data does not need")
            step(machine, argument)
        if len(machine.stack) != 1:
            raise ValueError("its program is damaged (it ends with more or less than one value)")
    except _FLAWS as error:
        raise ValueError(f"its program is damaged ({type(error).__name__})") from None


class _Machine:
    """The stack and the memory of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("its program is damaged (a mark in place of a value)")
        return value

    def pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def take(self, count: int) -> tuple[Any, ...]:
        return tuple(self.pop() for _ in range(count))[::-1]

    def name(self) -> None:
        module, name = self.take(2)
        self.named(module, name)

    def named(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("its program is damaged (a name that is no text)")
        self.push(Name(module, name))

    def call(self, count: int) -> None:
        by, *arguments = self.take(count)
        self.push(Made(by, arguments[0] if len(arguments) == 1 else tuple(arguments)))

    def build(self) -> None:
        state, made = self.pop(), self.stack[-1]
        if not isinstance(made, Made):
            raise ValueError("its program is damaged (a state of what is no object)")
        made.state = state

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Made):
            target.items = items = target.items or []
        elif isinstance(target, list):
            items = target
        else:
            raise ValueError("its program is damaged (an item of what is no list)")
        items.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Made):
            target.entries = entries = target.entries or {}
        elif isinstance(target, dict):
            entries = target
        else:
            raise ValueError("its program is damaged (an entry of what is no dictionary)")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, _KEYS):
                raise ValueError(f"a key of it is of the type {type(key).__name__}; text or a number is read")
            entries[key] = value

    def drop(self) -> None:
        self.stack.pop()

    def memoize(self, index: int | None = None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]


_Step = Callable[[_Machine, Any], None]
_VALUES = (
    "BININT BININT1 BININT2 LONG1 LONG4 INT LONG FLOAT BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(_VALUES.split(), _Machine.push),
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "STOP": lambda m, _: None,
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "MARK": lambda m, _: m.push(_MARK),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE1": lambda m, _: m.push(m.take(1)),
    "TUPLE2": lambda m, _: m.push(m.take(2)),
    "TUPLE3": lambda m, _: m.push(m.take(3)),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "LIST": lambda m, _: m.push(m.pop_to_mark()),
    "EMPTY_SET": lambda m, _: m.push([]),
    "FROZENSET": lambda m, _: m.push(m.pop_to_mark()),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "APPEND": lambda m, _: m.append([m.pop()]),
    "APPENDS": lambda m, _: m.append(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.append(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items(list(m.take(2))),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "PUT": _Machine.memoize,
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "MEMOIZE": lambda m, _: m.memoize(),
    "GET": lambda m, index: m.push(m.memo[index]),
    "BINGET": lambda m, index: m.push(m.memo[index]),
    "LONG_BINGET": lambda m, index: m.push(m.memo[index]),
    "POP": lambda m, _: m.drop(),
    "GLOBAL": lambda m, both: m.named(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(),
    "REDUCE": lambda m, _: m.call(2),
    "NEWOBJ": lambda m, _: m.call(2),
    "NEWOBJ_EX": lambda m, _: m.call(3),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.push(Reference(m.pop())),
}

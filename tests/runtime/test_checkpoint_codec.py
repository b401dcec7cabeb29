"""Plain data and tensors go into JSON and safetensors and come back exactly, or are refused by name."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode, encode_tensors
from rl_training.types import UserError

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
)


def back(value: Any) -> Any:
    text, tensors = encode(value, "state")
    json.loads(text, parse_constant=pytest.fail)  # any reader of JSON can read it
    return decode(text, decode_tensors(tensors))


def bits(tensor: torch.Tensor) -> list[int]:
    numbers = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).reshape(-1)
    return list(numbers.view(torch.uint8).tolist())


def same(left: Any, right: Any) -> bool:
    """Equal in kind and to the bit, all the way down; one nan is as good as another outside of tensors."""
    if isinstance(left, torch.Tensor):
        return (
            type(right) is torch.Tensor
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and bits(left) == bits(right)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(same(a, b) for pair in pairs for a, b in zip(*pair, strict=True))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    return (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(shape)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
TAGS = st.sampled_from(["$tuple", "$tensor", "$int", "$float", "$dict", "$", "__metadata__", "a.b", "a", "b"])
KEYS = st.recursive(PLAIN | TAGS, lambda keys: st.lists(keys, max_size=2).map(tuple), max_leaves=3)
VALUES = st.recursive(
    PLAIN | TAGS | tensors(),
    lambda values: (
        st.lists(values, max_size=3)
        | st.lists(values, max_size=3).map(tuple)
        | st.dictionaries(KEYS, values, max_size=3)
        | st.dictionaries(TAGS, values, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_comes_back_to_the_bit(value: Any) -> None:
    assert same(value, back(value))


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        5e-324,
        math.nan,
        -math.inf,
        2**63,
        -(2**63) - 1,
        10**10_000,  # more digits than Python converts
        {10**5_000: torch.zeros(2)},
        {(): 1, (1, (2.5, None)): 2, True: 3},
        "\ud800 is half of a character",
        {"\ud800": torch.zeros(1)},
        {"a": {"b.c": torch.zeros(1)}, "a.b": {"c": torch.ones(1)}, "a.b.c": torch.ones(2)},
        {"$tensor": "state.x"},
        [{"$tuple": [1]}, ({"$int": "0x1"},), {"$float": "nan", "x": 1}],
        torch.zeros(()),
        torch.zeros(3, 0, 2),
        torch.ones(1).expand(0),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[1::2],
        [torch.ones(5)] * 2,
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_corner_cases_come_back(value: Any) -> None:
    assert same(value, back(value))


def test_numbers_of_numpy_become_numbers() -> None:
    value = {"f": np.float32(0.5), "i": [np.int64(3)], "b": np.bool_(True), np.int64(7): np.str_("s")}
    assert same(back(value), {"f": 0.5, "i": [3], "b": True, 7: "s"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reader_of_safetensors_reads_them(dtype: torch.dtype) -> None:
    wanted = {"b": torch.ones(2, 3, dtype=dtype), "a": torch.ones((), dtype=dtype), "wide": torch.ones(3)}
    found = safetensors.torch.load(encode_tensors(wanted))
    assert found.keys() == wanted.keys()
    assert all(same(wanted[name], found[name]) for name in wanted)


class Point(tuple[int, ...]):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [{1}]}, r"state\.a\[0\]: a checkpoint cannot hold a set"),
        ({"a": b"bytes"}, r"state\.a: a checkpoint cannot hold a bytes"),
        ((1, 1j), r"state\[1\]: a checkpoint cannot hold a complex"),
        ({"a": Point((1, 2))}, r"state\.a: a checkpoint cannot hold a Point"),
        ({"a": np.longdouble(1)}, r"state\.a: a checkpoint cannot hold a longdouble"),
        ({"a": np.zeros(2)}, r"state\.a: a checkpoint cannot hold a ndarray"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, r"state\.a: a checkpoint cannot hold a torch\.complex128"),
        ({"a": torch.zeros(2).to_sparse()}, r"state\.a: a checkpoint cannot hold a torch\.float32"),
        ({frozenset(): 1}, r"state: a checkpoint cannot hold a frozenset as a key"),
        ({(1, torch.zeros(1)): 1}, r"state: a checkpoint cannot hold a tuple as a key"),
        ({2: {10**5_000: set()}}, r"state\.2\..*: a checkpoint cannot hold a set"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        encode(value, "state")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_refused_on_both_sides() -> None:
    assert back(nested(100)) == nested(100)
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested(101), nested(100_000), endless):
        with pytest.raises(UserError, match=r"state\[0\]\[0\].*more than 100 levels"):
            encode(value, "state")
    for text in (b"[" * 102 + b"]" * 102, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            decode(text, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "Expecting value"),
        (b"\xff", "utf-8"),
        (b"[1", "Expecting"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "Infinity is not JSON"),
        (b"1" * 5_000, "digits"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b'{"$dict": [[1, 2], [1, 3]]}', "the key 1 twice"),
        (b'{"$dict": [[1, 2], [true, 3]]}', "the key True twice"),
        (b'{"$dict": [[[], 2]]}', "a list cannot be a key"),
        (b'{"$dict": [[{"$tensor": "t"}, 2]]}', "a Tensor cannot be a key"),
        (b'{"$dict": [[1, 2, 3]]}', "unknown entry"),
        (b'{"$dict": {"a": 1}}', "unknown entry"),
        (b'{"$list": [1]}', "unknown entry"),
        (b'{"$": [1]}', "unknown entry"),
        (b'{"$tuple": [1], "a": 2}', "unknown entry"),
        (b'{"$tuple": [1], "$int": "0x1"}', "unknown entry"),
        (b'{"$tuple": "ab"}', "unknown entry"),
        (b'{"$int": 7}', "unknown entry"),
        (b'{"$int": "seven"}', "unknown entry"),
        (b'{"$float": "1.5"}', "unknown entry"),
        (b'{"$tensor": "other"}', "unknown entry"),
        (b'{"$tensor": ["t"]}', "unknown entry"),
        (b'[{"$tensor": "t"}, {"$tensor": "t"}]', "unknown entry"),
        (b"[1]", "it does not mention the tensor 't'"),
    ],
)
def test_a_text_of_another_form_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(text, {"t": torch.zeros(2)})


def described(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"12345678",
        (2**62).to_bytes(8, "little") + b"{}",
        described(b"[" * 100_000),
        described({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}),
        described({"a": {"dtype": "F32", "shape": [2**63, 2], "data_offsets": [0, 4]}}, b"1234"),
        described({"a": {"dtype": "F32", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]}}),
        described({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        described({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678"),
        described({"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
        described({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
    ],
    ids=range(11),
)
def test_a_file_of_tensors_that_claims_what_is_not_there_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"while deserializing|dtype|Overflow|shape|int"):
        decode_tensors(content)

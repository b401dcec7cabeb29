"""Checksums of large blocks: equal to a plain loop, and every change within a word shows."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from rl_training.data.checked_files import checksum
from rl_training.ops.kernels.checksums import LANES, lane_sums


def by_hand(words: list[int]) -> list[int]:
    sums = [0] * LANES
    for place, word in enumerate(words[: len(words) // LANES * LANES]):
        mixed = ((sums[place % LANES] ^ word) * 0x9E3779B1 + 0x85EBCA6B) % 2**32
        sums[place % LANES] = mixed ^ (mixed >> 15)
    return sums


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_the_kernel_is_a_plain_loop(size: int) -> None:
    words, sums = np.random.default_rng(size).integers(0, 2**32, size, np.uint32), np.empty(LANES, np.uint32)
    lane_sums(words, sums)
    assert sums.tolist() == by_hand(words.tolist())


def test_what_is_small_has_a_plain_crc() -> None:
    assert checksum(b"123456789") == "cbf43926"
    assert checksum(bytes(65535)) == f"{zlib.crc32(bytes(65535)):08x}"


@pytest.mark.parametrize("size", [65536, 65537, 70001, 100_352])
def test_every_change_of_a_large_block_shows(size: int) -> None:
    rng = np.random.default_rng(size)
    whole = bytearray(rng.bytes(size))
    total = checksum(bytes(whole))
    assert checksum(memoryview(whole)) == total
    places = [*range(12), *range(size - 12, size), *rng.integers(0, size, 200).tolist()]
    for place in places:
        for bit in range(8):
            whole[place] ^= 1 << bit
            assert checksum(whole) != total  # type: ignore[arg-type]
            whole[place] ^= 1 << bit
    # The same bit of many words, as a bad line of memory leaves it; words that change places; a shorter block.
    words = np.frombuffer(bytes(whole[: size // 4 * 4]), np.uint32)
    for bit in (0, 15, 31):
        for count in (2, 4, 64):
            changed = words.copy()
            changed[64 * np.arange(count)] ^= np.uint32(1 << bit)
            assert checksum(changed.data) != checksum(words.data)
    swapped = words.copy()
    swapped[[0, 64]] = swapped[[64, 0]]
    assert checksum(swapped.data) != checksum(words.data)
    assert checksum(bytes(size)) != checksum(bytes(size + 256))

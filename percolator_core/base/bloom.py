"""Bloom filters of Parquet files: split blocks, as the format defines them.

pyarrow can write the filters, but not test them. Other readers of the files, such as Spark and DuckDB, use
the same filters. Source: the format's specification, "Parquet Bloom Filter".
"""

from __future__ import annotations

from typing import Final

_SALTS: Final = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
"""A multiplier for each of the eight words of a block."""

_WORD: Final = 4
_BLOCK: Final = _WORD * len(_SALTS)
_MASK: Final = 0xFFFFFFFF
_SHIFTS: Final = range(0, 8 * _BLOCK, 8 * _WORD)


class BloomFilter:
    """The filter of one column of one row group.

    ``packed`` is the header and the bits, as in the file. The header is shorter than a block, and the size of
    the bits is a power of two. So the bits are the longest suffix of ``packed`` whose size is a power of two.
    """

    __slots__ = ("_bits", "_blocks", "_digest")

    def __init__(self, packed: bytes) -> None:
        # Clients without a base also import this module.
        from xxhash import xxh64_intdigest

        self._digest = xxh64_intdigest
        size = 1 << (len(packed).bit_length() - 1)
        self._bits = packed[len(packed) - size :]
        self._blocks = size // _BLOCK

    def may_have(self, value: bytes) -> bool:
        """Return False if the column certainly does not have the value."""
        mixed = self._digest(value)
        at = ((mixed >> 32) * self._blocks >> 32) * _BLOCK
        key = mixed & _MASK
        bits = 0
        for shift, salt in zip(_SHIFTS, _SALTS, strict=True):
            bits |= 1 << (shift + ((key * salt & _MASK) >> 27))
        return int.from_bytes(self._bits[at : at + _BLOCK], "little") & bits == bits

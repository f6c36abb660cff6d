"""Where a GGUF model has its tensors: the header alone is read.

The format is that of ``docs/gguf.md`` in the ggml repository, versions 2 and 3; the names of the
parts of a split model are those of ``llama_split_path`` in llama.cpp.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any

from attrs import define, frozen

from bmoe_core.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9

BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
    42: (64, 18),  # Q2_0
}
"""Weights and bytes of a block, by the number of its type in ``enum ggml_type``."""


@frozen
class TensorPlace:
    """A tensor in a file.

    Attributes:
        name: its name.
        part: the file, an index into :attr:`GgufHeader.parts`.
        offset: its first byte in that file.
        shape: its extents as llama.cpp has them, the fastest first.
        n_bytes: its size.
    """

    name: str
    part: int
    offset: int
    shape: tuple[int, ...]
    n_bytes: int


@frozen
class GgufHeader:
    """The tensors of a model.

    Attributes:
        parts: its files, one but for a split model.
        tensors: all of them, in the order of the files.
    """

    parts: tuple[Path, ...]
    tensors: tuple[TensorPlace, ...]


def read_header(path: Path) -> GgufHeader:
    """Read the headers of a model, all parts of a split one.

    Args:
        path: the file; of a split model, its first part.

    Raises:
        ModelFileError: a file is missing, is no GGUF file, is cut short, or has a type of weights
            that is not known here.
    """
    first = _read_part(path, 0)
    n_parts = int(first.metadata.get("split.count", 1))
    parts, tensors = [path], list(first.tensors)
    for i in range(1, n_parts):
        parts.append(_part_path(path, i, n_parts))
        tensors += _read_part(parts[-1], i).tensors
    return GgufHeader(tuple(parts), tuple(tensors))


def _part_path(first: Path, index: int, n_parts: int) -> Path:
    found = re.fullmatch(rf"(.*)-00001-of-{n_parts:05}\.gguf", first.name)
    if found is None:
        raise ModelFileError(
            f"{first} is the first of {n_parts} parts of a model, and its name does not end in "
            f"-00001-of-{n_parts:05}.gguf: give the parts the names they were made with"
        )
    return first.with_name(f"{found[1]}-{index + 1:05}-of-{n_parts:05}.gguf")


@frozen
class _Part:
    metadata: dict[str, Any]
    tensors: list[TensorPlace]


def _read_part(path: Path, index: int) -> _Part:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            return _parse(path, data, index)
    except FileNotFoundError:
        raise ModelFileError(f"there is no model file {path}: check the path given to -m") from None
    except OSError as error:
        raise ModelFileError(f"the model file {path} cannot be read: {error.strerror}") from None
    except (struct.error, ValueError, IndexError, KeyError) as error:
        # A mapping of an empty file is a ValueError too.
        raise ModelFileError(
            f"{path} is damaged, or not a GGUF file as bmoe knows it ({error}): if it was "
            "downloaded, check that it is complete"
        ) from None


def _parse(path: Path, data: mmap.mmap, index: int) -> _Part:
    cursor = _Cursor(data)
    magic = data[:4]
    cursor.position = 4
    version = cursor.scalar("<I")
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError(f"magic {magic!r}, version {version}")
    n_tensors, n_pairs = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata = {}
    for _ in range(n_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    infos = [_Info.read(cursor) for _ in range(n_tensors)]
    alignment = int(metadata.get("general.alignment") or DEFAULT_ALIGNMENT)
    start = -(-cursor.position // alignment) * alignment
    tensors = [info.place(index, start) for info in infos]
    end = max((tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
    if end > len(data):
        raise ValueError(f"its tensors end at byte {end} and the file at {len(data)}")
    return _Part(metadata, tensors)


@frozen
class _Info:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @classmethod
    def read(cls, cursor: _Cursor) -> _Info:
        name = cursor.string()
        shape = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))
        return cls(name, shape, cursor.scalar("<I"), cursor.scalar("<Q"))

    def place(self, part: int, data_start: int) -> TensorPlace:
        if self.type not in BLOCKS:
            raise ValueError(f"{self.name} has weights of type {self.type}, which is not known")
        n_weights, n_bytes = BLOCKS[self.type]
        size = n_bytes
        for extent in self.shape:
            size *= extent
        return TensorPlace(self.name, part, data_start + self.offset, self.shape, size // n_weights)


@define
class _Cursor:
    """A position in a file, moved on by what is read from there."""

    data: mmap.mmap
    position: int = 0

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        return self._bytes(self.scalar("<Q")).decode("utf-8", errors="replace")

    def _bytes(self, n: int) -> bytes:
        self._check(n)
        start, self.position = self.position, self.position + n
        return self.data[start : self.position]

    def value(self, kind: int) -> Any:
        """A value of the metadata; None for an array, which is skipped."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar("<" + _SCALARS[kind])
        item, n = self.scalar("<I"), self.scalar("<Q")
        if item in _SCALARS:
            size = n * struct.calcsize(_SCALARS[item])
            self._check(size)
            self.position += size
            return None
        self._check(n)
        for _ in range(n):
            if item == _STRING:
                self._skip_string()
            else:
                self.value(item)
        return None

    def _skip_string(self) -> None:
        (n,) = struct.unpack_from("<Q", self.data, self.position)
        self._check(8 + n)
        self.position += 8 + n

    def _check(self, n: int) -> None:
        if self.position + n > len(self.data):
            raise ValueError(f"it ends within its header, at byte {len(self.data)}")

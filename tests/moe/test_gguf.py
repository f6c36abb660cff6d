"""The header parser, against the gguf package and against damage."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from bmoe_core.errors import ModelFileError
from bmoe_core.models import demo_model
from bmoe_core.moe.gguf import BLOCKS, read_header
from bmoe_core.testing.models import WRITERS, write_split_copy


def places(path: Path) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    return {t.name: (t.offset, t.n_bytes, t.shape) for t in read_header(path).tensors}


def gguf_places(path: Path) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    return {
        t.name: (int(t.data_offset), int(t.n_bytes), tuple(map(int, t.shape)))
        for t in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize("kind", [*WRITERS, "demo"])
def test_tensors_are_where_the_gguf_package_finds_them(
    model_paths: dict[str, Path], kind: str
) -> None:
    """Same offsets, sizes and extents."""
    path = demo_model() if kind == "demo" else model_paths[kind]
    assert places(path) == gguf_places(path)


def test_the_sizes_of_blocks() -> None:
    """Those of the gguf package, but for types that no file stores."""
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    only_computed_with = {gguf.GGMLQuantizationType.Q8_1, gguf.GGMLQuantizationType.Q8_K}
    assert {kind: BLOCKS[kind] for kind in sizes if kind in BLOCKS} == {
        kind: size for kind, size in sizes.items() if kind not in only_computed_with
    }


def test_a_split_model(model_paths: dict[str, Path], tmp_path: Path) -> None:
    """Every tensor is in the part that has it."""
    first = write_split_copy(model_paths["moe"], tmp_path / "m.gguf", tensors_per_part=7)
    header = read_header(first)
    assert len(header.parts) > 2
    assert header.parts[1].name == f"m-00002-of-{len(header.parts):05}.gguf"
    for part, path in enumerate(header.parts):
        ours = {t.name: (t.offset, t.n_bytes, t.shape) for t in header.tensors if t.part == part}
        assert ours == gguf_places(path)


class TestDamage:
    def test_a_missing_part_is_named(self, model_paths: dict[str, Path], tmp_path: Path) -> None:
        """It is what the user has to look for."""
        first = write_split_copy(model_paths["moe"], tmp_path / "m.gguf", tensors_per_part=7)
        second = read_header(first).parts[1]
        second.unlink()
        with pytest.raises(ModelFileError, match=re.escape(f"no model file {second}")):
            read_header(first)

    def test_a_renamed_first_part_is_refused(
        self, model_paths: dict[str, Path], tmp_path: Path
    ) -> None:
        """The names of the others cannot be told from it."""
        first = write_split_copy(model_paths["moe"], tmp_path / "m.gguf", tensors_per_part=7)
        with pytest.raises(ModelFileError, match="names they were made with"):
            read_header(first.rename(tmp_path / "first.gguf"))

    def test_a_file_cut_anywhere(self, model_paths: dict[str, Path], tmp_path: Path) -> None:
        """Refused wherever it ends, in the header or in the tensors, never misread."""
        data = model_paths["moe"].read_bytes()
        path = tmp_path / "cut.gguf"
        for length in [0, 3, 4, 30, 100, *range(200, len(data), 4001), len(data) - 1]:
            path.write_bytes(data[:length])
            with pytest.raises(ModelFileError, match=r"cut\.gguf is damaged"):
                read_header(path)
        path.write_bytes(data)
        assert read_header(path).tensors

    @pytest.mark.parametrize(
        ("at", "replacement", "why"),
        [
            (0, b"GGML", "magic b'GGML'"),
            (4, b"\x63\0\0\0", "version 99"),
            (8, b"\xff" * 8, "ends within its header|unpack_from requires"),
            (24, b"\xff" * 8, "ends within its header"),
        ],
    )
    def test_nonsense_in_the_header(
        self,
        model_paths: dict[str, Path],
        tmp_path: Path,
        at: int,
        replacement: bytes,
        why: str,
    ) -> None:
        """Another format, another version, counts and lengths beyond the file."""
        data = bytearray(model_paths["moe"].read_bytes())
        data[at : at + len(replacement)] = replacement
        path = tmp_path / "odd.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=why):
            read_header(path)

    def test_weights_of_an_unknown_type(self, model_paths: dict[str, Path], tmp_path: Path) -> None:
        """Their size cannot be known."""
        data = bytearray(model_paths["moe"].read_bytes())
        name = b"blk.0.ffn_up_exps.weight"
        # After the name: the number of extents, the extents, the type.
        at = data.index(name) + len(name) + 4 + 3 * 8
        data[at : at + 4] = (777).to_bytes(4, "little")
        path = tmp_path / "odd.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=r"ffn_up_exps\.weight has weights of type 777"):
            read_header(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        """As everywhere."""
        with pytest.raises(ModelFileError, match="there is no model file"):
            read_header(tmp_path / "none.gguf")

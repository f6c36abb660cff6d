"""ggml's tensors, as far as the tap reads them.

llama-cpp-python does not bind ``struct ggml_tensor``. Its layout is that of ``ggml/include/ggml.h``
as vendored by 0.3.36, and :class:`Library` holds it against the loaded one before it is relied on.
"""

from __future__ import annotations

import ctypes

from llama_cpp import _ggml

from bmoe_core.errors import RoutingUnsupportedError


class Tensor(ctypes.Structure):
    """``struct ggml_tensor``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


OP_OFFSET: int = Tensor.op.offset
SRC_OFFSET: int = Tensor.src.offset
NAME_OFFSET: int = Tensor.name.offset


class Library:
    """The functions of ggml that the tap calls, and the numbers that it compares with.

    Attributes:
        mul_mat_id: ``GGML_OP_MUL_MAT_ID``, the operation that multiplies with routed experts.
    """

    def __init__(self) -> None:
        """Bind them.

        Raises:
            RoutingUnsupportedError: the installed llama-cpp-python has another ggml than this was
                written for.
        """
        try:
            library = _ggml.libggml
            self._tensor_get = library.ggml_backend_tensor_get
            op_name, get_name, get_data = (
                library.ggml_op_name,
                library.ggml_get_name,
                library.ggml_get_data,
            )
        except AttributeError as error:
            raise _unsupported(str(error)) from None
        self._tensor_get.argtypes = (
            *(ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_size_t, ctypes.c_size_t),
        )
        self._tensor_get.restype = None
        get_name.argtypes = get_data.argtypes = (ctypes.c_void_p,)
        get_name.restype = get_data.restype = ctypes.c_void_p
        tensor = Tensor(data=1)
        address = ctypes.addressof(tensor)
        if get_name(address) - address != NAME_OFFSET or get_data(address) != 1:
            raise _unsupported("its tensors are laid out differently")
        op_name.argtypes, op_name.restype = (ctypes.c_int,), ctypes.c_char_p
        names = [op_name(i) for i in range(64)]
        if b"MUL_MAT_ID" not in names:
            raise _unsupported("it has no operation MUL_MAT_ID")
        self.mul_mat_id = names.index(b"MUL_MAT_ID")

    def read_int32(self, address: int) -> list[list[int]]:
        """The values of a tensor of int32, row by row; its rows may lie apart."""
        tensor = Tensor.from_address(address)
        n, n_rows, stride = tensor.ne[0], tensor.ne[1], tensor.nb[1] // 4
        values = (ctypes.c_int32 * (stride * (n_rows - 1) + n))()
        self._tensor_get(address, values, 0, ctypes.sizeof(values))
        return [values[i * stride : i * stride + n] for i in range(n_rows)]


def _unsupported(reason: str) -> RoutingUnsupportedError:
    return RoutingUnsupportedError(
        f"the installed llama-cpp-python does not let the routing be read: {reason}. Install "
        "llama-cpp-python 0.3.36, or leave --routing, --cache-mb and --moe-stream out"
    )

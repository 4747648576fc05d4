"""Matrix products by cuBLAS, for prompts of many tokens.

Called through ctypes: CuPy sets the stream before each call, which takes away the workspace that was given,
and cuBLAS allocates another. Knows addresses and strides; called by cuda_device.py.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_float, c_int, c_size_t, c_void_p
from typing import Any

from kernels.errors import DeviceError

HALF = 2
FLOAT = 0
"""cudaDataType: CUDA_R_16F, CUDA_R_32F."""
_NOT_TRANSPOSED = 0
_TRANSPOSED = 1
_COMPUTE_32F = 68
"""Sums in float32; of float32 factors without TF32."""
_GEMM_DEFAULT = -1

_GEMM_TYPES = (
    *(c_void_p, c_int, c_int, c_int, c_int, c_int),
    *(POINTER(c_float), c_void_p, c_int, c_int, c_void_p, c_int, c_int),
    *(POINTER(c_float), c_void_p, c_int, c_int, c_int, c_int),
)


def workspace_bytes(compute_capability: int) -> int:
    """What NVIDIA recommends to give cuBLAS: 32 MiB from compute capability 9.0 on, 4 MiB below."""
    return (32 if compute_capability >= 90 else 4) << 20


class Cublas:
    """A handle of cuBLAS on one stream."""

    def __init__(self, library: ctypes.CDLL, stream: int, workspace: int, n_bytes: int) -> None:
        """Work on `stream`, with `n_bytes` of device memory at `workspace`. Raises DeviceError."""
        self._library = library
        self._library.cublasGemmEx.argtypes = _GEMM_TYPES
        self._library.cublasGetStatusString.restype = ctypes.c_char_p
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, c_void_p(stream))
        # After the stream: setting that puts cuBLAS's own workspace back.
        self._call("cublasSetWorkspace_v2", self._handle, c_void_p(workspace), c_size_t(n_bytes))

    def multiply(
        self,
        data_type: int,
        shape: tuple[int, int, int],
        x: tuple[int, int],
        weights: tuple[int, int],
        out: tuple[int, int],
        *,
        accumulate: bool,
    ) -> None:
        """out [T, N] (+)= x [T, K] times the transpose of weights [N, K]; `shape` is (T, N, K).

        Each matrix is its address and the elements from one row to the next. x and weights are of
        `data_type`, out is float32. cuBLAS thinks in columns, so it sees every matrix transposed: it computes
        out.T from weights.T, which it is told to transpose back, times x.T.
        """
        n_tokens, n_rows, n_columns = shape
        self._call(
            "cublasGemmEx",
            *(self._handle, _TRANSPOSED, _NOT_TRANSPOSED, n_rows, n_tokens, n_columns),
            *(byref(c_float(1.0)), weights[0], data_type, weights[1], x[0], data_type, x[1]),
            *(byref(c_float(float(accumulate))), out[0], FLOAT, out[1], _COMPUTE_32F, _GEMM_DEFAULT),
        )

    def close(self) -> None:
        """Free the handle."""
        self._call("cublasDestroy_v2", self._handle)

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise DeviceError(f"{function}: {self._library.cublasGetStatusString(status).decode()}")

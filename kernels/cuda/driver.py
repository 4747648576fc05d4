"""NVIDIA's driver by its own interface (libcuda): devices, machine code, launches, graphs.

What Python has to start in a few microseconds goes through here: CuPy has no dependent launches, and its
calls give up the GIL, which one busy Python thread then keeps for a whole switch interval. Knows no kernel,
no arrays and no CuPy. Numbers and structures are those of cuda.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from kernels.errors import DeviceError, DeviceMemoryError

COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
MULTIPROCESSOR_COUNT = 16
"""CUdevice_attribute."""
SHARED_SIZE_BYTES = 1
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""CUfunction_attribute."""

NO_GPU = "the NVIDIA driver finds no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES"

_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""
_NOT_READY = 600
"""CUDA_ERROR_NOT_READY."""
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2
"""CUevent_flags: a host that waits sleeps."""
_NON_BLOCKING = 1
"""CUstream_flags: not ordered with the default stream."""
_HASTY = -5
"""Priority of a stream: the highest that any GPU has."""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_CAPTURE_RELAXED = 2
"""Other threads may allocate meanwhile, and this one may load a kernel."""

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cuGraphUpload": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
}
"""Functions that may take long: they give up the GIL."""
_SHORT_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
}
"""Functions that only put something on a stream, or look whether it is done: they keep the GIL."""
_NEWER_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuFuncLoad": (c_void_p,),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
}
"""Functions that drivers before CUDA 12.4 do not have."""


class NoDriverError(DeviceError):
    """There is no NVIDIA driver on this machine."""


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: the geometry of a launch, its stream and its attributes."""

    _fields_ = (
        ("grid_x", c_uint),
        ("grid_y", c_uint),
        ("grid_z", c_uint),
        ("block_x", c_uint),
        ("block_y", c_uint),
        ("block_z", c_uint),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_LaunchAttribute)),
        ("n_attributes", c_uint),
    )


def dependent_launch() -> ctypes.Array[_LaunchAttribute]:
    """The attribute of a kernel that may start before the one before it in the stream ends."""
    attributes = (_LaunchAttribute * 1)()
    attributes[0].id = _PROGRAMMATIC_STREAM_SERIALIZATION
    attributes[0].value[0] = 1
    return attributes


class Driver:
    """The loaded driver. Its functions work on the CUDA context of the calling thread (CuPy makes it)."""

    def __init__(self) -> None:
        """Load and start the driver. Raises NoDriverError; DeviceError when it refuses or finds no GPU."""
        try:
            library, short = ctypes.CDLL(_LIBRARY), ctypes.PyDLL(_LIBRARY)
        except OSError:
            raise NoDriverError(f"no NVIDIA driver is installed: {_LIBRARY} is missing") from None
        self._functions: dict[str, Any] = {}
        for source, signatures in (
            (library, _SIGNATURES),
            (library, _NEWER_SIGNATURES),
            (short, _SHORT_SIGNATURES),
        ):
            for name, types in signatures.items():
                self._add(source, name, types, optional=signatures is _NEWER_SIGNATURES)
        status = self._functions["cuInit"](0)
        if status == _NO_DEVICE:
            raise DeviceError(NO_GPU)
        if status:
            self.fail(
                "the NVIDIA driver does not start (see nvidia-smi; restart the computer if it was updated)",
                status,
            )
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.cuda_version = (version.value // 1000, version.value % 1000 // 10)
        """The newest CUDA that the driver serves: (13, 0)."""
        self.launch_kernel = self._functions["cuLaunchKernelEx"]
        """cuLaunchKernelEx(config, function, parameters, None) -> status, with addresses as integers."""
        self.launch_graph = self._functions["cuGraphLaunch"]
        """cuGraphLaunch(graph, stream) -> status."""

    def _add(self, library: ctypes.CDLL, name: str, types: tuple[Any, ...], *, optional: bool) -> None:
        try:
            function = getattr(library, name)
        except AttributeError:
            if optional:
                return
            raise DeviceError(
                f"the NVIDIA driver is too old: it has no {name}; install 525 or newer"
            ) from None
        function.argtypes, function.restype = types, c_int
        self._functions[name] = function

    def call(self, function: str, *arguments: Any) -> None:
        """Call and check. Raises DeviceError with the driver's words; see `fail`."""
        status = self._functions[function](*arguments)
        if status:
            self.fail(function, status)

    def fail(self, what: str, status: int) -> None:
        """Raise the DeviceError of a status that is not zero; DeviceMemoryError where memory is wanting."""
        if status == _OUT_OF_MEMORY:
            free, total = c_size_t(), c_size_t()
            self._functions["cuMemGetInfo_v2"](byref(free), byref(total))
            raise DeviceMemoryError(0, free.value, None, 0, call=what)
        name, text = c_char_p(), c_char_p()
        self._functions["cuGetErrorName"](status, byref(name))
        self._functions["cuGetErrorString"](status, byref(text))
        words = [word.value.decode() for word in (name, text) if word.value]
        raise DeviceError(f"{what}: {': '.join(words) or f'status {status}'}")

    # ---- devices

    def n_devices(self) -> int:
        """GPUs that this process may use (CUDA_VISIBLE_DEVICES)."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def device_text(self, function: str, ordinal: int) -> str:
        """What cuDeviceGetName or cuDeviceGetPCIBusId says of a device."""
        buffer = ctypes.create_string_buffer(256)
        self.call(function, buffer, len(buffer), self._device(ordinal))
        return buffer.value.decode("utf-8", "replace")

    def total_bytes(self, ordinal: int) -> int:
        """The memory of a device."""
        size = c_size_t()
        self.call("cuDeviceTotalMem_v2", byref(size), self._device(ordinal))
        return size.value

    def attribute(self, attribute: int, ordinal: int) -> int:
        """A CUdevice_attribute of a device."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), attribute, self._device(ordinal))
        return value.value

    def compute_capability(self, ordinal: int) -> int:
        """Ten times the version: 90 for 9.0."""
        return 10 * self.attribute(COMPUTE_CAPABILITY_MAJOR, ordinal) + self.attribute(
            COMPUTE_CAPABILITY_MINOR, ordinal
        )

    def _device(self, ordinal: int) -> int:
        device = c_int()
        self.call("cuDeviceGet", byref(device), ordinal)
        return device.value

    # ---- machine code

    def load_module(self, code: bytes) -> c_void_p:
        """Bring machine code (a cubin) to the device."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), code)
        return module

    def unload_module(self, module: c_void_p) -> None:
        """Take it away again."""
        self.call("cuModuleUnload", module)

    def function(self, module: c_void_p, name: str) -> c_void_p:
        """An entry point, loaded now where the driver would leave that to the first launch."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        if "cuFuncLoad" in self._functions:
            self.call("cuFuncLoad", function)
        return function

    def function_attribute(self, attribute: int, function: c_void_p) -> int:
        """A CUfunction_attribute."""
        value = c_int()
        self.call("cuFuncGetAttribute", byref(value), attribute, function)
        return value.value

    def set_function_attribute(self, attribute: int, function: c_void_p, value: int) -> None:
        """Change a CUfunction_attribute."""
        self.call("cuFuncSetAttribute", function, attribute, value)

    def parameter_sizes(self, function: c_void_p) -> tuple[int, ...] | None:
        """Bytes of each parameter of an entry point; None where the driver cannot say."""
        if "cuFuncGetParamInfo" not in self._functions:
            return None
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        while not self._functions["cuFuncGetParamInfo"](function, len(sizes), byref(offset), byref(size)):
            sizes.append(size.value)
        return tuple(sizes)

    # ---- streams

    def create_stream(self) -> int:
        """A stream of its own, whose kernels go before those of others that have not begun."""
        stream = c_void_p()
        self.call("cuStreamCreateWithPriority", byref(stream), _NON_BLOCKING, _HASTY)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Free a stream once all that is on it is done; does not wait."""
        self.call("cuStreamDestroy_v2", stream)

    def create_event(self, *, timing: bool) -> int:
        """An event that is on no stream yet."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), _BLOCKING_SYNC | (0 if timing else _DISABLE_TIMING))
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        """Free an event; streams that wait for it still do."""
        self.call("cuEventDestroy_v2", event)

    def record_event(self, event: int, stream: int) -> None:
        """Put `event` on `stream`."""
        self.call("cuEventRecord", event, stream)

    def event_is_reached(self, event: int) -> bool:
        """Whether all before it is done."""
        status = self._functions["cuEventQuery"](event)
        if status not in (0, _NOT_READY):
            self.fail("the GPU failed", status)
        return not status

    def wait_for_event(self, event: int) -> None:
        """Sleep until all before it is done."""
        status = self._functions["cuEventSynchronize"](event)
        if status:
            self.fail("the GPU failed", status)

    def seconds_between(self, start: int, end: int) -> float:
        """By the GPU's clock, of two events that are reached and keep the time."""
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def stream_waits(self, stream: int, event: int) -> None:
        """What is put on `stream` from now on waits for `event`."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def copy_from_locked(self, to: int, host: int, n_bytes: int, stream: int) -> None:
        """Put a copy from page-locked memory on `stream`; from other memory it would keep the GIL."""
        self.call("cuMemcpyHtoDAsync_v2", to, host, n_bytes, stream)

    def begin_capture(self, stream: int) -> None:
        """Record what is put on `stream` from now on, instead of running it."""
        self.call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)

    def end_capture(self, stream: int) -> c_void_p:
        """The graph of what was recorded."""
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        return graph

    def instantiate(self, graph: c_void_p, stream: int) -> c_void_p:
        """An executable graph, brought to the device; `graph` is used up."""
        executable = c_void_p()
        try:
            self.call("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
        finally:
            self.call("cuGraphDestroy", graph)
        try:
            self.call("cuGraphUpload", executable, stream)
        except DeviceError:
            self.destroy_graph(executable)
            raise
        return executable

    def destroy_recording(self, graph: c_void_p) -> None:
        """Free a graph that is not to be instantiated."""
        self.call("cuGraphDestroy", graph)

    def destroy_graph(self, executable: c_void_p) -> None:
        """Free an executable graph once it has run."""
        self.call("cuGraphExecDestroy", executable)

"""What can go wrong on a GPU, in words for whoever reads them; the engine turns these into its own errors.

DeviceError                the GPU, its driver or CuPy refused; the message has the call and the reason
├── CompileError           NVRTC is missing, or a kernel does not compile
└── DeviceMemoryError      memory that is not there, or that the budget forbids
"""

from __future__ import annotations


class DeviceError(Exception):
    """The GPU, its driver or a library of it refused a call."""


class CompileError(DeviceError):
    """NVRTC cannot be loaded, or a kernel does not compile; the message has the source and first error."""


class DeviceMemoryError(DeviceError):
    """An allocation on the GPU that cannot be made. All sizes in bytes."""

    def __init__(self, asked: int, free: int, budget: int | None, used: int, call: str = "") -> None:
        """`asked` for now; `free` on the device; `budget` of this process (None: no limit), `used` of it.

        `call` is what the driver refused where it says not how much that takes.
        """
        within = "" if budget is None else f"; {used} of the budget of {budget} bytes are in use"
        what = call or f"{asked} bytes"
        super().__init__(f"no room on the GPU for {what}: {free} bytes are free on it{within}")
        self.asked = asked
        """Bytes of the allocation that failed; 0 where the driver does not say."""
        self.free = free
        """Bytes that were free on the device."""
        self.budget = budget
        """The most that this process may allocate, or None."""
        self.used = used
        """Bytes that were already allocated."""

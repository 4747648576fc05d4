/* The kernels for AArch64, whose base set has NEON. */
#if defined(__aarch64__)
#include "cpu.h"
#include "simd_neon.h"
#include "table.h"

KERNEL_TABLE(neon, "neon");
#endif

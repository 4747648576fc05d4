/* The kernels in plain C. */
#include "cpu.h"
#include "simd_portable.h"
#include "table.h"

KERNEL_TABLE(portable, "portable");

/* The kernels for AArch64 with the dot product instructions (optional from Armv8.2 on). */
#if defined(__aarch64__)
#include "target.h"
#if !defined(__clang__)
TARGET("arch=armv8.2-a+dotprod")
#else
TARGET("dotprod")
#ifndef __ARM_FEATURE_DOTPROD /* Clang's attribute does not define what arm_neon.h and simd_neon.h ask for */
#define __ARM_FEATURE_DOTPROD 1
#endif
#endif
#include "cpu.h"
#include "simd_neon.h"
#include "table.h"

KERNEL_TABLE(neon_dotprod, "neon-dotprod");
TARGET_END
#endif

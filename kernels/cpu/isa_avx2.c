/* The kernels for x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c")
#include "cpu.h"
#include "simd_avx2.h"
#include "table.h"

KERNEL_TABLE(avx2, "avx2");
TARGET_END
#endif

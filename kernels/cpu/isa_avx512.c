/* The kernels for x86-64 with AVX-512 F, BW, DQ, VL and VNNI. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "cpu.h"
#include "simd_avx512.h"
#include "table.h"

KERNEL_TABLE(avx512, "avx512");
TARGET_END
#endif

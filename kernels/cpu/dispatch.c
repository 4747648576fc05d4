/* Which instruction set this processor runs, and sizes of the quant blocks. */
#include <string.h>

#include "cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
static bool neon_has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
static bool neon_has_dotprod(void) {
  int has = 0;
  size_t size = sizeof has;
  return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) && has;
}
#elif defined(__aarch64__)
static bool neon_has_dotprod(void) { return false; }
#endif

/* Best first. */
static const struct kernels *const SETS[] = {
#if defined(__x86_64__)
    &kernels_avx512, &kernels_avx2,
#endif
#if defined(__aarch64__)
    &kernels_neon_dotprod, &kernels_neon,
#endif
    &kernels_portable,
};

static bool runs_here(const struct kernels *set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  /* F16C came before AVX2, and not every compiler can ask for it. */
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == &kernels_avx2) return avx2;
  if (set == &kernels_avx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#endif
#if defined(__aarch64__)
  if (set == &kernels_neon_dotprod) return neon_has_dotprod();
#endif
  (void)set;
  return true;
}

const struct kernels *kernels_select(const char *name) {
  for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++)
    if ((!name || !strcmp(name, SETS[i]->name)) && runs_here(SETS[i])) return SETS[i];
  return NULL;
}

int64_t block_size(int type) {
  switch (type) {
    case TYPE_F32: case TYPE_F16: case TYPE_BF16: return 1;
    case TYPE_Q4_0: case TYPE_Q4_1: case TYPE_Q5_0: case TYPE_Q5_1: case TYPE_Q8_0: return 32;
    case TYPE_Q2_K: case TYPE_Q3_K: case TYPE_Q4_K: case TYPE_Q5_K: case TYPE_Q6_K: return 256;
    default: return 0;
  }
}

int64_t block_bytes(int type) {
  switch (type) {
    case TYPE_F32: return 4;
    case TYPE_F16: case TYPE_BF16: return 2;
    case TYPE_Q4_0: return 18;
    case TYPE_Q4_1: return 20;
    case TYPE_Q5_0: return 22;
    case TYPE_Q5_1: return 24;
    case TYPE_Q8_0: return 34;
    case TYPE_Q2_K: return 84;
    case TYPE_Q3_K: return 110;
    case TYPE_Q4_K: return 144;
    case TYPE_Q5_K: return 176;
    case TYPE_Q6_K: return 210;
    default: return 0;
  }
}

bool is_float_type(int type) { return type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16; }

int64_t matmul_scratch(int64_t cols) {
  int64_t packed = rows_together(cols) * spans_of(cols) * UNPACKED_BYTES;
  int64_t rows = 4 * (cols + LANES) * (int64_t)sizeof(float);
  return packed > rows ? packed : rows;
}

// A matrix of any type times 1 to 8 columns of floats; gemv.cuh says how rows and warps are laid out.
//
// x [COLUMNS][x_stride], out [COLUMNS][out_stride]. Weights are expanded to floats as they are in dequantize.cu; a
// column's sum does not depend on how many columns there are. Reads the matrix once; x comes from L1.
#include "gemv.cuh"

#ifndef COLUMNS
#error "COLUMNS: 1 to 8"
#endif

DEVICE float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

KERNEL RESIDENT(16)
gemv_float(const u8 *weights, const float *x, int x_stride, float *out, int n_rows, int out_stride) {
  let_next_start();
  auto add = [&](const W::Raw *raw, int chunk, int lane, float (*sums)[COLUMNS]) {
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
      const int element = chunk * CHUNK + w * 16 + lane * 4;
      // x has no padding.
      if (WIDTH % CHUNK != 0 && element >= WIDTH) continue;
      float4 weight[ROWS];
#pragma unroll
      for (int k = 0; k < ROWS; k++) weight[k] = W::values(raw[k], chunk, w);
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        const uint4 bits = load16(x + (u64)n * x_stride + element);
        const float4 v = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                                     __uint_as_float(bits.w));
#pragma unroll
        for (int k = 0; k < ROWS; k++) sums[k][n] = dot(weight[k], v, sums[k][n]);
      }
    }
  };
  multiply_rows<COLUMNS>(weights, out, n_rows, out_stride, add);
}

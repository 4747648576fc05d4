// activation(gate) * up for each token as half floats with a scale for the row: one block a token.
//
// Input as in gated.cu. The row's maximum is needed before the first value can be written: the values are
// computed twice, the second time from the cache, rather than kept, since a row may have 28,672 of them.
#include "gated.cuh"
#include "ptx.cuh"
#include "reduction.cuh"
#include "rounding.cuh"

KERNEL gated_half(const float *input, const float *scales, u16 *halves, float *half_scales, int n_columns) {
  __shared__ u32 maxima[32];
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.x, stride = blockDim.x * 4;
  const float *row = input + token * input_stride(n_columns);
  const float scale = scales ? scales[token] : 1.0f;
  u32 top = 0;
  for (int column = threadIdx.x * 4; column < n_columns; column += stride)
    top = max(top, magnitude(inner_values(row, scale, column, n_columns)));
  const HalfScale half = half_scale(block_largest(top, maxima));
  halves += (u64)token * n_columns;
  for (int column = threadIdx.x * 4; column < n_columns; column += stride)
    store_halves(halves + column, inner_values(row, scale, column, n_columns), half.up);
  if (threadIdx.x == 0) half_scales[token] = half.back;
}

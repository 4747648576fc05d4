// activation(gate) * up for each token, rounded to 15 bits or as floats: a warp takes a chunk of 128 columns.
//
// Input rows are gate then up, [2 n_columns]; plain values, [n_columns], where ACTIVATION is NONE. `scales`
// (may be null) holds a factor for each token's gate and up. Grid: (chunks / warps of a block, tokens).
#include "gated.cuh"
#include "ptx.cuh"
#include "rounding.cuh"

KERNEL gated(const float *input, const float *scales, u8 *q, float *d, float *s, float *floats,
             int n_columns) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  const float scale = scales ? scales[token] : 1.0f;
  const float4 v = inner_values(input + token * input_stride(n_columns), scale, column, n_columns);
  if (q) round_four(rounded_row(q, d, s, token, (n_columns + 127) / 128 * 128), column, v);
  if (floats && column < n_columns) *(float4 *)(floats + (u64)token * n_columns + column) = v;
}

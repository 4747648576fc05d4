// Rows of a matrix by the ids of tokens, times a factor: ids [T] -> out f32 [T][WIDTH].
//
// A thread takes what one lane holds of one chunk. Grid: (pieces of a row / threads of a block, T).
#include "formats.cuh"

#ifndef FORMAT
#error "FORMAT: a quant type"
#endif
#ifndef WIDTH
#error "WIDTH: weights of a row"
#endif

KERNEL embedding(const u8 *matrix, const int *ids, float *out, int n_rows, float scale) {
  let_next_start();
  wait_for_previous();
  using W = Weights<FORMAT, WIDTH>;
  const int piece = blockIdx.x * blockDim.x + threadIdx.x, chunk = piece / LANES, lane = piece % LANES;
  if (chunk >= W::CHUNKS) return;
  const W::Raw raw = W::load(W::planes(matrix, n_rows), ids[blockIdx.y], chunk, lane);
  float *row = out + (u64)blockIdx.y * WIDTH;
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const int element = chunk * CHUNK + w * 16 + lane * 4;
    const float4 v = W::values(raw, chunk, w);
    if (element < WIDTH) *(float4 *)(row + element) = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
  }
}

// The way of x to shared memory and from there to registers, for gemv_columns.cu.
#pragma once
#include "columns.cuh"

// What each lane copies of x. Column g of B is column g % COLUMNS of x, its low bytes from g = 4 on if side by side.
struct Source {
  const u8 *fragment, *sums, *steps;
  bool has_fragment, has_sums;
};

DEVICE Source source_of(const u8 *q, const float *d, const float *s, int n_columns, int lane) {
  Source from;
  const int column = lane / 4 % COLUMNS;
  from.has_fragment = column < n_columns;
  from.fragment = q + column * (2 * PADDED) + (SIDE_BY_SIDE && lane >= 16 ? PADDED : 0) + lane % 4 * 16;
  from.has_sums = lane / 2 < n_columns;
  from.sums = (const u8 *)(s + lane / 2 * (PADDED / 16)) + lane % 2 * 16;
  // A column that is not there has another's step; nobody asks for its sums.
  from.steps = (const u8 *)(d + min(lane % COLUMNS, n_columns - 1) * W::CHUNKS);
  return from;
}

// Copies this warp's share of chunks first..last-1; zeros for columns that are not there.
DEVICE void copy_chunks(u8 *to, const Source &from, int first, int last, int warp, int lane) {
#pragma unroll 2
  for (int chunk = first + warp; chunk < last; chunk += WARPS) {
    u8 *const at = to + (chunk - first) * CHUNK_BYTES;
    const u8 *const fragment = from.fragment + chunk * (LANES * 16);
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
      copy_async16(at + i * 512 + lane * 16, fragment + i * (PADDED / 2), from.has_fragment);
    if (SUBTRACTS && lane < 2 * COLUMNS)
      copy_async16(at + SUMS_AT + lane * 16, from.sums + chunk * 32, from.has_sums);
    if (lane < COLUMNS) copy_async4(at + STEPS_AT + lane * 4, from.steps + chunk * 4);
  }
}

// What a lane needs of x for one chunk: words of its column of B, steps of columns 2t and 2t + 1.
struct Activations {
  u32 words[PARTS][WORDS];
  float steps[2];
};

DEVICE Activations activations(const u8 *chunk, int lane) {
  Activations x;
#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++) {
    const uint4 v = *(const uint4 *)(chunk + i * 512 + lane * 16);
    u32 *words = x.words[i / 2] + 4 * (i % 2);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
  const float2 steps = *(const float2 *)(chunk + STEPS_AT + 2 * (lane % 4) % COLUMNS * 4);
  x.steps[0] = steps.x, x.steps[1] = steps.y;
  return x;
}

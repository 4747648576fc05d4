// Add an update to the residual stream and normalise it: one block a token, one pass over memory.
//
//   u = update * update_scale;  u = rmsnorm(u) * post_weight;  x += u;  out = rmsnorm(x) * weight
// Pointers may be null: no update, no scale, no norm of the update; without `weight` only x is written. `out`
// goes to each of the places that are given: rounded to 15 bits, as half floats with a scale for the row, as
// floats. A decode step has this 2 n_layers + 1 times, each time between two products that wait for it: a
// thread holds 4 CHUNKS values in registers, and the weights are on their way before the product is done.
#include "ptx.cuh"
#include "reduction.cuh"
#include "rounding.cuh"

#ifndef CHUNKS
#error "CHUNKS: how many chunks of 128 columns a warp holds"
#endif

// Four chunks and both weights would not fit 64 registers: `weight` is then loaded when the update is added.
static constexpr bool WEIGHT_EARLY = CHUNKS < 4;

DEVICE float squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }
DEVICE float4 product(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
DEVICE float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

KERNEL __launch_bounds__(1024)
rmsnorm(float *x, const float *weight, const float *update, const float *update_scale,
        const float *post_weight, u8 *q, float *d, float *s, u16 *halves, float *half_scales, float *floats,
        int n_columns, float eps) {
  __shared__ float update_sums[32], sums[32];
  __shared__ u32 maxima[32];
  let_next_start();
  const int token = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const int first = warp * 128 + lane * 4, stride = n_warps * 128;  // a lane's column of each chunk
  const u64 row = (u64)token * n_columns;
  const float share = 1.0f / n_columns;
  float4 values[CHUNKS], added[CHUNKS], weights[CHUNKS], post_weights[CHUNKS];
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    if (post_weight) post_weights[i] = load_four(post_weight, first + i * stride, n_columns);
    if (WEIGHT_EARLY && weight) weights[i] = load_four(weight, first + i * stride, n_columns);
  }
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    values[i] = load_four(x + row, first + i * stride, n_columns);
    if (update) added[i] = load_four(update + row, first + i * stride, n_columns);
  }
  if (update) {
    if (update_scale) {
      const float by = update_scale[token];
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) added[i] = scaled(added[i], by);
    }
    if (post_weight) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) total += squares(added[i]);
      const float by = rsqrtf(block_sum(total, update_sums) * share + eps);
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) added[i] = product(scaled(added[i], by), post_weights[i]);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      values[i] = sum(values[i], added[i]);
      if (first + i * stride < n_columns) *(float4 *)(x + row + first + i * stride) = values[i];
    }
  }
  if (!weight) return;

  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    if (!WEIGHT_EARLY) weights[i] = load_four(weight, first + i * stride, n_columns);
    total += squares(values[i]);
  }
  const float by = rsqrtf(block_sum(total, sums) * share + eps);
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) values[i] = product(scaled(values[i], by), weights[i]);

  if (q) {
    const RoundedRow out = rounded_row(q, d, s, token, (n_columns + 127) / 128 * 128);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) round_four(out, first + i * stride, values[i]);
  }
  if (halves) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) top = max(top, magnitude(values[i]));
    const HalfScale half = half_scale(block_largest(top, maxima));
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
      if (first + i * stride < n_columns) store_halves(halves + row + first + i * stride, values[i], half.up);
    if (threadIdx.x == 0) half_scales[token] = half.back;
  }
  if (floats) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
      if (first + i * stride < n_columns) *(float4 *)(floats + row + first + i * stride) = values[i];
  }
}

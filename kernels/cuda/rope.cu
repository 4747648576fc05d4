// Heads of a prompt's tokens on their way to attention: norms and rotation, and keys and values into the cache.
//
// Reads the product's rows, f32 [T][(HEADS + 2 KV_HEADS) * HEAD_DIM]: queries, keys, values; `row_scale` [T], if
// not null, multiplies them. cosines and sines f32 [positions][ROPE_DIM / 2]. Writes q [T][HEADS][HEAD_DIM] times
// query_scale, f16 (f32 with KV_F32), and keys and values of positions state[0] + t into the cache (attention.cuh
// has its layout). A warp takes one head of one token. Grid (heads of all three / WARPS, T).
#include "ptx.cuh"
#include "attention.cuh"
#include "rope.cuh"

#ifndef HEADS
#error "HEADS: query heads"
#endif
#ifndef KV_HEADS
#error "KV_HEADS: heads of keys, and of values"
#endif

constexpr int WARPS = 4;

KERNEL __launch_bounds__(WARPS * 32)
rope(const float *x, const float *row_scale, const float *q_weight, const float *k_weight, float eps,
     const float *cosines, const float *sines, const int *state, float query_scale, u8 *q, u8 *keys, u8 *values,
     u64 head_bytes) {
  __shared__ __align__(16) float scratch[WARPS][HEAD_DIM];
  let_next_start();
  wait_for_previous();
  const int warp = threadIdx.x / 32, token = blockIdx.y, index = blockIdx.x * WARPS + warp;
  if (index >= HEADS + 2 * KV_HEADS) return;
  const bool is_query = index < HEADS, is_value = index >= HEADS + KV_HEADS;
  const int position = state[0] + token;
  Head head;
  head.load(x + ((u64)token * (HEADS + 2 * KV_HEADS) + index) * HEAD_DIM, row_scale ? row_scale[token] : 1.0f);
  if (!is_value) {
    const u64 at = (u64)position * (ROPE_DIM / 2);
    head.turn(is_query ? q_weight : k_weight, eps, cosines + at, sines + at, scratch[warp]);
  }
  if (is_query) {
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int four = threadIdx.x % 32 + 32 * i;
      if (four >= FOURS) continue;
      const u64 place = ((u64)token * HEADS + index) * FOURS + four;
      const float4 v = scaled(head.v[i], query_scale);
      if (KV_TYPE == KV_F32) ((float4 *)q)[place] = v;
      else ((uint2 *)q)[place] = make_uint2(pack_halves(v.x, v.y), pack_halves(v.z, v.w));
    }
    return;
  }
  const u64 tile = (u64)(position / TILE) * TILE_BYTES;
  if (is_value) head.store_values(values + (index - HEADS - KV_HEADS) * head_bytes + tile, position % TILE);
  else head.store_keys(keys + (index - HEADS) * head_bytes + tile, position % TILE);
}

// What lies between the products of a layer and its attention: norms of the heads, rotation, new keys and values.
//
//   q, k: rmsnorm over the head where NORMS is 1; then the first ROPE_DIM dims are turned: pairs (a, b) of dims 2i and
//   2i + 1, with NEOX 1 of dims i and i + ROPE_DIM / 2, become (a cos - b sin, a sin + b cos)
// Reads the product's rows, f32 [T][(HEADS + 2 KV_HEADS) * HEAD_DIM]: queries, keys, values; `row_scale` [T], if not
// null, multiplies them. cos and sin f32 [positions][ROPE_DIM / 2]. Writes q [T][HEADS][HEAD_DIM] times query_scale, f16
// (f32 with KV_F32), and keys and values of positions state[0] + t into the cache (attention.cuh has its layout).
// A warp takes one head of one token, 4 neighbouring dims a lane. Grid (heads of all three / WARPS, T).
#include "ptx.cuh"
#include "attention.cuh"

#ifndef HEADS
#error "HEADS: query heads"
#endif
#ifndef KV_HEADS
#error "KV_HEADS: heads of keys, and of values"
#endif
#ifndef ROPE_DIM
#error "ROPE_DIM: leading dims of a head that are turned, even"
#endif
#ifndef NEOX
#error "NEOX: 1 where pairs are half of ROPE_DIM apart, 0 where they are neighbours"
#endif
#ifndef NORMS
#error "NORMS: 1 where heads of queries and keys are normalised"
#endif

constexpr int WARPS = 4;
constexpr int FOURS = HEAD_DIM / 4;        // of a head
constexpr int TURNS = (FOURS + 31) / 32;   // of a warp through them

// The step of 8-bit values: that of the 8 lanes that hold a group of 32. A half float, and so is what is stored.
DEVICE float group_step(float4 v) {
  float top = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
  for (int o = 4; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
  return half_to_float(float_to_half(top * (1.0f / 127.0f)));
}
DEVICE u32 byte(float v, float per_step) { return (u32)max(-127, min(127, __float2int_rn(v * per_step))) & 0xffu; }

// The rotated value of dim `dim` of a head.
DEVICE float rotated(const float *head, int dim, const float *cosines, const float *sines) {
  if (dim >= ROPE_DIM) return head[dim];
  const int half = ROPE_DIM / 2;
  const bool is_second = NEOX ? dim >= half : dim % 2;
  const int pair = NEOX ? dim - (is_second ? half : 0) : dim / 2, distance = NEOX ? half : 1;
  return is_second ? head[dim - distance] * sines[pair] + head[dim] * cosines[pair]
                   : head[dim] * cosines[pair] - head[dim + distance] * sines[pair];
}

KERNEL __launch_bounds__(WARPS * 32)
rope(const float *x, const float *row_scale, const float *q_weight, const float *k_weight, float eps,
     const float *cosines, const float *sines, const int *state, float query_scale, u8 *q, u8 *keys, u8 *values,
     u64 head_bytes) {
  __shared__ float4 heads[WARPS][FOURS];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.y;
  const int index = blockIdx.x * WARPS + warp;
  if (index >= HEADS + 2 * KV_HEADS) return;
  const bool is_query = index < HEADS, is_value = index >= HEADS + KV_HEADS;
  const float *const weight = is_query ? q_weight : k_weight;
  const int position = state[0] + token;
  const float scale = row_scale ? row_scale[token] : 1.0f;
  const float4 *const from = (const float4 *)x + ((u64)token * (HEADS + 2 * KV_HEADS) + index) * FOURS;
  float4 v[TURNS];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const int four = lane + 32 * i;
    const float4 read = four < FOURS ? from[four] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    v[i] = make_float4(read.x * scale, read.y * scale, read.z * scale, read.w * scale);
    squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
  }
  if (!is_value) {
    const float by = NORMS ? rsqrtf(warp_sum(squares) * (1.0f / HEAD_DIM) + eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int four = lane + 32 * i;
      if (four >= FOURS) continue;
      const float4 w = NORMS ? ((const float4 *)weight)[four] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      heads[warp][four] = make_float4(v[i].x * by * w.x, v[i].y * by * w.y, v[i].z * by * w.z, v[i].w * by * w.w);
    }
    __syncwarp();
    const float *const head = (const float *)heads[warp];
    const float *const c = cosines + (u64)position * (ROPE_DIM / 2), *const s = sines + (u64)position * (ROPE_DIM / 2);
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int dim = 4 * (lane + 32 * i);
      if (dim < HEAD_DIM)
        v[i] = make_float4(rotated(head, dim, c, s), rotated(head, dim + 1, c, s), rotated(head, dim + 2, c, s),
                           rotated(head, dim + 3, c, s));
    }
  }

  const int kv_head = is_value ? index - HEADS - KV_HEADS : index - HEADS, p = position % TILE;
  u8 *const tile = (is_value ? values : keys) + kv_head * head_bytes + (u64)(position / TILE) * TILE_BYTES;
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const int dim = 4 * (lane + 32 * i);
    // All lanes: a group may end where its head does.
    const float step = KV_TYPE == KV_Q8_0 ? group_step(v[i]) : 0.0f, per_step = step > 0.0f ? 1.0f / step : 0.0f;
    if (dim >= HEAD_DIM) continue;
    const float all[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if (is_query) {
      const u64 at = ((u64)token * HEADS + index) * HEAD_DIM + dim;
      const float4 scaled = make_float4(all[0] * query_scale, all[1] * query_scale, all[2] * query_scale, all[3] * query_scale);
      if (KV_TYPE == KV_F32) *(float4 *)(q + 4 * at) = scaled;
      else *(uint2 *)(q + 2 * at) = make_uint2(pack_halves(scaled.x, scaled.y), pack_halves(scaled.z, scaled.w));
    } else if (KV_TYPE == KV_F32) {
      *(float4 *)(tile + (p * HEAD_DIM + dim) * 4) = v[i];
    } else if (KV_TYPE == KV_F16 && is_value) {
#pragma unroll
      for (int j = 0; j < 4; j++) *(u16 *)(tile + value_offset(p, dim + j)) = float_to_half(all[j]);
    } else if (KV_TYPE == KV_F16) {
      *(uint2 *)(tile + key_offset(p, dim)) = make_uint2(pack_halves(all[0], all[1]), pack_halves(all[2], all[3]));
    } else if (is_value) {
#pragma unroll
      for (int j = 0; j < 4; j++) tile[value_offset(p, dim + j)] = (u8)byte(all[j], per_step);
      if (dim % 32 == 0) *(u16 *)(tile + value_step_offset(p, dim / 32)) = float_to_half(step);
    } else {
      *(u32 *)(tile + key_offset(p, dim)) = byte(all[0], per_step) | byte(all[1], per_step) << 8 |
                                            byte(all[2], per_step) << 16 | byte(all[3], per_step) << 24;
      if (dim % 32 == 0) *(u16 *)(tile + key_step_offset(p, dim / 32)) = float_to_half(step);
    }
  }
}

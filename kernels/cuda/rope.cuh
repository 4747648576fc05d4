// A head of queries, keys or values between its product and attention, held by a warp: 4 neighbouring dims a lane.
//
// Queries and keys: rmsnorm over the head where NORMS is 1; then the first ROPE_DIM dims are turned: pairs (a, b)
// of dims 2i and 2i + 1, with NEOX 1 of dims i and i + ROPE_DIM / 2, become (a cos - b sin, a sin + b cos).
#pragma once
#include "attention.cuh"
#include "ptx.cuh"

#ifndef ROPE_DIM
#error "ROPE_DIM: leading dims of a head that are turned, even"
#endif
#ifndef NEOX
#error "NEOX: 1 where pairs are half of ROPE_DIM apart, 0 where they are neighbours"
#endif
#ifndef NORMS
#error "NORMS: 1 where heads of queries and keys are normalised"
#endif

constexpr int FOURS = HEAD_DIM / 4;       // of a head
constexpr int TURNS = (FOURS + 31) / 32;  // of a warp through them

DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }

// Dims 4 (lane + 32 i) onwards in v[i]; zeros beyond the head.
struct Head {
  float4 v[TURNS];

  DEVICE void load(const float *head, float scale) {
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int four = threadIdx.x % 32 + 32 * i;
      v[i] = four < FOURS ? scaled(((const float4 *)head)[four], scale) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  // `scratch` is HEAD_DIM floats of shared memory of the warp's own; cosines and sines are those of the position.
  DEVICE void turn(const float *weight, float eps, const float *cosines, const float *sines, float *scratch) {
    // A dim becomes own[dim] * head[dim] + other[dim] * head[its partner]. Loaded before the head is waited for.
    float own[TURNS][4], other[TURNS][4];
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int dim = 4 * (threadIdx.x % 32 + 32 * i) + j, half = ROPE_DIM / 2;
        const int pair = NEOX ? dim % half : dim / 2;
        const bool turns = dim < ROPE_DIM;
        own[i][j] = turns ? cosines[pair] : 1.0f;
        other[i][j] = turns ? (is_second(dim) ? sines[pair] : -sines[pair]) : 0.0f;
      }
    float by = 1.0f;
    if (NORMS) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < TURNS; i++)
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
      by = rsqrtf(warp_sum(squares) * (1.0f / HEAD_DIM) + eps);
    }
    __syncwarp();  // the head before is done with
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int four = threadIdx.x % 32 + 32 * i;
      if (four >= FOURS) continue;
      v[i] = scaled(v[i], by);
      if (NORMS) {
        const float4 w = ((const float4 *)weight)[four];
        v[i] = make_float4(v[i].x * w.x, v[i].y * w.y, v[i].z * w.z, v[i].w * w.w);
      }
      ((float4 *)scratch)[four] = v[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int dim = 4 * (threadIdx.x % 32 + 32 * i);
      if (dim >= HEAD_DIM) continue;
      v[i].x = v[i].x * own[i][0] + scratch[partner(dim)] * other[i][0];
      v[i].y = v[i].y * own[i][1] + scratch[partner(dim + 1)] * other[i][1];
      v[i].z = v[i].z * own[i][2] + scratch[partner(dim + 2)] * other[i][2];
      v[i].w = v[i].w * own[i][3] + scratch[partner(dim + 3)] * other[i][3];
    }
  }

  // Into the tile that holds the position, as its place p (0..15) there.
  DEVICE void store_keys(u8 *tile, int p) const { store<false>(tile, p); }
  DEVICE void store_values(u8 *tile, int p) const { store<true>(tile, p); }

 private:
  static DEVICE bool is_second(int dim) { return NEOX ? dim >= ROPE_DIM / 2 : dim % 2; }
  static DEVICE int partner(int dim) {
    const int distance = NEOX ? ROPE_DIM / 2 : 1;
    return dim >= ROPE_DIM ? dim : is_second(dim) ? dim - distance : dim + distance;
  }

  // The step of 8-bit values: that of the 8 lanes that hold a group of 32. A half float, for so it is stored.
  static DEVICE float group_step(float4 v) {
    float top = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int o = 4; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    return half_to_float(float_to_half(top * (1.0f / 127.0f)));
  }
  static DEVICE u32 byte(float v, float per_step) {
    return (u32)max(-127, min(127, __float2int_rn(v * per_step))) & 0xffu;
  }

  template <bool VALUES> DEVICE void store(u8 *tile, int p) const {
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int dim = 4 * (threadIdx.x % 32 + 32 * i);
      // All lanes: a group may end where its head does.
      const float step = KV_TYPE == KV_Q8_0 ? group_step(v[i]) : 0.0f, per_step = step > 0.0f ? 1.0f / step : 0.0f;
      if (dim >= HEAD_DIM) continue;
      const float all[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
      if (KV_TYPE == KV_F32) {
        *(float4 *)(tile + (p * HEAD_DIM + dim) * 4) = v[i];
      } else if (KV_TYPE == KV_F16 && VALUES) {
#pragma unroll
        for (int j = 0; j < 4; j++) *(u16 *)(tile + value_offset(p, dim + j)) = float_to_half(all[j]);
      } else if (KV_TYPE == KV_F16) {
        uint2 *const to = (uint2 *)(tile + key_offset(p, dim));
        *to = make_uint2(pack_halves(all[0], all[1]), pack_halves(all[2], all[3]));
      } else if (VALUES) {
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
};

// Activations rounded to 15 bits, in the order in which the products read them.
//
// A token's values are cut into chunks of 128, the last one filled up with zeros. A chunk has a step d = max|x| / 16256
// and whole numbers q = round(x / d), kept as two signed bytes: hi = (q + 64) >> 7 and lo = q - 128 * hi. One step for
// a whole chunk lets products add up its groups of 32 as whole numbers. Planes of one token (formats.cuh has the order
// of the weights, which is the same):
//   q  [4][columns / 2]  hi words 0..3, hi 4..7, lo 0..3, lo 4..7; those of chunk c, lane t at 16 * (4c + t)
//   d  [columns / 128]   the step
//   s  [columns / 16]    the step times the sum of q over half a group: what a weight's minimum multiplies
// A chunk that holds an infinity or a NaN gets the step NaN: whatever is computed from it shows that.
#pragma once
#include "ptx.cuh"

#define LARGEST_ROUNDED 16256.0f
// Chunks below this are zeros: 16256 / max would overflow long before the values mean anything.
#define SMALLEST_ROUNDED 1e-30f
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)
#define FIRST_NOT_FINITE 0x7f800000u

// Bits of |v|: as whole numbers they are in the order of the values, with NaNs, which fmaxf drops, on top.
DEVICE u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
DEVICE u32 magnitude(float4 v) {
  return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}

// Four values of a row from `column` on, a multiple of 4 as n_columns is; zeros beyond the row.
DEVICE float4 load_four(const float *row, int column, int n_columns) {
  if (column >= n_columns) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const uint4 v = load16(row + column);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

// Where one token's rounded values go.
struct RoundedRow {
  u8 *q;
  float *d, *s;
  int n_columns;  // padded: a multiple of 128
};

// Token `token` of buffers of T tokens; n_columns is padded.
DEVICE RoundedRow rounded_row(u8 *q, float *d, float *s, int token, int n_columns) {
  RoundedRow row;
  row.q = q + (u64)token * 2 * n_columns;
  row.d = d + (u64)token * (n_columns / 128);
  row.s = s + (u64)token * (n_columns / 16);
  row.n_columns = n_columns;
  return row;
}

// Round a warp's chunk: each lane the values of columns column..column+3, column = 128 * chunk + 4 * lane. All 32 lanes
// call it; those whose column is beyond the padded row write nothing, and hold zeros or are all beyond it.
DEVICE void round_four(const RoundedRow &row, int column, float4 v) {
  u32 top = magnitude(v);
#pragma unroll
  for (int o = 16; o; o >>= 1) top = max(top, __shfl_xor_sync(0xffffffffu, top, o));
  const bool finite = top < FIRST_NOT_FINITE;
  const bool kept = finite && top >= __float_as_uint(SMALLEST_ROUNDED);
  const float step = kept ? __uint_as_float(top) * (1.0f / LARGEST_ROUNDED) : finite ? 0.0f : NOT_A_NUMBER;
  const float per_step = kept ? LARGEST_ROUNDED / __uint_as_float(top) : 0.0f;
  const float values[4] = {v.x, v.y, v.z, v.w};
  int q[4];
  u32 high = 0, low = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    q[i] = kept ? __float2int_rn(values[i] * per_step) : 0;
    const int hi = (q[i] + 64) >> 7;
    high |= (u32)(hi & 0xff) << (8 * i);
    low |= (u32)((q[i] - 128 * hi) & 0xff) << (8 * i);
  }
  int sum = q[0] + q[1] + q[2] + q[3];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (column >= row.n_columns) return;
  const int word = column % 128 / 16, lane = column % 16 / 4, plane = row.n_columns / 2;
  u8 *to = row.q + (word / 4) * plane + (4 * (column / 128) + lane) * 16 + (word % 4) * 4;
  *(u32 *)to = high;
  *(u32 *)(to + 2 * plane) = low;
  if (column % 128 == 0) row.d[column / 128] = step;
  if (column % 16 == 0) row.s[column / 16] = step * (float)sum;
}

// ---- rows as half floats, which cannot hold every model's values: each row is moved to their middle

// The power of two `up` that brings a row's largest |value| into [2048, 4096), and `back`, its inverse.
struct HalfScale {
  float up, back;
};

// From the largest magnitude() of a row. Rows of less than 2^-115 become zeros; `back` is NaN for a row that
// holds an infinity or a NaN.
DEVICE HalfScale half_scale(u32 top) {
  HalfScale scale = {1.0f, 1.0f};
  const u32 exponent = top >> 23;
  if (top >= FIRST_NOT_FINITE) {
    scale.back = NOT_A_NUMBER;
  } else if (exponent > 11) {
    scale.up = __uint_as_float((265 - exponent) << 23);
    scale.back = __uint_as_float((exponent - 11) << 23);
  }
  return scale;
}

// Four values times `up`, as half floats.
DEVICE void store_halves(u16 *to, float4 v, float up) {
  *(uint2 *)to = make_uint2(pack_halves(v.x * up, v.y * up), pack_halves(v.z * up, v.w * up));
}

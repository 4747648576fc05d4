// The arithmetic of gemv_columns.cu: a warp's unit of weights times its part of x, on the tensor cores.
#pragma once
#include "columns_weights.cuh"
#include "columns_x.cuh"

DEVICE u32 word(const W::Raw &raw, int w) {
  return SCALED_CODES ? W::plain_codes(raw, w) * (u32)W::whole_scale(raw, 0, w) : W::plain_codes(raw, w);
}

// Both words of group b, or half h of it alone, times B.
DEVICE void multiply(int (&c)[4], const W::Raw &low, const W::Raw &high, const u32 *x, int b, int h) {
  const int w = 2 * b + h;
  if constexpr (HALVES) mma_s8_k16(c, word(low, w), word(high, w), x[w]);
  else mma_s8_k32(c, word(low, w), word(high, w), word(low, w + 1), word(high, w + 1), x[w], x[w + 1]);
}

// 128 * high + low.
DEVICE float join_parts(int high, int low) { return fmaf(128.0f, (float)high, (float)low); }

// Add a chunk of a tile to `sums`; types with whole scales leave the unit out. `odd`: the second of a block.
DEVICE void add_chunk(float (&sums)[4], const W::Raw &low, const W::Raw &high, const Activations &x, int odd) {
  float in_steps[4] = {};
  if constexpr (W::WHOLE_SCALES) {
    int totals[PARTS][4] = {};
#pragma unroll
    for (int b = 0; b < 4; b++)
#pragma unroll
      for (int h = 0; h < (HALVES ? 2 : 1); h++) {
        if constexpr (SCALED_CODES) {
          for (int part = 0; part < PARTS; part++) multiply(totals[part], low, high, x.words[part], b, h);
          continue;
        }
        int c[PARTS][4] = {};
        for (int part = 0; part < PARTS; part++) multiply(c[part], low, high, x.words[part], b, h);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int scale = W::whole_scale(i < 2 ? low : high, odd, HALVES ? 2 * b + h : b);
          if constexpr (JOINED) totals[0][i] += scale * (128 * c[0][i] + c[PARTS - 1][i]);
          else
            for (int part = 0; part < PARTS; part++) totals[part][i] += scale * c[part][i];
        }
      }
    for (int i = 0; i < 4; i++) {
      if constexpr (SCALED_CODES && JOINED) in_steps[i] = (float)(128 * totals[0][i] + totals[PARTS - 1][i]);
      else if constexpr (TOTALS == 1) in_steps[i] = (float)totals[0][i];
      else in_steps[i] = join_parts(totals[0][i], totals[PARTS - 1][i]);
    }
  } else {
#pragma unroll
    for (int b = 0; b < 4; b++) {
      int c[PARTS][4] = {};
      for (int part = 0; part < PARTS; part++) multiply(c[part], low, high, x.words[part], b, 0);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        // At most 128 * 16,256 * 32.
        const int exact = SIDE_BY_SIDE ? c[0][i] : 128 * c[0][i] + c[PARTS - 1][i];
        in_steps[i] = fmaf(W::scale(i < 2 ? low : high, odd, b), (float)exact, in_steps[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] = fmaf(x.steps[i % 2], in_steps[i], sums[i]);
}

// A float as one with 11 significant bits, which the tensor cores see whole, and the rest.
struct Split {
  float most, rest;
};

DEVICE Split split(float v) {
  const float most = __uint_as_float((__float_as_uint(v) + 0x1000u) & 0xffffe000u);
  return {most, v - most};
}

// sums += a times b, of 8 elements: of A two for row g, then two for row g + 8; b exact to 22 bits.
DEVICE void multiply_minimums(float (&sums)[4], const float (&a)[2][2], Split b0, Split b1) {
  mma_tf32_k8(sums, a[0][0], a[1][0], a[0][1], a[1][1], b0.rest, b1.rest);
  mma_tf32_k8(sums, a[0][0], a[1][0], a[0][1], a[1][1], b0.most, b1.most);
}

// What sums of x are multiplied with, but for a factor: minimum or scale `i` of a chunk; 11 bits or fewer.
DEVICE float minimum(const W::Raw &raw, int odd, int i) {
  if constexpr (!W::WHOLE_SCALES) return W::HAS_MINIMUM ? W::minimum(raw, odd, i) : W::scale(raw, odd, i);
  else return (float)(W::HAS_MINIMUM ? W::whole_minimum(raw, odd, i) : W::whole_scale(raw, odd, i));
}

// And that factor.
DEVICE float minimum_factor(const W::Raw &raw) {
  if constexpr (!W::WHOLE_SCALES) return W::HAS_MINIMUM ? -1.0f : -(float)W::MINUS;
  else return W::HAS_MINIMUM ? -W::minimum_unit(raw) : -(float)W::MINUS * W::unit(raw);
}

// Take what minimums and MINUS come to in chunks c and, where a chunk has four scales, c + 1 of a unit from `sums`.
template <int C> DEVICE void subtract_minimums(float (&sums)[TILES][4], const Unit &unit, const u8 *chunks, int lane) {
  const int g = lane / 4, t = lane % 4;
  // Lane t has the sums of halves t and t + 4, or of group t of two chunks; zero where B holds high bytes.
  const bool counts = !SIDE_BY_SIDE || g >= 4;
  constexpr bool PAIR = W::SCALES == 4 && C + 1 < UNIT;
  auto sums_of = [&](int c) { return (const float *)(chunks + c * CHUNK_BYTES + SUMS_AT) + g % COLUMNS * 8; };
  auto group_sum = [&](int c) {
    const float2 halves = *(const float2 *)(sums_of(c) + 2 * t);
    return split(counts ? halves.x + halves.y : 0.0f);
  };
  Split x[2] = {};
  if constexpr (W::SCALES == 8) {
    x[0] = split(counts ? sums_of(C)[t] : 0.0f), x[1] = split(counts ? sums_of(C)[t + 4] : 0.0f);
  } else {
    x[0] = group_sum(C);
    if constexpr (PAIR) x[1] = group_sum(C + 1);
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    float a[2][2] = {}, product[4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const auto &raw = unit.raw[tile][r];
      a[r][0] = minimum(raw[C], C & 1, t);
      if constexpr (W::SCALES == 8) a[r][1] = minimum(raw[C], C & 1, t + 4);
      else if constexpr (PAIR) a[r][1] = minimum(raw[C + 1], (C + 1) & 1, t);
    }
    multiply_minimums(product, a, x[0], x[1]);
#pragma unroll
    for (int i = 0; i < 4; i++)
      sums[tile][i] = fmaf(minimum_factor(unit.raw[tile][i / 2][C]), product[i], sums[tile][i]);
  }
}

// Add a whole unit; `chunks` is its part of x.
DEVICE void add_unit(float (&sums)[TILES][4], const Unit &unit, const u8 *chunks, int lane) {
  float in_units[TILES][4] = {};
#pragma unroll
  for (int c = 0; c < UNIT; c++) {
    const Activations x = activations(chunks + c * CHUNK_BYTES, lane);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      add_chunk(W::WHOLE_SCALES ? in_units[tile] : sums[tile], unit.raw[tile][0][c], unit.raw[tile][1][c], x, c);
  }
  if constexpr (W::WHOLE_SCALES)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      for (int i = 0; i < 4; i++)
        sums[tile][i] = fmaf(W::unit(unit.raw[tile][i / 2][0]), in_units[tile][i], sums[tile][i]);
  if constexpr (SUBTRACTS) subtract_minimums<0>(sums, unit, chunks, lane);
  if constexpr (SUBTRACTS && UNIT == 2 && W::SCALES == 8) subtract_minimums<1>(sums, unit, chunks, lane);
}

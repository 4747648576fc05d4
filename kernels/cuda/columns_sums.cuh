// The arithmetic of gemv_columns.cu: a warp's unit of weights times its part of x, on the tensor cores.
#pragma once
#include "columns_copies.cuh"

DEVICE u32 word(const W::Raw &raw, int w) {
  return SCALED_CODES ? W::plain_codes(raw, w) * (u32)W::whole_scale(raw, 0, w) : W::plain_codes(raw, w);
}

// Both words of group b, or half h of it alone, times B.
DEVICE void multiply(int (&c)[4], const W::Raw &low, const W::Raw &high, const u32 *x, int b, int h) {
  const int w = 2 * b + h;
  if constexpr (HALVES) mma_s8_k16(c, word(low, w), word(high, w), x[w]);
  else mma_s8_k32(c, word(low, w), word(high, w), word(low, w + 1), word(high, w + 1), x[w], x[w + 1]);
}

// The sums of what is subtracted from codes: the same in all rows.
DEVICE void multiply_offsets(int (&c)[4], const u32 *x, int b, int h) {
  constexpr u32 OFFSETS = (0x100u - W::MINUS) % 0x100u * 0x01010101u;
  const int w = 2 * b + h;
  if constexpr (HALVES) mma_s8_k16(c, OFFSETS, OFFSETS, x[w]);
  else mma_s8_k32(c, OFFSETS, OFFSETS, OFFSETS, OFFSETS, x[w], x[w + 1]);
}

// Add a chunk of all tiles to `sums`; types with whole scales leave the unit out. `odd`: the second of a block.
DEVICE void add_chunk(float (&sums)[TILES][4], const Unit &unit, const Activations &x, int odd) {
#pragma unroll
  for (int b = 0; b < 4; b++) {
    int total[TILES][4] = {};
#pragma unroll
    for (int h = 0; h < (HALVES ? 2 : 1); h++) {
      int offsets[PARTS][4] = {};
      if constexpr (W::MINUS != 0)
#pragma unroll
        for (int part = 0; part < PARTS; part++) multiply_offsets(offsets[part], x.words[part], b, h);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const W::Raw &low = unit.raw[tile][0][odd], &high = unit.raw[tile][1][odd];
        int c[PARTS][4];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          for (int i = 0; i < 4; i++) c[part][i] = offsets[part][i];
          multiply(c[part], low, high, x.words[part], b, h);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int exact = SIDE_BY_SIDE ? c[0][i] : 128 * c[0][i] + c[PARTS - 1][i];
          // Below 2^31: |code| * |scale| * 16,256 * 32 is largest for Q6_K, 32 * 128 * 16,256 * 32.
          if constexpr (W::WHOLE_SCALES && !SCALED_CODES)
            exact *= W::whole_scale(i < 2 ? low : high, odd, HALVES ? 2 * b + h : b);
          total[tile][i] += exact;
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float value = x.steps[i % 2][b] * (float)total[tile][i];
        if constexpr (W::WHOLE_SCALES) sums[tile][i] += value;
        else sums[tile][i] = fmaf(W::scale(unit.raw[tile][i / 2][odd], odd, b), value, sums[tile][i]);
      }
  }
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

// Take a unit's minimums times sums of x from `sums`: in units of minimums for the K types.
DEVICE void subtract_minimums(float (&sums)[TILES][4], const Unit &unit, const u8 *chunks, int g, int t) {
  // Lane t of a chunk has the sum of group t, or of halves t and t + 4; zero where B holds high bytes.
  const bool counts = !SIDE_BY_SIDE || g >= 4;
  constexpr int PER_CHUNK = W::SCALES == 8 ? 2 : 1;
  Split x[UNIT][PER_CHUNK];
#pragma unroll
  for (int c = 0; c < UNIT; c++) {
    const float *s = (const float *)(chunks + c * CHUNK_BYTES + SUMS_AT) + g % COLUMNS * 8;
    if constexpr (PER_CHUNK == 2) {
      x[c][0] = split(counts ? s[t] : 0.0f);
      x[c][1] = split(counts ? s[t + 4] : 0.0f);
    } else {
      const float2 halves = *(const float2 *)(s + 2 * t);
      x[c][0] = split(counts ? halves.x + halves.y : 0.0f);
    }
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const auto &raw = unit.raw[tile];
    float product[4] = {};
    float a[2][2] = {};
    if constexpr (!W::WHOLE_SCALES) {
      for (int r = 0; r < 2; r++) a[r][0] = -W::minimum(raw[r][0], 0, t);
      multiply_minimums(sums[tile], a, x[0][0], {0.0f, 0.0f});
    } else if constexpr (PER_CHUNK == 1) {
      for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) a[r][c] = (float)W::whole_minimum(raw[r][c], c, t);
      multiply_minimums(product, a, x[0][0], x[1][0]);
    } else {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        for (int r = 0; r < 2; r++)
          for (int k = 0; k < 2; k++) a[r][k] = (float)W::whole_minimum(raw[r][c], c, t + 4 * k);
        multiply_minimums(product, a, x[c][0], x[c][1]);
      }
    }
    if constexpr (W::WHOLE_SCALES)
      for (int i = 0; i < 4; i++) sums[tile][i] = fmaf(-W::minimum_unit(raw[i / 2][0]), product[i], sums[tile][i]);
  }
}

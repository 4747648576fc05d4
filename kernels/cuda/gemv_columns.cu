// A quantised matrix times 1 to 8 columns of rounded activations on the integer tensor cores, for products of several
// tokens: out[column][row] (+)= sum of weight * x, or gate and up joined.
//
// Weights in the planes of formats.cuh, x in those of rounding.cuh:
//   group of 32:  c = 128 * (codes times hi) + codes times lo      whole numbers, exact
//   row, column:  sum over groups of scale * step * c - minimum * (step * sum of x)
// A warp takes TILES tiles of 16 rows and every SPLIT-th unit of them: a chunk, or a block of 256 for the K types.
// Lane (g, t) holds lane t of rows g and g + 8, which is its fragment of A as it is, and loads lane t of column g,
// its fragment of B. What is to be subtracted from codes goes through the tensor cores as rows of constants, once
// for all tiles; minimums times sums of x are a small product of their own. With up to 4 columns, hi and lo stand side
// by side in one B. Columns of B beyond n_columns repeat the last one and are not stored.
// Units are loaded DEPTH ahead, the first before the kernel before this one ends: weights are never written in a step.
// The SPLIT warps of the same rows add up through shared memory, in a fixed order. A block has WARPS / SPLIT groups of
// rows; grid: groups / groups of a block. Reads the matrix once; x, 19 bytes a weight of a row, comes from L1 and L2.
#include "epilogue.cuh"
#include "formats.cuh"

#ifndef FORMAT
#error "FORMAT: a quant type"
#endif
#ifndef WIDTH
#error "WIDTH: weights of a row"
#endif
#ifndef COLUMNS
#error "COLUMNS: the most that x has, 4 or 8"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: what becomes of the sums"
#endif
#if !defined(TILES) || !defined(SPLIT) || !defined(WARPS) || !defined(DEPTH)
#error "TILES (of 16 rows a warp), SPLIT, WARPS (of a block), DEPTH: launch_settings.py chooses them"
#endif

using W = Quantised<FORMAT, WIDTH>;

constexpr int UNIT = W::WHOLE_SCALES ? 2 : 1;
constexpr int UNITS = W::CHUNKS / UNIT;
constexpr int PADDED = W::CHUNKS * CHUNK;
constexpr bool GATED = IS_GATED<EPILOGUE>;
// Of the rows of `out`: the first half of the tiles are gate rows then, the others the up rows to them.
constexpr int OUT_TILES = GATED ? TILES / 2 : TILES;
constexpr int OUT_ROWS = 16 * OUT_TILES;
constexpr bool SIDE_BY_SIDE = COLUMNS == 4;
constexpr int PARTS = SIDE_BY_SIDE ? 1 : 2;
// A code times its scale fits a byte: 3 * 15.
constexpr bool SCALED_CODES = FORMAT == Q2_K;
// The halves of a group have scales of their own.
constexpr bool HALVES = W::SCALES == 8 && !SCALED_CODES;
// Floats from column to column in shared memory: 2 * PITCH % 32 == 8, so that no two lanes share a bank.
constexpr int PITCH = 16 * TILES + 4;
constexpr int TEAM = 32 * SPLIT;
constexpr int OUTPUTS = (OUT_ROWS * COLUMNS + TEAM - 1) / TEAM;
static_assert((COLUMNS == 4 || COLUMNS == 8) && WARPS % SPLIT == 0 && TILES % (GATED ? 2 : 1) == 0);

// One warp's unit: rows g and g + 8 of each tile.
struct Unit {
  W::Raw raw[TILES][2][UNIT];
};

// What a lane needs of x for one chunk: words of its column of B, steps of columns 2t and 2t + 1.
struct Activations {
  u32 words[PARTS][WORDS];
  float steps[2][4];
};

// Where a lane reads x.
struct Lane {
  const u8 *q;
  const float *d[2];
  const float *s;
};

DEVICE Lane lane_of(const u8 *q, const float *d, const float *s, int n_columns, int g, int t) {
  // The column of x at place `i` of the 8 columns of B.
  auto column = [&](int i) { return min(i % COLUMNS, n_columns - 1); };
  Lane lane;
  lane.q = q + column(g) * (2 * PADDED) + (SIDE_BY_SIDE && g >= 4 ? PADDED : 0) + t * 16;
  for (int i = 0; i < 2; i++) lane.d[i] = d + column(2 * t + i) * (PADDED / 32);
  lane.s = s + column(g) * (PADDED / 16) + t;
  return lane;
}

DEVICE Activations load_activations(const Lane &lane, int chunk) {
  Activations x;
#pragma unroll
  for (int part = 0; part < PARTS; part++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 v = load16(lane.q + (2 * part + half) * (PADDED / 2) + chunk * (LANES * 16));
      u32 *words = x.words[part] + 4 * half;
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint4 v = load16(lane.d[i] + chunk * 4);
    x.steps[i][0] = __uint_as_float(v.x), x.steps[i][1] = __uint_as_float(v.y);
    x.steps[i][2] = __uint_as_float(v.z), x.steps[i][3] = __uint_as_float(v.w);
  }
  return x;
}

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
          // Stays below 2^31: |code| * |scale| * 16,256 * 32 is largest for Q6_K, 32 * 128 and so on.
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
DEVICE void subtract_minimums(float (&sums)[TILES][4], const Unit &unit, const Lane &lane, int first_chunk, bool counts,
                              int t) {
  // Lane t of a chunk has the sum of group t, or of halves t and t + 4; zero where B holds high bytes.
  constexpr int PER_CHUNK = W::SCALES == 8 ? 2 : 1;
  Split x[UNIT][PER_CHUNK];
#pragma unroll
  for (int c = 0; c < UNIT; c++) {
    const float *s = lane.s + (first_chunk + c) * 8;
    if constexpr (PER_CHUNK == 2) {
      x[c][0] = split(counts ? __uint_as_float(load4(s)) : 0.0f);
      x[c][1] = split(counts ? __uint_as_float(load4(s + 4)) : 0.0f);
    } else {
      const uint2 halves = load8(s + t);
      x[c][0] = split(counts ? __uint_as_float(halves.x) + __uint_as_float(halves.y) : 0.0f);
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

KERNEL __launch_bounds__(WARPS * 32)
gemv_columns(const u8 *weights, const u8 *q, const float *d, const float *s, float *out, int n_rows, int n_columns,
             int out_stride) {
  let_next_start();
  __shared__ float partial[WARPS][8][PITCH];
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int n_outputs = GATED ? n_rows / 2 : n_rows;
  const int own = (blockIdx.x * (WARPS / SPLIT) + warp / SPLIT) * OUT_ROWS;
  // The last group starts earlier rather than read beyond the end; what is another's it does not store.
  const int first = min(own, n_outputs - OUT_ROWS);
  const Planes planes = W::planes(weights, n_rows);

  auto load = [&](Unit &unit, int number) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u64 row = (u64)first + g + 16 * (tile % OUT_TILES) + 8 * r + (tile < OUT_TILES ? 0 : n_outputs);
        W::Raw(&raw)[UNIT] = unit.raw[tile][r];
#pragma unroll
        for (int c = 0; c < UNIT; c++) W::load_codes(raw[c], planes, row, number * UNIT + c, t);
        if constexpr (UNIT == 2) W::load_block_scales(raw[0], raw[1], planes, row, number * 2);
        else W::load_scales(raw[0], planes, row, number);
      }
    // Keeps the loads before the arithmetic.
    __syncwarp();
  };
  // Whether a unit exists; where all do, the compiler sees it.
  auto inside = [](int number) { return UNITS % (SPLIT * DEPTH) == 0 || number < UNITS; };

  Unit units[DEPTH];
#pragma unroll
  for (int i = 0; i < DEPTH; i++)
    if (inside(warp % SPLIT + i * SPLIT)) load(units[i], warp % SPLIT + i * SPLIT);
  wait_for_previous();

  // Output `i` of this thread: where it goes, or null.
  auto place = [&](int i) -> float * {
    const int output = threadIdx.x % TEAM + i * TEAM, column = output / OUT_ROWS, row = first + output % OUT_ROWS;
    return column < n_columns && row >= own ? out + (u64)column * out_stride + row : nullptr;
  };
  float before[OUTPUTS] = {};
  if constexpr (EPILOGUE == ADD)
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++)
      if (const float *at = place(i)) before[i] = *at;

  const Lane lane = lane_of(q, d, s, n_columns, g, t);
  float sums[TILES][4] = {};
#pragma unroll 1
  for (int round = warp % SPLIT; round < UNITS; round += SPLIT * DEPTH)
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
      const int number = round + i * SPLIT;
      if (!inside(number)) break;
      Unit &unit = units[i];
      float own_units[TILES][4] = {};
      auto &chunk_sums = W::WHOLE_SCALES ? own_units : sums;
#pragma unroll
      for (int c = 0; c < UNIT; c++)
        add_chunk(chunk_sums, unit, load_activations(lane, number * UNIT + c), c);
      if constexpr (W::WHOLE_SCALES)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
          for (int k = 0; k < 4; k++)
            sums[tile][k] = fmaf(W::unit(unit.raw[tile][k / 2][0]), own_units[tile][k], sums[tile][k]);
      if constexpr (W::HAS_MINIMUM)
        subtract_minimums(sums, unit, lane, number * UNIT, !SIDE_BY_SIDE || g >= 4, t);
      if (number + SPLIT * DEPTH < UNITS) load(unit, number + SPLIT * DEPTH);
    }

#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
    for (int i = 0; i < 4; i++) partial[warp][2 * t + i % 2][16 * tile + g + 8 * (i / 2)] = sums[tile][i];
  if (SPLIT == 1) __syncwarp();
  else __syncthreads();
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    float *at = place(i);
    if (!at) continue;
    const int output = threadIdx.x % TEAM + i * TEAM, column = output / OUT_ROWS, row = output % OUT_ROWS;
    float sum[2] = {};
#pragma unroll
    for (int part = 0; part < SPLIT; part++) {
      const auto &of_warp = partial[warp / SPLIT * SPLIT + part];
#pragma unroll
      for (int half = 0; half < TILES / OUT_TILES; half++) {
        const float one = of_warp[column][half * OUT_ROWS + row];
        sum[half] += SIDE_BY_SIDE ? fmaf(128.0f, one, of_warp[column + 4][half * OUT_ROWS + row]) : one;
      }
    }
    if constexpr (GATED) *at = join<EPILOGUE>(sum[0], sum[1]);
    else *at = before[i] + sum[0];
  }
}

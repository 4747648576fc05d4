// A quantised matrix times 1 to 8 columns of rounded activations on the integer tensor cores, for products of several
// tokens: out[column][row] (+)= sum of weight * x, or gate and up joined.
//
// Weights in the planes of formats.cuh, x in those of rounding.cuh:
//   group of 32:  c = 128 * (codes times hi) + codes times lo      whole numbers, exact
//   row, column:  sum over groups of scale * step * c - minimum * (step * sum of x)
// A warp takes TILES tiles of 16 rows and every SPLIT-th unit of them: a chunk, or a block of 256 for the K types.
// Lane (g, t) takes lane t of rows g and g + 8, which is its fragment of A as it is. What is to be subtracted from
// codes goes through the tensor cores as rows of constants, once for all tiles; minimums times sums of x are a small
// product of their own. With up to 4 columns, hi and lo stand side by side in one B.
// Everything comes through shared memory, so that much is on its way while a warp computes. (Loads into registers would
// not do: the assembler has one scoreboard for all of them, and waiting for a unit is waiting for those after it.)
// Each warp has STAGES units of weights there, the first copied before the kernel before this one ends: weights are
// never written in a step. x lies there as fragments of B. Where all of it has room, or a warp needs no other's part,
// warps go on without waiting for each other; else SLICES slices of it take turns.
// The warps of the same outputs, a team, add up at the end, in a fixed order. Grid: outputs / outputs of a block. Reads
// the matrix once, and x, 19 bytes a weight of a row, in every block.
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
#if !defined(TILES) || !defined(SPLIT) || !defined(WARPS) || !defined(STAGES) || !defined(SLICES) || !defined(BLOCKS)
#error "TILES (of 16 rows a warp), SPLIT, WARPS (of a block), STAGES, SLICES, BLOCKS: launch_settings.py chooses them"
#endif

using W = Quantised<FORMAT, WIDTH>;

constexpr int UNIT = W::WHOLE_SCALES ? 2 : 1;
constexpr int UNITS = W::CHUNKS / UNIT;
constexpr int PADDED = W::CHUNKS * CHUNK;
constexpr bool GATED = IS_GATED<EPILOGUE>;
// Gate rows and up rows: of two tiles of a warp, one is of each; with one tile, other warps of the team have up rows.
constexpr int SIDES = GATED && TILES == 1 ? 2 : 1;
constexpr int OUT_TILES = GATED ? (TILES + 1) / 2 : TILES;
constexpr int OUT_ROWS = 16 * OUT_TILES;
constexpr bool SIDE_BY_SIDE = COLUMNS == 4;
constexpr int PARTS = SIDE_BY_SIDE ? 1 : 2;
// A code times its scale fits a byte: 3 * 15.
constexpr bool SCALED_CODES = FORMAT == Q2_K;
// The halves of a group have scales of their own.
constexpr bool HALVES = W::SCALES == 8 && !SCALED_CODES;
// Floats from column to column in shared memory: 2 * PITCH % 32 == 8, so that no two lanes share a bank.
constexpr int PITCH = 16 * TILES + 4;
// Warps of the same outputs.
constexpr int TEAM = SPLIT * SIDES;
constexpr int OUTPUTS = (OUT_ROWS * COLUMNS + 32 * TEAM - 1) / (32 * TEAM);

// x in shared memory: of each chunk its fragments of B, 16 bytes a lane for each four words; then of each column the
// steps of four groups; then the sums of eight halves.
constexpr int FRAGMENTS = 2 * PARTS;
constexpr int STEPS_AT = FRAGMENTS * 512;
constexpr int SUMS_AT = STEPS_AT + COLUMNS * 16;
constexpr int CHUNK_BYTES = SUMS_AT + (W::HAS_MINIMUM ? COLUMNS * 32 : 0);
// A warp takes one unit a turn. launch_settings.shared_memory computes these sizes too.
constexpr int TURNS = (UNITS + SPLIT - 1) / SPLIT;
// With one team in a block each warp is alone with its part of x, and copies it itself.
constexpr bool ALONE = WARPS == SPLIT;
constexpr int TURNS_OF_SLICE = !ALONE && SPLIT * UNIT < 8 ? 8 / (SPLIT * UNIT) : 1;
constexpr int SLICE_CHUNKS = TURNS_OF_SLICE * SPLIT * UNIT;
constexpr int SLICE_BYTES = SLICE_CHUNKS * CHUNK_BYTES;
constexpr int ALL_SLICES = (TURNS + TURNS_OF_SLICE - 1) / TURNS_OF_SLICE;
// All of x has room: the first slice comes first, then the others at once, and nobody waits for anybody any more.
constexpr bool WHOLE = !ALONE && SLICES == ALL_SLICES;
constexpr int SLICES_AHEAD = WHOLE ? 2 : SLICES == 1 ? 1 : SLICES - 1;

// Weights of a warp's unit in shared memory, plane after plane: of each row so many bytes.
constexpr int ROWS = 16 * TILES;
constexpr int CODE_BYTES = UNIT * 16 * W::CODE_BITS;
constexpr int HIGH_BYTES = UNIT * 16 * W::HIGH_BITS;
constexpr int SCALE_BYTES = W::SCALE_ROW / W::CHUNKS * UNIT;
// Two bytes are too few for a copy: the four that they are part of.
constexpr int BLOCK_BYTES = W::BLOCK_ROW ? 4 : 0;
constexpr int HIGH_AT = ROWS * CODE_BYTES;
constexpr int SCALES_AT = HIGH_AT + ROWS * HIGH_BYTES;
constexpr int BLOCKS_AT = SCALES_AT + ROWS * SCALE_BYTES;
constexpr int UNIT_BYTES = BLOCKS_AT + ROWS * BLOCK_BYTES;

// Copies that may still be on their way when a turn begins. One group is committed each turn: the weights of STAGES - 1
// turns ahead and, where a slice begins, x of SLICES_AHEAD slices ahead.
constexpr int WEIGHTS_PENDING = STAGES - 2;
constexpr int X_PENDING = SLICES_AHEAD == 1 ? TURNS_OF_SLICE - 1 : TURNS_OF_SLICE;
constexpr int PENDING = WEIGHTS_PENDING < X_PENDING ? WEIGHTS_PENDING : X_PENDING;
static_assert((COLUMNS == 4 || COLUMNS == 8) && WARPS % TEAM == 0 && TILES <= 2 && STAGES >= 2 && SLICES_AHEAD <= 2);
static_assert(SLICES > 1 || ALL_SLICES == 1);

// One warp's unit: rows g and g + 8 of each tile.
struct Unit {
  W::Raw raw[TILES][2][UNIT];
};

// What a lane needs of x for one chunk: words of its column of B, steps of columns 2t and 2t + 1.
struct Activations {
  u32 words[PARTS][WORDS];
  float steps[2][4];
};

DEVICE Activations activations(const u8 *chunk, int lane) {
  Activations x;
#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++) {
    const uint4 v = *(const uint4 *)(chunk + i * 512 + lane * 16);
    u32 *words = x.words[i / 2] + 4 * (i % 2);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float4 v = *(const float4 *)(chunk + STEPS_AT + (2 * (lane % 4) + i) % COLUMNS * 16);
    x.steps[i][0] = v.x, x.steps[i][1] = v.y, x.steps[i][2] = v.z, x.steps[i][3] = v.w;
  }
  return x;
}

// What each lane copies of x. Column g of B is column g % COLUMNS of x, its low bytes from g = 4 on if side by side.
struct Source {
  const u8 *fragment;
  // Steps from lanes below COLUMNS, sums from twice as many after them.
  const u8 *rest;
  int rest_bytes;
  bool has_fragment, has_rest;
};

DEVICE Source source_of(const u8 *q, const float *d, const float *s, int n_columns, int lane) {
  Source from;
  const int column = lane / 4 % COLUMNS;
  from.has_fragment = column < n_columns;
  from.fragment = q + column * (2 * PADDED) + (SIDE_BY_SIDE && lane >= 16 ? PADDED : 0) + lane % 4 * 16;
  const bool steps = lane < COLUMNS;
  const int of = steps ? lane : (lane - COLUMNS) / 2;
  from.has_rest = of < n_columns;
  from.rest_bytes = steps ? 16 : 32;
  from.rest = steps ? (const u8 *)(d + of * (PADDED / 32))
                    : (const u8 *)(s + of * (PADDED / 16)) + (lane - COLUMNS) % 2 * 16;
  return from;
}

// Zeros for columns that are not there.
DEVICE void copy_chunk(u8 *to, const Source &from, int chunk, int lane) {
  to += lane * 16;
  const u8 *fragment = from.fragment + chunk * (LANES * 16);
#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++) copy_async16(to + i * 512, fragment + i * (PADDED / 2), from.has_fragment);
  if (lane < (W::HAS_MINIMUM ? 3 : 1) * COLUMNS)
    copy_async16(to + STEPS_AT, from.rest + chunk * from.rest_bytes, from.has_rest);
}

// This warp's share of chunks first..last-1.
DEVICE void copy_chunks(u8 *to, const Source &from, int first, int last, int warp, int lane) {
#pragma unroll 1
  for (int chunk = first + warp; chunk < last; chunk += WARPS)
    copy_chunk(to + (chunk - first) * CHUNK_BYTES, from, chunk, lane);
}

// Where each lane copies weights from: of a plane with 64 bytes of a row or more, lane (g, t) takes every fourth piece
// of 16 bytes of row g; of 32 bytes lanes 2r and 2r + 1 those of row r; of fewer lane r those of row r.
struct Rows {
  const u8 *codes[TILES], *high[TILES], *scales, *blocks;
};

template <class Row> DEVICE Rows rows_of(const Planes &planes, Row row, int first_unit, int lane) {
  Rows from;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    from.codes[tile] = planes.codes + row(16 * tile + lane / 4) * W::CODE_ROW + first_unit * CODE_BYTES + lane % 4 * 16;
    constexpr int PIECES = HIGH_BYTES >= 32 ? HIGH_BYTES / 16 : 1;
    const int high_row = PIECES > 1 ? 16 * tile + lane / PIECES : lane % ROWS;
    from.high[tile] = planes.high + row(high_row) * W::HIGH_ROW + first_unit * HIGH_BYTES + lane % PIECES * 16;
  }
  from.scales = planes.scales + row(lane % ROWS) * W::SCALE_ROW + first_unit * SCALE_BYTES;
  from.blocks = planes.blocks + row(lane % ROWS) * W::BLOCK_ROW + first_unit * (W::BLOCK_ROW / UNITS);
  return from;
}

// Copy the unit that `from` is at, and go to this warp's next.
DEVICE void copy_unit(u8 *to, Rows &from, int lane) {
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u8 *own = to + tile * 1024 + half * 512 + lane * 16;
#pragma unroll
      for (int i = 0; i < CODE_BYTES / 64; i++)
        copy_async16(own + i * (ROWS * 64), from.codes[tile] + (half * 8 * W::CODE_ROW + i * 64), true);
      if constexpr (HIGH_BYTES == 64) copy_async16(own + HIGH_AT, from.high[tile] + half * 8 * W::HIGH_ROW, true);
    }
    if constexpr (HIGH_BYTES == 32) copy_async16(to + HIGH_AT + tile * 512 + lane * 16, from.high[tile], true);
  }
  if (lane < ROWS) {
    if constexpr (HIGH_BYTES == 16) copy_async16(to + HIGH_AT + lane * 16, from.high[0], true);
    if constexpr (SCALE_BYTES == 16) copy_async16(to + SCALES_AT + lane * 16, from.scales, true);
    else copy_async8(to + SCALES_AT + lane * 8, from.scales);
    if constexpr (W::BYTE_SCALES) copy_async4(to + BLOCKS_AT + lane * 4, (const u8 *)((u64)from.blocks & ~3ull));
    else if constexpr (BLOCK_BYTES != 0) copy_async4(to + BLOCKS_AT + lane * 4, from.blocks);
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
    from.codes[tile] += SPLIT * CODE_BYTES, from.high[tile] += SPLIT * HIGH_BYTES;
  from.scales += SPLIT * SCALE_BYTES, from.blocks += SPLIT * (W::BLOCK_ROW / UNITS);
}

template <int N> DEVICE void read_words(u32 *to, const u8 *from) {
  if constexpr (N == 4) {
    const uint4 v = *(const uint4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (N == 2) {
    const uint2 v = *(const uint2 *)from;
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *(const u32 *)from;
  }
}

// Both chunks of a row of a tile, or the one, as formats.cuh has them. `odd`: which two bytes are the block's scale.
DEVICE void read_row(W::Raw (&raw)[UNIT], const u8 *unit, int row, int t, bool odd) {
#pragma unroll
  for (int c = 0; c < UNIT; c++) {
    if constexpr (W::CODE_BITS == 2) {
      read_words<2>(raw[c].low, unit + row * 64 + c * 32 + t * 8);
    } else {
#pragma unroll
      for (int i = 0; i < W::CODE_BITS / 4; i++)
        read_words<4>(raw[c].low + 4 * i, unit + (c + i) * (ROWS * 64) + row * 64 + t * 16);
    }
    if constexpr (W::HIGH_BITS == 2) read_words<2>(raw[c].high, unit + HIGH_AT + row * 64 + c * 32 + t * 8);
    if constexpr (W::HIGH_BITS == 1) read_words<1>(raw[c].high, unit + HIGH_AT + row * HIGH_BYTES + c * 16 + t * 4);
  }
  u32 scales[4];
  read_words<SCALE_BYTES / 4>(scales, unit + SCALES_AT + row * SCALE_BYTES);
  // A chunk has all 16 bytes, or a block's second chunk the second half of them.
  constexpr bool HALVED = W::WHOLE_SCALES && !W::SIX_BIT_SCALES;
#pragma unroll
  for (int c = 0; c < UNIT; c++)
#pragma unroll
    for (int i = 0; i < (HALVED ? 2 : SCALE_BYTES / 4); i++) raw[c].scales[i] = scales[HALVED ? 2 * c + i : i];
  if constexpr (BLOCK_BYTES != 0) {
    u32 block;
    read_words<1>(&block, unit + BLOCKS_AT + row * 4);
    if constexpr (W::BYTE_SCALES) block = odd ? block >> 16 : block & 0xffffu;
#pragma unroll
    for (int c = 0; c < UNIT; c++) raw[c].block = block;
  }
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

KERNEL __launch_bounds__(WARPS * 32, BLOCKS)
gemv_columns(const u8 *weights, const u8 *q, const float *d, const float *s, float *out, int n_rows, int n_columns,
             int out_stride) {
  let_next_start();
  SHARED_MEMORY(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int n_outputs = GATED ? n_rows / 2 : n_rows;
  const int part = warp % SPLIT, side = warp % TEAM / SPLIT;
  const int own = (blockIdx.x * (WARPS / TEAM) + warp / TEAM) * OUT_ROWS;
  // The last group starts earlier rather than read beyond the end; what is another's it does not store.
  const int first = min(own, n_outputs - OUT_ROWS);
  const bool works = own < n_outputs;
  const Planes planes = W::planes(weights, n_rows);

  // Row `i` of this warp's tiles.
  auto row = [&](int i) {
    const bool up = GATED && (TILES == 2 ? i >= 16 : side);
    return (u64)first + (GATED ? i % 16 : i) + (up ? n_outputs : 0);
  };
  Rows rows = rows_of(planes, row, part, lane);
  u8 *const ring = shared + SLICES * SLICE_BYTES + warp * (STAGES * UNIT_BYTES);
  // Whether this warp has something in a turn.
  auto takes = [&](int turn) { return works && (UNITS % SPLIT == 0 ? turn < TURNS : turn * SPLIT + part < UNITS); };
  // Place after place in a ring of N.
  auto next = [](int at, int size, int n) { return at == (n - 1) * size ? 0 : at + size; };
  int fill_at = 0;
  auto fetch_weights = [&](int turn) {
    if (takes(turn)) copy_unit(ring + fill_at, rows, lane);
    fill_at = next(fill_at, UNIT_BYTES, STAGES);
  };
#pragma unroll 1
  for (int turn = 0; turn < STAGES - 1; turn++) {
    fetch_weights(turn);
    copies_commit();
  }
  wait_for_previous();

  const Source source = source_of(q, d, s, n_columns, lane);
  int x_fill_at = 0;
  auto fetch_x = [&](int slice) {
    const int first = slice * SLICE_CHUNKS;
    if constexpr (WHOLE) {
      if (slice == 0) copy_chunks(shared, source, 0, min(SLICE_CHUNKS, W::CHUNKS), warp, lane);
      if (slice == 1) copy_chunks(shared + SLICE_BYTES, source, SLICE_CHUNKS, W::CHUNKS, warp, lane);
    } else if constexpr (ALONE) {
      if (takes(slice))
#pragma unroll
        for (int c = 0; c < UNIT; c++)
          copy_chunk(shared + x_fill_at + (part * UNIT + c) * CHUNK_BYTES, source, first + part * UNIT + c, lane);
    } else if (slice < ALL_SLICES) {
      copy_chunks(shared + x_fill_at, source, first, min(first + SLICE_CHUNKS, W::CHUNKS), warp, lane);
    }
    x_fill_at = next(x_fill_at, SLICE_BYTES, SLICES);
  };
#pragma unroll 1
  for (int slice = 0; slice < SLICES_AHEAD; slice++) {
    fetch_x(slice);
    copies_commit();
  }

  // Output `i` of this thread: where it goes, or null.
  auto place = [&](int i) -> float * {
    const int output = threadIdx.x % (32 * TEAM) + i * 32 * TEAM, column = output / OUT_ROWS;
    const int row = first + output % OUT_ROWS;
    return column < n_columns && row >= own ? out + (u64)column * out_stride + row : nullptr;
  };
  float before[OUTPUTS] = {};
  if constexpr (EPILOGUE == ADD)
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++)
      if (const float *at = place(i)) before[i] = *at;

  float sums[TILES][4] = {};
  int stage_at = 0, slice_at = 0;
  copies_wait<SLICES_AHEAD - 1>();
#pragma unroll 1
  for (int turn = 0; turn < TURNS; turn++) {
    const int in_slice = turn % TURNS_OF_SLICE;
    // This thread's copies are there; those of the others after they have met. Then what was taken a turn before, or
    // a slice before, may be overwritten.
    if (turn > 0) copies_wait<PENDING>();
    if (!ALONE && in_slice == 0 && (!WHOLE || turn <= TURNS_OF_SLICE)) __syncthreads();
    else __syncwarp();
    fetch_weights(turn + STAGES - 1);
    if (!WHOLE && in_slice == 0) fetch_x(turn / TURNS_OF_SLICE + SLICES_AHEAD);
    copies_commit();

    const u8 *stage = ring + stage_at;
    const u8 *chunks = shared + slice_at + (in_slice * SPLIT + part) * (UNIT * CHUNK_BYTES);
    stage_at = next(stage_at, UNIT_BYTES, STAGES);
    if (in_slice == TURNS_OF_SLICE - 1) slice_at = next(slice_at, SLICE_BYTES, SLICES);
    if (!takes(turn)) continue;
    Unit unit;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int i = 16 * tile + 8 * r + g;
        read_row(unit.raw[tile][r], stage, i, t, (row(i) * (W::CHUNKS / 2) + turn * SPLIT + part) & 1);
      }
    float in_units[TILES][4] = {};
#pragma unroll
    for (int c = 0; c < UNIT; c++)
      add_chunk(W::WHOLE_SCALES ? in_units : sums, unit, activations(chunks + c * CHUNK_BYTES, lane), c);
    if constexpr (W::WHOLE_SCALES)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
        for (int k = 0; k < 4; k++)
          sums[tile][k] = fmaf(W::unit(unit.raw[tile][k / 2][0]), in_units[tile][k], sums[tile][k]);
    if constexpr (W::HAS_MINIMUM) subtract_minimums(sums, unit, chunks, g, t);
  }

  // The place of x becomes that of the warps' sums.
  __syncthreads();
  auto partial = (float(*)[8][PITCH])shared;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
    for (int i = 0; i < 4; i++) partial[warp][2 * t + i % 2][16 * tile + g + 8 * (i / 2)] = sums[tile][i];
  if (TEAM == 1) __syncwarp();
  else __syncthreads();
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    float *at = place(i);
    if (!at) continue;
    const int output = threadIdx.x % (32 * TEAM) + i * 32 * TEAM, column = output / OUT_ROWS;
    float sum[2] = {};
#pragma unroll
    for (int half = 0; half < (GATED ? 2 : 1); half++)
#pragma unroll
      for (int of = 0; of < SPLIT; of++) {
        const auto &sums_of = partial[warp / TEAM * TEAM + (SIDES == 2 ? half * SPLIT : 0) + of];
        const int row = output % OUT_ROWS + (SIDES == 1 ? half * OUT_ROWS : 0);
        sum[half] += SIDE_BY_SIDE ? fmaf(128.0f, sums_of[column][row], sums_of[column + 4][row]) : sums_of[column][row];
      }
    if constexpr (GATED) *at = join<EPILOGUE>(sum[0], sum[1]);
    else *at = before[i] + sum[0];
  }
}

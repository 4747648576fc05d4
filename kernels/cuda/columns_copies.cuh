// The way of weights and x to shared memory and from there to registers, for gemv_columns.cu.
#pragma once
#include "columns.cuh"

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

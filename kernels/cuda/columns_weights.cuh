// The way of weights to shared memory and from there to registers, for gemv_columns.cu.
#pragma once
#include "columns.cuh"

// Where each lane copies weights from, 16 bytes at a time: as many lanes as there are pieces take those of a row. Of
// fewer bytes lane r takes those of row r.
struct Rows {
  const u8 *codes[TILES], *high[TILES], *scales, *blocks;
};

constexpr int CODE_PIECES = CODE_BYTES / 16;
constexpr int CODE_ROWS = 32 / CODE_PIECES;  // that a warp copies at a time

template <class Row> DEVICE Rows rows_of(const Planes &planes, Row row, int first_unit, int lane) {
  Rows from;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    from.codes[tile] = planes.codes + row(16 * tile + lane / CODE_PIECES) * W::CODE_ROW + first_unit * CODE_BYTES +
                       lane % CODE_PIECES * 16;
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
    const int piece = lane % CODE_PIECES;
    u8 *const own = to + piece / 4 * CODE_RUN + (16 * tile + lane / CODE_PIECES) * 64 + piece % 4 * 16;
#pragma unroll
    for (int row = 0; row < 16; row += CODE_ROWS)
      copy_async16(own + row * 64, from.codes[tile] + row * W::CODE_ROW, true);
    if constexpr (HIGH_BYTES == 64)
#pragma unroll
      for (int row = 0; row < 16; row += 8)
        copy_async16(to + HIGH_AT + (16 * tile + row) * 64 + lane * 16, from.high[tile] + row * W::HIGH_ROW, true);
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
        read_words<4>(raw[c].low + 4 * i, unit + (c + i) * CODE_RUN + row * 64 + t * 16);
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

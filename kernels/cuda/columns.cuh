// Sizes of gemv_columns.cu: how its warps share the work, and what lies where in shared memory.
#pragma once
#include "epilogue.cuh"
#include "formats.cuh"
#include "rounding.cuh"

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
#if !defined(TILES) || !defined(SPLIT) || !defined(WARPS) || !defined(STAGES) || !defined(CLUSTER) || !defined(BLOCKS)
#error "TILES (of 16 rows a warp), SPLIT, WARPS (of a block), STAGES, CLUSTER, BLOCKS: launch_settings.py chooses them"
#endif
#ifndef ROUNDS
#error "ROUNDS: 1 where gated outputs are rounded"
#endif
#if !defined(LEADS) || !defined(BESIDE)
#error "LEADS: 1 where the next kernel is a product of the same x; BESIDE: 1 where the one before is"
#endif

using W = Quantised<FORMAT, WIDTH>;

constexpr bool GATED = IS_GATED<EPILOGUE>;
constexpr int OUT_ROWS = GATED ? 16 : 16 * TILES;
// With up to 4 columns, high and low bytes of x stand side by side in one B.
constexpr bool SIDE_BY_SIDE = COLUMNS == 4;
constexpr int PARTS = SIDE_BY_SIDE ? 1 : 2;
// A code times its scale fits a byte: 3 * 15.
constexpr bool SCALED_CODES = FORMAT == Q2_K;
// The halves of a group have scales of their own.
constexpr bool HALVES = W::SCALES == 8 && !SCALED_CODES;
// 128 * high + low of a chunk, times scales, stays below 2^31: 15 * 63 * 16256 * 128, or 45 * 16256 * 128.
constexpr bool JOINED = !SIDE_BY_SIDE && (FORMAT == Q4_K || FORMAT == Q2_K);
constexpr int TOTALS = SIDE_BY_SIDE || JOINED ? 1 : 2;
// Something is subtracted that grows with the sum of x.
constexpr bool SUBTRACTS = W::HAS_MINIMUM || W::MINUS != 0;
constexpr int TEAMS = WARPS / SPLIT;
// No warp has the rows of another.
constexpr bool ALONE = SPLIT * CLUSTER == 1;
// Tiles of outputs, of 16 rows and COLUMNS columns. Of each the blocks of a cluster store so many, column by column.
constexpr int OUT_TILES = GATED ? 1 : TILES;
constexpr int OF_TILE = 16 * COLUMNS;
constexpr int MINE = OF_TILE / CLUSTER;
constexpr int OUTPUTS = ALONE ? 4 * OUT_TILES : (OUT_TILES * MINE + 32 * SPLIT - 1) / (32 * SPLIT);  // of a thread
// Where accumulator `i` of a lane is in its tile; beyond it where B has the low bytes of x.
DEVICE int place_in_tile(int i, int lane) { return 16 * (lane % 4 * 2 + i % 2) + lane / 4 + i / 2 * 8; }

// A unit is a block of 256 of the K types, a chunk of the others. Those of a row are dealt out to the blocks of a
// cluster, run after run, and a block's to the SPLIT warps of a team, one by one.
constexpr int UNIT = W::WHOLE_SCALES ? 2 : 1;
constexpr int UNITS = W::CHUNKS / UNIT;
constexpr int OWN_UNITS = (UNITS + CLUSTER - 1) / CLUSTER;
constexpr int PADDED = W::CHUNKS * CHUNK;

// x in shared memory: of each chunk its fragments of B, 16 bytes a lane for each four words; then of each column the
// sums of eight halves; then of each column the step. launch_settings.shared_memory computes these sizes too.
constexpr int FRAGMENTS = 2 * PARTS;
constexpr int SUMS_AT = FRAGMENTS * 512;
constexpr int STEPS_AT = SUMS_AT + (SUBTRACTS ? COLUMNS * 32 : 0);
constexpr int CHUNK_BYTES = STEPS_AT + COLUMNS * 4;
// What has no room at once comes in SLICES, of whole turns of a team.
constexpr int SLICE_TURNS = (OWN_UNITS + SPLIT * SLICES - 1) / (SPLIT * SLICES);
constexpr int SLICE_UNITS = SLICE_TURNS * SPLIT;
constexpr int X_BYTES = SLICE_UNITS * UNIT * CHUNK_BYTES;

// Weights of a warp's unit in shared memory, plane after plane: of each row so many bytes. Codes lie 64 bytes of every
// row together, which one load of a warp reads; the second 64 so much further that copying a row's 128 uses all banks.
constexpr int ROWS = 16 * TILES;
constexpr int CODE_BYTES = UNIT * 16 * W::CODE_BITS;
constexpr int HIGH_BYTES = UNIT * 16 * W::HIGH_BITS;
constexpr int SCALE_BYTES = W::SCALE_ROW / W::CHUNKS * UNIT;
// Two bytes are too few for a copy: the four that they are part of.
constexpr int BLOCK_BYTES = W::BLOCK_ROW ? 4 : 0;
constexpr int CODE_RUN = ROWS * 64 + 64;
constexpr int HIGH_AT = CODE_BYTES / 64 * CODE_RUN;
constexpr int SCALES_AT = HIGH_AT + ROWS * HIGH_BYTES;
constexpr int BLOCKS_AT = SCALES_AT + ROWS * SCALE_BYTES;
constexpr int UNIT_BYTES = BLOCKS_AT + ROWS * BLOCK_BYTES;

// Sums from other warps: behind the ring, where blocks that are ahead send theirs, or else in the place of x.
constexpr int RECEIVED_AT = CLUSTER > 1 ? X_BYTES + WARPS * STAGES * UNIT_BYTES : 0;
constexpr int RECEIVED_BYTES = WARPS * TILES * OF_TILE * 4;
// And the count of them.
constexpr int ARRIVALS_AT = RECEIVED_AT + RECEIVED_BYTES;
// What a block rounds: chunks of 128 outputs of some columns, so many floats apart that twice as many are 8 banks.
constexpr int JOINED_COLUMNS = (MINE + 15) / 16;
constexpr int JOINED_CHUNKS = (TEAMS + 7) / 8;
constexpr int JOINED_PITCH = TEAMS * 16 + 4;
static_assert(!ROUNDS || (GATED && SPLIT == 1 && TEAMS % 8 == 0 && MINE % 16 == 0 &&
                          JOINED_COLUMNS * JOINED_PITCH * 4 <= X_BYTES + WARPS * STAGES * UNIT_BYTES));
static_assert((COLUMNS == 4 || COLUMNS == 8) && WARPS % SPLIT == 0 && TILES <= 2 && (!GATED || TILES == 2));

// Sizes of gemv_columns.cu: how its warps share the work, and what lies where in shared memory.
#pragma once
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

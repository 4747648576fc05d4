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
#include "columns_sums.cuh"

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

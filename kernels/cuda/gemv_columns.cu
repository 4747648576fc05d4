// A quantised matrix times 1 to 8 columns of rounded activations on the integer tensor cores, for products of several
// tokens: out[column][row] (+)= sum of weight * x, or gate and up joined.
//
// Weights in the planes of formats.cuh, x in those of rounding.cuh:
//   group of 32:  c = 128 * (codes times hi) + codes times lo      whole numbers, exact
//   row, column:  sum over chunks of step * (sum over groups of scale * c) - minimum * (step * sum of x)
// A warp takes TILES tiles of 16 rows, gate and up rows if gated, and every SPLIT-th unit of them. Lane (g, t) takes
// lane t of rows g and g + 8, which is its fragment of A as it is; x lies in shared memory as fragments of B. What is to
// be subtracted, minimums and MINUS, times sums of x is a small product of its own.
// Weights come through shared memory as well, where each warp has STAGES units of its own: while it computes with one
// that it has taken to registers, so many are on their way. The first are copied before the kernel before this one
// ends: weights are never written in a step. (Loads into registers would not do: then all warps wait, and then all
// compute.)
// The blocks of a CLUSTER share rows as well, each with its own run of units, and only that part of x.
// The warps of the same outputs add up at the end, in a fixed order. Grid: outputs / outputs of a block, times CLUSTER.
#include "columns_sums.cuh"

KERNEL CLUSTER_OF(CLUSTER) __launch_bounds__(WARPS * 32, BLOCKS)
gemv_columns(const u8 *weights, const u8 *q, const float *d, const float *s, float *out, int n_rows, int n_columns,
             int out_stride) {
  let_next_start();
  SHARED_MEMORY(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int n_outputs = GATED ? n_rows / 2 : n_rows;
  const int part = warp % SPLIT, rank = blockIdx.x % CLUSTER;
  const int own = (blockIdx.x / CLUSTER * TEAMS + warp / SPLIT) * OUT_ROWS;
  // The last group starts earlier rather than read beyond the end; what is another's it does not store.
  const int first = min(own, n_outputs - OUT_ROWS);
  const int first_unit = rank * OWN_UNITS;
  const int n_units = own < n_outputs ? min(OWN_UNITS, UNITS - first_unit) : 0;

  // Row `i` of this warp's tiles.
  auto row = [&](int i) { return (u64)(first + (GATED ? i % 16 + i / 16 * n_outputs : i)); };
  Rows rows = rows_of(W::planes(weights, n_rows), row, first_unit + part, lane);
  u8 *const ring = shared + X_BYTES + warp * (STAGES * UNIT_BYTES);
  // Place after place in the ring.
  auto next = [](int at) { return at == (STAGES - 1) * UNIT_BYTES ? 0 : at + UNIT_BYTES; };
  int fill_at = 0, stage_at = 0;
  auto fetch = [&](int number) {
    if (number < n_units) copy_unit(ring + fill_at, rows, lane);
    fill_at = next(fill_at);
    copies_commit();
  };
#pragma unroll 1
  for (int turn = 0; turn < STAGES; turn++) fetch(turn * SPLIT + part);
  wait_for_previous();

  // Output `i` of this thread: where it goes, or null.
  const int adder = rank * (32 * SPLIT) + threadIdx.x % (32 * SPLIT);
  auto place = [&](int i) -> float * {
    const int output = adder + i * ADDERS, column = output / OUT_ROWS, row = first + output % OUT_ROWS;
    return column < n_columns && row >= own ? out + (u64)column * out_stride + row : nullptr;
  };
  float before[OUTPUTS] = {};
  if constexpr (EPILOGUE == ADD)
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++)
      if (const float *at = place(i)) before[i] = *at;

  const Source source = source_of(q, d, s, n_columns, lane);
  float sums[TILES][4] = {};
#pragma unroll 1
  for (int slice = 0; slice < SLICES; slice++) {
    const int from = slice * SLICE_UNITS, to = min(min(from + SLICE_UNITS, OWN_UNITS), UNITS - first_unit);
    if (slice) __syncthreads();
    copy_chunks(shared, source, (first_unit + from) * UNIT, (first_unit + to) * UNIT, warp, lane);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int number = from + part; number < min(to, n_units); number += SPLIT) {
      // This lane's copies are there; those of the others after they have met.
      if (number >= from + SPLIT) copies_wait<STAGES - 1>();
      __syncwarp();
      Unit unit;
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int i = 16 * tile + 8 * r + g;
          read_row(unit.raw[tile][r], ring + stage_at, i, t, (row(i) * UNITS + first_unit + number) & 1);
        }
      // All of the warp have taken what they need: it may be overwritten while they compute.
      __syncwarp();
      fetch(number + STAGES * SPLIT);
      stage_at = next(stage_at);
      add_unit(sums, unit, shared + (number - from) * (UNIT * CHUNK_BYTES), lane);
    }
  }

  // The place of x becomes that of the warps' sums.
  __syncthreads();
  auto partial = (float(*)[COLUMNS][PITCH])shared;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float sum = sums[tile][i], other = SIDE_BY_SIDE ? __shfl_xor_sync(0xffffffffu, sum, 2) : 0.0f;
      float *const at = &partial[warp][(2 * t + i % 2) % COLUMNS][16 * tile + g + 8 * (i / 2)];
      if (!SIDE_BY_SIDE) *at = sum;
      else if (t < 2) *at = fmaf(128.0f, sum, other);
    }
  if (CLUSTER > 1) cluster_meet();
  else __syncthreads();
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    float *at = place(i);
    if (!at) continue;
    const int output = adder + i * ADDERS, column = output / OUT_ROWS;
    float sum[GATED ? 2 : 1] = {};
#pragma unroll
    for (int half = 0; half < (GATED ? 2 : 1); half++)
#pragma unroll
      for (int of = 0; of < CLUSTER * SPLIT; of++) {
        const float *from = &partial[warp / SPLIT * SPLIT + of % SPLIT][column][output % OUT_ROWS + half * OUT_ROWS];
        sum[half] += CLUSTER > 1 ? load_of_cluster(from, of / SPLIT) : *from;
      }
    if constexpr (GATED) *at = join<EPILOGUE>(sum[0], sum[1]);
    else *at = before[i] + sum[0];
  }
  // Nobody's shared memory may go while another still reads it.
  if (CLUSTER > 1) cluster_meet();
}

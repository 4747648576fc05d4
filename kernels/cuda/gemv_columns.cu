// A quantised matrix times 1 to 8 columns of rounded activations on the integer tensor cores, for products of several
// tokens: out[column][row] (+)= sum of weight * x, or gate and up joined.
//
// Weights in the planes of formats.cuh, x in those of rounding.cuh:
//   group of 32:  c = 128 * (codes times hi) + codes times lo      whole numbers, exact
//   row, column:  sum over chunks of step * (sum over groups of scale * c) - minimum * (step * sum of x)
// A warp takes TILES tiles of 16 rows, gate and up rows if gated, and every SPLIT-th unit of them. Lane (g, t) takes
// lane t of rows g and g + 8, which is its fragment of A as it is; x lies in shared memory as fragments of B. What is
// to be subtracted, minimums and MINUS, times sums of x is a small product of its own.
// Weights come through shared memory as well, where each warp has STAGES units of its own: while it computes with one
// that it has taken to registers, so many are on their way. The first are copied before the kernel before this one
// ends: weights are never written in a step. (Loads into registers would not do: then all warps wait, and then all
// compute.)
// The blocks of a CLUSTER share rows as well, each with its own run of units, and only that part of x. Warps that share
// rows add up at the end, in a fixed order: each sends its sums to the block that stores them. Warps that share none
// store theirs, and go on with further rows where the grid is too small for all.
// With ROUNDS what gate and up come to is rounded at once, as rounding.cuh has it: n_outputs is a multiple of 128, and
// out_q, out_d, out_s take the place of `out`.
// Several products of the same x run beside each other: the first LEADS, those after it are BESIDE (columns.py).
// Grid: outputs / outputs of a block, or fewer, times CLUSTER.
#include "columns_sums.cuh"

KERNEL CLUSTER_OF(CLUSTER) __launch_bounds__(WARPS * 32, BLOCKS)
gemv_columns(const u8 *weights, const u8 *q, const float *d, const float *s, float *out, int n_rows, int n_columns,
             int out_stride, u8 *out_q, float *out_d, float *out_s) {
  // Those beside this one must find x there: they come when it is.
  if (!LEADS) let_next_start();
  SHARED_MEMORY(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int n_outputs = GATED ? n_rows / 2 : n_rows;
  const int part = warp % SPLIT, team = warp / SPLIT, rank = blockIdx.x % CLUSTER;
  u64 *const arrivals = (u64 *)(shared + ARRIVALS_AT);
  if (CLUSTER > 1) {
    if (threadIdx.x == 0) expect_arrivals(arrivals, RECEIVED_BYTES);
    cluster_arrive();
  }
  const int first_unit = rank * OWN_UNITS, n_units = min(OWN_UNITS, UNITS - first_unit);
  // Of the outputs from `own` on, and of those that come after them.
  int own = (blockIdx.x / CLUSTER * TEAMS + team) * OUT_ROWS;
  const int stride = gridDim.x / CLUSTER * (TEAMS * OUT_ROWS);

  // The last group starts earlier rather than read beyond the end; what is another's it does not store.
  auto first_of = [&](int own) { return min(own, n_outputs - OUT_ROWS); };
  // Row `i` of the tiles.
  auto row = [&](int own, int i) { return (u64)(first_of(own) + (GATED ? i % 16 + i / 16 * n_outputs : i)); };
  auto rows_from = [&](int own) {
    return rows_of(W::planes(weights, n_rows), [&](int i) { return row(own, i); }, first_unit + part, lane);
  };
  Rows rows = rows_from(own);
  u8 *const ring = shared + X_BYTES + warp * (STAGES * UNIT_BYTES);
  // Place after place in the ring.
  auto next = [](int at) { return at == (STAGES - 1) * UNIT_BYTES ? 0 : at + UNIT_BYTES; };
  int fill_at = 0, stage_at = 0, fetch_own = own, fetch_number = part;
  auto fetch = [&] {
    if (fetch_own < n_outputs && fetch_number < n_units) copy_unit(ring + fill_at, rows, lane);
    fill_at = next(fill_at);
    copies_commit();
    fetch_number += SPLIT;
    if (ALONE && fetch_number == n_units) {
      fetch_number = 0, fetch_own += stride;
      if (fetch_own < n_outputs) rows = rows_from(fetch_own);
    }
  };
#pragma unroll 1
  for (int turn = 0; turn < STAGES; turn++) fetch();
  if (!BESIDE) wait_for_previous();
  if (LEADS) let_next_start();

  const Source source = source_of(q, d, s, n_columns, lane);
  bool has_x = false;
  do {
    // Output `i` of this thread: its tile, and its number 16 * column + row there. Those of warps that share rows are
    // dealt out to their threads.
    const int adder = threadIdx.x % (32 * SPLIT);
    auto tile_of = [&](int i) { return ALONE ? i / 4 : (adder + 32 * SPLIT * i) / MINE; };
    auto place_of = [&](int i) { return ALONE ? place_in_tile(i % 4, lane) : (adder + 32 * SPLIT * i) % MINE; };
    // Where it goes, or null.
    auto output = [&](int i) -> float * {
      const int place = rank * MINE + place_of(i), column = place / 16, row = first_of(own) + 16 * tile_of(i) + place % 16;
      const bool is_own = tile_of(i) < OUT_TILES && own < n_outputs && row >= own && column < n_columns;
      return is_own ? out + (u64)column * out_stride + row : nullptr;
    };
    float before[OUTPUTS] = {};
    if constexpr (EPILOGUE == ADD)
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++)
        if (const float *at = output(i)) before[i] = *at;

    float sums[TILES][4] = {};
#pragma unroll 1
    for (int slice = 0; slice < SLICES; slice++) {
      const int from = slice * SLICE_UNITS, to = min(min(from + SLICE_UNITS, OWN_UNITS), UNITS - first_unit);
      const bool brings_x = !has_x || SLICES > 1;
      if (brings_x) {
        // In two parts, so that the first turn is computed while the second part comes.
        const int middle = min(from + SPLIT, to);
        if (slice) __syncthreads();
        copy_chunks(shared, source, (first_unit + from) * UNIT, (first_unit + middle) * UNIT, warp, lane);
        copies_commit();
        copy_chunks(shared + SPLIT * (UNIT * CHUNK_BYTES), source, (first_unit + middle) * UNIT,
                    (first_unit + to) * UNIT, warp, lane);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        has_x = true;
      }
      const int end = own < n_outputs ? min(to, n_units) : 0;
#pragma unroll 1
      for (int turn = 0; turn < SLICE_TURNS; turn++) {
        const int number = from + turn * SPLIT + part;
        if (brings_x && turn == 1) {
          // Weights that were asked for in the first turn may still come.
          if (number - SPLIT < end) copies_wait<1>();
          else copies_wait<0>();
          __syncthreads();
        }
        if (number >= end) continue;
        // This lane's copies are there; those of the others after they have met.
        if (!brings_x || turn > 0) copies_wait<STAGES - 1>();
        __syncwarp();
        Unit unit;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const int i = 16 * tile + 8 * r + g;
            read_row(unit.raw[tile][r], ring + stage_at, i, t, (row(own, i) * UNITS + first_unit + number) & 1);
          }
        // All of the warp have taken what they need: it may be overwritten while they compute.
        __syncwarp();
        fetch();
        stage_at = next(stage_at);
        add_unit(sums, unit, shared + (number - from) * (UNIT * CHUNK_BYTES), lane);
      }
    }
    // Columns of high bytes stand beside those of low bytes, two lanes on.
    if constexpr (SIDE_BY_SIDE)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          sums[tile][i] = fmaf(128.0f, sums[tile][i], __shfl_xor_sync(0xffffffffu, sums[tile][i], 2));

    // [block of the cluster][warp][tile][MINE]: sums of outputs that this block stores.
    float *const received = (float *)(shared + RECEIVED_AT);
    if constexpr (CLUSTER > 1) cluster_wait();
    else if constexpr (!ALONE) __syncthreads();  // the place of x becomes that of the sums
    if constexpr (!ALONE)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int place = place_in_tile(i, lane);
          float *const to = received + ((rank * WARPS + warp) * TILES + tile) * MINE + place % MINE;
          if (place >= OF_TILE) continue;
          if (CLUSTER > 1) send_to_cluster(to, place / MINE, sums[tile][i], arrivals);
          else *to = sums[tile][i];
        }
    if constexpr (CLUSTER > 1) wait_for_arrivals(arrivals);
    else if constexpr (!ALONE) __syncthreads();

    float results[OUTPUTS];
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
      auto total = [&](int tile) {
        if constexpr (ALONE) return sums[tile][i % 4];
        float sum = 0.0f;
#pragma unroll
        for (int of = 0; of < CLUSTER * SPLIT; of++) {
          const int sender = of / SPLIT * WARPS + team * SPLIT + of % SPLIT;
          sum += received[(sender * TILES + tile) * MINE + place_of(i)];
        }
        return sum;
      };
      if constexpr (GATED) results[i] = join<EPILOGUE>(total(0), total(1));
      else results[i] = before[i] + total(ALONE ? i / 4 : min(tile_of(i), TILES - 1));
    }
    if constexpr (ROUNDS) {
      // Chunks of 128 outputs are whole in a block. All warps are done with x and the ring.
      auto joined = (float(*)[JOINED_PITCH])shared;
      if (ALONE) __syncthreads();
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++)
        if (tile_of(i) < OUT_TILES && place_of(i) < MINE)
          joined[place_of(i) / 16][16 * team + place_of(i) % 16] = results[i];
      __syncthreads();
      const int first = blockIdx.x / CLUSTER * (TEAMS * OUT_ROWS);
      for (int i = warp; i < JOINED_COLUMNS * JOINED_CHUNKS; i += WARPS) {
        const int column = i / JOINED_CHUNKS, at = i % JOINED_CHUNKS * 128 + lane * 4;
        const int token = rank * JOINED_COLUMNS + column;
        if (token < n_columns && first + at < n_outputs)
          round_four(rounded_row(out_q, out_d, out_s, token, n_outputs), first + at,
                     *(const float4 *)&joined[column][at]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++)
        if (float *at = output(i)) *at = results[i];
    }
    own += stride;
  } while (ALONE && own < n_outputs);
  if (BESIDE) wait_for_previous();
}

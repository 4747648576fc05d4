// Attention of 1 to 8 query tokens to the whole cache: the context is split over warps and blocks.
//
//   out[t, h] = sum over p of softmax(q[t, h] . k[p])[p] * v[p],  p <= start + t, and > start + t - window
// Bound by reading the cache once. GROUP query heads share a KV head, so the rows of one are (token, head of the
// group), row = token * GROUP + head. Block (x, y) takes ROWS rows (8 or 16) of one KV head, x = KV head * row
// tiles + row tile, and a share y of the positions. Its warps do not wait for one another: each has steps of
// STEP positions of its own, loaded straight into the fragments of its tensor cores while the step before
// is computed, and a softmax of its own. Then the block merges its warps, and the last block of a row tile its shares.
// How many shares there are follows from the length, which is read from the device; blocks beyond it leave at once.
//
// q f16 [T][KV heads * GROUP][HEAD_DIM], times the query scale and log2(e). Scores and sums are f32, weights f16.
// Output: f32 [T][heads * HEAD_DIM], or rounded (rounding.cuh; GROUP * HEAD_DIM a multiple of 32), or both.
// partials f32 [grid x][grid y][ROWS][HEAD_DIM], sums f32 [grid x][grid y][ROWS][top, sum], counters [grid x]
// zero before the first launch; every launch leaves them zero.
#include "ptx.cuh"
#include "attention.cuh"
#include "rounding.cuh"

#ifndef GROUP
#error "GROUP: query heads of a KV head"
#endif
#ifndef ROWS
#error "ROWS: rows of a block, 8 or 16"
#endif
#ifndef WARPS
#error "WARPS: warps of a block"
#endif
#ifndef BLOCKS
#error "BLOCKS: blocks that a processor's registers must hold"
#endif
#ifndef STEP
#error "STEP: positions that a warp takes at a time, 16 or 32"
#endif

constexpr int THREADS = WARPS * 32;
constexpr int ROW_TILES = ROWS / 8;
constexpr int TILES = STEP / TILE;
constexpr int VECTORS = HEAD_DIM / 4;   // of a row
constexpr int MOST_SHARES = 128;
// Rows lie so far apart that the lanes of a warp, which hold 2 rows of 8 dims each, write to 32 banks.
constexpr int ROW_STRIDE = HEAD_DIM + 4;
constexpr int SHARED_FLOATS = ROWS * (WARPS * ROW_STRIDE > MOST_SHARES ? WARPS * ROW_STRIDE : MOST_SHARES);

DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }
DEVICE float4 add_scaled(float4 sum, float4 v, float by) {
  return make_float4(sum.x + v.x * by, sum.y + v.y * by, sum.z + v.z * by, sum.w + v.w * by);
}

// Where a block's rows go.
struct Output {
  u8 *q;
  float *d, *s, *floats;
  int n_columns, first_column, first_row, n_rows;

  // All lanes of a warp: four dims of a row each, `vector` counts them through the block's rows.
  DEVICE void store(int vector, float4 v) const {
    const int row = first_row + vector / VECTORS;
    const int token = row / GROUP, column = first_column + row % GROUP * HEAD_DIM + vector % VECTORS * 4;
    const bool valid = vector < n_rows * VECTORS;
    if (q) {
      const int padded = (n_columns + 127) / 128 * 128;
      round_four(rounded_row(q, d, s, token, padded), valid ? column : padded, v);
    }
    if (floats && valid) *(float4 *)(floats + (u64)token * n_columns + column) = v;
  }
};

KERNEL __launch_bounds__(THREADS, BLOCKS)
attention_step(const u16 *q, const u8 *keys, const u8 *values, u64 head_bytes, const int *state, int n_tokens,
               int window, float *partials, float2 *partial_sums, u32 *counters, u8 *rounded_q, float *rounded_d,
               float *rounded_s, float *floats) {
  __shared__ float merged[SHARED_FLOATS];
  __shared__ float2 sums[WARPS][ROWS];
  __shared__ uint4 shared_query[QUERY_IN_REGISTERS ? 1 : ROW_TILES * GROUPS * 32];
  __shared__ bool is_last;
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int all_rows = n_tokens * GROUP, row_tiles = (all_rows + ROWS - 1) / ROWS;
  const int kv_head = blockIdx.x / row_tiles, first_row = blockIdx.x % row_tiles * ROWS;
  const int n_columns = gridDim.x / row_tiles * GROUP * HEAD_DIM;
  keys += kv_head * head_bytes;
  values += kv_head * head_bytes;

  wait_for_previous();
  const int start = state[0], n_positions = start + n_tokens;
  const int first_step = Sight(start, window).first / STEP, end_step = (n_positions + STEP - 1) / STEP;
  const int n_shares = min((int)gridDim.y, (end_step - first_step + WARPS - 1) / WARPS), share = blockIdx.y;
  if (share >= n_shares) return;

  Keys key[TILES];
  Values value[TILES];
  const int stride = n_shares * WARPS;
  int step = first_step + share * WARPS + warp;
  if (step < end_step) {
#pragma unroll
    for (int i = 0; i < TILES; i++) key[i].load<FromGlobal>(keys + (u64)(step * TILES + i) * TILE_BYTES, lane);
#pragma unroll
    for (int i = 0; i < TILES; i++) value[i].load<FromGlobal>(values + (u64)(step * TILES + i) * TILE_BYTES, lane);
  }

  uint4 query[ROW_TILES][GROUPS];
  int positions[ROW_TILES];
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++) {
    const int row = first_row + 8 * r + g, token = min(row / GROUP, n_tokens - 1);
    positions[r] = start + token;
    const u16 *from = q + ((u64)token * (n_columns / HEAD_DIM) + kv_head * GROUP + row % GROUP) * HEAD_DIM;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      if (!QUERY_IN_REGISTERS && group % WARPS != warp) continue;
      query[r][group] = row < all_rows ? query_words(from, group, lane) : make_uint4(0, 0, 0, 0);
      if (!QUERY_IN_REGISTERS) shared_query[(r * GROUPS + group) * 32 + lane] = query[r][group];
    }
  }
  if (!QUERY_IN_REGISTERS) __syncthreads();

  // The output is kept transposed: a lane has dims g and g + 8 of each slice, rows 2t and 2t + 1 of each row tile.
  float out[SLICES][ROW_TILES][4] = {};
  Softmax<ROW_TILES> softmax;
  for (; step < end_step; step += stride) {
    float scores[2 * TILES][4] = {};
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      const uint4 *const kept = shared_query + group * 32 + lane;
      const uint4 upper = QUERY_IN_REGISTERS ? query[0][group] : *kept;
      uint4 lower = make_uint4(0, 0, 0, 0);
      if (ROW_TILES == 2) lower = QUERY_IN_REGISTERS ? query[ROW_TILES - 1][group] : kept[GROUPS * 32];
#pragma unroll
      for (int n = 0; n < 2 * TILES; n++) {
        const uint4 words = key[n / 2].words(group, n % 2);
        mma_f16_k16(scores[n], upper.x, lower.x, upper.y, lower.y, words.x, words.y);
        if (2 * group + 1 < SLICES) mma_f16_k16(scores[n], upper.z, lower.z, upper.w, lower.w, words.z, words.w);
      }
    }
    const int base = step * STEP, next = step + stride;
    if (next < end_step) {
#pragma unroll
      for (int i = 0; i < TILES; i++) key[i].load<FromGlobal>(keys + (u64)(next * TILES + i) * TILE_BYTES, lane);
    }
    const bool at_edge = base + STEP > start + 1 || (window && base <= n_positions - 1 - window);
    if (at_edge) {
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++) hide(scores, r, Sight(positions[r], window), base + 2 * t);
#pragma unroll
      for (int i = 0; i < TILES; i++) value[i].clear_from(n_positions - base - i * TILE, lane);
    }
    float fade[ROW_TILES];
    softmax.take(scores, fade);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
      const float even = __shfl_sync(0xffffffffu, fade[r], 8 * t), odd = __shfl_sync(0xffffffffu, fade[r], 8 * t + 4);
#pragma unroll
      for (int slice = 0; slice < SLICES; slice++) {
        out[slice][r][0] *= even;
        out[slice][r][1] *= odd;
        out[slice][r][2] *= even;
        out[slice][r][3] *= odd;
      }
    }
    u32 weights[2 * TILES][ROW_TILES];
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++) weights[n][r] = pack_halves(scores[n][2 * r], scores[n][2 * r + 1]);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int slice = 0; slice < SLICES; slice++) {
        const uint4 words = value[i].words(slice);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
          mma_f16_k16(out[slice][r], words.x, words.y, words.z, words.w, weights[2 * i][r], weights[2 * i + 1][r]);
      }
    if (next < end_step) {
#pragma unroll
      for (int i = 0; i < TILES; i++) value[i].load<FromGlobal>(values + (u64)(next * TILES + i) * TILE_BYTES, lane);
    }
  }

  // Merge the warps.
  softmax.finish();
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++) {
    if (t == 0) sums[warp][8 * r + g] = make_float2(softmax.top[r], softmax.sum[r]);
    float *to = merged + (warp * ROWS + 8 * r + 2 * t) * ROW_STRIDE + g;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      to[slice * 16] = out[slice][r][0];
      to[slice * 16 + ROW_STRIDE] = out[slice][r][1];
      to[slice * 16 + 8] = out[slice][r][2];
      to[slice * 16 + 8 + ROW_STRIDE] = out[slice][r][3];
    }
  }
  __syncthreads();
  const Output output = {rounded_q, rounded_d, rounded_s, floats, n_columns, kv_head * GROUP * HEAD_DIM, first_row,
                         min(ROWS, all_rows - first_row)};
  // A warp takes part as a whole: rounding shuffles.
  const int n_vectors = output.n_rows * VECTORS, end_vector = (n_vectors + 31) / 32 * 32;
  const u64 tile = (u64)blockIdx.x * gridDim.y;
  for (int vector = threadIdx.x; vector < end_vector; vector += THREADS) {
    const int row = min(vector / VECTORS, ROWS - 1), column = vector % VECTORS * 4;
    float top = LOWEST, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, sums[w][row].x);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float by = fast_exp2(sums[w][row].x - top);
      sum += sums[w][row].y * by;
      v = add_scaled(v, *(const float4 *)(merged + (w * ROWS + row) * ROW_STRIDE + column), by);
    }
    if (n_shares == 1) {
      output.store(vector, scaled(v, 1.0f / sum));
    } else if (vector < n_vectors) {
      const u64 place = (tile + share) * ROWS + row;
      ((float4 *)partials)[place * VECTORS + vector % VECTORS] = v;
      if (column == 0) partial_sums[place] = make_float2(top, sum);
    }
  }
  if (n_shares == 1) return;

  // Merge the shares.
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = count_arrival(counters + blockIdx.x) == n_shares - 1;
    if (is_last) counters[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  // Each share's factor of a row.
  for (int row = warp; row < output.n_rows; row += WARPS) {
    float tops[MOST_SHARES / 32], share_sums[MOST_SHARES / 32], top = LOWEST, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_SHARES / 32; i++) {
      tops[i] = LOWEST, share_sums[i] = 0.0f;
      if (lane + 32 * i < n_shares) {
        const uint2 both = load8(partial_sums + (tile + lane + 32 * i) * ROWS + row);
        tops[i] = __uint_as_float(both.x), share_sums[i] = __uint_as_float(both.y);
      }
      top = fmaxf(top, tops[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < MOST_SHARES / 32; i++) {
      tops[i] = fast_exp2(tops[i] - top);
      sum += tops[i] * share_sums[i];
    }
    const float inverse = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < MOST_SHARES / 32; i++)
      if (lane + 32 * i < n_shares) merged[(lane + 32 * i) * ROWS + row] = tops[i] * inverse;
  }
  __syncthreads();
  for (int vector = threadIdx.x; vector < end_vector; vector += THREADS) {
    const int row = min(vector / VECTORS, ROWS - 1);
    const float *from = partials + (tile * ROWS + row) * HEAD_DIM + vector % VECTORS * 4;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (vector < n_vectors) {
#pragma unroll 16
      for (int i = 0; i < n_shares; i++) {
        const float4 part = load_four(from + (u64)i * ROWS * HEAD_DIM, 0, VECTORS);
        v = add_scaled(v, part, merged[i * ROWS + row]);
      }
    }
    output.store(vector, v);
  }
}

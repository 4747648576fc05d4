// A decode step's attention: 1 to 8 new tokens join the cache and attend to all of it, which is split over the GPU.
//
//   out[t, h] = sum over p of softmax(q[t, h] . k[p])[p] * v[p],  p <= start + t, and > start + t - window
// Bound by reading the cache once. GROUP query heads share a KV head, so the rows of one are (token, head of the
// group), row = token * GROUP + head. Block (x, y) takes ROWS rows (8 or 16) of one KV head, x = KV head * row
// tiles + row tile, and a share y of the positions. Its warps do not wait for one another: each has steps of STEP
// positions of its own, loaded straight into the fragments of its tensor cores while the step before is computed,
// and a softmax of its own. Then the block merges its warps, and the last block of a row tile merges the shares.
// How many shares there are follows from the length, which is read on the device; blocks beyond it leave at once.
//
// Before that, while the first keys and values are on their way, a block norms and turns its queries, and appends
// those new keys and values that lie in its share: it alone reads them. (Blocks of the KV head's other row tiles
// write the same bytes to the same place.)
//
// Reads the product's rows, f32 [T][(heads + 2 KV heads) * HEAD_DIM]: queries, keys, values; cosines and sines f32
// [positions][ROPE_DIM / 2]; query_scale holds log2(e), for weights are powers of 2. Scores and sums are f32,
// queries and weights f16. Output: f32 [T][heads * HEAD_DIM], or rounded (rounding.cuh; GROUP * HEAD_DIM must be a
// multiple of 32), or both. Scratch: partials f32 [grid x][grid y][ROWS][HEAD_DIM], partial_sums (top, sum) f32
// [grid x][grid y][ROWS], counters [grid x] zero before the first launch; every launch leaves them zero.
#include "ptx.cuh"
#include "attention.cuh"
#include "rope.cuh"
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
constexpr int MOST_SHARES = 128;
constexpr int AT_ONCE = 8;  // shares whose output is on its way to the one block that merges them
// Rows lie so far apart that the lanes of a warp, which hold 2 rows of 8 dims each, write to 32 banks.
constexpr int ROW_STRIDE = HEAD_DIM + 4;
constexpr int SHARED_FLOATS = ROWS * (WARPS * ROW_STRIDE > MOST_SHARES ? WARPS * ROW_STRIDE : MOST_SHARES);

DEVICE float4 add_scaled(float4 sum, float4 v, float by) {
  return make_float4(sum.x + v.x * by, sum.y + v.y * by, sum.z + v.z * by, sum.w + v.w * by);
}

// Where a block's rows go.
struct Output {
  u8 *q;
  float *d, *s, *floats;
  int n_columns, first_column, first_row, n_rows;

  // Groups of four dims, up to whole warps: rounding shuffles.
  DEVICE int end_four() const { return (n_rows * FOURS + 31) / 32 * 32; }

  // All lanes of a warp: four dims of a row each, `four` counts them through the block's rows.
  DEVICE void store(int four, float4 v) const {
    const int row = first_row + four / FOURS;
    const int token = row / GROUP, column = first_column + row % GROUP * HEAD_DIM + four % FOURS * 4;
    const bool valid = four / FOURS < n_rows;
    if (q) {
      const int padded = (n_columns + 127) / 128 * 128;
      round_four(rounded_row(q, d, s, token, padded), valid ? column : padded, v);
    }
    if (floats && valid) *(float4 *)(floats + (u64)token * n_columns + column) = v;
  }
};

// The keys or the values of a step into registers.
template <class Fragments> DEVICE void load_step(Fragments (&tiles)[TILES], const u8 *cache, int step, int lane) {
  cache += (u64)step * (TILES * TILE_BYTES);
#pragma unroll
  for (int i = 0; i < TILES; i++) tiles[i].template load<FromGlobal>(cache + i * TILE_BYTES, lane);
}

// The product's rows, and what turns them into queries, keys and values of one KV head.
struct Heads {
  const float *qkv, *q_weight, *k_weight, *cosines, *sines;
  float eps, query_scale;
  int n_heads, n_kv_heads, kv_head;

  DEVICE void load(Head &head, int token, int index) const {
    head.load(qkv + ((u64)token * (n_heads + 2 * n_kv_heads) + index) * HEAD_DIM, 1.0f);
  }
  DEVICE void turn(Head &head, const float *weight, int position, float *scratch) const {
    const u64 at = (u64)position * (ROPE_DIM / 2);
    head.turn(weight, eps, cosines + at, sines + at, scratch);
  }

  // Row `row` of the block that begins with `first_row`, among the fragments that its warps read.
  DEVICE void prepare_query(uint4 *fragments, int start, int first_row, int row, float *scratch) const {
    const int token = (first_row + row) / GROUP;
    Head head;
    load(head, token, kv_head * GROUP + (first_row + row) % GROUP);
    turn(head, q_weight, start + token, scratch);
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      const int dim = 4 * (threadIdx.x % 32 + 32 * i), group = dim / 32, run = group < WHOLE_GROUPS ? 8 : 4;
      if (dim >= HEAD_DIM) continue;
      uint4 *const fragment = fragments + (row / 8 * GROUPS + group) * 32 + row % 8 * 4 + dim % 32 / run;
      const float4 v = scaled(head.v[i], query_scale);
      ((uint2 *)fragment)[dim % run / 4] = make_uint2(pack_halves(v.x, v.y), pack_halves(v.z, v.w));
    }
  }

  // The key or the value of a token into the cache of its KV head.
  DEVICE void append(u8 *cache, bool is_value, int token, int position, float *scratch) const {
    u8 *const tile = cache + (u64)(position / TILE) * TILE_BYTES;
    Head head;
    load(head, token, n_heads + (is_value ? n_kv_heads : 0) + kv_head);
    if (is_value) {
      head.store_values(tile, position % TILE);
    } else {
      turn(head, k_weight, position, scratch);
      head.store_keys(tile, position % TILE);
    }
  }
};

// What the shares of a row tile come to: each one's output times a factor. `factors` has room for [share][row].
DEVICE void merge_shares(const Output &output, const float *partials, const float2 *sums, int n_shares,
                         float *factors) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < output.n_rows; row += WARPS) {
    float tops[MOST_SHARES / 32], share_sums[MOST_SHARES / 32], top = LOWEST, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_SHARES / 32; i++) {
      tops[i] = LOWEST, share_sums[i] = 0.0f;
      if (lane + 32 * i < n_shares) {
        const uint2 both = load8(sums + (lane + 32 * i) * ROWS + row);
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
      if (lane + 32 * i < n_shares) factors[(lane + 32 * i) * ROWS + row] = tops[i] * inverse;
  }
  __syncthreads();
  for (int four = threadIdx.x; four < output.end_four(); four += THREADS) {
    const int row = min(four / FOURS, ROWS - 1);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < output.n_rows) {
      for (int first = 0; first < n_shares; first += AT_ONCE) {
        float4 parts[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
          const int share = min(first + i, n_shares - 1);
          parts[i] = load_four(partials + ((u64)share * ROWS * FOURS + four) * 4, 0, HEAD_DIM);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
          if (first + i < n_shares) v = add_scaled(v, parts[i], factors[(first + i) * ROWS + row]);
      }
    }
    output.store(four, v);
  }
}

KERNEL __launch_bounds__(THREADS, BLOCKS)
attention_step(const float *qkv, const float *q_weight, const float *k_weight, float eps, const float *cosines,
               const float *sines, float query_scale, u8 *keys, u8 *values, u64 head_bytes, const int *state,
               int n_tokens, int window, float *partials, float2 *partial_sums, u32 *counters, u8 *rounded_q,
               float *rounded_d, float *rounded_s, float *floats) {
  __shared__ __align__(16) float merged[SHARED_FLOATS];
  __shared__ float2 sums[WARPS][ROWS];
  __shared__ uint4 shared_query[ROW_TILES * GROUPS * 32];
  __shared__ bool is_last;
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int all_rows = n_tokens * GROUP, row_tiles = (all_rows + ROWS - 1) / ROWS;
  const int kv_head = blockIdx.x / row_tiles, first_row = blockIdx.x % row_tiles * ROWS;
  const int n_kv_heads = gridDim.x / row_tiles, n_heads = n_kv_heads * GROUP;
  const int n_rows = min(ROWS, all_rows - first_row);
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
  const bool is_old = (step + 1) * STEP <= start;  // the first step has no new position
  if (is_old) {
    load_step(key, keys, step, lane);
    load_step(value, values, step, lane);
  }
  const Heads heads = {qkv, q_weight, k_weight, cosines, sines, eps, query_scale, n_heads, n_kv_heads, kv_head};
  for (int i = warp; i < 2 * n_tokens + n_rows; i += WARPS) {
    float *const scratch = merged + warp * HEAD_DIM;
    const int token = i / 2;
    if (i >= 2 * n_tokens) heads.prepare_query(shared_query, start, first_row, i - 2 * n_tokens, scratch);
    else if (((start + token) / STEP - first_step) % stride / WARPS == share)
      heads.append(i % 2 ? values : keys, i % 2, token, start + token, scratch);
  }
  __syncthreads();
  if (!is_old && step < end_step) {
    load_step(key, keys, step, lane);
    load_step(value, values, step, lane);
  }

  // Rows beyond the last hold anything: no other row sees them, and they are not stored.
  uint4 query[ROW_TILES][GROUPS];
  int positions[ROW_TILES];
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++) {
    positions[r] = start + min((first_row + 8 * r + g) / GROUP, n_tokens - 1);
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
      if (QUERY_IN_REGISTERS) query[r][group] = shared_query[(r * GROUPS + group) * 32 + lane];
  }

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
    if (next < end_step) load_step(key, keys, next, lane);
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
      const float even = __shfl_sync(0xffffffffu, fade[r], 8 * t);
      const float odd = __shfl_sync(0xffffffffu, fade[r], 8 * t + 4);
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
    if (next < end_step) load_step(value, values, next, lane);
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
  const Output output = {rounded_q, rounded_d, rounded_s, floats, n_heads * HEAD_DIM, kv_head * GROUP * HEAD_DIM,
                         first_row, n_rows};
  const u64 tile = (u64)blockIdx.x * gridDim.y;
  for (int four = threadIdx.x; four < output.end_four(); four += THREADS) {
    const int row = min(four / FOURS, ROWS - 1), column = four % FOURS * 4;
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
      output.store(four, scaled(v, 1.0f / sum));
    } else if (four / FOURS < n_rows) {
      const u64 place = (tile + share) * ROWS + row;
      ((float4 *)partials)[place * FOURS + four % FOURS] = v;
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
  merge_shares(output, partials + tile * ROWS * HEAD_DIM, partial_sums + tile * ROWS, n_shares, merged);
}

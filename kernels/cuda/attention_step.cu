// A decode step's attention: 1 to 8 new tokens join the cache and attend to all of it, which is split over the GPU.
//
//   out[t, h] = sum over p of softmax(q[t, h] . k[p])[p] * v[p],  p <= start + t, and > start + t - window
// Bound by reading the cache once. GROUP query heads share a KV head, so the rows of one are (token, head of the
// group), row = token * GROUP + head. Block (x, y, z) takes a row tile x of 8 rows of KV head y and a share z of the
// positions. (Tiles of 16 would read the cache less often, but what follows, merging above all, takes longer than
// reading it again from L2.) Its warps do not wait for one another: each has steps of STEP positions of its own,
// loaded straight into the fragments of its tensor cores while the step before is computed, and a softmax of its
// own. Then the block merges its warps, and the last block of a row tile merges the shares. How many shares there
// are follows from the length, which is read on the device; blocks beyond it leave at once.
//
// Before that, while the first keys and values are on their way, a block norms and turns its queries, and appends
// those new keys and values that lie in its share: it alone reads them. (Blocks of the KV head's other row tiles
// write the same bytes to the same place.)
//
// Reads the product's rows, f32 [T][(heads + 2 KV heads) * HEAD_DIM]: queries, keys, values; cosines and sines f32
// [positions][ROPE_DIM / 2]; query_scale holds log2(e), for weights are powers of 2. Scores and sums are f32,
// queries and weights f16. Output: f32 [T][heads * HEAD_DIM], or rounded (rounding.cuh; GROUP * HEAD_DIM must be a
// multiple of 128), or both. Scratch: partials f32 [KV head][row tile][share][ROWS][HEAD_DIM], partial_sums (top,
// sum) f32 [KV head][row tile][share][ROWS], counters [KV head][row tile], zero before the first launch and after
// each.
#include "ptx.cuh"
#include "attention.cuh"
#include "rope.cuh"
#include "rounding.cuh"

#ifndef GROUP
#error "GROUP: query heads of a KV head"
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
constexpr int ROWS = 8;
constexpr int TILES = STEP / TILE;
constexpr int AT_ONCE = 16;  // shares whose output is on its way to the block that merges them
// Rows lie so far apart that the lanes of a warp, which hold 2 rows of 8 dims each, write to 32 banks.
constexpr int ROW_STRIDE = HEAD_DIM + 4;

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
    const int token = (u32)row / GROUP, column = first_column + (u32)row % GROUP * HEAD_DIM + four % FOURS * 4;
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
  const u8 *const from = cache + (u64)step * (TILES * TILE_BYTES);
#pragma unroll
  for (int i = 0; i < TILES; i++) tiles[i].template load<FromGlobal>(from + i * TILE_BYTES, lane);
}

// The heads of the product that a block turns into queries, and into keys and values of its KV head: `i` counts the
// key and the value of each token, then the block's rows.
struct Heads {
  const float *qkv, *q_weight, *k_weight, *cosines, *sines;
  float eps, query_scale;
  int n_tokens, kv_head, n_kv_heads, first_row;

  DEVICE bool is_query(int i) const { return i >= 2 * n_tokens; }
  DEVICE int row(int i) const { return i - 2 * n_tokens; }
  DEVICE int token(int i) const { return (u32)(is_query(i) ? first_row + row(i) : i) / (is_query(i) ? GROUP : 2); }

  DEVICE void load(Head &head, int i) const {
    const int index = is_query(i) ? kv_head * GROUP + (u32)(first_row + row(i)) % GROUP
                                  : n_kv_heads * (GROUP + i % 2) + kv_head;
    head.load(qkv + ((u64)token(i) * (n_kv_heads * (GROUP + 2)) + index) * HEAD_DIM, 1.0f);
  }
  DEVICE void turn(Head &head, int i, int position, float *scratch) const {
    const u64 at = (u64)position * (ROPE_DIM / 2);
    head.turn(is_query(i) ? q_weight : k_weight, eps, cosines + at, sines + at, scratch);
  }

  // A query among the fragments that the block's warps read.
  DEVICE void store_query(const Head &head, int row, uint4 *fragments) const {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int dim = 4 * (threadIdx.x % 32 + 32 * turn), group = dim / 32, run = group < WHOLE_GROUPS ? 8 : 4;
      if (dim >= HEAD_DIM) continue;
      uint4 *const fragment = fragments + group * 32 + row * 4 + dim % 32 / run;
      const float4 v = scaled(head.v[turn], query_scale);
      ((uint2 *)fragment)[dim % run / 4] = make_uint2(pack_halves(v.x, v.y), pack_halves(v.z, v.w));
    }
  }
};

// What the shares of a row tile come to, four dims a thread: a running softmax over them.
DEVICE void merge_shares(const Output &output, const float *partials, const float2 *sums, int n_shares) {
  for (int four = threadIdx.x; four < output.end_four(); four += THREADS) {
    const int place = min(four, output.n_rows * FOURS - 1);
    float top = LOWEST, sum = 0.0f;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < n_shares; first += AT_ONCE) {
      uint2 part_sums[AT_ONCE];
      float4 parts[AT_ONCE];
      float highest = top;
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int share = min(first + i, n_shares - 1);
        part_sums[i] = load8(sums + share * ROWS + place / FOURS);
        parts[i] = load_four(partials + ((u64)share * ROWS * FOURS + place) * 4, 0, HEAD_DIM);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) highest = fmaxf(highest, __uint_as_float(part_sums[i].x));
      const float fade = fast_exp2(top - highest);
      top = highest;
      sum *= fade;
      v = scaled(v, fade);
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const float by = first + i < n_shares ? fast_exp2(__uint_as_float(part_sums[i].x) - highest) : 0.0f;
        sum += __uint_as_float(part_sums[i].y) * by;
        v = add_scaled(v, parts[i], by);
      }
    }
    output.store(four, scaled(v, __fdividef(1.0f, sum)));
  }
}

KERNEL __launch_bounds__(THREADS, BLOCKS)
attention_step(const float *qkv, const float *q_weight, const float *k_weight, float eps, const float *cosines,
               const float *sines, float query_scale, u8 *keys, u8 *values, u64 head_bytes, const int *state,
               int n_tokens, int window, float *partials, float2 *partial_sums, u32 *counters, u8 *rounded_q,
               float *rounded_d, float *rounded_s, float *floats) {
  __shared__ __align__(16) float merged[WARPS * ROWS * ROW_STRIDE];
  __shared__ float2 sums[WARPS][ROWS];
  __shared__ uint4 shared_query[GROUPS * 32];
  __shared__ bool is_last;
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first_row = blockIdx.x * ROWS, kv_head = blockIdx.y, share = blockIdx.z, n_kv_heads = gridDim.y;
  const int n_rows = min(ROWS, n_tokens * GROUP - first_row), end_head = 2 * n_tokens + n_rows;
  const Heads heads = {qkv,     q_weight, k_weight,   cosines, sines, eps, query_scale,
                       n_tokens, kv_head, n_kv_heads, first_row};
  keys += kv_head * head_bytes;
  values += kv_head * head_bytes;

  wait_for_previous();
  const int start = state[0], n_positions = start + n_tokens;
  Head coming;
  if (warp < end_head) heads.load(coming, warp);
  const int first_step = (u32)Sight(start, window).first / STEP, end_step = (u32)(n_positions + STEP - 1) / STEP;
  // Of several tokens there are more rows to merge: a warp's second step is cheaper than one more share.
  const int least = n_tokens > 1 ? 2 * WARPS : WARPS;
  const int n_shares = min(gridDim.z, (u32)(end_step - first_step + least - 1) / least);
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
  for (int i = warp; i < end_head; i += WARPS) {
    Head head = coming;
    if (i + WARPS < end_head) heads.load(coming, i + WARPS);
    const int position = start + heads.token(i);
    float *const scratch = merged + warp * HEAD_DIM;
    if (heads.is_query(i)) {
      heads.turn(head, i, position, scratch);
      heads.store_query(head, heads.row(i), shared_query);
    } else if (((u32)position / STEP - first_step) % (u32)stride / WARPS == (u32)share) {
      const u64 tile = (u64)((u32)position / TILE) * TILE_BYTES;
      if (i % 2) {
        head.store_values(values + tile, position % TILE);
      } else {
        heads.turn(head, i, position, scratch);
        head.store_keys(keys + tile, position % TILE);
      }
    }
  }
  __syncthreads();
  if (!is_old && step < end_step) {
    load_step(key, keys, step, lane);
    load_step(value, values, step, lane);
  }

  // Rows beyond the last hold anything: no other row sees them, and they are not stored.
  uint4 query[GROUPS];
  const int own_position = start + min((u32)(first_row + g) / GROUP, n_tokens - 1u);
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
    if (QUERY_IN_REGISTERS) query[group] = shared_query[group * 32 + lane];

  // The output is kept transposed: a lane has dims g and g + 8 of each slice, rows 2t and 2t + 1.
  float out[SLICES][4] = {};
  Softmax<1> softmax;
  for (; step < end_step; step += stride) {
    float scores[2 * TILES][4] = {};
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      const uint4 own = QUERY_IN_REGISTERS ? query[group] : shared_query[group * 32 + lane];
#pragma unroll
      for (int n = 0; n < 2 * TILES; n++) {
        const uint4 words = key[n / 2].words(group, n % 2);
        mma_f16_k16(scores[n], own.x, 0, own.y, 0, words.x, words.y);
        if (2 * group + 1 < SLICES) mma_f16_k16(scores[n], own.z, 0, own.w, 0, words.z, words.w);
      }
    }
    const int base = step * STEP, next = step + stride;
    if (next < end_step) load_step(key, keys, next, lane);
    const bool at_edge = base + STEP > start + 1 || (window && base <= n_positions - 1 - window);
    if (at_edge) {
      hide(scores, 0, Sight(own_position, window), base + 2 * t);
#pragma unroll
      for (int i = 0; i < TILES; i++) value[i].clear_from(n_positions - base - i * TILE, lane);
    }
    float fade[1];
    softmax.take(scores, fade);
    const float even = __shfl_sync(0xffffffffu, fade[0], 8 * t);
    const float odd = __shfl_sync(0xffffffffu, fade[0], 8 * t + 4);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      out[slice][0] *= even;
      out[slice][1] *= odd;
      out[slice][2] *= even;
      out[slice][3] *= odd;
    }
    u32 weights[2 * TILES];
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++) weights[n] = pack_halves(scores[n][0], scores[n][1]);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int slice = 0; slice < SLICES; slice++) {
        const uint4 words = value[i].words(slice);
        mma_f16_k16(out[slice], words.x, words.y, words.z, words.w, weights[2 * i], weights[2 * i + 1]);
      }
    if (next < end_step) load_step(value, values, next, lane);
  }

  // Merge the warps.
  softmax.finish();
  if (t == 0) sums[warp][g] = make_float2(softmax.top[0], softmax.sum[0]);
  float *const to = merged + (warp * ROWS + 2 * t) * ROW_STRIDE + g;
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    to[slice * 16] = out[slice][0];
    to[slice * 16 + ROW_STRIDE] = out[slice][1];
    to[slice * 16 + 8] = out[slice][2];
    to[slice * 16 + 8 + ROW_STRIDE] = out[slice][3];
  }
  __syncthreads();
  const Output output = {rounded_q, rounded_d, rounded_s, floats, n_kv_heads * GROUP * HEAD_DIM,
                         kv_head * GROUP * HEAD_DIM, first_row, n_rows};
  const int row_tile = kv_head * gridDim.x + blockIdx.x;
  const u64 first_place = (u64)row_tile * gridDim.z * ROWS;
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
      output.store(four, scaled(v, __fdividef(1.0f, sum)));
    } else if (four / FOURS < n_rows) {
      const u64 place = first_place + share * ROWS + row;
      ((float4 *)partials)[place * FOURS + four % FOURS] = v;
      if (column == 0) partial_sums[place] = make_float2(top, sum);
    }
  }
  if (n_shares == 1) return;

  // Merge the shares.
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = count_arrival(counters + row_tile) == (u32)n_shares - 1;
    if (is_last) counters[row_tile] = 0;
  }
  __syncthreads();
  if (is_last) merge_shares(output, partials + first_place * HEAD_DIM, partial_sums + first_place, n_shares);
}

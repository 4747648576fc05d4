// Attention of many query tokens at once (prefill): arXiv:2307.08691 with plain tensor-core instructions.
//
//   out[t, h] = sum over p of softmax(q[t, h] . k[p])[p] * v[p],  p <= start + t, and > start + t - window
// GROUP query heads share a KV head, so the rows of one are (token, head of the group), row = token * GROUP + head.
// A block takes 16 rows a warp of one KV head and goes through the positions that they see, KEYS at a time: while
// the warps work on one run of keys and values, the next is copied into shared memory. Their order in memory is
// that of the fragments (attention.cuh), so that shared memory is read 16 bytes a lane without conflicts. KV_Q8_0
// is made half floats on the way, once for the block. The longest blocks start first.
//
// q f16 [T][KV heads * GROUP][HEAD_DIM], times the query scale and log2(e). Scores and sums are f32, weights f16.
// Output [T][heads * HEAD_DIM] f16 or f32 or both: it lies between the values' extremes, which are f16 themselves.
// Grid (KV heads, row blocks).
#include "ptx.cuh"
#include "attention.cuh"

#ifndef GROUP
#error "GROUP: query heads of a KV head"
#endif
#ifndef WARPS
#error "WARPS: warps of a block, of 16 rows each"
#endif
#ifndef KEYS
#error "KEYS: positions that a block takes at a time, a multiple of 16 up to 64"
#endif

constexpr int THREADS = WARPS * 32;
constexpr int ROWS = WARPS * 16;
constexpr int TILES = KEYS / TILE;
constexpr int COPIED = TILES * TILE_BYTES;     // bytes of the keys of a run
constexpr int HALVES = TILES * CODES * 2;      // the same as half floats
constexpr bool CONVERTED = KV_TYPE == KV_Q8_0;
// Shared memory: keys and values as copied, twice; as half floats, if that is not the same; queries.
constexpr int HALVES_AT = CONVERTED ? 4 * COPIED : 0;
constexpr int QUERY_AT = HALVES_AT + (CONVERTED ? 2 : 4) * HALVES;

DEVICE void copy_run(u8 *to, const u8 *keys, const u8 *values, int run) {
  const u64 at = (u64)run * COPIED;
#pragma unroll
  for (int first = 0; first < COPIED; first += THREADS * 16) {
    const int i = first + threadIdx.x * 16;
    if (i >= COPIED) continue;
    copy_async16(to + i, keys + at + i, true);
    copy_async16(to + COPIED + i, values + at + i, true);
  }
  copies_commit();
}

// Keys and values of a run as half floats, without those from position `n_valid` on.
DEVICE void convert_run(u8 *halves, const u8 *copied, int n_valid) {
  const int lane = threadIdx.x % 32;
  for (int tile = threadIdx.x / 32; tile < TILES; tile += WARPS) {
    Keys key;
    key.load<FromShared>(copied + tile * TILE_BYTES, lane);
    u8 *const to = halves + tile * CODES * 2;
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
#pragma unroll
      for (int h = 0; h < 2; h++) store_key_words(to, group, h, lane, key.words(group, h));
  }
  for (int tile = threadIdx.x / 32; tile < TILES; tile += WARPS) {
    Values value;
    value.load<FromShared>(copied + COPIED + tile * TILE_BYTES, lane);
    value.clear_from(n_valid - tile * TILE, lane);
    u8 *const to = halves + HALVES + tile * CODES * 2;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) *(uint4 *)(to + slice * 512 + lane * 16) = value.words(slice);
  }
}

// Make zeros of values from position `n_valid` on, which were never written: 0 times a NaN would be a NaN.
DEVICE void clear_values(u8 *values, int n_valid) {
  for (int i = threadIdx.x; i < HALVES / 16; i += THREADS) {
    const uint2 kept = Values::valid_positions(n_valid - i / (SLICES * 32) * TILE, i % 32);
    uint4 *const words = (uint4 *)values + i;
    *words = make_uint4(words->x & kept.x, words->y & kept.x, words->z & kept.y, words->w & kept.y);
  }
}

KERNEL __launch_bounds__(THREADS)
attention_prompt(const u16 *q, const u8 *keys, const u8 *values, u64 head_bytes, const int *state, int n_tokens,
                 int window, u16 *halves, float *floats) {
  SHARED_MEMORY(shared);
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int kv_head = blockIdx.x, all_rows = n_tokens * GROUP;
  const int first_row = (gridDim.y - 1 - blockIdx.y) * ROWS, end_row = min(first_row + ROWS, all_rows);
  keys += kv_head * head_bytes;
  values += kv_head * head_bytes;

  wait_for_previous();
  const int start = state[0], n_positions = start + n_tokens;
  const int first_run = Sight(start + first_row / GROUP, window).first / KEYS;
  const int end_run = (start + (end_row - 1) / GROUP) / KEYS + 1;
  copy_run(shared, keys, values, first_run);

  const int warp_row = first_row + 16 * warp;
  const int positions[2] = {start + min(warp_row + g, all_rows - 1) / GROUP,
                            start + min(warp_row + 8 + g, all_rows - 1) / GROUP};
  // What the warp's first row and its last one see.
  const Sight first_sight(start + warp_row / GROUP, window);
  const Sight last_sight(start + min(warp_row + 15, all_rows - 1) / GROUP, window);
  const int n_heads = gridDim.x * GROUP;
  uint4 query[2][GROUPS];
  u8 *const shared_query = shared + QUERY_AT + warp * 2 * GROUPS * 512 + lane * 16;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = warp_row + 8 * r + g;
    const u16 *const from = q + ((u64)(row / GROUP) * n_heads + kv_head * GROUP + row % GROUP) * HEAD_DIM;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      query[r][group] = row < all_rows ? query_words(from, group, lane) : make_uint4(0, 0, 0, 0);
      if (!QUERY_IN_REGISTERS) *(uint4 *)(shared_query + (2 * group + r) * 512) = query[r][group];
    }
  }

  float out[2 * SLICES][4] = {};
  Softmax<2> softmax;
  for (int run = first_run; run < end_run; run++) {
    u8 *const copied = shared + (run - first_run) % 2 * 2 * COPIED;
    const int base = run * KEYS;
    copies_wait<0>();
    __syncthreads();
    if (run + 1 < end_run) copy_run(shared + (run + 1 - first_run) % 2 * 2 * COPIED, keys, values, run + 1);
    u8 *const key_halves = CONVERTED ? shared + HALVES_AT : copied, *const value_halves = key_halves + HALVES;
    if (CONVERTED) {
      convert_run(key_halves, copied, n_positions - base);
      __syncthreads();
    } else if (base + KEYS > n_positions) {
      clear_values(value_halves, n_positions - base);
      __syncthreads();
    }
    if (warp_row >= all_rows || base > last_sight.last || base + KEYS <= first_sight.first) continue;

    float scores[2 * TILES][4] = {};
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      const u8 *const kept = shared_query + 2 * group * 512;
      const uint4 upper = QUERY_IN_REGISTERS ? query[0][group] : *(const uint4 *)kept;
      const uint4 lower = QUERY_IN_REGISTERS ? query[1][group] : *(const uint4 *)(kept + 512);
#pragma unroll
      for (int n = 0; n < 2 * TILES; n++) {
        const uint4 words = load_key_words(key_halves + n / 2 * CODES * 2, group, n % 2, lane);
        mma_f16_k16(scores[n], upper.x, lower.x, upper.y, lower.y, words.x, words.y);
        if (2 * group + 1 < SLICES) mma_f16_k16(scores[n], upper.z, lower.z, upper.w, lower.w, words.z, words.w);
      }
    }
    if (base + KEYS - 1 > first_sight.last || base < last_sight.first) {
#pragma unroll
      for (int r = 0; r < 2; r++) hide(scores, r, Sight(positions[r], window), base + 2 * t);
    }
    float fade[2];
    softmax.take(scores, fade);
#pragma unroll
    for (int n = 0; n < 2 * SLICES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[n][i] *= fade[i / 2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const float(&left)[4] = scores[2 * tile], (&right)[4] = scores[2 * tile + 1];
      const u32 a0 = pack_halves(left[0], left[1]), a1 = pack_halves(left[2], left[3]);
      const u32 a2 = pack_halves(right[0], right[1]), a3 = pack_halves(right[2], right[3]);
#pragma unroll
      for (int slice = 0; slice < SLICES; slice++) {
        const uint4 words = *(const uint4 *)(value_halves + tile * CODES * 2 + slice * 512 + lane * 16);
        mma_f16_k16(out[2 * slice], a0, a1, a2, a3, words.x, words.z);
        mma_f16_k16(out[2 * slice + 1], a0, a1, a2, a3, words.y, words.w);
      }
    }
  }

  softmax.finish();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = warp_row + 8 * r + g;
    if (row >= all_rows) continue;
    const float by = 1.0f / softmax.sum[r];
    const u64 at = ((u64)(row / GROUP) * n_heads + kv_head * GROUP + row % GROUP) * HEAD_DIM + 2 * t;
#pragma unroll
    for (int n = 0; n < 2 * SLICES; n++) {
      const float even = out[n][2 * r] * by, odd = out[n][2 * r + 1] * by;
      if (halves) *(u32 *)(halves + at + 8 * n) = pack_halves(even, odd);
      if (floats) *(float2 *)(floats + at + 8 * n) = make_float2(even, odd);
    }
  }
}

// Where keys and values of the fast precision lie, and how a warp takes them up for its tensor cores.
//
// A KV head's positions are cut into tiles of 16. A tile of keys and one of values have the same size, and hold
// their elements in the order in which the 32 lanes (g, t) = (lane / 4, lane % 4) of a warp want them: what a warp
// loads is contiguous. Dims are cut into groups of 32; the last may be half a group. A tile's positions are 8h + g:
//   keys, KV_F16    [group][h][lane]: the 8 halves of dims 8t..8t+7 of the group at position 8h + g
//                   half a group: the 4 halves of dims 4t..4t+3
//   values, KV_F16  [16 dims][lane]: positions 2t, 2t+1 of dim g, then of dim g + 8; positions 2t+8, 2t+9 likewise
//   keys, KV_Q8_0   [group][lane][h]: 8 bytes (4 of half a group), the same dims; then the steps, a half float for
//                   each position and group: [group][g][h]
//   values, KV_Q8_0 [group][lane][16 dims]: 8 bytes, in the order above; then [group][t]: the steps of positions
//                   2t, 2t+1, 2t+8, 2t+9
// The layout of float precision is plain: [position][dim] f32.
#pragma once
#include "ptx.cuh"

#ifndef HEAD_DIM
#error "HEAD_DIM: elements of a head, a multiple of 16 up to 256"
#endif
#ifndef KV_TYPE
#error "KV_TYPE: KV_F16, KV_Q8_0 or KV_F32"
#endif

#define KV_F16 1
#define KV_Q8_0 2
#define KV_F32 3

constexpr int TILE = 16;                       // positions
constexpr int SLICES = HEAD_DIM / 16;          // steps of q.k, and 16-row slices of the transposed values
constexpr int GROUPS = (HEAD_DIM + 31) / 32;
constexpr int WHOLE_GROUPS = HEAD_DIM / 32;
constexpr bool HALF_GROUP = HEAD_DIM % 32 != 0;
constexpr int CODES = TILE * HEAD_DIM;         // of a tile
constexpr int TILE_BYTES = KV_TYPE == KV_F16   ? 2 * CODES
                           : KV_TYPE == KV_F32 ? 4 * CODES
                                               : CODES + GROUPS * TILE * 2;

// ---- where an element is, in bytes from its tile's start: for those who write

// Dim `dim`, a multiple of 4, of position `p` (0..15): 4 neighbouring elements lie together.
DEVICE int key_offset(int p, int dim) {
  const int group = dim / 32, within = dim % 32, h = p / 8, g = p % 8;
  const bool half_group = HALF_GROUP && group == WHOLE_GROUPS;
  const int run = half_group ? 4 : 8, lane = 4 * g + within / run, place = within % run;
  return KV_TYPE == KV_F16 ? 2 * (group * 512 + (h * 32 + lane) * run + place)
                           : group * 512 + (lane * 2 + h) * run + place;
}
DEVICE int key_step_offset(int p, int group) { return CODES + (group * TILE + (p % 8) * 2 + p / 8) * 2; }

DEVICE int value_offset(int p, int dim) {
  const int slice = dim / 16, lane = 4 * (dim % 8) + p % 8 / 2;
  const int place = p / 8 * 4 + dim % 16 / 8 * 2 + p % 2;
  if (KV_TYPE == KV_F16) return 2 * (slice * 256 + lane * 8 + place);
  const int group = slice / 2;
  const bool half_group = HALF_GROUP && group == WHOLE_GROUPS;
  return group * 512 + lane * (half_group ? 8 : 16) + slice % 2 * 8 + place;
}
DEVICE int value_step_offset(int p, int group) {
  return CODES + (group * TILE + p % 8 / 2 * 4 + p / 8 * 2 + p % 2) * 2;
}

// ---- bytes to half floats

// Four signed bytes as half floats, exactly: 1024 + 128 + byte is put together bit by bit, and 1152 taken away.
DEVICE uint2 bytes_to_halves(u32 bytes) {
  const u32 shifted = bytes ^ 0x80808080u, minus_1152 = 0xe480e480u;
  return make_uint2(add_halves(__byte_perm(shifted, 0x64646464u, 0x4140), minus_1152),
                    add_halves(__byte_perm(shifted, 0x64646464u, 0x4342), minus_1152));
}

// ---- a tile in registers

struct FromGlobal {
  static DEVICE uint4 load16(const u8 *p) { return stream16(p); }
  static DEVICE uint2 load8(const u8 *p) { return stream8(p); }
  static DEVICE u32 load4(const u8 *p) { return stream4(p); }
};
struct FromShared {
  static DEVICE uint4 load16(const u8 *p) { return *(const uint4 *)p; }
  static DEVICE uint2 load8(const u8 *p) { return *(const uint2 *)p; }
  static DEVICE u32 load4(const u8 *p) { return *(const u32 *)p; }
};

// The keys of a tile. A group's 4 words are the B fragments of two steps of q.k: (x, y), (z, w).
struct Keys {
#if KV_TYPE == KV_Q8_0
  uint4 codes[GROUPS];
  u32 steps[GROUPS];
  template <class From> DEVICE void load(const u8 *tile, int lane) {
    const u8 *const own = settled(tile + lane * 16);
#pragma unroll
    for (int group = 0; group < WHOLE_GROUPS; group++) codes[group] = From::load16(own + group * 512);
    if constexpr (HALF_GROUP) {
      const uint2 half_group = From::load8(tile + WHOLE_GROUPS * 512 + lane * 8);
      codes[WHOLE_GROUPS] = make_uint4(half_group.x, 0, half_group.y, 0);
    }
    const u8 *const own_steps = settled(tile + lane / 4 * 4);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) steps[group] = From::load4(own_steps + CODES + group * 32);
  }
  DEVICE uint4 words(int group, int h) const {
    const u32 step = __byte_perm(steps[group], 0, h ? 0x3232 : 0x1010);
    const uint2 first = bytes_to_halves(h ? codes[group].z : codes[group].x);
    const uint2 second = bytes_to_halves(h ? codes[group].w : codes[group].y);
    return make_uint4(multiply_halves(first.x, step), multiply_halves(first.y, step),
                      multiply_halves(second.x, step), multiply_halves(second.y, step));
  }
#else
  uint4 halves[GROUPS][2];
  template <class From> DEVICE void load(const u8 *tile, int lane) {
    const u8 *const own = settled(tile + lane * 16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int group = 0; group < WHOLE_GROUPS; group++)
        halves[group][h] = From::load16(own + (group * 2 + h) * 512);
      if constexpr (HALF_GROUP) {
        const uint2 half_group = From::load8(tile + WHOLE_GROUPS * 1024 + h * 256 + lane * 8);
        halves[WHOLE_GROUPS][h] = make_uint4(half_group.x, half_group.y, 0, 0);
      }
    }
  }
  DEVICE uint4 words(int group, int h) const { return halves[group][h]; }
#endif
};

// The values of a tile, transposed. A slice's 4 words are the A fragment of V^T P^T: rows are dims.
struct Values {
#if KV_TYPE == KV_Q8_0
  uint4 codes[GROUPS];
  uint2 steps[GROUPS];
  template <class From> DEVICE void load(const u8 *tile, int lane) {
    const u8 *const own = settled(tile + lane * 16);
#pragma unroll
    for (int group = 0; group < WHOLE_GROUPS; group++) codes[group] = From::load16(own + group * 512);
    if constexpr (HALF_GROUP) {
      const uint2 half_group = From::load8(tile + WHOLE_GROUPS * 512 + lane * 8);
      codes[WHOLE_GROUPS] = make_uint4(half_group.x, half_group.y, 0, 0);
    }
    const u8 *const own_steps = settled(tile + lane % 4 * 8);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) steps[group] = From::load8(own_steps + CODES + group * 32);
  }
  DEVICE uint4 words(int slice) const {
    const uint4 &group = codes[slice / 2];
    const uint2 step = steps[slice / 2];
    const uint2 first = bytes_to_halves(slice % 2 ? group.z : group.x);
    const uint2 second = bytes_to_halves(slice % 2 ? group.w : group.y);
    return make_uint4(multiply_halves(first.x, step.x), multiply_halves(first.y, step.x),
                      multiply_halves(second.x, step.y), multiply_halves(second.y, step.y));
  }
  // Make zeros of positions from `n_valid` on, which were never written: 0 times a NaN would be a NaN.
  DEVICE void clear_from(int n_valid, int lane) {
    const uint2 kept = valid_positions(n_valid, lane);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      steps[group].x &= kept.x;
      steps[group].y &= kept.y;
    }
  }
#else
  uint4 halves[SLICES];
  template <class From> DEVICE void load(const u8 *tile, int lane) {
    const u8 *const own = settled(tile + lane * 16);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) halves[slice] = From::load16(own + slice * 512);
  }
  DEVICE uint4 words(int slice) const { return halves[slice]; }
  DEVICE void clear_from(int n_valid, int lane) {
    const uint2 kept = valid_positions(n_valid, lane);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      halves[slice].x &= kept.x;
      halves[slice].y &= kept.x;
      halves[slice].z &= kept.y;
      halves[slice].w &= kept.y;
    }
  }
#endif
  // Masks of the halves of positions 2t, 2t+1 and of 2t+8, 2t+9 that lie before n_valid.
  static DEVICE uint2 valid_positions(int n_valid, int lane) {
    const int p = lane % 4 * 2;
    return make_uint2((p < n_valid ? 0xffffu : 0u) | (p + 1 < n_valid ? 0xffff0000u : 0u),
                      (p + 8 < n_valid ? 0xffffu : 0u) | (p + 9 < n_valid ? 0xffff0000u : 0u));
  }
};

// ---- the keys of a KV_F16 tile in shared memory

DEVICE uint4 load_key_words(const u8 *tile, int group, int h, int lane) {
  if (group < WHOLE_GROUPS) return *(const uint4 *)(tile + (group * 2 + h) * 512 + lane * 16);
  const uint2 half_group = *(const uint2 *)(tile + WHOLE_GROUPS * 1024 + h * 256 + lane * 8);
  return make_uint4(half_group.x, half_group.y, 0, 0);
}
DEVICE void store_key_words(u8 *tile, int group, int h, int lane, uint4 words) {
  if (group < WHOLE_GROUPS) *(uint4 *)(tile + (group * 2 + h) * 512 + lane * 16) = words;
  else *(uint2 *)(tile + WHOLE_GROUPS * 1024 + h * 256 + lane * 8) = make_uint2(words.x, words.y);
}

// ---- queries

// Registers do not hold the queries of long heads beside keys, values and output.
constexpr bool QUERY_IN_REGISTERS = HEAD_DIM <= 128;

// A lane's part of one query's dims of `group`: A fragments of two steps of q.k, in the order of Keys.
DEVICE uint4 query_words(const u16 *query, int group, int lane) {
  if (group < WHOLE_GROUPS) return load16(query + group * 32 + lane % 4 * 8);
  const uint2 half_group = load8(query + group * 32 + lane % 4 * 4);
  return make_uint4(half_group.x, half_group.y, 0, 0);
}

// ---- scores

#define MINUS_INFINITY __uint_as_float(0xff800000u)
// Below every score and yet finite, so that a row which has seen nothing so far gets weights of 0, not NaN.
#define LOWEST -3.0e38f

// The positions that a query sees: its own and those before it, `window` in all where that is not 0.
struct Sight {
  int first, last;
  DEVICE Sight(int position, int window) : first(window ? max(position - window + 1, 0) : 0), last(position) {}
  DEVICE bool sees(int position) const { return position >= first && position <= last; }
};

// Score tiles hold 8 positions each; `position` is that of the lane's first score. Those that row tile r does not
// see get weights of 0.
template <int N> DEVICE void hide(float (&scores)[N][4], int r, const Sight &sight, int position) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (!sight.sees(position + 8 * n + i)) scores[n][2 * r + i] = MINUS_INFINITY;
}

// The running softmax of rows g and, with ROW_TILES 2, g + 8 of a warp's scores, which are powers of 2
// (arXiv:2205.14135). Score tiles are accumulators of mma: 8 positions each.
template <int ROW_TILES> struct Softmax {
  float top[ROW_TILES];
  float sum[ROW_TILES];  // of the lane's own columns
  DEVICE Softmax() {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) top[r] = LOWEST, sum[r] = 0.0f;
  }
  // Turns scores into weights. What was summed with weights before is to be multiplied with `fade`.
  template <int N> DEVICE void take(float (&scores)[N][4], float (&fade)[ROW_TILES]) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
      float highest = top[r];
#pragma unroll
      for (int n = 0; n < N; n++) highest = fmaxf(highest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      fade[r] = fast_exp2(top[r] - highest);
      top[r] = highest;
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < N; n++) {
        scores[n][2 * r] = fast_exp2(scores[n][2 * r] - highest);
        scores[n][2 * r + 1] = fast_exp2(scores[n][2 * r + 1] - highest);
        total += scores[n][2 * r] + scores[n][2 * r + 1];
      }
      sum[r] = sum[r] * fade[r] + total;
    }
  }
  // The sums of whole rows.
  DEVICE void finish() {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    }
  }
};

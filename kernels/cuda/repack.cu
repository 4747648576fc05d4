// Rows of ggml's quant blocks -> the planes of formats.cuh; rows of floats -> the same rows, filled up with zeros.
//
// native [n_rows][row of a file] -> rows first_row.. of a matrix of matrix_rows rows. One thread moves what one lane
// holds of one chunk, and two or four bytes of its scales. The layouts are those of ggml-common.h; kernels/
// reference_quants.py has them in NumPy. Blocks start at even addresses, no better.
// Reads and writes about as many bytes as the rows have. Products read weights before they wait for the kernel before
// them, so no product may be launched behind this one without a fence.
#include "formats.cuh"

#ifndef FORMAT
#error "FORMAT: a quant type"
#endif
#ifndef WIDTH
#error "WIDTH: weights of a row"
#endif

// Four bytes at an even address.
DEVICE u32 native4(const u8 *p) { return load2(p) | load2(p + 2) << 16; }

// The i-th half-byte of each byte.
DEVICE u32 nibbles(u32 v, int i) { return (v >> (4 * i)) & 0x0f0f0f0fu; }
DEVICE u32 bit_pairs(u32 v, int i) { return (v >> (2 * i)) & 0x03030303u; }
DEVICE u32 single_bits(u32 v, int i) { return (v >> i) & 0x01010101u; }
// Bits i to i + 3 of v, one in each byte.
DEVICE u32 spread_bits(u32 v, int i) { return (((v >> i) & 15u) * 0x00204081u) & 0x01010101u; }

// ggml's blocks: elements and bytes of one, and how to find in them
//   codes(block, group, h, t)  the unsigned codes (Q8_0: the bytes) of elements 32 group + 16h + 4t to + 3
//   scales(block, i)           bytes 2i and 2i + 1 of the block's scales as the scale plane has them
//   deltas(block, i)           bytes 2i and 2i + 1 of what the plane of blocks has
// Blocks of 32 have one group; their scale plane is written per group: scales(block, 0) is d, scales(block, 1) is m.
template <int TYPE> struct Native;

template <> struct Native<Q4_0> {
  static constexpr int ELEMENTS = 32, BYTES = 18;
  static DEVICE u32 codes(const u8 *b, int, int h, int t) { return nibbles(native4(b + 2 + 4 * t), h); }
  static DEVICE u32 scales(const u8 *b, int) { return load2(b); }
};
template <> struct Native<Q4_1> {
  static constexpr int ELEMENTS = 32, BYTES = 20;
  static DEVICE u32 codes(const u8 *b, int, int h, int t) { return nibbles(native4(b + 4 + 4 * t), h); }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 2 * i); }
};
template <> struct Native<Q5_0> {
  static constexpr int ELEMENTS = 32, BYTES = 22;
  static DEVICE u32 codes(const u8 *b, int, int h, int t) {
    return nibbles(native4(b + 6 + 4 * t), h) | spread_bits(load2(b + 2 + 2 * h), 4 * t) << 4;
  }
  static DEVICE u32 scales(const u8 *b, int) { return load2(b); }
};
template <> struct Native<Q5_1> {
  static constexpr int ELEMENTS = 32, BYTES = 24;
  static DEVICE u32 codes(const u8 *b, int, int h, int t) {
    return nibbles(native4(b + 8 + 4 * t), h) | spread_bits(load2(b + 4 + 2 * h), 4 * t) << 4;
  }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 2 * i); }
};
template <> struct Native<Q8_0> {
  static constexpr int ELEMENTS = 32, BYTES = 34;
  static DEVICE u32 codes(const u8 *b, int, int h, int t) { return native4(b + 2 + 16 * h + 4 * t); }
  static DEVICE u32 scales(const u8 *b, int) { return load2(b); }
};
template <> struct Native<Q2_K> {
  static constexpr int ELEMENTS = 256, BYTES = 84;
  static DEVICE u32 codes(const u8 *b, int group, int h, int t) {
    return bit_pairs(native4(b + 16 + group / 4 * 32 + 16 * h + 4 * t), group % 4);
  }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 2 * i); }
  static DEVICE u32 deltas(const u8 *b, int i) { return load2(b + 80 + 2 * i); }
};
template <> struct Native<Q3_K> {
  static constexpr int ELEMENTS = 256, BYTES = 110;
  static DEVICE u32 codes(const u8 *b, int group, int h, int t) {
    return bit_pairs(native4(b + 32 + group / 4 * 32 + 16 * h + 4 * t), group % 4) |
           single_bits(native4(b + 16 * h + 4 * t), group) << 2;
  }
  // 6 bits each: the low four of sixteen in eight bytes, low halves first; the upper two in the four bytes after.
  static DEVICE u32 scales(const u8 *b, int i) {
    const u32 low = (load2(b + 96 + 2 * (i % 4)) >> (i / 4 * 4)) & 0x0f0fu;
    const u32 high = (load2(b + 104 + 2 * (i % 2)) >> (i / 2 * 2)) & 0x0303u;
    return subtract_from_bytes<32>(low | high << 4) & 0xffffu;
  }
  static DEVICE u32 deltas(const u8 *b, int) { return load2(b + 108); }
};
template <> struct Native<Q4_K> {
  static constexpr int ELEMENTS = 256, BYTES = 144;
  static DEVICE u32 codes(const u8 *b, int group, int h, int t) {
    return nibbles(native4(b + 16 + group / 2 * 32 + 16 * h + 4 * t), group % 2);
  }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 2 * i); }
};
template <> struct Native<Q5_K> {
  static constexpr int ELEMENTS = 256, BYTES = 176;
  static DEVICE u32 codes(const u8 *b, int group, int h, int t) {
    return nibbles(native4(b + 48 + group / 2 * 32 + 16 * h + 4 * t), group % 2) |
           single_bits(native4(b + 16 + 16 * h + 4 * t), group) << 4;
  }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 2 * i); }
};
template <> struct Native<Q6_K> {
  static constexpr int ELEMENTS = 256, BYTES = 210;
  static DEVICE u32 codes(const u8 *b, int group, int h, int t) {
    const int half = group / 4, at = group % 2 * 32 + 16 * h + 4 * t;
    return nibbles(native4(b + 64 * half + at), group % 4 / 2) |
           bit_pairs(native4(b + 128 + 32 * half + 16 * h + 4 * t), group % 4) << 4;
  }
  static DEVICE u32 scales(const u8 *b, int i) { return load2(b + 192 + 2 * i); }
  static DEVICE u32 deltas(const u8 *b, int) { return load2(b + 208); }
};

DEVICE void put2(const u8 *plane, u64 at, u32 value) { *(u16 *)(plane + at) = (u16)value; }
DEVICE void put4(const u8 *plane, u64 at, u32 value) { *(u32 *)(plane + at) = value; }

// Move what one lane holds of one chunk; `from` is row 0 of the file's rows, `row` and `to_row` say which to which.
template <int TYPE, int K>
DEVICE void repack_lane(Quantised<TYPE, K>, const u8 *from, u64 row, const Planes &to, u64 to_row, int chunk,
                        int lane) {
  using W = Quantised<TYPE, K>;
  using N = Native<TYPE>;
  from += row * (K / N::ELEMENTS * N::BYTES);
  constexpr int GROUPS = N::ELEMENTS / 32;
  u32 low[W::CODE_BITS] = {}, high[2] = {};
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const int group = 4 * chunk + w / 2;
    if (32 * group >= K) continue;
    const u32 v = N::codes(from + group / GROUPS * N::BYTES, group % GROUPS, w % 2, lane);
    if constexpr (W::CODE_BITS == 8) low[w] = v;
    if constexpr (W::CODE_BITS == 4) low[w / 2] |= nibbles(v, 0) << (4 * (w % 2));
    if constexpr (W::CODE_BITS == 2) low[w / 4] |= bit_pairs(v, 0) << (2 * (w % 4));
    if constexpr (W::HIGH_BITS == 2) high[w / 4] |= bit_pairs(v, W::CODE_BITS / 2) << (2 * (w % 4));
    if constexpr (W::HIGH_BITS == 1) high[0] |= single_bits(v, W::CODE_BITS) << w;
  }
  const u64 codes = to_row * W::CODE_ROW + chunk * (16 * W::CODE_BITS);
  // A lane's words lie together, but no more than four of them.
  constexpr int PIECE = W::CODE_BITS < 4 ? W::CODE_BITS : 4;
#pragma unroll
  for (int i = 0; i < W::CODE_BITS; i++)
    put4(to.codes, codes + (i / PIECE * LANES + lane) * (4 * PIECE) + i % PIECE * 4, low[i]);
  const u64 high_bits = to_row * W::HIGH_ROW + (chunk * LANES + lane) * (4 * W::HIGH_BITS);
#pragma unroll
  for (int i = 0; i < W::HIGH_BITS; i++) put4(to.high, high_bits + 4 * i, high[i]);

  if constexpr (N::ELEMENTS == 32) {
    const int group = 4 * chunk + lane;
    const bool inside = 32 * group < K;
    const u8 *block = from + group * N::BYTES;
    const u64 scales = to_row * W::SCALE_ROW + chunk * (W::SCALE_ROW / W::CHUNKS) + lane * 2;
    put2(to.scales, scales, inside ? N::scales(block, 0) : 0);
    if constexpr (W::HAS_MINIMUM) put2(to.scales, scales + 8, inside ? N::scales(block, 1) : 0);
  } else {
    const u8 *block = from + chunk / 2 * N::BYTES;
    const int i = chunk % 2 * LANES + lane;
    put2(to.scales, to_row * W::SCALE_ROW + chunk / 2 * 16 + 2 * i, N::scales(block, i));
    constexpr int DELTAS = W::BLOCK_ROW / W::CHUNKS;
    if constexpr (DELTAS > 0) {
      const u64 deltas = to_row * W::BLOCK_ROW + chunk / 2 * (2 * DELTAS) + 2 * i;
      if (i < DELTAS) put2(to.blocks, deltas, N::deltas(block, i));
    }
  }
}

template <int TYPE, int K>
DEVICE void repack_lane(Unquantised<TYPE, K>, const u8 *from, u64 row, const Planes &to, u64 to_row, int chunk,
                        int lane) {
  using W = Unquantised<TYPE, K>;
  from += row * (K * W::BYTES);
  u32 words[WORDS][W::BYTES];
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const int element = chunk * CHUNK + 16 * w + 4 * lane;
#pragma unroll
    for (int i = 0; i < W::BYTES; i++)
      words[w][i] = element < K ? native4(from + element * W::BYTES + 4 * i) : 0;
  }
  const u64 at = (to_row * (W::CHUNKS * CHUNK) + chunk * CHUNK + 4 * lane) * W::BYTES;
#pragma unroll
  for (int w = 0; w < WORDS; w++)
#pragma unroll
    for (int i = 0; i < W::BYTES; i++) put4(to.codes, at + 16 * W::BYTES * w + 4 * i, words[w][i]);
}

KERNEL repack(const u8 *native, u8 *matrix, int matrix_rows, int first_row, int n_rows) {
  let_next_start();
  wait_for_previous();
  using W = Weights<FORMAT, WIDTH>;
  const u32 piece = blockIdx.x * blockDim.x + threadIdx.x;
  const u64 row = piece / (W::CHUNKS * LANES);
  if (row >= n_rows) return;
  const int chunk = piece / LANES % W::CHUNKS, lane = piece % LANES;
  repack_lane(W(), native, row, W::planes(matrix, matrix_rows), first_row + row, chunk, lane);
}

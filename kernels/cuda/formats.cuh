// How weights lie in video memory, and how a thread reads them: one layout of planes for every quant type.
//
// A row of K weights is cut into chunks of 128, the last one filled up with zeros. Four lanes share a chunk. It has
// four groups of 32 elements, and lane t has two code words of each group b: word 2b + h holds elements
// 32b + 16h + 4t to + 3, one in each byte. In this order a lane's 32 codes are what dp4a takes, and a chunk's are the
// fragments of the integer tensor cores, so the same bytes serve one column, several, and expanding to floats.
// Low bits, high bits, scales and the scales of blocks of 256 are planes of their own, each [rows][...] and starting
// at a multiple of 256 bytes. `repack.cu` writes the planes; matrices.py knows their sizes.
//
// Knows bits and scales; does not know products. Types are ggml's ids.
#pragma once
#include "ptx.cuh"

enum Type {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
  Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30
};

enum { CHUNK = 128, LANES = 4, WORDS = 8 };

DEVICE u64 plane_end(u64 bytes) { return (bytes + 255) / 256 * 256; }

struct Planes {
  const u8 *codes, *high, *scales, *blocks;
};

// Takes `minus` from each byte; every byte must be below 128 + minus.
template <int MINUS> DEVICE u32 subtract_from_bytes(u32 bytes) {
  return MINUS ? (bytes + (0x80u - MINUS) * 0x01010101u) ^ 0x80808080u : bytes;
}

// A quantised matrix of type TYPE with rows of K weights.
template <int TYPE, int K> struct Quantised {
  static constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
  static constexpr bool SIX_BIT_SCALES = TYPE == Q4_K || TYPE == Q5_K;
  static constexpr bool BYTE_SCALES = TYPE == Q6_K || TYPE == Q3_K;
  static constexpr int CODE_BITS = TYPE == Q8_0 ? 8 : TYPE == Q2_K || TYPE == Q3_K ? 2 : 4;
  static constexpr int HIGH_BITS =
      TYPE == Q6_K ? 2 : TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q5_K || TYPE == Q3_K ? 1 : 0;
  // What is subtracted from a code.
  static constexpr int MINUS = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == Q6_K ? 32 : TYPE == Q3_K ? 4 : 0;
  // Scales of a chunk: one for each group of 32, or for each half of it.
  static constexpr int SCALES = TYPE == Q2_K || BYTE_SCALES ? 8 : 4;
  static constexpr bool HAS_MINIMUM = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || SIX_BIT_SCALES;

  // Bytes of a row in each plane.
  static constexpr int CODE_ROW = CHUNKS * 16 * CODE_BITS;
  static constexpr int HIGH_ROW = CHUNKS * 16 * HIGH_BITS;
  static constexpr int SCALE_ROW = CHUNKS * (TYPE == Q4_1 || TYPE == Q5_1 ? 16 : 8);
  static constexpr int BLOCK_ROW = BYTE_SCALES ? CHUNKS : TYPE == Q2_K ? CHUNKS * 2 : 0;

  static DEVICE Planes planes(const u8 *matrix, u64 n_rows) {
    Planes p;
    p.codes = matrix;
    p.high = p.codes + plane_end(n_rows * CODE_ROW);
    p.scales = p.high + plane_end(n_rows * HIGH_ROW);
    p.blocks = p.scales + plane_end(n_rows * SCALE_ROW);
    return p;
  }

  // What a lane holds of a chunk, as it lies in memory.
  struct Raw {
    u32 low[CODE_BITS];
    u32 high[HIGH_BITS ? HIGH_BITS : 1];
    u32 scales[SIX_BIT_SCALES || SCALE_ROW == CHUNKS * 16 ? 4 : 2];
    u32 block;
  };

  static DEVICE Raw load(const Planes &p, u64 row, int chunk, int lane) {
    Raw r;
    if constexpr (CODE_BITS == 8) {
      const u8 *at = p.codes + row * CODE_ROW + chunk * 128 + lane * 16;
      const uint4 a = stream16(at), b = stream16(at + 64);
      r.low[0] = a.x, r.low[1] = a.y, r.low[2] = a.z, r.low[3] = a.w;
      r.low[4] = b.x, r.low[5] = b.y, r.low[6] = b.z, r.low[7] = b.w;
    } else if constexpr (CODE_BITS == 4) {
      const uint4 a = stream16(p.codes + row * CODE_ROW + chunk * 64 + lane * 16);
      r.low[0] = a.x, r.low[1] = a.y, r.low[2] = a.z, r.low[3] = a.w;
    } else {
      const uint2 a = stream8(p.codes + row * CODE_ROW + chunk * 32 + lane * 8);
      r.low[0] = a.x, r.low[1] = a.y;
    }
    if constexpr (HIGH_BITS == 2) {
      const uint2 a = stream8(p.high + row * HIGH_ROW + chunk * 32 + lane * 8);
      r.high[0] = a.x, r.high[1] = a.y;
    } else if constexpr (HIGH_BITS == 1) {
      r.high[0] = stream4(p.high + row * HIGH_ROW + chunk * 16 + lane * 4);
    }
    if constexpr (SIX_BIT_SCALES) {
      const uint4 a = load16(p.scales + row * SCALE_ROW + (chunk >> 1) * 16);
      r.scales[0] = a.x, r.scales[1] = a.y, r.scales[2] = a.z, r.scales[3] = a.w;
    } else if constexpr (SCALE_ROW == CHUNKS * 16) {
      const uint4 a = load16(p.scales + row * SCALE_ROW + chunk * 16);
      r.scales[0] = a.x, r.scales[1] = a.y, r.scales[2] = a.z, r.scales[3] = a.w;
    } else {
      const uint2 a = load8(p.scales + row * SCALE_ROW + chunk * 8);
      r.scales[0] = a.x, r.scales[1] = a.y;
    }
    if constexpr (BYTE_SCALES) r.block = load2(p.blocks + row * BLOCK_ROW + (chunk >> 1) * 2);
    if constexpr (TYPE == Q2_K) r.block = load4(p.blocks + row * BLOCK_ROW + (chunk >> 1) * 4);
    return r;
  }

  // Code word `w` of a lane: four signed bytes. `w` must be known to the compiler.
  static DEVICE u32 codes(const Raw &r, int w) { return subtract_from_bytes<MINUS>(plain_codes(r, w)); }

  // The same before MINUS is subtracted.
  static DEVICE u32 plain_codes(const Raw &r, int w) {
    u32 v;
    if constexpr (CODE_BITS == 8) v = r.low[w];
    else if constexpr (CODE_BITS == 4) v = (r.low[w / 2] >> (w % 2 * 4)) & 0x0f0f0f0fu;
    else v = (r.low[w / 4] >> (w % 4 * 2)) & 0x03030303u;
    if constexpr (HIGH_BITS == 2) v |= moved(r.high[w / 4], CODE_BITS - w % 4 * 2) & (0x03030303u << CODE_BITS);
    if constexpr (HIGH_BITS == 1) v |= moved(r.high[0], CODE_BITS - w) & (0x01010101u << CODE_BITS);
    return v;
  }
  // `up` must be known to the compiler.
  static DEVICE u32 moved(u32 v, int up) { return up > 0 ? v << up : v >> -up; }

  // Four 6-bit scales or minimums of a chunk in the bytes of a word: GGUF packs eight of each into 12 bytes
  // (reference_quants._k_scales says how).
  static DEVICE u32 six_bits(const Raw &r, int chunk, bool minimum) {
    const u32 own = minimum ? r.scales[2] : r.scales[1];
    const u32 shared = minimum ? r.scales[3] >> 4 : r.scales[3];
    // The same steps for odd and even chunks, with masks that stay as they are along a row.
    const bool odd = chunk & 1;
    return ((own >> (odd ? 2 : 0)) & (odd ? 0x30303030u : 0x3f3f3f3fu)) | (shared & (odd ? 0x0f0f0f0fu : 0u));
  }

  // Half `i` of two words, byte `i` of two words. `i` need not be known to the compiler.
  static DEVICE u32 half_of(const u32 *words, int i) {
    return ((i & 2 ? words[1] : words[0]) >> (i % 2 * 16)) & 0xffffu;
  }
  static DEVICE u32 byte_of(const u32 *words, int i) {
    return ((i & 4 ? words[1] : words[0]) >> (i % 4 * 8)) & 0xffu;
  }

  // Whether scales, and minimums, are whole numbers times one unit for all of a block of 256: the K types.
  static constexpr bool WHOLE_SCALES = SIX_BIT_SCALES || BYTE_SCALES || TYPE == Q2_K;

  static DEVICE float unit(const Raw &r) { return half_to_float((SIX_BIT_SCALES ? r.scales[0] : r.block) & 0xffffu); }

  // Scale `i` in units: 0 to 63, -128 to 127, or 0 to 15.
  static DEVICE int whole_scale(const Raw &r, int chunk, int i) {
    if constexpr (SIX_BIT_SCALES) return __byte_perm(six_bits(r, chunk, false), 0, 0x4440 + i);
    else if constexpr (BYTE_SCALES) return (s8)byte_of(r.scales, i);
    else return __byte_perm((i & 4 ? r.scales[1] : r.scales[0]) & 0x0f0f0f0fu, 0, 0x4440 + i % 4);
  }

  // The same for minimums: 0 to 63, or 0 to 15.
  static DEVICE float minimum_unit(const Raw &r) {
    return half_to_float((SIX_BIT_SCALES ? r.scales[0] : r.block) >> 16);
  }
  static DEVICE int whole_minimum(const Raw &r, int chunk, int i) {
    return SIX_BIT_SCALES ? __byte_perm(six_bits(r, chunk, true), 0, 0x4440 + i) : byte_of(r.scales, i) >> 4;
  }

  // Scale `i` of the chunk, 0 to SCALES - 1.
  static DEVICE float scale(const Raw &r, int chunk, int i) {
    if constexpr (WHOLE_SCALES) return unit(r) * (float)whole_scale(r, chunk, i);
    else return half_to_float(half_of(r.scales, i));
  }

  // What is subtracted from every weight of scale `i`.
  static DEVICE float minimum(const Raw &r, int chunk, int i) {
    if constexpr (WHOLE_SCALES && HAS_MINIMUM) return minimum_unit(r) * (float)whole_minimum(r, chunk, i);
    else if constexpr (HAS_MINIMUM) return -half_to_float(half_of(r.scales + 2, i));
    else return 0.0f;
  }

  // The four weights of word `w`, elements 16w + 4 lane to + 3 of the chunk.
  static DEVICE float4 values(const Raw &r, int chunk, int w) {
    const int i = SCALES == 8 ? w : w / 2;
    const float s = scale(r, chunk, i), m = minimum(r, chunk, i);
    const u32 v = codes(r, w);
    return make_float4(s * (float)(int)(s8)v - m, s * (float)(int)(s8)(v >> 8) - m,
                       s * (float)(int)(s8)(v >> 16) - m, s * (float)(int)(s8)(v >> 24) - m);
  }
};

// A matrix of floats, row after row as in the file, K padded with zeros to whole chunks.
template <int TYPE, int K> struct Unquantised {
  static constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
  static constexpr int BYTES = TYPE == F32 ? 4 : 2;

  struct Raw {
    u32 words[WORDS][BYTES];
  };

  static DEVICE Planes planes(const u8 *matrix, u64) { return {matrix, matrix, matrix, matrix}; }

  static DEVICE Raw load(const Planes &p, u64 row, int chunk, int lane) {
    Raw r;
    const u8 *at = p.codes + (row * CHUNKS + chunk) * (u64)(CHUNK * BYTES) + lane * 4 * BYTES;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
      if constexpr (TYPE == F32) {
        const uint4 a = stream16(at + w * 64);
        r.words[w][0] = a.x, r.words[w][1] = a.y, r.words[w][2] = a.z, r.words[w][3] = a.w;
      } else {
        const uint2 a = stream8(at + w * 32);
        r.words[w][0] = a.x, r.words[w][1] = a.y;
      }
    }
    return r;
  }

  static DEVICE float element(const Raw &r, int w, int i) {
    if constexpr (TYPE == F32) return __uint_as_float(r.words[w][i]);
    const u32 bits = (r.words[w][i / 2] >> (i % 2 * 16)) & 0xffffu;
    return TYPE == BF16 ? __uint_as_float(bits << 16) : half_to_float(bits);
  }

  static DEVICE float4 values(const Raw &r, int, int w) {
    return make_float4(element(r, w, 0), element(r, w, 1), element(r, w, 2), element(r, w, 3));
  }
};

template <int TYPE, int K, bool FLOATS = TYPE == F32 || TYPE == F16 || TYPE == BF16> struct WeightsOf {
  using Layout = Quantised<TYPE, K>;
};
template <int TYPE, int K> struct WeightsOf<TYPE, K, true> {
  using Layout = Unquantised<TYPE, K>;
};
// The layout of a matrix whatever its type: CHUNKS, Raw, planes(), load(), values().
template <int TYPE, int K> using Weights = typename WeightsOf<TYPE, K>::Layout;

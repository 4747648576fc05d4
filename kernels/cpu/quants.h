/* Unpacking spans of every quantised type (ggml's block layouts, ggml-common.h; see reference_quants.py).
 *
 * A span becomes 256 small integers in the order of cpu.h and, for each group of 16 in lane order, a scale and
 * where the type has one a minimum:  weight = scale * (q - zero_point) + minimum.
 */

struct span {
  vb q[4];
  vf scale, minimum;
};

/* The group of each lane, and the block of 32 it lies in. */
static const uint8_t LANE_OF_16[16] = {0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15};
static const uint8_t LANE_OF_8[16] = {0, 1, 4, 5, 0, 1, 4, 5, 2, 3, 6, 7, 2, 3, 6, 7};

INLINE int span_bytes(int type) {
  switch (type) {
    case TYPE_Q4_0: return 8 * 18;
    case TYPE_Q4_1: return 8 * 20;
    case TYPE_Q5_0: return 8 * 22;
    case TYPE_Q5_1: return 8 * 24;
    case TYPE_Q8_0: return 8 * 34;
    case TYPE_Q2_K: return 84;
    case TYPE_Q3_K: return 110;
    case TYPE_Q4_K: return 144;
    case TYPE_Q5_K: return 176;
    default: return 210; /* Q6_K */
  }
}
/* Bits of an unpacked weight; 8 are signed. */
INLINE int weight_bits(int type) {
  switch (type) {
    case TYPE_Q2_K: return 2;
    case TYPE_Q3_K: return 3;
    case TYPE_Q5_0: case TYPE_Q5_1: case TYPE_Q5_K: return 5;
    case TYPE_Q6_K: return 6;
    case TYPE_Q8_0: return 8;
    default: return 4;
  }
}
/* Types whose blocks hold a minimum beside the scale. */
INLINE bool has_minimum(int type) {
  return type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q2_K || type == TYPE_Q4_K || type == TYPE_Q5_K;
}
INLINE int zero_point(int type) {
  switch (type) {
    case TYPE_Q3_K: return 4;
    case TYPE_Q4_0: return 8;
    case TYPE_Q5_0: return 16;
    case TYPE_Q6_K: return 32;
    case TYPE_Q8_0: return SIGNED_ZERO_POINT;
    default: return 0;
  }
}
/* In a product both are a bias: weight = scale * q + bias. */
INLINE bool has_bias(int type) { return has_minimum(type) || zero_point(type); }

INLINE uint32_t load_u32(const uint8_t *p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
INLINE uint64_t load_u64(const uint8_t *p) {
  uint64_t v;
  __builtin_memcpy(&v, p, 8);
  return v;
}
INLINE float load_f16(const uint8_t *p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return f16_to_f32(h);
}
/* The first of the two 32-element blocks that vector p starts with; the other is 2 further on. */
INLINE int first_chunk(int p) { return (p & 2) << 1 | (p & 1); }

#if defined(HAS_BLOCK_SCALES)
INLINE void unpack_block_scales(const uint8_t *p, int bytes, struct span *s) { s->scale = vf_spread(f16_blocks(p, bytes)); }
INLINE void unpack_block_pairs(const uint8_t *p, int bytes, struct span *s) {
  __m256 scale, minimum;
  f16_pairs(p, bytes, &scale, &minimum);
  s->scale = vf_spread(scale);
  s->minimum = vf_spread(minimum);
}
INLINE void unpack_k_scales(const uint8_t *p, struct span *s) {
  __m256 scale, minimum;
  k_scales(p, &scale, &minimum);
  s->scale = vf_spread(scale);
  s->minimum = vf_spread(minimum);
}
#else
INLINE void unpack_block_scales(const uint8_t *p, int bytes, struct span *s) { s->scale = vf_from_f16_blocks(p, bytes); }
INLINE void unpack_block_pairs(const uint8_t *p, int bytes, struct span *s) {
  s->scale = vf_from_f16_blocks(p, bytes);
  s->minimum = vf_from_f16_blocks(p + 2, bytes);
}
/* Q4_K and Q5_K: d, dmin, then eight 6-bit scales and minima in 12 bytes. */
INLINE void unpack_k_scales(const uint8_t *p, struct span *s) {
  const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
  const uint32_t scale = (c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4;
  const uint32_t min = (c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4;
  const uint64_t scales = (uint64_t)scale << 32 | (a & 0x3f3f3f3f), mins = (uint64_t)min << 32 | (b & 0x3f3f3f3f);
  s->scale = vf_mul(vf_set1(load_f16(p)), vf_from_bytes(scales, 0, LANE_OF_8, false));
  s->minimum = vf_mul(vf_set1(-load_f16(p + 2)), vf_from_bytes(mins, 0, LANE_OF_8, false));
}
#endif

INLINE void unpack(int type, const uint8_t *p, struct span *s) {
  const int bytes = span_bytes(type) / 8; /* of a block of 32 */
  switch (type) {
    case TYPE_Q4_0:
    case TYPE_Q4_1:
    case TYPE_Q5_0:
    case TYPE_Q5_1: {
      const int low = bytes - 16; /* where the nibbles start; the fifth bits are the four bytes before */
      for (int v = 0; v < 4; v++) {
        const uint8_t *first = p + first_chunk(v) * bytes + low, *second = first + 2 * bytes;
        s->q[v] = vb_nibbles16(first, second);
        if (type == TYPE_Q5_0 || type == TYPE_Q5_1)
          s->q[v] = vb_or(s->q[v], vb_and(vb_bits(load_u32(first - 4), load_u32(second - 4)), 16));
      }
      if (has_minimum(type)) unpack_block_pairs(p, bytes, s);
      else unpack_block_scales(p, bytes, s);
      break;
    }
    case TYPE_Q8_0:
      for (int v = 0; v < 4; v++) {
        const uint8_t *first = p + first_chunk(v) * bytes + 2;
        s->q[v] = vb_signed(vb_pair(vh_load(first), vh_load(first + 2 * bytes)));
      }
      unpack_block_scales(p, bytes, s);
      break;
    case TYPE_Q2_K: { /* 16 bytes of scale | min << 4, 64 bytes of 2-bit values, d, dmin */
      const uint64_t lo = load_u64(p), hi = load_u64(p + 8), nibble = 0x0f0f0f0f0f0f0f0f;
      for (int h = 0; h < 2; h++) {
        vh v = vh_load(p + 16 + 32 * h);
        vb pair = vb_pair(v, vh_shr(v, 4));
        s->q[2 * h] = vb_and(pair, 3);
        s->q[2 * h + 1] = vb_and(vb_shr(pair, 2), 3);
      }
      s->scale = vf_mul(vf_set1(load_f16(p + 80)), vf_from_bytes(lo & nibble, hi & nibble, LANE_OF_16, false));
      s->minimum = vf_mul(vf_set1(-load_f16(p + 82)), vf_from_bytes(lo >> 4 & nibble, hi >> 4 & nibble, LANE_OF_16, false));
      break;
    }
    case TYPE_Q3_K: { /* 32 bytes of high bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d */
      vh high = vh_load(p);
      vb bits = vb_pair(high, vh_shr(high, 2));
      for (int h = 0; h < 2; h++) {
        vh v = vh_load(p + 32 + 32 * h);
        vb pair = vb_pair(v, vh_shr(v, 4));
        s->q[2 * h] = vb_or(vb_and(pair, 3), vb_shl(vb_and(vb_shr(bits, 4 * h), 1), 2));
        s->q[2 * h + 1] = vb_or(vb_and(vb_shr(pair, 2), 3), vb_shl(vb_and(vb_shr(bits, 4 * h + 1), 1), 2));
      }
      const uint64_t low = load_u64(p + 96), top = load_u32(p + 104), even = top | top >> 2 << 32;
      const uint64_t nibble = 0x0f0f0f0f0f0f0f0f, pair = 0x0303030303030303;
      vf scale = vf_from_bytes((low & nibble) | (even & pair) << 4, (low >> 4 & nibble) | (even >> 4 & pair) << 4,
                               LANE_OF_16, false);
      s->scale = vf_mul(vf_set1(load_f16(p + 108)), vf_sub(scale, vf_set1(32)));
      break;
    }
    case TYPE_Q4_K:
    case TYPE_Q5_K: { /* d, dmin, scales, for Q5_K 32 bytes of high bits, 128 bytes of nibbles */
      const uint8_t *low = p + bytes * 8 - 128;
      for (int h = 0; h < 2; h++) {
        vb v = vb_load(low + 64 * h);
        s->q[2 * h] = vb_and(v, 15);
        s->q[2 * h + 1] = vb_and(vb_shr(v, 4), 15);
      }
      if (type == TYPE_Q5_K) {
        vh high = vh_load(p + 16);
        vb bits = vb_pair(high, vh_shr(high, 2));
        for (int v = 0; v < 4; v++)
          s->q[v] = vb_or(s->q[v], vb_shl(vb_and(vb_shr(bits, first_chunk(v)), 1), 4));
      }
      unpack_k_scales(p, s);
      break;
    }
    default: /* Q6_K: 128 bytes of nibbles, 64 bytes of 2-bit high parts, 16 int8 scales, d */
      for (int h = 0; h < 2; h++) {
        vh a = vh_load(p + 64 * h), b = vh_load(p + 64 * h + 32), top = vh_load(p + 128 + 32 * h);
        vb high = vb_pair(top, vh_shr(top, 4));
        s->q[2 * h] = vb_or(vb_and(vb_pair(a, vh_shr(a, 4)), 15), vb_and(vb_shl(high, 4), 48));
        s->q[2 * h + 1] = vb_or(vb_and(vb_pair(b, vh_shr(b, 4)), 15), vb_and(vb_shl(high, 2), 48));
      }
      s->scale = vf_mul(vf_set1(load_f16(p + 208)), vf_from_bytes(load_u64(p + 192), load_u64(p + 200), LANE_OF_16, true));
  }
}

INLINE vf span_bias(int type, const struct span *s) {
  return has_minimum(type) ? s->minimum : vf_mul(s->scale, vf_set1((float)-zero_point(type)));
}

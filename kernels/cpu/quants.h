/* Unpacking spans of every quantised type (ggml's block layouts, ggml-common.h; see reference_quants.py).
 *
 * A span becomes 256 small integers in natural order and, for each group of 16 in lane order, a scale and
 * where the type has one a bias:  weight = scale * (q - zero_point) + bias.
 */

struct span {
  vh q[8];
  vf scale, bias;
};

static const uint8_t LANE_OF_16[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
/* Eight scales, two groups each; the second eight bytes (minima) are at + 8. */
static const uint8_t LANE_OF_8[16] = {0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7};
static const uint8_t LANE_OF_8_UPPER[16] = {8, 10, 12, 14, 8, 10, 12, 14, 9, 11, 13, 15, 9, 11, 13, 15};

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
INLINE bool has_bias(int type) {
  return type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q2_K || type == TYPE_Q4_K || type == TYPE_Q5_K;
}
INLINE bool is_signed(int type) { return type == TYPE_Q8_0; }
/* log2 of the zero point, or -1 where it is 0. */
INLINE int zero_point_shift(int type) {
  switch (type) {
    case TYPE_Q3_K: return 2;
    case TYPE_Q4_0: return 3;
    case TYPE_Q5_0: return 4;
    case TYPE_Q6_K: return 5;
    case TYPE_Q8_0: return SIGNED_ZERO_POINT_SHIFT;
    default: return -1;
  }
}

INLINE uint32_t load_u32(const uint8_t *p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
INLINE float load_f16(const uint8_t *p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return f16_to_f32(h);
}

/* Q4_K and Q5_K: eight 6-bit scales and minima in 12 bytes -> 8 + 8 bytes. */
INLINE void unpack_scales_6bit(const uint8_t *p, uint32_t out[4]) {
  uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
  out[0] = a & 0x3f3f3f3f;
  out[1] = (c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4;
  out[2] = b & 0x3f3f3f3f;
  out[3] = (c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4;
}

INLINE void unpack_k_scales(const uint8_t *p, struct span *s) { /* d, dmin, 12 scale bytes */
  uint32_t bytes[4];
  unpack_scales_6bit(p + 4, bytes);
  s->scale = vf_mul(vf_set1(load_f16(p)), vf_from_bytes(bytes, LANE_OF_8, false));
  s->bias = vf_mul(vf_set1(-load_f16(p + 2)), vf_from_bytes(bytes, LANE_OF_8_UPPER, false));
}

INLINE void unpack(int type, const uint8_t *p, struct span *s) {
  switch (type) {
    case TYPE_Q4_0:
      for (int b = 0; b < 8; b++) s->q[b] = vh_nibbles16(p + b * 18 + 2);
      s->scale = vf_from_f16_blocks(p, 18);
      break;
    case TYPE_Q4_1:
      for (int b = 0; b < 8; b++) s->q[b] = vh_nibbles16(p + b * 20 + 4);
      s->scale = vf_from_f16_blocks(p, 20);
      s->bias = vf_from_f16_blocks(p + 2, 20);
      break;
    case TYPE_Q5_0:
      for (int b = 0; b < 8; b++)
        s->q[b] = vh_or(vh_nibbles16(p + b * 22 + 6), vh_and(vh_bits(load_u32(p + b * 22 + 2)), 16));
      s->scale = vf_from_f16_blocks(p, 22);
      break;
    case TYPE_Q5_1:
      for (int b = 0; b < 8; b++)
        s->q[b] = vh_or(vh_nibbles16(p + b * 24 + 8), vh_and(vh_bits(load_u32(p + b * 24 + 4)), 16));
      s->scale = vf_from_f16_blocks(p, 24);
      s->bias = vf_from_f16_blocks(p + 2, 24);
      break;
    case TYPE_Q8_0:
      for (int b = 0; b < 8; b++) s->q[b] = vh_signed(vh_load(p + b * 34 + 2));
      s->scale = vf_from_f16_blocks(p, 34);
      break;
    case TYPE_Q2_K: { /* 16 scale bytes (scale | min << 4), 64 bytes of 2-bit values, d, dmin */
      uint8_t low[16], high[16];
      for (int i = 0; i < 16; i++) low[i] = p[i] & 15, high[i] = p[i] >> 4;
      for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++) s->q[4 * h + j] = vh_and(vh_shr(vh_load(p + 16 + 32 * h), 2 * j), 3);
      s->scale = vf_mul(vf_set1(load_f16(p + 80)), vf_from_bytes(low, LANE_OF_16, false));
      s->bias = vf_mul(vf_set1(-load_f16(p + 82)), vf_from_bytes(high, LANE_OF_16, false));
      break;
    }
    case TYPE_Q3_K: { /* 32 bytes of high bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d */
      vh high = vh_load(p);
      for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
          s->q[4 * h + j] = vh_or(vh_and(vh_shr(vh_load(p + 32 + 32 * h), 2 * j), 3),
                                  vh_shl(vh_and(vh_shr(high, 4 * h + j), 1), 2));
      uint32_t a = load_u32(p + 96), b = load_u32(p + 100), c = load_u32(p + 104);
      uint32_t bytes[4] = {(a & 0x0f0f0f0f) | (c & 0x03030303) << 4, (b & 0x0f0f0f0f) | (c >> 2 & 0x03030303) << 4,
                           (a >> 4 & 0x0f0f0f0f) | (c >> 4 & 0x03030303) << 4,
                           (b >> 4 & 0x0f0f0f0f) | (c >> 6 & 0x03030303) << 4};
      s->scale = vf_mul(vf_set1(load_f16(p + 108)), vf_sub(vf_from_bytes(bytes, LANE_OF_16, false), vf_set1(32)));
      break;
    }
    case TYPE_Q4_K:
      for (int j = 0; j < 4; j++) {
        vh v = vh_load(p + 16 + 32 * j);
        s->q[2 * j] = vh_and(v, 15);
        s->q[2 * j + 1] = vh_and(vh_shr(v, 4), 15);
      }
      unpack_k_scales(p, s);
      break;
    case TYPE_Q5_K: { /* d, dmin, scales, 32 bytes of high bits, 128 bytes of nibbles */
      vh high = vh_load(p + 16);
      for (int j = 0; j < 4; j++) {
        vh v = vh_load(p + 48 + 32 * j);
        s->q[2 * j] = vh_or(vh_and(v, 15), vh_shl(vh_and(vh_shr(high, 2 * j), 1), 4));
        s->q[2 * j + 1] = vh_or(vh_and(vh_shr(v, 4), 15), vh_shl(vh_and(vh_shr(high, 2 * j + 1), 1), 4));
      }
      unpack_k_scales(p, s);
      break;
    }
    default: { /* Q6_K: 128 bytes of nibbles, 64 bytes of 2-bit high parts, 16 int8 scales, d */
      for (int h = 0; h < 2; h++) {
        vh a = vh_load(p + 64 * h), b = vh_load(p + 64 * h + 32), high = vh_load(p + 128 + 32 * h);
        s->q[4 * h] = vh_or(vh_and(a, 15), vh_and(vh_shl(high, 4), 48));
        s->q[4 * h + 1] = vh_or(vh_and(b, 15), vh_and(vh_shl(high, 2), 48));
        s->q[4 * h + 2] = vh_or(vh_and(vh_shr(a, 4), 15), vh_and(high, 48));
        s->q[4 * h + 3] = vh_or(vh_and(vh_shr(b, 4), 15), vh_and(vh_shr(high, 2), 48));
      }
      s->scale = vf_mul(vf_set1(load_f16(p + 208)), vf_from_bytes(p + 192, LANE_OF_16, true));
    }
  }
}

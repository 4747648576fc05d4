/* Vectors in plain C for any processor: 16 floats or ints, 64 bytes. The compiler vectorises what it can. */
#include <math.h>
#include <string.h>
#define INLINE static inline
enum { TILE_ROWS = 1, SUMS = 2 /* vectors of 16 that the registers hold beside others */ };
#define TILE_COLUMNS 4 /* of activations that a product takes at once, 4 or 8 */
#define AHEAD_IN_FIRST_CACHE 0 /* bytes, also asked for there; 0 is none */
#define SIGNED_ZERO_POINT 0

typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;
typedef struct { uint8_t v[64]; } vb;
typedef struct { uint8_t v[32]; } vh;
#define EACH(n) for (int i = 0; i < (n); i++)

INLINE vf vf_set1(float x) { vf r; EACH(16) r.v[i] = x; return r; }
INLINE vf vf_load(const float *p) { vf r; memcpy(&r, p, 64); return r; }
INLINE void vf_store(float *p, vf x) { memcpy(p, &x, 64); }
INLINE vf vf_add(vf a, vf b) { EACH(16) a.v[i] += b.v[i]; return a; }
INLINE vf vf_sub(vf a, vf b) { EACH(16) a.v[i] -= b.v[i]; return a; }
INLINE vf vf_mul(vf a, vf b) { EACH(16) a.v[i] *= b.v[i]; return a; }
INLINE vf vf_div(vf a, vf b) { EACH(16) a.v[i] /= b.v[i]; return a; }
INLINE vf vf_max(vf a, vf b) { EACH(16) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE vf vf_min(vf a, vf b) { EACH(16) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE vf vf_abs(vf a) { EACH(16) a.v[i] = fabsf(a.v[i]); return a; }
INLINE vf vf_fma(vf a, vf b, vf c) { EACH(16) c.v[i] += a.v[i] * b.v[i]; return c; }
INLINE vf vf_fnma(vf a, vf b, vf c) { EACH(16) c.v[i] -= a.v[i] * b.v[i]; return c; }
INLINE vf vf_from_vi(vi a) { vf r; EACH(16) r.v[i] = (float)a.v[i]; return r; }
INLINE vi vi_round(vf a) { vi r; EACH(16) r.v[i] = (int32_t)lrintf(a.v[i]); return r; }
INLINE vf vf_zero_below(vf value, vf x, float limit) { EACH(16) value.v[i] = x.v[i] >= limit ? value.v[i] : 0; return value; }
INLINE vf vf_exp2i(vi n) { vf r; EACH(16) n.v[i] = (n.v[i] + 127) << 23; memcpy(&r, &n, 64); return r; }
INLINE float vf_hsum(vf v) { for (int n = 8; n; n /= 2) EACH(n) v.v[i] += v.v[i + n]; return v.v[0]; }
INLINE void vf_hsum4(const float v[4][16], float out[4]) {
  for (int i = 0; i < 4; i++) out[i] = vf_hsum(vf_load(v[i]));
}
INLINE float vf_hmax(vf v) { float m = v.v[0]; EACH(16) m = v.v[i] > m ? v.v[i] : m; return m; }
INLINE float bits_to_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
INLINE float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  if (e == 0) return sign ? -(float)m * 0x1p-24f : (float)m * 0x1p-24f;
  return bits_to_f32(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}
INLINE uint16_t f32_to_f16(float x) { /* round to nearest even */
  uint32_t u;
  memcpy(&u, &x, 4);
  uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00;
  if (u >= 0x477ff000) return sign | 0x7c00;
  if (u < 0x38800000) return sign | (uint16_t)lrintf(bits_to_f32(u) * 0x1p24f);
  u -= 112u << 23;
  return sign | (uint16_t)((u + 0xfff + (u >> 13 & 1)) >> 13);
}
INLINE vf vf_load_f16(const uint16_t *p) { vf r; EACH(16) r.v[i] = f16_to_f32(p[i]); return r; }
INLINE void vf_store_f16(uint16_t *p, vf x) { EACH(16) p[i] = f32_to_f16(x.v[i]); }
INLINE vf vf_load_bf16(const uint16_t *p) { vf r; EACH(16) r.v[i] = bits_to_f32((uint32_t)p[i] << 16); return r; }

INLINE vi vi_zero(void) { vi r; memset(&r, 0, 64); return r; }
INLINE int32_t vi_hsum(vi v) { int32_t s = 0; EACH(16) s += v.v[i]; return s; }
INLINE void vi_store_i8(int8_t *p, vi x) { EACH(16) p[i] = (int8_t)x.v[i]; }
INLINE vf vf_from_i8(const int8_t *p) { vf r; EACH(16) r.v[i] = p[i]; return r; }
INLINE vf vf_from_u8(const uint8_t *p) { vf r; EACH(16) r.v[i] = p[i]; return r; }

INLINE vb vb_load(const void *p) { vb r; memcpy(&r, p, 64); return r; }
INLINE void vb_store(void *p, vb x) { memcpy(p, &x, 64); }
INLINE vi vi_dot4(vi acc, vb w, vb x, bool is_signed) {
  EACH(16) for (int j = 4 * i; j < 4 * i + 4; j++)
    acc.v[i] += (is_signed ? (int8_t)w.v[j] : w.v[j]) * (int8_t)x.v[j];
  return acc;
}
INLINE vi vi_reduce4(vi a, vi b, vi c, vi d) {
  const vi *from[4] = {&a, &b, &c, &d};
  vi r;
  EACH(16) {
    const int32_t *s = from[i & 3]->v + (i & ~3);
    r.v[i] = s[0] + s[1] + s[2] + s[3];
  }
  return r;
}
/* Lane 4g + p of out[k] is lane 4g + k of q[p]. */
INLINE void vb_transpose4(const vb q[4], vb out[4]) {
  for (int k = 0; k < 4; k++) EACH(16) memcpy(out[k].v + 4 * i, q[i & 3].v + 4 * ((i & ~3) + k), 4);
}

INLINE vh vh_load(const void *p) { vh r; memcpy(&r, p, 32); return r; }
INLINE vh vh_shr(vh a, int n) { EACH(32) a.v[i] = (uint8_t)(a.v[i] >> n); return a; }
INLINE vb vb_pair(vh lo, vh hi) { vb r; memcpy(&r, &lo, 32); memcpy(r.v + 32, &hi, 32); return r; }
INLINE vb vb_and(vb a, uint8_t mask) { EACH(64) a.v[i] &= mask; return a; }
INLINE vb vb_or(vb a, vb b) { EACH(64) a.v[i] |= b.v[i]; return a; }
INLINE vb vb_shr(vb a, int n) { EACH(64) a.v[i] = (uint8_t)(a.v[i] >> n); return a; }
INLINE vb vb_shl(vb a, int n) { EACH(64) a.v[i] = (uint8_t)(a.v[i] << n); return a; }
INLINE vb vb_nibbles16(const void *p, const void *q) {
  vb r;
  EACH(64) {
    uint8_t x = ((const uint8_t *)(i < 32 ? p : q))[i % 16];
    r.v[i] = i % 32 < 16 ? x & 15 : x >> 4;
  }
  return r;
}
INLINE vb vb_bits(uint32_t lo, uint32_t hi) { vb r; EACH(64) r.v[i] = (i < 32 ? lo : hi) >> i % 32 & 1 ? 255 : 0; return r; }
INLINE vb vb_signed(vb a) { return a; }

INLINE vf vf_from_bytes(uint64_t lo, uint64_t hi, const uint8_t *order, bool is_signed) {
  vf r;
  EACH(16) {
    uint8_t x = (uint8_t)(order[i] < 8 ? lo >> 8 * order[i] : hi >> 8 * (order[i] - 8));
    r.v[i] = is_signed ? (int8_t)x : x;
  }
  return r;
}
INLINE vf vf_from_f16_blocks(const uint8_t *p, int stride) {
  vf r;
  EACH(16) {
    uint16_t h;
    memcpy(&h, p + group_of_lane(i) / 2 * stride, 2);
    r.v[i] = f16_to_f32(h);
  }
  return r;
}
#include "whole_tiles.h"
#undef EACH

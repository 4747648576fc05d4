/* Vectors for AVX2 with FMA and F16C: 16 floats or ints as two registers, 64 bytes as two halves. */
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))
enum { PART = 8, PARTS = LANES / PART, TILE_ROWS = 1, SUMS = 6 /* vectors of 16 that the registers hold beside others */ };
#define TILE_COLUMNS 4 /* of activations that a product takes at once, 4 or 8 */
#define AHEAD_IN_FIRST_CACHE 0 /* bytes, also asked for there; 0 is none */
#define SIGNED_ZERO_POINT 0 /* signed bytes are multiplied as they are */

typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef struct { __m256i a, b; } vb;
typedef __m256i vh;

INLINE vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE vf vf_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE vf vf_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE vf vf_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE vf vf_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE vf vf_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE vf vf_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE vf vf_abs(vf x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
INLINE vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INLINE vf vf_fnma(vf x, vf y, vf z) { return (vf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
INLINE vf vf_from_vi(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE vi vi_round(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE vf vf_zero_below(vf value, vf x, float limit) {
  const __m256 l = _mm256_set1_ps(limit);
  return (vf){_mm256_and_ps(value.a, _mm256_cmp_ps(x.a, l, _CMP_GE_OQ)),
              _mm256_and_ps(value.b, _mm256_cmp_ps(x.b, l, _CMP_GE_OQ))};
}
INLINE __m256 exp2i(__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
INLINE vf vf_exp2i(vi n) { return (vf){exp2i(n.a), exp2i(n.b)}; }
INLINE float vf_hsum(vf v) { /* the same tree as every other set */
  __m256 a = _mm256_add_ps(v.a, v.b);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
/* The same of four, whose shuffles serve two each. */
INLINE void vf_hsum4(const float v[4][16], float out[4]) {
  __m256 a[4];
  for (int i = 0; i < 4; i++) a[i] = _mm256_add_ps(_mm256_loadu_ps(v[i]), _mm256_loadu_ps(v[i] + 8));
  const __m256 b = _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[2], 0x20), _mm256_permute2f128_ps(a[0], a[2], 0x31));
  const __m256 c = _mm256_add_ps(_mm256_permute2f128_ps(a[1], a[3], 0x20), _mm256_permute2f128_ps(a[1], a[3], 0x31));
  const __m256 low = _mm256_shuffle_ps(b, c, 0x44), high = _mm256_shuffle_ps(b, c, 0xee);
  const __m256 d = _mm256_add_ps(low, high), e = _mm256_add_ps(d, _mm256_movehdup_ps(d)); /* 0 . 1 . 2 . 3 . */
  _mm_storeu_ps(out, _mm_shuffle_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1), 0x88));
}
INLINE float vf_hmax(vf v) {
  __m256 a = _mm256_max_ps(v.a, v.b);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
INLINE vf vf_load_f16(const uint16_t *p) {
  return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
INLINE void vf_store_f16(uint16_t *p, vf x) {
  _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
INLINE __m256 load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE vf vf_load_bf16(const uint16_t *p) { return (vf){load_bf16(p), load_bf16(p + 8)}; }
INLINE float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }

INLINE int32_t vi_hsum(vi v) {
  __m256i a = _mm256_add_epi32(v.a, v.b);
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
INLINE void vi_store_i8(int8_t *p, vi x) {
  __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((void *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
INLINE vf vf_from_i8(const int8_t *p) {
  return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
              _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8))))};
}
INLINE vf vf_from_u8(const uint8_t *p) {
  return (vf){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p))),
              _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8))))};
}

INLINE vb vb_load(const void *p) { return (vb){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)}; }
INLINE void vb_store(void *p, vb x) { _mm256_storeu_si256(p, x.a); _mm256_storeu_si256((__m256i *)p + 1, x.b); }

/* Products of bytes. maddubs adds two neighbours in 16 bits and saturates at 32,767. A pair reaches 2 * 31 * 127 =
 * 7,874 for weights of up to 5 bits, so that four pairs may be added before they are widened; 16,002 for 6 bits, two
 * pairs; 32,512 for signed bytes (as |w| * sign(x, w)), none. */
INLINE __m256i pairs(__m256i w, __m256i x, int bits) {
  return bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}
INLINE __m256i widen(__m256i pair_sums) { return _mm256_madd_epi16(pair_sums, _mm256_set1_epi16(1)); }
INLINE __m256i add_halves16(__m256i a, __m256i b) { /* lanes of 32 bits: a0+a2, b0+b2, a1+a3, b1+b3 of each 128 */
  return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
INLINE __m256i add_halves32(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
/* Lane 4g + p is the sum of lanes 4g .. 4g+3 of pairs p. */
INLINE __m256i group_dots(__m256i a, __m256i b, __m256i c, __m256i d, int bits) {
  if (bits == 8) {
    __m256i ab = add_halves32(widen(a), widen(b)), cd = add_halves32(widen(c), widen(d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  }
  __m256i ab = add_halves16(a, b), cd = add_halves16(c, d);
  __m256i low = _mm256_unpacklo_epi64(ab, cd), high = _mm256_unpackhi_epi64(ab, cd);
  return bits == 6 ? _mm256_add_epi32(widen(low), widen(high)) : widen(_mm256_add_epi16(low, high));
}
/* Sums of q * x over the 16 inputs of each lane's group; `bits` is the size of q, 8 for signed bytes. */
INLINE vi vi_group_dots(const vb q[4], const int8_t *x, int bits) {
  __m256i a[4], b[4];
  for (int j = 0; j < 4; j++) {
    const vb v = vb_load(x + 64 * j);
    a[j] = pairs(q[j].a, v.a, bits);
    b[j] = pairs(q[j].b, v.b, bits);
  }
  return (vi){group_dots(a[0], a[1], a[2], a[3], bits), group_dots(b[0], b[1], b[2], b[3], bits)};
}

INLINE void transpose4(const __m256i q[4], __m256i out[4]) { /* of lanes of 32 bits, in each half */
  const __m256i a = _mm256_unpacklo_epi32(q[0], q[1]), b = _mm256_unpackhi_epi32(q[0], q[1]);
  const __m256i c = _mm256_unpacklo_epi32(q[2], q[3]), d = _mm256_unpackhi_epi32(q[2], q[3]);
  out[0] = _mm256_unpacklo_epi64(a, c);
  out[1] = _mm256_unpackhi_epi64(a, c);
  out[2] = _mm256_unpacklo_epi64(b, d);
  out[3] = _mm256_unpackhi_epi64(b, d);
}
/* Lane 4g + p of out[k] is lane 4g + k of q[p]. */
INLINE void vb_transpose4(const vb q[4], vb out[4]) {
  __m256i a[4], b[4];
  transpose4((const __m256i[4]){q[0].a, q[1].a, q[2].a, q[3].a}, a);
  transpose4((const __m256i[4]){q[0].b, q[1].b, q[2].b, q[3].b}, b);
  for (int k = 0; k < 4; k++) out[k] = (vb){a[k], b[k]};
}

/* Parts of 8 lanes: with 16, the sums of a few columns alone would fill the 16 registers. */
typedef __m256 pf;
typedef __m256i pb;
INLINE pf pf_set1(float x) { return _mm256_set1_ps(x); }
INLINE pf pf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void pf_store(float *p, pf x) { _mm256_storeu_ps(p, x); }
INLINE pf pf_mul(pf x, pf y) { return _mm256_mul_ps(x, y); }
INLINE pf pf_fma(pf x, pf y, pf z) { return _mm256_fmadd_ps(x, y, z); }
INLINE pb pb_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE void vb_store_parts(uint8_t *p, int64_t bytes, vb x) { /* from one part to the next */
  _mm256_storeu_si256((void *)p, x.a);
  _mm256_storeu_si256((void *)(p + bytes), x.b);
}
INLINE void vf_store_parts(float *p, int64_t bytes, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps((float *)((uint8_t *)p + bytes), x.b);
}
/* The sum over the 16 inputs of each lane's group, four of them in each q. */
INLINE pf pf_group_dots(const pb w[4], const uint8_t x[4][4 * PART], int bits) {
  __m256i p[4];
  for (int k = 0; k < 4; k++) p[k] = pairs(w[k], pb_load(x[k]), bits);
  if (bits == 8)
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(widen(p[0]), widen(p[1])), _mm256_add_epi32(widen(p[2]), widen(p[3]))));
  const __m256i low = _mm256_add_epi16(p[0], p[1]), high = _mm256_add_epi16(p[2], p[3]);
  return _mm256_cvtepi32_ps(bits == 6 ? _mm256_add_epi32(widen(low), widen(high)) : widen(_mm256_add_epi16(low, high)));
}

INLINE vh vh_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE vh vh_shr(vh a, int n) { return _mm256_srli_epi16(a, n); } /* crosses bytes: mask afterwards */
INLINE vb vb_pair(vh lo, vh hi) { return (vb){lo, hi}; }
INLINE vb vb_and(vb x, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8((char)mask);
  return (vb){_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
INLINE vb vb_or(vb x, vb y) { return (vb){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
INLINE vb vb_shr(vb x, int n) { return (vb){_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)}; }
INLINE vb vb_shl(vb x, int n) { return (vb){_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)}; }
INLINE vh nibbles16(const void *p) {
  __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
  return _mm256_and_si256(_mm256_srlv_epi64(v, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
}
INLINE vb vb_nibbles16(const void *p, const void *q) { return (vb){nibbles16(p), nibbles16(q)}; }
INLINE vh bits(uint32_t x) {
  const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
  return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)x), byte), bit), bit);
}
INLINE vb vb_bits(uint32_t lo, uint32_t hi) { return (vb){bits(lo), bits(hi)}; }
INLINE vb vb_signed(vb a) { return a; }

INLINE vf vf_from_bytes(uint64_t lo, uint64_t hi, const uint8_t *order, bool is_signed) {
  __m128i v = _mm_set_epi64x((long long)hi, (long long)lo);
  v = _mm_shuffle_epi8(v, _mm_loadu_si128((const void *)order));
  __m128i w = _mm_srli_si128(v, 8);
  return (vf){_mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v)),
              _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(w) : _mm256_cvtepu8_epi32(w))};
}
INLINE vf vf_spread(__m256 x) { return (vf){_mm256_permute2f128_ps(x, x, 0x00), _mm256_permute2f128_ps(x, x, 0x11)}; }
#include "simd_x86.h"

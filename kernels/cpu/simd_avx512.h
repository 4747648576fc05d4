/* Vectors for AVX-512 (F, BW, DQ, VL, VNNI): 16 floats or ints, 64 bytes, and halves of 32 bytes. */
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))
enum { TILE_ROWS = 2, SUMS = 16 /* vectors of 16 that the registers hold beside others */ };
#define TILE_COLUMNS 8 /* of activations that a product takes at once, 4 or 8 */
#define AHEAD_IN_FIRST_CACHE 1024 /* bytes, also asked for there; 0 is none */
#define SIGNED_ZERO_POINT 128 /* signed bytes are used as byte ^ 0x80 */

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
typedef __m256i vh;

INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vi_round(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vf vf_zero_below(vf value, vf x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), value);
}
INLINE vf vf_exp2i(vi n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }
/* Fixed tree: lanes l and l+8, then l+4, l+2, l+1; the matrix product adds its chains in the same tree. */
INLINE float vf_hsum(vf v) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
/* The same of four, whose shuffles serve two and then four. */
INLINE vf add_halves(vf x, vf y) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}
INLINE void vf_hsum4(const float v[4][16], float out[4]) {
  const vf x = add_halves(vf_load(v[0]), vf_load(v[1])), y = add_halves(vf_load(v[2]), vf_load(v[3]));
  vf z = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd)); /* four lanes of each */
  z = _mm512_add_ps(z, _mm512_permute_ps(z, 0x4e));
  z = _mm512_add_ps(z, _mm512_permute_ps(z, 0xb1));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, z)));
}
INLINE float vf_hmax(vf v) { return _mm512_reduce_max_ps(v); }
INLINE vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
INLINE void vf_store_f16(uint16_t *p, vf x) {
  _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vf vf_load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
INLINE float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }

INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE int32_t vi_hsum(vi v) { return _mm512_reduce_add_epi32(v); }
INLINE void vi_store_i8(int8_t *p, vi x) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(x)); }
INLINE vf vf_from_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p))); }
INLINE vf vf_from_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p))); }

INLINE vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vb_store(void *p, vb x) { _mm512_storeu_si512(p, x); }
/* acc[l] += sum over 4 bytes of w[4l+j] * x[4l+j]; w unsigned, or signed as this set encodes it. */
INLINE vi vi_dot4(vi acc, vb w, vb x, bool is_signed) {
  (void)is_signed;
  return _mm512_dpbusd_epi32(acc, w, x);
}
/* Lane 4g + p of the result is the sum of lanes 4g .. 4g+3 of input p. */
INLINE vi vi_reduce4(vi a, vi b, vi c, vi d) {
  vi ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  vi cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}
/* Lane 4g + p of out[k] is lane 4g + k of q[p]. */
INLINE void vb_transpose4(const vb q[4], vb out[4]) {
  const __m512i a = _mm512_unpacklo_epi32(q[0], q[1]), b = _mm512_unpackhi_epi32(q[0], q[1]);
  const __m512i c = _mm512_unpacklo_epi32(q[2], q[3]), d = _mm512_unpackhi_epi32(q[2], q[3]);
  out[0] = _mm512_unpacklo_epi64(a, c);
  out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d);
  out[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE vh vh_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE vh vh_shr(vh a, int n) { return _mm256_srli_epi16(a, n); } /* crosses bytes: mask afterwards */
INLINE vb vb_pair(vh lo, vh hi) { return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1); }
INLINE vb vb_and(vb a, uint8_t mask) { return _mm512_and_si512(a, _mm512_set1_epi8((char)mask)); }
INLINE vb vb_or(vb a, vb b) { return _mm512_or_si512(a, b); }
INLINE vb vb_shr(vb a, int n) { return _mm512_srli_epi16(a, n); }
INLINE vb vb_shl(vb a, int n) { return _mm512_slli_epi16(a, n); }
/* 16 bytes at p as 32, their low nibbles and then their high ones; then the same from q. */
INLINE vb vb_nibbles16(const void *p, const void *q) {
  vb v = vb_pair(_mm256_broadcastsi128_si256(_mm_loadu_si128(p)), _mm256_broadcastsi128_si256(_mm_loadu_si128(q)));
  return vb_and(_mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), 15);
}
/* Each bit as a byte of zeros or ones. */
INLINE vb vb_bits(uint32_t lo, uint32_t hi) { return _mm512_movm_epi8((uint64_t)hi << 32 | lo); }
INLINE vb vb_signed(vb a) { return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)); }

/* 16 bytes taken through `order`, as floats. */
INLINE vf vf_from_bytes(uint64_t lo, uint64_t hi, const uint8_t *order, bool is_signed) {
  __m128i v = _mm_set_epi64x((long long)hi, (long long)lo);
  v = _mm_shuffle_epi8(v, _mm_loadu_si128((const void *)order));
  return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(v) : _mm512_cvtepu8_epi32(v));
}
INLINE vf vf_spread(__m256 x) {
  const __m512 wide = _mm512_castps256_ps512(x);
  return _mm512_shuffle_f32x4(wide, wide, 0x50);
}
#include "simd_x86.h"
#include "whole_tiles.h"

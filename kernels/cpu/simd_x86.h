/* Scales of the eight blocks of 32 in a span, for both vector sets of x86-64: eight floats in the order
 * 0 1 4 5 2 3 6 7, whose halves vf_spread gives to two groups of lanes each. */
#define HAS_BLOCK_SCALES

INLINE __m128i load4(const uint8_t *p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm_cvtsi32_si128(v);
}

/* Eight float16 at p, p + stride, ... */
INLINE __m256 f16_blocks(const uint8_t *p, int stride) {
#define PAIR(i, j) _mm_unpacklo_epi16(load4(p + (i) * stride), load4(p + (j) * stride))
  const __m128i a = _mm_unpacklo_epi32(PAIR(0, 1), PAIR(4, 5)), b = _mm_unpacklo_epi32(PAIR(2, 3), PAIR(6, 7));
#undef PAIR
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
}

/* Eight pairs of float16, a scale and a minimum. */
INLINE void f16_pairs(const uint8_t *p, int stride, __m256 *scale, __m256 *minimum) {
#define PAIR(i, j) _mm_unpacklo_epi32(load4(p + (i) * stride), load4(p + (j) * stride))
  const __m256 a = _mm256_cvtph_ps(_mm_unpacklo_epi64(PAIR(0, 1), PAIR(2, 3)));
  const __m256 b = _mm256_cvtph_ps(_mm_unpacklo_epi64(PAIR(4, 5), PAIR(6, 7)));
#undef PAIR
  *scale = _mm256_shuffle_ps(a, b, 0x88);
  *minimum = _mm256_shuffle_ps(a, b, 0xdd);
}

/* A Q4_K or Q5_K block: d, dmin, bytes a0-3 b0-3 c0-3. The first four scales and minima are the low six bits of a and
 * b; the others have their low four bits in c and their high two in those of a and b. Minima come out negated. */
INLINE void k_scales(const uint8_t *p, __m256 *scale, __m256 *minimum) {
  const __m128i v = _mm_loadu_si128((const void *)p);
  const __m128i low = _mm_shuffle_epi8(v, _mm_setr_epi8(4, 5, 12, 13, 6, 7, 14, 15, 8, 9, 12, 13, 10, 11, 14, 15));
  const __m128i high = _mm_shuffle_epi8(v, _mm_setr_epi8(-1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1, -1, 10, 11));
  const __m128i six = _mm_setr_epi8(63, 63, 15, 15, 63, 63, 15, 15, 63, 63, 0, 0, 63, 63, 0, 0);
  const __m128i four = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 0, 0, 15, 15);
  __m128i all = _mm_or_si128(_mm_and_si128(low, six), _mm_and_si128(_mm_srli_epi16(low, 4), four));
  all = _mm_or_si128(all, _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(48)));
  const __m128 d = _mm_cvtph_ps(_mm_xor_si128(v, _mm_setr_epi16(0, (short)0x8000, 0, 0, 0, 0, 0, 0)));
  const __m256 dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(d));
  *scale = _mm256_mul_ps(_mm256_broadcastss_ps(d), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all)));
  *minimum = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))));
}

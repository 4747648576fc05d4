/* Vectors for AArch64 NEON: 16 floats or ints as four registers, 64 bytes as four, halves of 32 bytes as two.
 * Where the compiler may use the dot product instructions (__ARM_FEATURE_DOTPROD), bytes multiply with those. */
#include <arm_neon.h>
#define INLINE static inline __attribute__((always_inline))
enum { PART = 4, PARTS = LANES / PART, TILE_ROWS = 2, SUMS = 6 /* vectors of 16 that the registers hold beside others */ };
#define TILE_COLUMNS 4 /* of activations that a product takes at once, 4 or 8 */
#define AHEAD_IN_FIRST_CACHE 0 /* bytes, also asked for there; 0 is none */
#define SIGNED_ZERO_POINT 0 /* signed bytes are multiplied as they are */

typedef struct { float32x4_t a, b, c, d; } vf;
typedef struct { int32x4_t a, b, c, d; } vi;
typedef struct { uint8x16_t a, b, c, d; } vb;
typedef struct { uint8x16_t a, b; } vh;
#define EACH1(f, x) {f(x.a), f(x.b), f(x.c), f(x.d)}
#define EACH2(f, x, y) {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}
#define EACH3(f, x, y, z) {f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)}
#define ALL(x) {x, x, x, x}
#define FROM(load, p) {load(p), load((p) + 4), load((p) + 8), load((p) + 12)}

INLINE vf vf_set1(float x) { return (vf)ALL(vdupq_n_f32(x)); }
INLINE vf vf_load(const float *p) { return (vf)FROM(vld1q_f32, p); }
INLINE void vf_store(float *p, vf x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
INLINE vf vf_add(vf x, vf y) { return (vf)EACH2(vaddq_f32, x, y); }
INLINE vf vf_sub(vf x, vf y) { return (vf)EACH2(vsubq_f32, x, y); }
INLINE vf vf_mul(vf x, vf y) { return (vf)EACH2(vmulq_f32, x, y); }
INLINE vf vf_div(vf x, vf y) { return (vf)EACH2(vdivq_f32, x, y); }
INLINE vf vf_max(vf x, vf y) { return (vf)EACH2(vmaxq_f32, x, y); }
INLINE vf vf_min(vf x, vf y) { return (vf)EACH2(vminq_f32, x, y); }
INLINE vf vf_abs(vf x) { return (vf)EACH1(vabsq_f32, x); }
INLINE vf vf_fma(vf x, vf y, vf z) { return (vf)EACH3(vfmaq_f32, z, x, y); }
INLINE vf vf_fnma(vf x, vf y, vf z) { return (vf)EACH3(vfmsq_f32, z, x, y); }
INLINE vf vf_from_vi(vi x) { return (vf)EACH1(vcvtq_f32_s32, x); }
INLINE vi vi_round(vf x) { return (vi)EACH1(vcvtnq_s32_f32, x); }
INLINE float32x4_t zero_below(float32x4_t value, float32x4_t x, float32x4_t limit) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), vcgeq_f32(x, limit)));
}
INLINE vf vf_zero_below(vf value, vf x, float limit) {
  const vf l = vf_set1(limit);
  return (vf)EACH3(zero_below, value, x, l);
}
INLINE float32x4_t exp2i(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
INLINE vf vf_exp2i(vi n) { return (vf)EACH1(exp2i, n); }
INLINE float vf_hsum(vf v) { /* the same tree as every other set */
  const float32x4_t x = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
  return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
}
INLINE void vf_hsum4(const float v[4][16], float out[4]) {
  for (int i = 0; i < 4; i++) out[i] = vf_hsum(vf_load(v[i]));
}
INLINE float vf_hmax(vf v) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.a, v.b), vmaxq_f32(v.c, v.d))); }
INLINE float32x4_t load_f16x4(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE void store_f16x4(uint16_t *p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
INLINE float32x4_t load_bf16x4(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
INLINE vf vf_load_f16(const uint16_t *p) { return (vf)FROM(load_f16x4, p); }
INLINE void vf_store_f16(uint16_t *p, vf x) {
  store_f16x4(p, x.a);
  store_f16x4(p + 4, x.b);
  store_f16x4(p + 8, x.c);
  store_f16x4(p + 12, x.d);
}
INLINE vf vf_load_bf16(const uint16_t *p) { return (vf)FROM(load_bf16x4, p); }
INLINE float f16_to_f32(uint16_t h) {
  __fp16 f;
  __builtin_memcpy(&f, &h, 2);
  return f;
}

INLINE vi vi_zero(void) { return (vi)ALL(vdupq_n_s32(0)); }
INLINE int32_t vi_hsum(vi v) { return vaddvq_s32(vaddq_s32(vaddq_s32(v.a, v.b), vaddq_s32(v.c, v.d))); }
INLINE int16x8_t low_halves(int32x4_t x, int32x4_t y) {
  return vuzp1q_s16(vreinterpretq_s16_s32(x), vreinterpretq_s16_s32(y));
}
INLINE void vi_store_i8(int8_t *p, vi x) {
  const int16x8_t lo = low_halves(x.a, x.b), hi = low_halves(x.c, x.d);
  vst1q_s8(p, vuzp1q_s8(vreinterpretq_s8_s16(lo), vreinterpretq_s8_s16(hi)));
}
INLINE vf widen_s16(int16x8_t x, int16x8_t y) {
  return vf_from_vi((vi){vmovl_s16(vget_low_s16(x)), vmovl_high_s16(x), vmovl_s16(vget_low_s16(y)), vmovl_high_s16(y)});
}
INLINE vf widen_s8(int8x16_t x) { return widen_s16(vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)); }
INLINE vf widen_u8(uint8x16_t x) {
  return widen_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_u16(vmovl_high_u8(x)));
}
INLINE vf vf_from_i8(const int8_t *p) { return widen_s8(vld1q_s8(p)); }
INLINE vf vf_from_u8(const uint8_t *p) { return widen_u8(vld1q_u8(p)); }

INLINE vh vh_load(const void *p) { return (vh){vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16)}; }
INLINE vh vh_shr(vh x, int n) { return (vh){x.a >> n, x.b >> n}; }
INLINE vb vb_pair(vh lo, vh hi) { return (vb){lo.a, lo.b, hi.a, hi.b}; }
INLINE vb vb_load(const void *p) { return vb_pair(vh_load(p), vh_load((const uint8_t *)p + 32)); }
INLINE void vb_store(void *p, vb x) {
  uint8_t *to = p;
  vst1q_u8(to, x.a);
  vst1q_u8(to + 16, x.b);
  vst1q_u8(to + 32, x.c);
  vst1q_u8(to + 48, x.d);
}
/* Unsigned weights have at most 6 bits, so that every byte is also a signed one. */
INLINE int32x4_t dot4(int32x4_t acc, uint8x16_t w, uint8x16_t x) {
  const int8x16_t v = vreinterpretq_s8_u8(w), y = vreinterpretq_s8_u8(x);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, v, y);
#else /* a pair reaches 2 * 128 * 127, which 16 bits hold */
  return vpadalq_s16(acc, vpaddq_s16(vmull_s8(vget_low_s8(v), vget_low_s8(y)), vmull_high_s8(v, y)));
#endif
}
INLINE vi vi_dot4(vi acc, vb w, vb x, bool is_signed) {
  (void)is_signed;
  return (vi)EACH3(dot4, acc, w, x);
}
INLINE int32x4_t reduce4(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
  return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}
INLINE vi vi_reduce4(vi x, vi y, vi z, vi w) {
  return (vi){reduce4(x.a, y.a, z.a, w.a), reduce4(x.b, y.b, z.b, w.b), reduce4(x.c, y.c, z.c, w.c),
              reduce4(x.d, y.d, z.d, w.d)};
}
/* Sums of q * x over the 16 inputs of each lane's group; `bits` is the size of q, 8 for signed bytes. */
INLINE vi vi_group_dots(const vb q[4], const int8_t *x, int bits) {
  vi part[4];
  for (int j = 0; j < 4; j++) part[j] = vi_dot4(vi_zero(), q[j], vb_load(x + 64 * j), bits == 8);
  return vi_reduce4(part[0], part[1], part[2], part[3]);
}

INLINE void transpose4(const uint8x16_t x, const uint8x16_t y, const uint8x16_t z, const uint8x16_t w, uint8x16_t *out[4]) {
#define PAIRS(n, a, b) vreinterpretq_u64_u32(vtrn##n##q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)))
  const uint64x2_t a = PAIRS(1, x, y), b = PAIRS(2, x, y), c = PAIRS(1, z, w), d = PAIRS(2, z, w);
#undef PAIRS
  *out[0] = vreinterpretq_u8_u64(vtrn1q_u64(a, c));
  *out[1] = vreinterpretq_u8_u64(vtrn1q_u64(b, d));
  *out[2] = vreinterpretq_u8_u64(vtrn2q_u64(a, c));
  *out[3] = vreinterpretq_u8_u64(vtrn2q_u64(b, d));
}
/* Lane 4g + p of out[k] is lane 4g + k of q[p]. */
INLINE void vb_transpose4(const vb q[4], vb out[4]) {
  transpose4(q[0].a, q[1].a, q[2].a, q[3].a, (uint8x16_t *[]){&out[0].a, &out[1].a, &out[2].a, &out[3].a});
  transpose4(q[0].b, q[1].b, q[2].b, q[3].b, (uint8x16_t *[]){&out[0].b, &out[1].b, &out[2].b, &out[3].b});
  transpose4(q[0].c, q[1].c, q[2].c, q[3].c, (uint8x16_t *[]){&out[0].c, &out[1].c, &out[2].c, &out[3].c});
  transpose4(q[0].d, q[1].d, q[2].d, q[3].d, (uint8x16_t *[]){&out[0].d, &out[1].d, &out[2].d, &out[3].d});
}

/* Parts of one register of 4 lanes. */
typedef float32x4_t pf;
typedef uint8x16_t pb;
INLINE pf pf_set1(float x) { return vdupq_n_f32(x); }
INLINE pf pf_load(const float *p) { return vld1q_f32(p); }
INLINE void pf_store(float *p, pf x) { vst1q_f32(p, x); }
INLINE pf pf_mul(pf x, pf y) { return vmulq_f32(x, y); }
INLINE pf pf_fma(pf x, pf y, pf z) { return vfmaq_f32(z, x, y); }
INLINE pb pb_load(const uint8_t *p) { return vld1q_u8(p); }
INLINE void vb_store_parts(uint8_t *p, int64_t bytes, vb x) { /* from one part to the next */
  vst1q_u8(p, x.a);
  vst1q_u8(p + bytes, x.b);
  vst1q_u8(p + 2 * bytes, x.c);
  vst1q_u8(p + 3 * bytes, x.d);
}
INLINE void vf_store_parts(float *p, int64_t bytes, vf x) {
  vst1q_f32(p, x.a);
  vst1q_f32((float *)((uint8_t *)p + bytes), x.b);
  vst1q_f32((float *)((uint8_t *)p + 2 * bytes), x.c);
  vst1q_f32((float *)((uint8_t *)p + 3 * bytes), x.d);
}
/* The same where each q holds four inputs of every lane's group. */
INLINE pf pf_group_dots(const pb q[4], const uint8_t x[4][4 * PART], int bits) {
  (void)bits;
  int32x4_t dot = vdupq_n_s32(0);
  for (int k = 0; k < 4; k++) dot = dot4(dot, q[k], pb_load(x[k]));
  return vcvtq_f32_s32(dot);
}

INLINE vb vb_and(vb x, uint8_t mask) {
  const vb m = ALL(vdupq_n_u8(mask));
  return (vb)EACH2(vandq_u8, x, m);
}
INLINE vb vb_or(vb x, vb y) { return (vb)EACH2(vorrq_u8, x, y); }
INLINE vb vb_shr(vb x, int n) { return (vb){x.a >> n, x.b >> n, x.c >> n, x.d >> n}; }
INLINE vb vb_shl(vb x, int n) { return (vb){x.a << n, x.b << n, x.c << n, x.d << n}; }
INLINE vb vb_nibbles16(const void *p, const void *q) {
  const uint8x16_t x = vld1q_u8(p), y = vld1q_u8(q), m = vdupq_n_u8(15);
  return (vb){vandq_u8(x, m), vshrq_n_u8(x, 4), vandq_u8(y, m), vshrq_n_u8(y, 4)};
}
INLINE uint8x16_t bits16(uint32_t x) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  return vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)x), vdup_n_u8((uint8_t)(x >> 8))), bit);
}
INLINE vb vb_bits(uint32_t lo, uint32_t hi) { return (vb){bits16(lo), bits16(lo >> 16), bits16(hi), bits16(hi >> 16)}; }
INLINE vb vb_signed(vb x) { return x; }

INLINE vf vf_from_bytes(uint64_t lo, uint64_t hi, const uint8_t *order, bool is_signed) {
  const uint8x16_t v = vqtbl1q_u8(vcombine_u8(vcreate_u8(lo), vcreate_u8(hi)), vld1q_u8(order));
  return is_signed ? widen_s8(vreinterpretq_s8_u8(v)) : widen_u8(v);
}
INLINE vf vf_from_f16_blocks(const uint8_t *p, int stride) {
  uint16x4_t first = vdup_n_u16(0), second = first;
#define TAKE(to, block, lane) to = vld1_lane_u16((const uint16_t *)(p + (block) * stride), to, lane);
  TAKE(first, 0, 0) TAKE(first, 1, 1) TAKE(first, 4, 2) TAKE(first, 5, 3)
  TAKE(second, 2, 0) TAKE(second, 3, 1) TAKE(second, 6, 2) TAKE(second, 7, 3)
#undef TAKE
  const float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(first)), y = vcvt_f32_f16(vreinterpret_f16_u16(second));
  return (vf){x, x, y, y};
}

/* Vector operations over one row: norms, activations, softmax, RoPE, rounding to 8 bits. */
#include <math.h>
#include <string.h>

/* e^x to about 2 ulp (range reduction by ln 2, polynomial of degree 6); exactly 0 below -87. */
INLINE vf vf_exp(vf x) {
  vf y = vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f));
  vi n = vi_round(vf_mul(y, vf_set1(1.44269504f)));
  vf f = vf_from_vi(n);
  y = vf_fnma(f, vf_set1(0.693359375f), y); /* ln 2 in two parts, the first exact in few bits */
  y = vf_fnma(f, vf_set1(-2.12194440e-4f), y);
  vf p = vf_set1(1.0f / 720);
  p = vf_fma(p, y, vf_set1(1.0f / 120));
  p = vf_fma(p, y, vf_set1(1.0f / 24));
  p = vf_fma(p, y, vf_set1(1.0f / 6));
  p = vf_fma(p, y, vf_set1(0.5f));
  p = vf_fma(p, y, vf_set1(1.0f));
  p = vf_fma(p, y, vf_set1(1.0f));
  return vf_zero_below(vf_mul(p, vf_exp2i(n)), x, -87.0f);
}
static float exp_one(float x) {
  float out[16];
  vf_store(out, vf_exp(vf_set1(x)));
  return out[0];
}

/* A full vector of p[i..n), the missing lanes filled. */
INLINE vf load_part(const float *p, int64_t n, float fill) {
  if (n >= LANES) return vf_load(p);
  float v[LANES];
  for (int i = 0; i < LANES; i++) v[i] = i < n ? p[i] : fill;
  return vf_load(v);
}
INLINE void store_part(float *p, int64_t n, vf x) {
  if (n >= LANES) {
    vf_store(p, x);
    return;
  }
  float v[LANES];
  vf_store(v, x);
  memcpy(p, v, (size_t)n * sizeof(float));
}

static void rmsnorm(const float *x, const float *weight, int64_t n, float eps, float *out) {
  vf sum = vf_set1(0);
  for (int64_t i = 0; i < n; i += LANES) {
    vf v = load_part(x + i, n - i, 0);
    sum = vf_fma(v, v, sum);
  }
  vf factor = vf_set1(1.0f / sqrtf(vf_hsum(sum) / (float)n + eps));
  for (int64_t i = 0; i < n; i += LANES)
    store_part(out + i, n - i, vf_mul(vf_mul(load_part(x + i, n - i, 0), factor), load_part(weight + i, n - i, 0)));
}

static void add(float *x, const float *y, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES)
    store_part(x + i, n - i, vf_add(load_part(x + i, n - i, 0), load_part(y + i, n - i, 0)));
}

static void scale(float *x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) store_part(x + i, n - i, vf_mul(load_part(x + i, n - i, 0), vf_set1(factor)));
}

static void swiglu(const float *gate, const float *up, int64_t n, float *out) {
  const vf one = vf_set1(1);
  for (int64_t i = 0; i < n; i += LANES) {
    vf g = load_part(gate + i, n - i, 0);
    vf silu = vf_div(g, vf_add(one, vf_exp(vf_sub(vf_set1(0), g))));
    store_part(out + i, n - i, vf_mul(silu, load_part(up + i, n - i, 0)));
  }
}

/* gelu in the tanh form: 0.5 g (1 + tanh u) = g - g / (e^2u + 1), u = sqrt(2/pi) (g + 0.044715 g^3). */
static void geglu(const float *gate, const float *up, int64_t n, float *out) {
  const vf one = vf_set1(1), twice_root = vf_set1(1.5957691216f);
  for (int64_t i = 0; i < n; i += LANES) {
    vf g = load_part(gate + i, n - i, 0);
    vf cubic = vf_fma(vf_mul(vf_mul(g, g), vf_set1(0.044715f)), g, g);
    vf gelu = vf_sub(g, vf_div(g, vf_add(vf_exp(vf_mul(twice_root, cubic)), one)));
    store_part(out + i, n - i, vf_mul(gelu, load_part(up + i, n - i, 0)));
  }
}

static void softmax(const float *x, int64_t n, float *out) {
  vf top = vf_set1(-INFINITY), sum = vf_set1(0);
  for (int64_t i = 0; i < n; i += LANES) top = vf_max(top, load_part(x + i, n - i, -INFINITY));
  vf shift = vf_set1(vf_hmax(top));
  for (int64_t i = 0; i < n; i += LANES) {
    vf p = vf_exp(vf_sub(load_part(x + i, n - i, -INFINITY), shift));
    sum = vf_add(sum, p);
    store_part(out + i, n - i, p);
  }
  scale(out, 1.0f / vf_hsum(sum), n);
}

/* Rotate pairs of one head by the angles of one position: pairs (i, i + half) when neox, else (2i, 2i + 1).
 * (RoFormer, arXiv:2104.09864; llama files in GGUF have their rows permuted for the second form.) */
static void rope(float *x, const float *cos, const float *sin, int64_t half, bool neox) {
  for (int64_t i = 0; i < half; i++) {
    float *a = neox ? x + i : x + 2 * i, *b = neox ? x + half + i : a + 1;
    float u = *a, v = *b;
    *a = u * cos[i] - v * sin[i];
    *b = u * sin[i] + v * cos[i];
  }
}

/* One group of GEMM_COLUMNS rows, side by side for the matrix product. A tile holds, for each lane, one step for each
 * span; it is as large as the row_spans of its rows. */
struct tile_step {
  int8_t q[GEMM_COLUMNS][GROUP];
  float scale[GEMM_COLUMNS], sum[GEMM_COLUMNS];
};
static struct tile_step *tile_of(const struct activations *a, int64_t t) {
  return (struct tile_step *)a->rounded + t / GEMM_COLUMNS * LANES * a->spans;
}

/* Where one group of a row goes, whichever layout the product reads. */
struct group_place {
  int8_t *q;
  float *scale, *sum;
};
static struct group_place place_of_group(const struct activations *a, int64_t t, int64_t s, int lane) {
  if (a->count > MOST_FOR_GEMV) {
    struct tile_step *step = tile_of(a, t) + lane * a->spans + s;
    const int64_t c = t % GEMM_COLUMNS;
    return (struct group_place){step->q[c], &step->scale[c], &step->sum[c]};
  }
  struct row_span *row = a->rounded + t * a->spans + s;
  return (struct group_place){row->q + offset_of_lane(lane), &row->scale[lane], &row->sum[lane]};
}

/* Groups of 16 to int8 with their own scale: x = scale * q. Positions past k are zero. A number that is not finite
 * would vanish in the rounding: the scales of its span become NaN instead, and so does every product with it. */
static void round_row(const struct activations *a, int64_t t, int64_t k, int64_t first, int64_t last) {
  const float *x = a->x + t * a->stride;
  for (int64_t s = first; s < last; s++) {
    vf finite = vf_set1(0); /* stays 0 */
    for (int lane = 0; lane < LANES; lane++) {
      const int64_t at = s * SPAN + group_of_lane(lane) * GROUP;
      vf v = at < k ? load_part(x + at, k - at, 0) : vf_set1(0);
      finite = vf_add(finite, vf_sub(v, v));
      const float top = vf_hmax(vf_abs(v)), scale = top / 127.0f;
      vi q = vi_round(vf_mul(v, vf_set1(top > 0 ? 127.0f / top : 0)));
      const struct group_place place = place_of_group(a, t, s, lane);
      vi_store_i8(place.q, q);
      *place.scale = scale;
      *place.sum = scale * (float)vi_hsum(q);
    }
    if (vf_hsum(finite) != 0)
      for (int lane = 0; lane < LANES; lane++) *place_of_group(a, t, s, lane).scale = NAN;
  }
}

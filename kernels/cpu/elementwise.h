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

/* Several rows lie in tiles of TILE_COLUMNS or fewer, as even as can be. Of a tile, and of an unpacked row of weights,
 * all spans of the first PART lanes come first, then those of the next. A step is one part of one span; those of a
 * tile's columns lie side by side. q[k] are the k-th four of the 16 inputs of each lane's group. */
struct part_step {
  uint8_t q[4][4 * PART];
  float scale[PART];
  float bias[PART]; /* of activations, scale * (sum of q) */
};
struct tile {
  struct part_step *steps; /* [PARTS, spans, columns] */
  int64_t first, columns;  /* rows of the activations */
};
/* The tile that row t lies in. */
static struct tile tile_of(const struct activations *a, int64_t t) {
  const int64_t tiles = (a->count + TILE_COLUMNS - 1) / TILE_COLUMNS, fewer = a->count / tiles, more = a->count % tiles;
  const int64_t wide = more * (fewer + 1); /* rows in tiles with one more */
  const int64_t columns = t < wide ? fewer + 1 : fewer;
  const int64_t first = t < wide ? t / columns * columns : wide + (t - wide) / columns * columns;
  return (struct tile){(struct part_step *)a->rounded + first * a->spans * PARTS, first, columns};
}

/* The parts of one span, `stride` steps from each other. */
INLINE void store_parts(struct part_step *to, int64_t stride, const vb q[4], vf scale, vf bias) {
  vb quarters[4];
  vb_transpose4(q, quarters);
  for (int k = 0; k < 4; k++) vb_store_parts(to->q[k], stride * (int64_t)sizeof *to, quarters[k]);
  vf_store_parts(to->scale, stride * (int64_t)sizeof *to, scale);
  vf_store_parts(to->bias, stride * (int64_t)sizeof *to, bias);
}

/* Groups of 16 to int8 with their own scale: x = scale * q. Positions past k are zero. A number that is not finite
 * would vanish in the rounding: the scales of its span become NaN instead, and so does every product with it. */
INLINE void round_span(const float *x, int64_t left, struct row_span *to) {
  vf finite = vf_set1(0); /* stays 0 */
  for (int lane = 0; lane < LANES; lane++) {
    const int64_t at = group_of_lane(lane) * GROUP;
    vf v = at < left ? load_part(x + at, left - at, 0) : vf_set1(0);
    finite = vf_add(finite, vf_sub(v, v));
    const float top = vf_hmax(vf_abs(v)), scale = top / 127.0f;
    vi q = vi_round(vf_mul(v, vf_set1(top > 0 ? 127.0f / top : 0)));
    vi_store_i8(to->q + offset_of_lane(lane), q);
    to->scale[lane] = scale;
    to->sum[lane] = scale * (float)vi_hsum(q);
  }
  if (vf_hsum(finite) != 0)
    for (int lane = 0; lane < LANES; lane++) to->scale[lane] = NAN;
}

static void round_row(const struct activations *a, int64_t t, int64_t k, int64_t first, int64_t last) {
  const float *x = a->x + t * a->stride;
  const struct tile tile = tile_of(a, t);
  for (int64_t s = first; s < last; s++) {
    if (a->count <= MOST_FOR_GEMV) {
      round_span(x + s * SPAN, k - s * SPAN, &a->rounded[t * a->spans + s]);
      continue;
    }
    struct row_span row;
    vb q[4];
    round_span(x + s * SPAN, k - s * SPAN, &row);
    for (int j = 0; j < 4; j++) q[j] = vb_load(row.q + 64 * j);
    store_parts(tile.steps + s * tile.columns + t - tile.first, a->spans * tile.columns, q, vf_load(row.scale), vf_load(row.sum));
  }
}

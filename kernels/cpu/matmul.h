/* Matrix products  out[t, r] = sum_k w[r, k] * x[t, k]  in two forms.
 *
 * `matmul` multiplies quantised rows by activations rounded to 8 bits. One column goes through `gemv`, which
 * keeps inputs in the lanes; several go through `gemm`, which packs 16 rows into a panel and keeps rows in the
 * lanes. Both add the same numbers in the same order, so a row's result does not depend on how many columns
 * share the call: lane l of `gemv` is a chain over spans of the groups in lane l, and `gemm` runs these 16
 * chains one after another and adds them in the tree of vf_hsum.
 * `matmul_float` dequantises rows and multiplies in float32, one chain of 16 lanes for each result.
 */

INLINE vf chain_step(vf acc, vi dot, vf weight_scale, vf x_scale) {
  return vf_fma(vf_from_vi(dot), vf_mul(weight_scale, x_scale), acc);
}

/* ---- one column */

INLINE vf span_dot(int type, const uint8_t *p, struct rounded x, int64_t i, vf acc) {
  struct span s;
  unpack(type, p, &s);
  const int8_t *q = x.q + i * SPAN;
  vi part[4];
  for (int j = 0; j < 4; j++)
    part[j] = vi_dot4(vi_zero(), s.q[j], vb_load(q + 64 * j), is_signed(type));
  vi dot = vi_reduce4(part[0], part[1], part[2], part[3]);
  if (zero_point_shift(type) >= 0) dot = vi_sub(dot, vi_shl(vi_load(x.isum + i * GROUPS), zero_point_shift(type)));
  acc = chain_step(acc, dot, s.scale, vf_load(x.scale + i * GROUPS));
  if (has_bias(type)) acc = vf_fma(s.bias, vf_load(x.sum + i * GROUPS), acc);
  return acc;
}

INLINE void gemv(int type, const struct matrix *w, struct rounded x, int64_t r0, int64_t r1, float *out) {
  const int step = span_bytes(type);
  const int64_t whole = w->cols / SPAN, rest = w->row_bytes - whole * step;
  uint8_t padded[8 * 34 + 32] = {0}; /* a row's last, partial span; what follows it stays zero */
  for (int64_t r = r0; r < r1; r++) {
    const uint8_t *row = w->data + r * w->row_bytes;
    vf acc = vf_set1(0);
    for (int64_t i = 0; i < whole; i++) {
      /* A page ahead of the hardware's own prefetch: 15 -> 17 GB/s on a Zen 4 core, 6 -> 11 GB/s on a Xeon's. */
      for (int line = 0; line < step; line += 64) __builtin_prefetch(row + i * step + 4096 + line);
      acc = span_dot(type, row + i * step, x, i, acc);
    }
    if (rest) {
      memcpy(padded, row + whole * step, (size_t)rest);
      acc = span_dot(type, padded, x, whole, acc);
    }
    out[r] = vf_hsum(acc);
  }
}

/* ---- several columns */

enum { PANEL = 16 };
/* One span of 16 rows: for each lane's group four steps of 4 inputs, a row's 4 bytes side by side. */
struct panel_span {
  uint8_t q[LANES][4][PANEL][4];
  float scale[LANES][PANEL], bias[LANES][PANEL];
};

INLINE void pack(int type, const struct matrix *w, int64_t r0, int64_t rows, struct panel_span *panel) {
  const int step = span_bytes(type);
  const int64_t spans = spans_of(w->cols);
  uint8_t padded[8 * 34 + 32], bytes[SPAN];
  float scale[LANES], bias[LANES];
  if (rows < PANEL) memset(panel, 0, (size_t)spans * sizeof *panel);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < spans; i++) {
      const uint8_t *p = w->data + (r0 + r) * w->row_bytes + i * step;
      int64_t left = w->row_bytes - i * step;
      if (left < step) {
        memset(padded, 0, sizeof padded);
        p = memcpy(padded, p, (size_t)left);
      }
      struct span s;
      unpack(type, p, &s);
      for (int j = 0; j < 4; j++) vb_store(bytes + 64 * j, s.q[j]);
      vf_store(scale, s.scale);
      if (has_bias(type)) vf_store(bias, s.bias);
      for (int lane = 0; lane < LANES; lane++) {
        for (int k = 0; k < 4; k++) memcpy(panel[i].q[lane][k][r], bytes + offset_of_lane(lane) + 4 * k, 4);
        panel[i].scale[lane][r] = scale[lane];
        if (has_bias(type)) panel[i].bias[lane][r] = bias[lane];
      }
    }
}

struct tile_shape {
  int64_t groups; /* groups of 16 inputs that exist */
  int shift;      /* log2 of the zero point, or -1 */
};

/* 16 rows by `columns` columns, starting at column t. */
INLINE void tile(int columns, bool with_bias, bool signed_bytes, const struct panel_span *panel, struct tile_shape shape,
                 const struct activations *a, int64_t t, vf result[]) {
  struct rounded x[GEMM_COLUMNS];
  vf waiting[4][GEMM_COLUMNS]; /* inner nodes of the tree that wait for their right half */
  for (int c = 0; c < columns; c++) x[c] = rounded_row(a, t + c);
  for (int n = 0; n < LANES; n++) {
    const int lane = (n & 1) << 3 | (n & 2) << 1 | (n & 4) >> 1 | n >> 3, group = group_of_lane(lane);
    const int64_t spans = (shape.groups - group + GROUPS - 1) / GROUPS;
    vf acc[GEMM_COLUMNS];
    for (int c = 0; c < columns; c++) acc[c] = vf_set1(0);
    for (int64_t i = 0; i < spans; i++) {
      const int64_t at = i * SPAN + offset_of_lane(lane), slot = i * GROUPS + lane;
      vi dot[GEMM_COLUMNS];
      for (int c = 0; c < columns; c++)
        dot[c] = shape.shift < 0 ? vi_zero() : vi_set1(-(x[c].isum[slot] * (1 << shape.shift)));
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        vb w = vb_load(panel[i].q[lane][k]);
        for (int c = 0; c < columns; c++) dot[c] = vi_dot4(dot[c], w, vb_broadcast4(x[c].q + at + 4 * k), signed_bytes);
      }
      vf s = vf_load(panel[i].scale[lane]);
      for (int c = 0; c < columns; c++) acc[c] = chain_step(acc[c], dot[c], s, vf_set1(x[c].scale[slot]));
      if (with_bias) {
        vf b = vf_load(panel[i].bias[lane]);
        for (int c = 0; c < columns; c++) acc[c] = vf_fma(b, vf_set1(x[c].sum[slot]), acc[c]);
      }
    }
    int level = 0;
    for (; n >> level & 1; level++)
      for (int c = 0; c < columns; c++) acc[c] = vf_add(waiting[level][c], acc[c]);
    for (int c = 0; c < columns; c++) {
      if (level < 4) waiting[level][c] = acc[c];
      else result[c] = acc[c];
    }
  }
}

/* The tile for every kind of weight and number of columns: compiled once each, chosen once for each panel. */
typedef void tile_function(const struct panel_span *, struct tile_shape, const struct activations *, int64_t, vf[]);
#define TILE_OF(COLUMNS, KIND, BIAS, SIGNED)                                                                        \
  static void tile_##KIND##_##COLUMNS(const struct panel_span *panel, struct tile_shape shape,                      \
                                      const struct activations *a, int64_t t, vf result[]) {                        \
    tile(COLUMNS, BIAS, SIGNED, panel, shape, a, t, result);                                                        \
  }
#define TILES_OF(COLUMNS) \
  TILE_OF(COLUMNS, plain, false, false) TILE_OF(COLUMNS, bias, true, false) TILE_OF(COLUMNS, signed, false, true)
TILES_OF(1)
TILES_OF(2)
#if GEMM_COLUMNS >= 4
TILES_OF(4)
#endif
#if GEMM_COLUMNS >= 8
TILES_OF(8)
#endif

static tile_function *tile_for(int type, int columns) {
#define KINDS(COLUMNS) \
  return has_bias(type) ? tile_bias_##COLUMNS : is_signed(type) ? tile_signed_##COLUMNS : tile_plain_##COLUMNS
#if GEMM_COLUMNS >= 8
  if (columns == 8) KINDS(8);
#endif
#if GEMM_COLUMNS >= 4
  if (columns == 4) KINDS(4);
#endif
  if (columns == 2) KINDS(2);
  KINDS(1);
}

#define QUANTISED_TYPES(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)

/* One function for each type, so that the compiler specialises the whole loop. */
#define DEFINE(T)                                                                                                   \
  static void gemv_##T(const struct matrix *w, struct rounded x, int64_t r0, int64_t r1, float *out) {              \
    gemv(TYPE_##T, w, x, r0, r1, out);                                                                              \
  }                                                                                                                 \
  static void pack_##T(const struct matrix *w, int64_t r0, int64_t rows, struct panel_span *panel) {                \
    pack(TYPE_##T, w, r0, rows, panel);                                                                             \
  }
QUANTISED_TYPES(DEFINE)
#undef DEFINE

static void pack_panel(const struct matrix *w, int64_t r0, int64_t rows, struct panel_span *panel) {
  switch (w->type) {
#define CASE(T) \
  case TYPE_##T: pack_##T(w, r0, rows, panel); break;
    QUANTISED_TYPES(CASE)
#undef CASE
  }
}

static void gemm(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                 struct panel_span *panels) {
  const int64_t spans = spans_of(w->cols), group = panels_together(w->cols) * PANEL;
  const struct tile_shape shape = {(w->cols + GROUP - 1) / GROUP, zero_point_shift(w->type)};
  for (int64_t r = r0; r < r1; r += group) {
    const int64_t last = r1 < r + group ? r1 : r + group;
    for (int64_t p = r; p < last; p += PANEL)
      pack_panel(w, p, last - p < PANEL ? last - p : PANEL, panels + (p - r) / PANEL * spans);
    for (int64_t t = 0; t < a->count;) {
      int columns = GEMM_COLUMNS;
      while (columns > a->count - t) columns /= 2;
      tile_function *const multiply = tile_for(w->type, columns);
      for (int64_t p = r; p < last; p += PANEL) {
        vf result[GEMM_COLUMNS];
        multiply(panels + (p - r) / PANEL * spans, shape, a, t, result);
        for (int c = 0; c < columns; c++) store_part(out + (t + c) * ldo + p, last - p, result[c]);
      }
      t += columns;
    }
  }
}

static void matmul(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                   uint8_t *scratch) {
  if (a->count > 1) {
    gemm(w, a, r0, r1, out, ldo, (struct panel_span *)scratch);
    return;
  }
  switch (w->type) {
#define CASE(T) \
  case TYPE_##T: gemv_##T(w, rounded_row(a, 0), r0, r1, out); break;
    QUANTISED_TYPES(CASE)
#undef CASE
  }
}

/* ---- float32 */

INLINE void dequantize_span(int type, const uint8_t *p, float *out) {
  struct span s;
  float scale[LANES], bias[LANES];
  uint8_t bytes[SPAN];
  unpack(type, p, &s);
  for (int j = 0; j < 4; j++) vb_store(bytes + 64 * j, s.q[j]);
  vf_store(scale, s.scale);
  if (has_bias(type)) vf_store(bias, s.bias);
  const int shift = zero_point_shift(type);
  for (int lane = 0; lane < LANES; lane++) {
    const uint8_t *q = bytes + offset_of_lane(lane);
    float *to = out + group_of_lane(lane) * GROUP;
    vf v = is_signed(type) && shift < 0 ? vf_from_i8((const int8_t *)q) : vf_from_u8(q);
    if (shift >= 0) v = vf_sub(v, vf_set1((float)(1 << shift)));
    v = vf_mul(v, vf_set1(scale[lane]));
    vf_store(to, has_bias(type) ? vf_add(v, vf_set1(bias[lane])) : v);
  }
}

INLINE void dequantize_row(int type, const uint8_t *row, int64_t k, int64_t row_bytes, float *out) {
  const int step = span_bytes(type);
  for (int64_t i = 0; i * SPAN < k; i++) {
    if (k - i * SPAN >= SPAN) {
      dequantize_span(type, row + i * step, out + i * SPAN);
    } else {
      uint8_t padded[8 * 34 + 32] = {0};
      float values[SPAN];
      memcpy(padded, row + i * step, (size_t)(row_bytes - i * step));
      dequantize_span(type, padded, values);
      memcpy(out + i * SPAN, values, (size_t)(k - i * SPAN) * sizeof(float));
    }
  }
}

static void dequantize(const struct matrix *w, int64_t r, float *out) {
  const uint8_t *row = w->data + r * w->row_bytes;
  const int64_t k = w->cols;
  switch (w->type) {
    case TYPE_F32:
      memcpy(out, row, (size_t)k * sizeof(float));
      break;
    case TYPE_F16:
    case TYPE_BF16:
      for (int64_t i = 0; i < k; i += LANES) {
        uint16_t part[LANES] = {0};
        memcpy(part, row + 2 * i, (size_t)(k - i < LANES ? k - i : LANES) * 2);
        store_part(out + i, k - i, w->type == TYPE_F16 ? vf_load_f16(part) : vf_load_bf16(part));
      }
      break;
#define CASE(T) \
  case TYPE_##T: dequantize_row(TYPE_##T, row, k, w->row_bytes, out); break;
      QUANTISED_TYPES(CASE)
#undef CASE
  }
}

enum { FLOAT_ROWS = 4, FLOAT_COLUMNS = 4 };

/* rows x columns results at once, each its own chain over k. */
INLINE void float_tile(int columns, const float *rows, int64_t row_stride, const float *x, int64_t x_stride, int64_t k,
                       float result[FLOAT_ROWS][FLOAT_COLUMNS]) {
  vf acc[FLOAT_ROWS][FLOAT_COLUMNS];
  for (int r = 0; r < FLOAT_ROWS; r++)
    for (int c = 0; c < columns; c++) acc[r][c] = vf_set1(0);
  for (int64_t i = 0; i < k; i += LANES) {
    vf v[FLOAT_COLUMNS];
    for (int c = 0; c < columns; c++) v[c] = load_part(x + c * x_stride + i, k - i, 0);
    for (int r = 0; r < FLOAT_ROWS; r++) {
      vf w = vf_load(rows + r * row_stride + i);
      for (int c = 0; c < columns; c++) acc[r][c] = vf_fma(w, v[c], acc[r][c]);
    }
  }
  for (int r = 0; r < FLOAT_ROWS; r++)
    for (int c = 0; c < columns; c++) result[r][c] = vf_hsum(acc[r][c]);
}

static void matmul_float(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,
                         int64_t ldo, uint8_t *scratch) {
  const int64_t k = w->cols, stride = (k + LANES - 1) / LANES * LANES;
  float *rows = (float *)scratch, result[FLOAT_ROWS][FLOAT_COLUMNS];
  memset(rows, 0, (size_t)(FLOAT_ROWS * stride) * sizeof(float));
  for (int64_t r = r0; r < r1; r += FLOAT_ROWS) {
    const int64_t n = r1 - r < FLOAT_ROWS ? r1 - r : FLOAT_ROWS;
    for (int64_t i = 0; i < n; i++) dequantize(w, r + i, rows + i * stride);
    for (int64_t t = 0; t < a->count;) {
      const int columns = a->count - t >= FLOAT_COLUMNS ? FLOAT_COLUMNS : 1;
      const float *x = a->x + t * a->stride;
      if (columns == 1) float_tile(1, rows, stride, x, a->stride, k, result);
      else float_tile(FLOAT_COLUMNS, rows, stride, x, a->stride, k, result);
      for (int c = 0; c < columns; c++)
        for (int64_t i = 0; i < n; i++) out[(t + c) * ldo + r + i] = result[i][c];
      t += columns;
    }
  }
}

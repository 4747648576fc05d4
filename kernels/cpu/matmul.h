/* Matrix products  out[t, r] = sum_k w[r, k] * x[t, k]  in two forms.
 *
 * `matmul` multiplies quantised rows by activations rounded to 8 bits. Few columns go through `gemv`, which
 * keeps inputs in the lanes; many go through `gemm`, which unpacks rows into a panel and keeps rows in the
 * lanes. Both add the same numbers in the same order, so a row's result does not depend on how many columns
 * share the call: lane l of `gemv` is a chain over spans of the groups in lane l, and `gemm` runs these 16
 * chains one after another and adds them in the tree of vf_hsum.
 * `matmul_float` dequantises rows and multiplies in float32, one chain of 16 lanes for each result.
 */

/* ---- few columns */

enum { GEMV_COLUMNS = 4 }; /* of one walk over a row */

INLINE void span_step(int type, int columns, const uint8_t *p, const struct row_span *x, int64_t spans, vf acc[]) {
  struct span s;
  unpack(type, p, &s);
  vf bias = s.scale;
  if (has_bias(type)) bias = span_bias(type, &s);
  for (int c = 0; c < columns; c++) {
    const struct row_span *column = x + c * spans;
    const vf dot = vf_from_vi(vi_group_dots(s.q, column->q, weight_bits(type)));
    acc[c] = vf_fma(dot, vf_mul(s.scale, vf_load(column->scale)), acc[c]);
    if (has_bias(type)) acc[c] = vf_fma(bias, vf_load(column->sum), acc[c]);
  }
}

/* One row by `columns` columns from t on. */
INLINE void row_dots(int type, int columns, const struct matrix *w, const uint8_t *row, const struct activations *a, int64_t t,
                     float *out, int64_t ldo) {
  const int step = span_bytes(type);
  const int64_t whole = w->cols / SPAN, rest = w->row_bytes - whole * step;
  const struct row_span *x = a->rounded + t * a->spans;
  vf acc[GEMV_COLUMNS];
  for (int c = 0; c < columns; c++) acc[c] = vf_set1(0);
  for (int64_t i = 0; i < whole; i++) {
    /* Pages ahead of the hardware's own prefetch: 15 -> 17 GB/s on a Zen 4 core, 6 -> 11 GB/s on a Xeon's. Into the
     * second cache, which can wait for more lines at once: 5 % where 14 threads share the memory's full rate. */
    for (int line = 0; line < step; line += 64) __builtin_prefetch(row + i * step + 8192 + line, 0, 2);
    span_step(type, columns, row + i * step, x + i, a->spans, acc);
  }
  if (rest) {
    /* A last, partial span goes on into the next row, whose blocks meet activations of 0; behind the last row is
     * nothing, so there it is copied. */
    const uint8_t *last = row + whole * step;
    uint8_t padded[8 * 34 + 32];
    if (last + step > w->data + w->rows * w->row_bytes) {
      memset(padded, 0, sizeof padded);
      last = memcpy(padded, last, (size_t)rest);
    }
    span_step(type, columns, last, x + whole, a->spans, acc);
  }
  for (int c = 0; c < columns; c++) out[(t + c) * ldo] = vf_hsum(acc[c]);
}

INLINE void gemv(int type, const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo) {
  for (int64_t r = r0; r < r1; r++) {
    const uint8_t *row = w->data + r * w->row_bytes;
    int64_t t = 0;
    for (; t + 4 <= a->count; t += 4) row_dots(type, 4, w, row, a, t, out + r, ldo);
    if (t + 2 <= a->count) row_dots(type, 2, w, row, a, t, out + r, ldo), t += 2;
    if (t < a->count) row_dots(type, 1, w, row, a, t, out + r, ldo);
  }
}

/* ---- many columns */

/* TILE_ROWS rows, unpacked: for each lane its steps, one for each span, with a row's bytes side by side. A tile of
 * activations is laid out likewise (tile_step), so that a product reads both from beginning to end. */
struct panel_step {
  uint8_t q[4][TILE_ROWS][4];
  float scale[TILE_ROWS], bias[TILE_ROWS];
};

INLINE void pack(int type, const struct matrix *w, int64_t r0, int64_t rows, struct panel_step *panel) {
  const int step = span_bytes(type);
  const int64_t spans = spans_of(w->cols);
  uint8_t padded[8 * 34 + 32], bytes[SPAN];
  float scale[LANES], bias[LANES];
  if (rows < TILE_ROWS) memset(panel, 0, (size_t)(LANES * spans) * sizeof *panel);
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
      if (has_bias(type)) vf_store(bias, span_bias(type, &s));
      for (int lane = 0; lane < LANES; lane++) {
        struct panel_step *to = panel + lane * spans + i;
        for (int k = 0; k < 4; k++) memcpy(to->q[k][r], bytes + offset_of_lane(lane) + 4 * k, 4);
        to->scale[r] = scale[lane];
        if (has_bias(type)) to->bias[r] = bias[lane];
      }
    }
}

/* One panel by GEMM_COLUMNS columns. */
INLINE void tile(int bits, bool with_bias, const struct panel_step *panel, const struct tile_step *x, int64_t spans, int64_t groups,
                 tf result[GEMM_COLUMNS]) {
  tf waiting[4][GEMM_COLUMNS]; /* inner nodes of the tree that wait for their right half */
  for (int n = 0; n < LANES; n++) {
    const int lane = (n & 1) << 3 | (n & 2) << 1 | (n & 4) >> 1 | n >> 3;
    const int64_t steps = (groups - group_of_lane(lane) + GROUPS - 1) / GROUPS;
    const struct panel_step *p = panel + lane * spans;
    const struct tile_step *t = x + lane * spans;
    tf acc[GEMM_COLUMNS];
    for (int c = 0; c < GEMM_COLUMNS; c++) acc[c] = tf_set1(0);
    for (int64_t i = 0; i < steps; i++) {
      tb w[4];
      for (int k = 0; k < 4; k++) w[k] = tb_load(p[i].q[k]);
      const tf s = tf_load(p[i].scale);
      for (int c = 0; c < GEMM_COLUMNS; c++)
        acc[c] = tf_fma(tf_group_dot(w, t[i].q[c], bits), tf_mul(s, tf_set1(t[i].scale[c])), acc[c]);
      if (with_bias) {
        const tf b = tf_load(p[i].bias);
        for (int c = 0; c < GEMM_COLUMNS; c++) acc[c] = tf_fma(b, tf_set1(t[i].sum[c]), acc[c]);
      }
    }
    int level = 0;
    for (; n >> level & 1; level++)
      for (int c = 0; c < GEMM_COLUMNS; c++) acc[c] = tf_add(waiting[level][c], acc[c]);
    for (int c = 0; c < GEMM_COLUMNS; c++) {
      if (level < 4) waiting[level][c] = acc[c];
      else result[c] = acc[c];
    }
  }
}

/* The tile for every size of weight: compiled once each, chosen once for each product. */
typedef void tile_function(const struct panel_step *, const struct tile_step *, int64_t, int64_t, tf[GEMM_COLUMNS]);
#define TILE_OF(BITS, BIAS)                                                                                         \
  static void tile_##BITS(const struct panel_step *panel, const struct tile_step *x, int64_t spans, int64_t groups, \
                          tf result[GEMM_COLUMNS]) {                                                                \
    tile(BITS, BIAS, panel, x, spans, groups, result);                                                              \
  }
TILE_OF(5, true)
TILE_OF(6, true)
TILE_OF(8, SIGNED_ZERO_POINT != 0)
static tile_function *tile_for(int type) {
  return weight_bits(type) <= 5 ? tile_5 : weight_bits(type) == 6 ? tile_6 : tile_8;
}

#define QUANTISED_TYPES(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)

/* One function for each type, so that the compiler specialises the whole loop. */
#define DEFINE(T)                                                                                                   \
  static void gemv_##T(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,     \
                       int64_t ldo) {                                                                               \
    gemv(TYPE_##T, w, a, r0, r1, out, ldo);                                                                         \
  }                                                                                                                 \
  static void pack_##T(const struct matrix *w, int64_t r0, int64_t rows, struct panel_step *panel) {                \
    pack(TYPE_##T, w, r0, rows, panel);                                                                             \
  }
QUANTISED_TYPES(DEFINE)
#undef DEFINE

static void pack_panel(const struct matrix *w, int64_t r0, int64_t rows, struct panel_step *panel) {
  switch (w->type) {
#define CASE(T) \
  case TYPE_##T: pack_##T(w, r0, rows, panel); break;
    QUANTISED_TYPES(CASE)
#undef CASE
  }
}

static void gemm(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                 struct panel_step *panels) {
  const int64_t groups = (w->cols + GROUP - 1) / GROUP, together = panels_together(w->cols) * PANEL_ROWS;
  const int64_t steps = LANES * a->spans; /* of a panel */
  tile_function *const multiply = tile_for(w->type);
  for (int64_t r = r0; r < r1; r += together) {
    const int64_t last = r1 < r + together ? r1 : r + together;
    for (int64_t p = r; p < last; p += TILE_ROWS)
      pack_panel(w, p, last - p < TILE_ROWS ? last - p : TILE_ROWS, panels + (p - r) / TILE_ROWS * steps);
    for (int64_t t = 0; t < a->count; t += GEMM_COLUMNS)
      for (int64_t p = r; p < last; p += TILE_ROWS) {
        tf result[GEMM_COLUMNS]; /* of columns that do not exist too, from whatever lies there */
        multiply(panels + (p - r) / TILE_ROWS * steps, tile_of(a, t), a->spans, groups, result);
        for (int64_t c = 0; c < GEMM_COLUMNS && t + c < a->count; c++) {
          float rows[TILE_ROWS];
          tf_store(rows, result[c]);
          memcpy(out + (t + c) * ldo + p, rows, (size_t)(last - p < TILE_ROWS ? last - p : TILE_ROWS) * sizeof *rows);
        }
      }
  }
}

static void matmul(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                   uint8_t *scratch) {
  if (a->count > MOST_FOR_GEMV) {
    gemm(w, a, r0, r1, out, ldo, (struct panel_step *)scratch);
    return;
  }
  switch (w->type) {
#define CASE(T) \
  case TYPE_##T: gemv_##T(w, a, r0, r1, out, ldo); break;
    QUANTISED_TYPES(CASE)
#undef CASE
  }
}

/* ---- float32 */

INLINE void dequantize_span(int type, const uint8_t *p, float *out) {
  struct span s;
  float scale[LANES], minimum[LANES];
  uint8_t bytes[SPAN];
  unpack(type, p, &s);
  for (int j = 0; j < 4; j++) vb_store(bytes + 64 * j, s.q[j]);
  vf_store(scale, s.scale);
  if (has_minimum(type)) vf_store(minimum, s.minimum);
  for (int lane = 0; lane < LANES; lane++) {
    const uint8_t *q = bytes + offset_of_lane(lane);
    float *to = out + group_of_lane(lane) * GROUP;
    vf v = weight_bits(type) == 8 && !zero_point(type) ? vf_from_i8((const int8_t *)q) : vf_from_u8(q);
    if (zero_point(type)) v = vf_sub(v, vf_set1((float)zero_point(type)));
    v = vf_mul(v, vf_set1(scale[lane]));
    vf_store(to, has_minimum(type) ? vf_add(v, vf_set1(minimum[lane])) : v);
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

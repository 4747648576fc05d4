/* Matrix products  out[t, r] = sum_k w[r, k] * x[t, k]  in two forms.
 *
 * `matmul` multiplies quantised rows by activations rounded to 8 bits. One or two columns go through `gemv`, which
 * reads a row from beginning to end and unpacks it in registers; more go through `gemm`, which unpacks rows into
 * memory once, each group of 16 inputs in one lane, so that a product needs no sums across lanes. Both keep inputs in
 * the lanes and add the same numbers in the same order: a chain over spans in each lane, then the tree of vf_hsum. So
 * a row's result does not depend on how many columns share the call.
 * `matmul_float` dequantises rows and multiplies in float32, one chain of 16 lanes for each result.
 */

enum { LONGEST_SPAN = 8 * 34, PADDED_SPAN = LONGEST_SPAN + 32 }; /* bytes */

/* Pages ahead of the hardware's own prefetch, into the second cache, which can wait for more lines at once; and once
 * more, shortly before use, into the first one where that pays: a Xeon's 14 threads gain 4 % (98 -> 102 GB/s) with
 * AVX-512, a Zen 3 core loses 3 %. */
enum { AHEAD = 16384 };

INLINE void prefetch_span(const uint8_t *p, int step) {
  for (int line = 0; line < step; line += 64) __builtin_prefetch(p + AHEAD + line, 0, 2);
  if (AHEAD_IN_FIRST_CACHE)
    for (int line = 0; line < step; line += 64) __builtin_prefetch(p + AHEAD_IN_FIRST_CACHE + line, 0, 3);
}

/* A last, partial span goes on into the next row, whose blocks meet activations of 0; behind the last row is
 * nothing, so there it is copied. */
INLINE const uint8_t *partial_span(const struct matrix *w, const uint8_t *last, int step, int64_t rest, uint8_t padded[PADDED_SPAN]) {
  if (last + step <= w->data + w->rows * w->row_bytes) return last;
  memset(padded, 0, PADDED_SPAN);
  return memcpy(padded, last, (size_t)rest);
}

/* ---- one or two columns */

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

INLINE void gemv(int type, int columns, const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,
                 int64_t ldo) {
  const int step = span_bytes(type);
  const int64_t whole = w->cols / SPAN, rest = w->row_bytes - whole * step;
  for (int64_t r = r0; r < r1; r++) {
    const uint8_t *row = w->data + r * w->row_bytes;
    vf acc[MOST_FOR_GEMV];
    for (int c = 0; c < columns; c++) acc[c] = vf_set1(0);
    for (int64_t i = 0; i < whole; i++) {
      prefetch_span(row + i * step, step);
      span_step(type, columns, row + i * step, a->rounded + i, a->spans, acc);
    }
    if (rest) {
      uint8_t padded[PADDED_SPAN];
      span_step(type, columns, partial_span(w, row + whole * step, step, rest, padded), a->rounded + whole, a->spans, acc);
    }
    for (int c = 0; c < columns; c++) out[c * ldo + r] = vf_hsum(acc[c]);
  }
}

/* ---- more columns */

/* Spans from..end-1 of one row. */
INLINE void pack(int type, const struct matrix *w, int64_t r, int64_t from, int64_t end, struct part_step *to) {
  const int step = span_bytes(type);
  const int64_t whole = w->cols / SPAN;
  const uint8_t *row = w->data + r * w->row_bytes;
  uint8_t padded[PADDED_SPAN];
  for (int64_t i = from; i < end; i++) {
    const uint8_t *p = row + i * step;
    prefetch_span(p, step);
    if (i == whole) p = partial_span(w, p, step, w->row_bytes - whole * step, padded);
    struct span s;
    unpack(type, p, &s);
    store_parts(to + i - from, end - from, s.q, s.scale, has_bias(type) ? span_bias(type, &s) : s.scale);
  }
}

/* Some rows, unpacked, by the columns of a tile, over some spans. */
struct piece {
  const struct part_step *rows;    /* [count, PARTS, unpacked], from the first span on */
  const struct part_step *columns; /* [PARTS, ..., columns] */
  float (*sums)[LANES];            /* [count, TILE_COLUMNS]: added to, or set where this */
  bool begins;                     /* is the first piece of these rows */
  int64_t count, spans;
  int64_t unpacked;                /* spans of a row, these and others */
  int64_t to_next_part;            /* of columns, in steps */
  int64_t groups;                  /* of 16 inputs that there are, counted from the first span */
};

/* Part by part: what is read again for each row is then half as much, or less. */
INLINE void tile_dots(int bits, bool with_bias, int columns, const struct piece *p) {
  const int64_t to_next_row = PARTS * p->unpacked;
  for (int part = 0; part < PARTS; part++) {
    const int64_t some = (p->groups - group_of_lane(part * PART) + GROUPS - 1) / GROUPS, steps = some < p->spans ? some : p->spans;
    for (int64_t first = 0; first < p->count; first += TILE_ROWS) { /* rows that do not exist too, from whatever lies there */
      const struct part_step *w = p->rows + first * to_next_row + part * p->unpacked, *x = p->columns + part * p->to_next_part;
      float *sums = p->sums[first * TILE_COLUMNS] + part * PART;
      pf acc[TILE_ROWS][TILE_COLUMNS];
      for (int r = 0; r < TILE_ROWS; r++)
        for (int c = 0; c < columns; c++) acc[r][c] = p->begins ? pf_set1(0) : pf_load(sums + (r * TILE_COLUMNS + c) * LANES);
      for (int64_t i = 0; i < steps; i++, w++, x += columns) {
        pb q[TILE_ROWS][4];
        pf scale[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++) {
          for (int k = 0; k < 4; k++) q[r][k] = pb_load(w[r * to_next_row].q[k]);
          scale[r] = pf_load(w[r * to_next_row].scale);
        }
        for (int c = 0; c < columns; c++)
          for (int r = 0; r < TILE_ROWS; r++) {
            acc[r][c] = pf_fma(pf_group_dots(q[r], x[c].q, bits), pf_mul(scale[r], pf_load(x[c].scale)), acc[r][c]);
            if (with_bias) acc[r][c] = pf_fma(pf_load(w[r * to_next_row].bias), pf_load(x[c].bias), acc[r][c]);
          }
      }
      for (int r = 0; r < TILE_ROWS; r++)
        for (int c = 0; c < columns; c++) pf_store(sums + (r * TILE_COLUMNS + c) * LANES, acc[r][c]);
    }
  }
}

/* For every size of weight and number of columns: compiled once each, chosen for each tile. */
typedef void tile_function(const struct piece *);
#define DEFINE(BITS, BIAS, COLUMNS) \
  static void tile_##BITS##_##COLUMNS(const struct piece *p) { tile_dots(BITS, BIAS, COLUMNS, p); }
#define NAME(BITS, BIAS, COLUMNS) tile_##BITS##_##COLUMNS,
#define UP_TO_4(X, BITS, BIAS) X(BITS, BIAS, 1) X(BITS, BIAS, 2) X(BITS, BIAS, 3) X(BITS, BIAS, 4)
#if TILE_COLUMNS == 4
#define BY_COLUMNS UP_TO_4
#else
#define BY_COLUMNS(X, BITS, BIAS) \
  UP_TO_4(X, BITS, BIAS) X(BITS, BIAS, 5) X(BITS, BIAS, 6) X(BITS, BIAS, 7) X(BITS, BIAS, 8)
#endif
#define BY_BITS(X) X(5, true) X(6, true) X(8, SIGNED_ZERO_POINT != 0)
#define DEFINE_ALL(BITS, BIAS)    \
  BY_COLUMNS(DEFINE, BITS, BIAS) \
  static tile_function *const tiles_##BITS[TILE_COLUMNS] = {BY_COLUMNS(NAME, BITS, BIAS)};
BY_BITS(DEFINE_ALL)
#undef DEFINE
#undef NAME
#undef DEFINE_ALL
static tile_function *tile_function_for(int type, int64_t columns) {
  return (weight_bits(type) <= 5 ? tiles_5 : weight_bits(type) == 6 ? tiles_6 : tiles_8)[columns - 1];
}

#define QUANTISED_TYPES(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)

/* One function for each type, so that the compiler specialises the whole loop. */
#define DEFINE(T)                                                                                                   \
  static void gemv_##T(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,     \
                       int64_t ldo) {                                                                               \
    if (a->count == 1) gemv(TYPE_##T, 1, w, a, r0, r1, out, ldo);                                                   \
    else gemv(TYPE_##T, 2, w, a, r0, r1, out, ldo);                                                                 \
  }                                                                                                                 \
  static void pack_##T(const struct matrix *w, int64_t r, int64_t from, int64_t end, struct part_step *to) {        \
    pack(TYPE_##T, w, r, from, end, to);                                                                            \
  }
QUANTISED_TYPES(DEFINE)
#undef DEFINE

static void pack_row(const struct matrix *w, int64_t r, int64_t from, int64_t end, struct part_step *to) {
  switch (w->type) {
#define CASE(T) \
  case TYPE_##T: pack_##T(w, r, from, end, to); break;
    QUANTISED_TYPES(CASE)
#undef CASE
  }
}

/* Few columns: what is unpacked keeps, with the columns that it is multiplied by, within the first cache, so some spans
 * of some rows go at a time. Many columns: it pays to unpack more rows, and whole ones, into the second cache; what keeps
 * within the first, while all these rows are multiplied by it, is some spans of a tile. */
enum { SPANS_AT_ONCE = (24 << 10) / (TILE_COLUMNS * sizeof(struct part_step)) };
enum { FEW_COLUMNS = 32, FEW_ROWS = 4, FEW_SPANS = 8 };

static void gemm(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                 struct part_step *rows) {
  const bool few = a->count <= FEW_COLUMNS;
  const int64_t groups = (w->cols + GROUP - 1) / GROUP;
  const int64_t rows_at_once = few ? FEW_ROWS : rows_together(w->cols), unpack_at_once = few ? FEW_SPANS : a->spans;
  _Alignas(64) float sums[MOST_ROWS_TOGETHER * TILE_COLUMNS][LANES]; /* of one tile, or of all where columns are few */
  for (int64_t first = r0; first < r1; first += rows_at_once) {
    const int64_t n = r1 < first + rows_at_once ? r1 - first : rows_at_once;
    for (int64_t from = 0, end; from < a->spans; from = end) {
      end = a->spans < from + unpack_at_once ? a->spans : from + unpack_at_once;
      for (int64_t r = 0; r < n; r++) pack_row(w, first + r, from, end, rows + r * PARTS * (end - from));
      float(*of_tile)[LANES] = sums;
      for (int64_t t = 0; t < a->count;) {
        const struct tile tile = tile_of(a, t);
        tile_function *const multiply = tile_function_for(w->type, tile.columns);
        for (int64_t s = from; s < end; s += SPANS_AT_ONCE)
          multiply(&(struct piece){.rows = rows + (s - from),
                                   .columns = tile.steps + s * tile.columns,
                                   .sums = of_tile,
                                   .begins = !s,
                                   .count = n,
                                   .spans = end < s + SPANS_AT_ONCE ? end - s : SPANS_AT_ONCE,
                                   .unpacked = end - from,
                                   .to_next_part = a->spans * tile.columns,
                                   .groups = groups - s * GROUPS});
        for (int64_t r = 0; r < n && end == a->spans; r++) {
          float of_columns[TILE_COLUMNS]; /* of columns that do not exist too */
          for (int64_t c = 0; c < tile.columns; c += 4) vf_hsum4(of_tile + r * TILE_COLUMNS + c, of_columns + c);
          for (int64_t c = 0; c < tile.columns; c++) out[(t + c) * ldo + first + r] = of_columns[c];
        }
        if (few) of_tile += FEW_ROWS * TILE_COLUMNS;
        t += tile.columns;
      }
    }
  }
}

static void matmul(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out, int64_t ldo,
                   uint8_t *scratch) {
  if (a->count > MOST_FOR_GEMV) {
    gemm(w, a, r0, r1, out, ldo, (struct part_step *)scratch);
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
      uint8_t padded[PADDED_SPAN] = {0};
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
        const uint16_t *from = (const uint16_t *)row + i;
        if (k - i < LANES) from = memcpy(part, from, (size_t)(k - i) * 2);
        store_part(out + i, k - i, w->type == TYPE_F16 ? vf_load_f16(from) : vf_load_bf16(from));
      }
      break;
#define CASE(T) \
  case TYPE_##T: dequantize_row(TYPE_##T, row, k, w->row_bytes, out); break;
      QUANTISED_TYPES(CASE)
#undef CASE
  }
}

/* Rows that are dequantised together; of those, and of columns, as many at once as the registers hold sums of. */
enum { FLOAT_ROWS = 4, FLOAT_SIDE = SUMS >= 16 ? 4 : 2 };

/* n x columns results at once, each its own chain over k. */
INLINE void float_tile(int n, int columns, const float *rows, int64_t row_stride, const float *x, int64_t x_stride, int64_t k,
                       float result[FLOAT_ROWS][FLOAT_SIDE]) {
  vf acc[FLOAT_ROWS][FLOAT_SIDE];
  for (int r = 0; r < n; r++)
    for (int c = 0; c < columns; c++) acc[r][c] = vf_set1(0);
  for (int64_t i = 0; i < k; i += LANES) {
    vf v[FLOAT_SIDE];
    for (int c = 0; c < columns; c++) v[c] = load_part(x + c * x_stride + i, k - i, 0);
    for (int r = 0; r < n; r++) {
      vf w = vf_load(rows + r * row_stride + i);
      for (int c = 0; c < columns; c++) acc[r][c] = vf_fma(w, v[c], acc[r][c]);
    }
  }
  for (int r = 0; r < n; r++)
    for (int c = 0; c < columns; c++) result[r][c] = vf_hsum(acc[r][c]);
}

static void matmul_float(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,
                         int64_t ldo, uint8_t *scratch) {
  const int64_t k = w->cols, stride = (k + LANES - 1) / LANES * LANES;
  float *rows = (float *)scratch, result[FLOAT_ROWS][FLOAT_SIDE];
  memset(rows, 0, (size_t)(FLOAT_ROWS * stride) * sizeof(float));
  for (int64_t r = r0; r < r1; r += FLOAT_ROWS) {
    const int64_t n = r1 - r < FLOAT_ROWS ? r1 - r : FLOAT_ROWS;
    for (int64_t i = 0; i < n; i++) dequantize(w, r + i, rows + i * stride);
    for (int64_t t = 0, columns; t < a->count; t += columns) {
      columns = a->count - t >= FLOAT_SIDE ? FLOAT_SIDE : 1;
      const float *x = a->x + t * a->stride;
      /* Rows that do not exist too, from whatever lies there. */
      if (columns == 1) float_tile(FLOAT_ROWS, 1, rows, stride, x, a->stride, k, result);
      for (int64_t p = 0; p < FLOAT_ROWS && columns > 1; p += FLOAT_SIDE)
        float_tile(FLOAT_SIDE, FLOAT_SIDE, rows + p * stride, stride, x, a->stride, k, result + p);
      for (int64_t c = 0; c < columns; c++)
        for (int64_t i = 0; i < n; i++) out[(t + c) * ldo + r + i] = result[i][c];
    }
  }
}

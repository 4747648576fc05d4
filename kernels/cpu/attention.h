/* Attention over a KV cache of tiles: scores, running softmax, weighted sum of values.
 *
 * The cache is cut in segments of SEGMENT absolute positions. A segment's rows are handled by themselves
 * (`attend`, an online softmax over its tiles, arXiv:2205.14135) and merged in order (`merge`), so the result
 * does not depend on who computed which segment, nor on which rows shared a call.
 */

static const void *tile_at(const struct kv_layer *kv, const void *base, int64_t kv_head, int64_t tile) {
  const int64_t elements = (kv_head * kv->tiles + tile) * TILE * kv->head_dim_padded;
  return (const uint8_t *)base + elements * (kv->half ? 2 : 4);
}

static void append(const struct kv_layer *kv, int64_t kv_head, int64_t pos, const float *k, const float *v) {
  const int64_t column = pos % TILE, hdp = kv->head_dim_padded;
  void *keys = (void *)tile_at(kv, kv->keys, kv_head, pos / TILE);
  void *values = (void *)tile_at(kv, kv->values, kv_head, pos / TILE);
  for (int64_t d = 0; d < kv->head_dim; d += LANES) {
    float part[LANES];
    uint16_t half[LANES];
    vf kd = load_part(k + d, kv->head_dim - d, 0), vd = load_part(v + d, kv->head_dim - d, 0);
    const int n = kv->head_dim - d < LANES ? (int)(kv->head_dim - d) : LANES;
    if (kv->half) {
      vf_store_f16(half, kd);
      for (int i = 0; i < n; i++) ((uint16_t *)keys)[(d + i) * TILE + column] = half[i];
      vf_store_f16((uint16_t *)values + column * hdp + d, vd);
    } else {
      vf_store(part, kd);
      for (int i = 0; i < n; i++) ((float *)keys)[(d + i) * TILE + column] = part[i];
      vf_store((float *)values + column * hdp + d, vd);
    }
  }
}

INLINE vf load_kv(const void *p, int64_t at, bool half) {
  return half ? vf_load_f16((const uint16_t *)p + at) : vf_load((const float *)p + at);
}

enum { TILE_VECTORS = TILE / LANES };

/* Vectors of a tile that are handled together for n rows: as many as the registers hold sums of. */
INLINE int vectors_for(int n) { return n * 4 <= SUMS ? 4 : n * 2 <= SUMS ? 2 : 1; }

INLINE void tile_scores(int n, bool half, const void *keys, int head_dim, const float *const q[], float s[][TILE]) {
  const int vectors = vectors_for(n);
  for (int from = 0; from < TILE_VECTORS; from += vectors) {
    vf acc[MAX_ROWS][TILE_VECTORS];
    for (int r = 0; r < n; r++)
      for (int c = 0; c < vectors; c++) acc[r][c] = vf_set1(0);
    for (int d = 0; d < head_dim; d++)
      for (int c = 0; c < vectors; c++) {
        vf k = load_kv(keys, (int64_t)d * TILE + (from + c) * LANES, half);
        for (int r = 0; r < n; r++) acc[r][c] = vf_fma(vf_set1(q[r][d]), k, acc[r][c]);
      }
    for (int r = 0; r < n; r++)
      for (int c = 0; c < vectors; c++) vf_store(s[r] + (from + c) * LANES, acc[r][c]);
  }
}

/* o[r] += sum over j of p[r][j] * values[j], for `vectors` vectors of the head from element d on. */
INLINE void tile_values(int n, int vectors, bool half, const void *values, int64_t hdp, int64_t d, int64_t from, int64_t to,
                        float p[][TILE], float *o) {
  vf acc[MAX_ROWS][TILE_VECTORS];
  for (int r = 0; r < n; r++)
    for (int c = 0; c < vectors; c++) acc[r][c] = vf_load(o + r * hdp + d + c * LANES);
  for (int64_t j = from; j < to; j++)
    for (int c = 0; c < vectors; c++) {
      vf v = load_kv(values, j * hdp + d + c * LANES, half);
      for (int r = 0; r < n; r++) acc[r][c] = vf_fma(vf_set1(p[r][j]), v, acc[r][c]);
    }
  for (int r = 0; r < n; r++)
    for (int c = 0; c < vectors; c++) vf_store(o + r * hdp + d + c * LANES, acc[r][c]);
}

/* Scores of one row become weights in place; `first`..`last` are the columns it may see. */
INLINE void tile_softmax(float s[TILE], int64_t first, int64_t last, struct softmax_state *state, float *o, int64_t hdp) {
  for (int64_t j = 0; j < first; j++) s[j] = -INFINITY;
  for (int64_t j = last; j < TILE; j++) s[j] = -INFINITY;
  vf top = vf_load(s);
  for (int c = 1; c < TILE_VECTORS; c++) top = vf_max(top, vf_load(s + c * LANES));
  const float m = fmaxf(state->m, vf_hmax(top)), fade = exp_one(state->m - m);
  vf sum = vf_set1(0);
  for (int c = 0; c < TILE_VECTORS; c++) {
    vf p = vf_exp(vf_sub(vf_load(s + c * LANES), vf_set1(m)));
    sum = vf_add(sum, p);
    vf_store(s + c * LANES, p);
  }
  if (fade != 1.0f) scale(o, fade, hdp);
  state->l = state->l * fade + vf_hsum(sum);
  state->m = m;
}

INLINE void attend_rows(int n, bool half, const struct attention *a, int64_t kv_head, int64_t r0, int64_t segment,
                        struct softmax_state *state, float *o) {
  const int64_t hdp = a->kv.head_dim_padded;
  const float *q[MAX_ROWS];
  int64_t low[MAX_ROWS], high[MAX_ROWS]; /* positions seen: low <= j < high */
  float s[MAX_ROWS][TILE];
  for (int r = 0; r < n; r++) {
    const int64_t t = (r0 + r) / a->group, pos = a->start_pos + t;
    q[r] = a->q + t * a->q_stride + (kv_head * a->group + (r0 + r) % a->group) * a->kv.head_dim;
    high[r] = pos + 1;
    low[r] = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
    state[r] = (struct softmax_state){-INFINITY, 0};
  }
  memset(o, 0, (size_t)(n * hdp) * sizeof(float));
  /* Rows are in order of position: the first row sees furthest back, the last furthest on. */
  const int64_t begin = segment * SEGMENT > low[0] / TILE * TILE ? segment * SEGMENT : low[0] / TILE * TILE;
  const int64_t end = (segment + 1) * SEGMENT < high[n - 1] ? (segment + 1) * SEGMENT : high[n - 1];
  for (int64_t base = begin; base < end; base += TILE) {
    tile_scores(n, half, tile_at(&a->kv, a->kv.keys, kv_head, base / TILE), a->kv.head_dim, q, s);
    for (int r = 0; r < n; r++) {
      const int64_t first = low[r] > base ? low[r] - base : 0, last = high[r] - base < TILE ? high[r] - base : TILE;
      if (first < last) tile_softmax(s[r], first, last, &state[r], o + r * hdp, hdp);
      else memset(s[r], 0, sizeof s[r]);
    }
    const void *values = tile_at(&a->kv, a->kv.values, kv_head, base / TILE);
    const int64_t from = low[0] > base ? low[0] - base : 0, to = high[n - 1] - base < TILE ? high[n - 1] - base : TILE;
    int64_t d = 0;
    for (; d + vectors_for(n) * LANES <= hdp; d += vectors_for(n) * LANES)
      tile_values(n, vectors_for(n), half, values, hdp, d, from, to, s, o);
    for (; d < hdp; d += LANES) tile_values(n, 1, half, values, hdp, d, from, to, s, o);
  }
}

static void attend(const struct attention *a, int64_t kv_head, int64_t r0, int n, int64_t segment,
                   struct softmax_state *state, float *o) {
  const bool half = a->kv.half;
#define ROWS(N)                                                                 \
  case N:                                                                       \
    if (half) attend_rows(N, true, a, kv_head, r0, segment, state, o);          \
    else attend_rows(N, false, a, kv_head, r0, segment, state, o);              \
    break;
  switch (n) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) }
#undef ROWS
}

/* Join the softmax of a later segment to an earlier one. */
static void merge(struct softmax_state *into, float *o, const struct softmax_state *from, const float *p, int64_t n) {
  if (from->l == 0) return;
  const float m = fmaxf(into->m, from->m);
  const vf a = vf_set1(exp_one(into->m - m)), b = vf_set1(exp_one(from->m - m));
  for (int64_t i = 0; i < n; i += LANES) vf_store(o + i, vf_fma(vf_load(p + i), b, vf_mul(vf_load(o + i), a)));
  *into = (struct softmax_state){m, into->l * exp_one(into->m - m) + from->l * exp_one(from->m - m)};
}

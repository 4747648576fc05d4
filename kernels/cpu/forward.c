/* Runs of a decoder's weight blocks in one call: all threads of the pool walk through the phases together.
 *
 * A phase is a list of tasks taken from a shared counter, and ends when all are done. No task's result depends
 * on who takes it. Knows the order of operations; the arithmetic is in the table of kernels.
 */
#include "forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 16 };         /* of one layer, at most */
enum { LEAST_BYTES = 16384 }; /* weights of the smallest task of a decode step */
enum { ROWS_OF_TASK = 16 }; /* query rows of one attention task, at most */
enum { MOST_ROWS_OF_TASK = 16 }; /* of a norm, an activation or a rounding */

static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void *room(int64_t bytes) { return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64); }

static struct row_span *rounded_room(int64_t tokens, int64_t k) {
  return room(tokens * spans_of(k) * (int64_t)sizeof(struct row_span));
}

int64_t model_head_dim_padded(const struct model *m) { return ceil_div(m->size.head_dim, LANES) * LANES; }

/* What one thread needs for any phase. */
static int64_t scratch_of(int64_t widest, int64_t head_dim_padded) {
  return ceil_div(at_least(matmul_scratch(widest), (ROWS_OF_TASK + MAX_ROWS) * head_dim_padded * 4), 64) * 64;
}

struct model *model_new(struct sizes s, const struct kernels *kernels) {
  struct model *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->kernels = kernels;
  m->size = s;
  const int64_t widest = at_least(at_least(s.hidden, s.ffn), s.heads * s.head_dim), t = s.max_tokens;
  m->pool = pool_new((int)s.threads);
  m->tensors = calloc((size_t)(s.layers * LAYER_TENSORS), sizeof *m->tensors);
  m->windows = calloc((size_t)s.layers, sizeof *m->windows);
  m->normed = room(t * s.hidden * 4);
  m->q = room(t * s.heads * s.head_dim * 4);
  m->k = room(t * s.kv_heads * s.head_dim * 4);
  m->v = room(t * s.kv_heads * s.head_dim * 4);
  m->attended = room(t * s.heads * s.head_dim * 4);
  m->gate = room(t * s.ffn * 4);
  m->up = room(t * s.ffn * 4);
  m->update = room(t * s.hidden * 4);
  m->scratch_bytes = scratch_of(widest, model_head_dim_padded(m));
  m->scratch = room(m->scratch_bytes * s.threads);
  m->n_phases = (s.layers + 1) * PHASES;
  m->phases = room(m->n_phases * (int64_t)sizeof *m->phases);
  m->rounded = rounded_room(t, widest);
  if (m->rounded && m->pool && m->tensors && m->windows && m->normed && m->q && m->k && m->v &&
      m->attended && m->gate && m->up && m->update && m->scratch && m->phases)
    return m;
  model_free(m);
  return NULL;
}

void model_free(struct model *m) {
  if (m->pool) pool_free(m->pool);
  void *const all[] = {m->rounded, m->tensors, m->windows, m->normed, m->q,  m->k,       m->v,      m->attended,
                       m->gate,    m->up,      m->update, m->partial, m->states, m->scratch, m->phases};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  free(m);
}

/* ---- phases */

struct walk { /* one thread's way through the phases */
  const struct kernels *kernels;
  struct job *job;
  int phase, threads;
  uint8_t *scratch;
  int64_t tasks; /* of the present phase */
};

static void begin_phase(struct walk *w, int64_t tasks) { w->tasks = tasks; }
static int64_t next_task(struct walk *w) { return job_next(w->job, w->phase, w->tasks); }
static void task_done(struct walk *w) { job_done(w->job, w->phase, w->tasks); }
static void end_phase(struct walk *w) { job_wait(w->job, w->phase++, w->tasks); }

static bool uses_rounded(const struct matrix *w, bool float_precision) { return !float_precision && !is_float_type(w->type); }

struct product {
  const struct matrix *w;
  float *out;
  int64_t stride; /* from one row of `out` to the next */
};
static struct product whole(const struct matrix *w, float *out) { return (struct product){w, out, w->rows}; }

/* How the rows of one product are shared out: large pieces first, so that a thread reads long runs of memory,
 * then smaller ones, so that all threads end together. */
enum { MAX_PIECES = 96 };
struct pieces {
  int count;
  int64_t start[MAX_PIECES + 1];
};

static void cut_rows(const struct matrix *w, int64_t tokens, int threads, struct pieces *pieces) {
  const int64_t unit = tokens == 1 ? 4 : PANEL_ROWS; /* 4 are rows of a float tile */
  const int64_t smallest = tokens == 1 ? at_least(LEAST_BYTES / w->row_bytes, 1) : unit;
  const int64_t together = rows_together(w->cols), even = ceil_div(w->rows, (MAX_PIECES / 2) * together) * together;
  const int64_t largest = tokens == 1 ? w->rows : even;
  pieces->count = 0;
  for (int64_t row = 0; row < w->rows; pieces->count++) {
    int64_t rows = at_most(at_least((w->rows - row) / (2 * threads), smallest), largest);
    if (pieces->count == MAX_PIECES - 1) rows = w->rows - row;
    pieces->start[pieces->count] = row;
    row += ceil_div(rows, unit) * unit;
  }
  pieces->start[pieces->count] = w->rows;
}

static void multiply(struct walk *w, const struct product *products, int n, const struct activations *a,
                     bool float_precision) {
  struct pieces pieces[3];
  int64_t total = 0;
  for (int i = 0; i < n; i++) {
    cut_rows(products[i].w, a->count, w->threads, &pieces[i]);
    total += pieces[i].count;
  }
  begin_phase(w, total);
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    int i = 0;
    while (task >= pieces[i].count) task -= pieces[i++].count;
    const struct matrix *m = products[i].w;
    (uses_rounded(m, float_precision) ? w->kernels->matmul : w->kernels->matmul_float)(
        m, a, pieces[i].start[task], pieces[i].start[task + 1], products[i].out, products[i].stride, w->scratch);
  }
  end_phase(w);
}

/* Rows of one task of a norm, an activation or a rounding. */
static int64_t rows_of_task(const struct walk *w, int64_t rows) { return at_most(ceil_div(rows, 2 * w->threads), MOST_ROWS_OF_TASK); }

/* One row is shared out by spans, several by rows. */
struct share { int64_t first_row, end_row, first_span, end_span; };
static int64_t shares_of(const struct walk *w, const struct activations *a) {
  return a->count == 1 ? at_most(w->threads, a->spans) : ceil_div(a->count, rows_of_task(w, a->count));
}
static struct share share_of(const struct walk *w, const struct activations *a, int64_t task) {
  if (a->count > 1) {
    const int64_t rows = rows_of_task(w, a->count), first = task * rows;
    return (struct share){first, at_most(first + rows, a->count), 0, a->spans};
  }
  const int64_t step = ceil_div(a->spans, shares_of(w, a)), first = at_most(task * step, a->spans);
  return (struct share){0, 1, first, at_most(first + step, a->spans)};
}

static void round_rows(struct walk *w, const struct activations *a, int64_t k) {
  begin_phase(w, shares_of(w, a));
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    const struct share share = share_of(w, a, task);
    for (int64_t t = share.first_row; t < share.end_row; t++) w->kernels->round_row(a, t, k, share.first_span, share.end_span);
  }
  end_phase(w);
}

struct blocks_run {
  struct model *model;
  const struct pass *pass;
};

static struct activations over(const struct model *m, const float *x, int64_t k, int64_t tokens) {
  return (struct activations){x, k, tokens, spans_of(k), m->rounded};
}

static const float *norm_weight(const struct matrix *w) { return (const float *)w->data; }

/* Norm of each head, rotation, scale, and the new keys and values into the cache. */
static void prepare_heads(struct walk *w, struct model *m, const struct pass *p, const struct matrix *layer,
                          const struct kv_layer *kv, struct rotation rotation) {
  const struct sizes *s = &m->size;
  const struct kernels *k = w->kernels;
  const int64_t hd = s->head_dim, group = s->heads / s->kv_heads, half = s->rope_dim / 2;
  begin_phase(w, p->tokens * s->kv_heads);
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    const int64_t t = task / s->kv_heads, head = task % s->kv_heads;
    const float *cos = rotation.cos + t * half, *sin = rotation.sin + t * half;
    for (int64_t g = 0; g < group; g++) {
      float *q = m->q + (t * s->heads + head * group + g) * hd;
      if (layer[ATTN_Q_NORM].data) k->rmsnorm(q, norm_weight(&layer[ATTN_Q_NORM]), hd, m->eps, q);
      k->rope(q, cos, sin, half, s->neox);
      k->scale(q, m->query_scale, hd);
    }
    float *key = m->k + (t * s->kv_heads + head) * hd;
    if (layer[ATTN_K_NORM].data) k->rmsnorm(key, norm_weight(&layer[ATTN_K_NORM]), hd, m->eps, key);
    k->rope(key, cos, sin, half, s->neox);
    k->append(kv, head, p->start_pos + t, key, m->v + (t * s->kv_heads + head) * hd);
  }
  end_phase(w);
}

static void divide(struct walk *w, const float *o, struct softmax_state state, int64_t n, float *out) {
  memcpy(out, o, (size_t)n * sizeof(float));
  w->kernels->scale(out, 1.0f / state.l, n);
}

static float *out_row(const struct attention *a, int64_t kv_head, int64_t row) {
  return a->out + row / a->group * a->q_stride + (kv_head * a->group + row % a->group) * a->kv.head_dim;
}

/* Which segments the rows from r0 on see. */
static int64_t first_segment(const struct attention *a, int64_t r0) {
  const int64_t pos = a->start_pos + r0 / a->group;
  return a->window && pos + 1 > a->window ? (pos + 1 - a->window) / SEGMENT : 0;
}
static int64_t end_segment(const struct attention *a, int64_t last_row) {
  return (a->start_pos + last_row / a->group) / SEGMENT + 1;
}

/* Rows of several positions: a task walks all segments of its rows, merging as it goes. */
static void attend_prompt(struct walk *w, const struct attention *a, int64_t kv_heads, int64_t rows) {
  const int64_t hdp = a->kv.head_dim_padded, share = ceil_div(rows * kv_heads, 4 * w->threads);
  const int64_t of_task = at_most(ceil_div(share, MAX_ROWS) * MAX_ROWS, ROWS_OF_TASK), blocks = ceil_div(rows, of_task);
  float *total = (float *)w->scratch, *part = total + ROWS_OF_TASK * hdp;
  struct softmax_state states[ROWS_OF_TASK], of_segment[MAX_ROWS];
  begin_phase(w, kv_heads * blocks);
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    /* The last blocks see the most: they go first, so that no thread is left with a long one at the end. */
    const int64_t head = task % kv_heads, r0 = (blocks - 1 - task / kv_heads) * of_task;
    const int64_t n = at_most(of_task, rows - r0);
    for (int64_t r = 0; r < n; r++) states[r] = (struct softmax_state){-INFINITY, 0};
    memset(total, 0, (size_t)(n * hdp) * sizeof(float));
    for (int64_t seg = first_segment(a, r0); seg < end_segment(a, r0 + n - 1) && !job_cancelled(w->job); seg++)
      for (int64_t r = 0; r < n; r += MAX_ROWS) {
        const int count = (int)at_most(MAX_ROWS, n - r);
        w->kernels->attend(a, head, r0 + r, count, seg, of_segment, part);
        for (int i = 0; i < count; i++)
          w->kernels->merge(&states[r + i], total + (r + i) * hdp, &of_segment[i], part + i * hdp, hdp);
      }
    for (int64_t r = 0; r < n; r++) divide(w, total + r * hdp, states[r], a->kv.head_dim, out_row(a, head, r0 + r));
  }
  end_phase(w);
}

/* Rows of one position over many segments: a task is one segment, and a second phase merges them in order. */
static void attend_step(struct walk *w, const struct attention *a, int64_t kv_heads, float *partial,
                        struct softmax_state *partial_states) {
  const int64_t hdp = a->kv.head_dim_padded, rows = a->group, blocks = ceil_div(rows, MAX_ROWS);
  const int64_t first = first_segment(a, 0), segments = end_segment(a, 0) - first;
  begin_phase(w, kv_heads * blocks * segments);
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    const int64_t seg = task % segments, block = task / segments % blocks, head = task / segments / blocks;
    const int64_t n = at_most(MAX_ROWS, rows - block * MAX_ROWS);
    struct softmax_state states[MAX_ROWS];
    float *part = (float *)w->scratch;
    w->kernels->attend(a, head, block * MAX_ROWS, (int)n, first + seg, states, part);
    for (int64_t i = 0; i < n; i++) {
      const int64_t slot = (head * rows + block * MAX_ROWS + i) * segments + seg;
      partial_states[slot] = states[i];
      memcpy(partial + slot * hdp, part + i * hdp, (size_t)hdp * sizeof(float));
    }
  }
  end_phase(w);
  begin_phase(w, kv_heads * rows);
  for (int64_t row; (row = next_task(w)) >= 0; task_done(w)) {
    float *total = (float *)w->scratch;
    struct softmax_state state = {-INFINITY, 0};
    memset(total, 0, (size_t)hdp * sizeof(float));
    for (int64_t slot = row * segments; slot < (row + 1) * segments; slot++)
      w->kernels->merge(&state, total, &partial_states[slot], partial + slot * hdp, hdp);
    divide(w, total, state, a->kv.head_dim, out_row(a, row / rows, row % rows));
  }
  end_phase(w);
}

/* x += update (through its norm, if there is one); then the next block's norm, rounded. */
static void add_and_norm(struct walk *w, struct model *m, float *x, int64_t tokens, const struct matrix *post_norm,
                         const float *next_norm, bool round) {
  const int64_t d = m->size.hidden;
  const struct activations a = over(m, m->normed, d, tokens);
  const int64_t rows = rows_of_task(w, tokens);
  begin_phase(w, ceil_div(tokens, rows));
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w))
    for (int64_t t = task * rows; t < at_most((task + 1) * rows, tokens); t++) {
      float *update = m->update + t * d;
      if (post_norm) {
        if (post_norm->data) w->kernels->rmsnorm(update, norm_weight(post_norm), d, m->eps, update);
        w->kernels->add(x + t * d, update, d);
      }
      if (!next_norm) continue;
      w->kernels->rmsnorm(x + t * d, next_norm, d, m->eps, m->normed + t * d);
      if (round) w->kernels->round_row(&a, t, d, 0, a.spans);
    }
  end_phase(w);
}

static struct kv_layer kv_of(const struct model *m, const struct pass *p, int64_t layer) {
  const bool half = !m->size.float_precision;
  const int64_t hdp = model_head_dim_padded(m);
  const int64_t bytes = m->size.kv_heads * p->tiles * TILE * hdp * (half ? 2 : 4);
  return (struct kv_layer){p->keys + layer * bytes, p->values + layer * bytes, half, p->tiles, (int)m->size.head_dim, (int)hdp};
}

/* The norm in front of a block's first products. */
static const float *norm_before(const struct model *m, int64_t block) {
  return norm_weight(&m->tensors[block / 2 * LAYER_TENSORS + (block % 2 ? FFN_NORM : ATTN_NORM)]);
}

static void attention_block(struct walk *w, struct model *m, const struct pass *p, int64_t index, const float *next_norm) {
  const struct sizes *s = &m->size;
  const struct matrix *layer = m->tensors + index * LAYER_TENSORS;
  const bool exact = s->float_precision;
  const int64_t t = p->tokens, width = s->heads * s->head_dim, group = s->heads / s->kv_heads;
  const struct kv_layer kv = kv_of(m, p, index);

  const struct activations normed = over(m, m->normed, s->hidden, t);
  multiply(w, (struct product[]){whole(&layer[ATTN_Q], m->q), whole(&layer[ATTN_K], m->k), whole(&layer[ATTN_V], m->v)}, 3, &normed, exact);
  prepare_heads(w, m, p, layer, &kv, m->windows[index] ? p->local_rotation : p->rotation);

  const struct attention a = {kv, m->q, m->attended, width, p->start_pos, m->windows[index], (int)group};
  if (t == 1) attend_step(w, &a, s->kv_heads, m->partial, m->states);
  else attend_prompt(w, &a, s->kv_heads, t * group);

  const struct activations attended = over(m, m->attended, width, t);
  if (!exact) round_rows(w, &attended, width);
  multiply(w, (struct product[]){whole(&layer[ATTN_OUTPUT], m->update)}, 1, &attended, exact);
  add_and_norm(w, m, p->x, t, &layer[POST_ATTENTION_NORM], next_norm, !exact);
}

static void feed_forward_block(struct walk *w, struct model *m, const struct pass *p, int64_t index, const float *next_norm) {
  const struct sizes *s = &m->size;
  const struct matrix *layer = m->tensors + index * LAYER_TENSORS;
  const bool exact = s->float_precision;
  const int64_t t = p->tokens;

  const struct activations normed = over(m, m->normed, s->hidden, t);
  multiply(w, (struct product[]){whole(&layer[FFN_GATE], m->gate), whole(&layer[FFN_UP], m->up)}, 2, &normed, exact);
  const struct activations inner = over(m, m->gate, s->ffn, t);
  begin_phase(w, shares_of(w, &inner));
  for (int64_t task; (task = next_task(w)) >= 0; task_done(w)) {
    const struct share share = share_of(w, &inner, task);
    const int64_t from = share.first_span * SPAN, n = at_most(share.end_span * SPAN, s->ffn) - from;
    for (int64_t row = share.first_row; row < share.end_row && n > 0; row++) {
      float *gate = m->gate + row * s->ffn + from;
      (s->gelu ? w->kernels->geglu : w->kernels->swiglu)(gate, m->up + row * s->ffn + from, n, gate);
      if (!exact) w->kernels->round_row(&inner, row, s->ffn, share.first_span, share.end_span);
    }
  }
  end_phase(w);
  multiply(w, (struct product[]){whole(&layer[FFN_DOWN], m->update)}, 1, &inner, exact);
  add_and_norm(w, m, p->x, t, &layer[POST_FFW_NORM], next_norm, !exact);
}

static struct walk start_walk(const struct model *m, struct job *job, int thread) {
  return (struct walk){.kernels = m->kernels, .job = job, .threads = pool_threads(m->pool),
                       .scratch = m->scratch + thread * m->scratch_bytes};
}

static void run_blocks(void *argument, struct job *job, int thread) {
  const struct blocks_run *run = argument;
  struct model *m = run->model;
  const struct pass *p = run->pass;
  struct walk w = start_walk(m, job, thread);
  add_and_norm(&w, m, p->x, p->tokens, NULL, norm_before(m, p->first), !m->size.float_precision);
  for (int64_t block = p->first; block < p->last; block++)
    (block % 2 ? feed_forward_block : attention_block)(&w, m, p, block / 2,
                                                       block + 1 < p->last ? norm_before(m, block + 1) : NULL);
}

static enum status run_job(struct model *m, void (*run)(void *, struct job *, int), void *argument,
                           const volatile int32_t *cancel) {
  struct job job = {.run = run, .argument = argument, .cancel = cancel, .phases = m->phases};
  memset((void *)m->phases, 0, (size_t)m->n_phases * sizeof *m->phases);
  pool_run(m->pool, &job);
  return job_cancelled(&job) ? CANCELLED : DONE;
}

/* Room for what the segments of a decode step leave behind. */
static bool grow_partial(struct model *m, int64_t rows) {
  if (rows <= m->partial_rows) return true;
  free(m->partial);
  free(m->states);
  m->partial = room(rows * model_head_dim_padded(m) * 4);
  m->states = room(rows * (int64_t)sizeof *m->states);
  m->partial_rows = m->partial && m->states ? rows : 0;
  return m->partial_rows;
}

enum status model_blocks(struct model *m, const struct pass *p) {
  if (p->first == p->last) return DONE;
  if (!grow_partial(m, m->size.heads * ceil_div(p->tiles * TILE, SEGMENT))) return NO_MEMORY;
  return run_job(m, run_blocks, &(struct blocks_run){m, p}, p->cancel);
}

/* ---- head */

struct head_run {
  struct model *model;
  const struct matrix *output;
  const float *x;
  int64_t rows;
  float *logits;
};

static void run_head(void *argument, struct job *job, int thread) {
  const struct head_run *run = argument;
  struct model *m = run->model;
  struct walk w = start_walk(m, job, thread);
  /* With no update to add, x is only read. */
  add_and_norm(&w, m, (float *)run->x, run->rows, NULL, norm_weight(&m->output_norm), !m->size.float_precision);
  const struct activations a = over(m, m->normed, m->size.hidden, run->rows);
  multiply(&w, (struct product[]){{run->output, run->logits, m->size.vocab}}, 1, &a, m->size.float_precision);
}

enum status model_head(struct model *m, const struct matrix *output, const float *x, int64_t rows, float *logits) {
  return run_job(m, run_head, &(struct head_run){m, output, x, rows, logits}, NULL);
}

/* ---- one operation by itself */

struct matmul_run {
  const struct kernels *kernels;
  struct activations a;
  struct product product;
  bool float_precision;
  uint8_t *scratch;
  int threads;
};

static void run_matmul(void *argument, struct job *job, int thread) {
  const struct matmul_run *run = argument;
  const int64_t k = run->product.w->cols;
  struct walk w = {.kernels = run->kernels, .job = job, .threads = run->threads,
                   .scratch = run->scratch + thread * matmul_scratch(k)};
  if (uses_rounded(run->product.w, run->float_precision)) round_rows(&w, &run->a, k);
  multiply(&w, &run->product, 1, &run->a, run->float_precision);
}

enum status matmul_all(const struct kernels *kernels, struct pool *pool, const struct matrix *m, const float *x,
                       int64_t tokens, bool float_precision, float *out) {
  struct matmul_run run = {kernels, {x, m->cols, tokens, spans_of(m->cols), rounded_room(tokens, m->cols)},
                           whole(m, out), float_precision, NULL, pool_threads(pool)};
  run.scratch = room(run.threads * matmul_scratch(m->cols));
  struct phase phases[2] = {0};
  enum status status = NO_MEMORY;
  if (run.a.rounded && run.scratch) {
    struct job job = {.run = run_matmul, .argument = &run, .phases = phases};
    pool_run(pool, &job);
    status = DONE;
  }
  free(run.a.rounded);
  free(run.scratch);
  return status;
}

struct attention_run {
  const struct kernels *kernels;
  const struct attention *a;
  int64_t kv_heads, tokens;
  float *partial;
  struct softmax_state *states;
  uint8_t *scratch;
  int64_t scratch_bytes;
};

static void run_attention(void *argument, struct job *job, int thread) {
  const struct attention_run *run = argument;
  struct walk w = {.kernels = run->kernels, .job = job, .threads = 1,
                   .scratch = run->scratch + thread * run->scratch_bytes};
  if (run->tokens == 1) attend_step(&w, run->a, run->kv_heads, run->partial, run->states);
  else attend_prompt(&w, run->a, run->kv_heads, run->tokens * run->a->group);
}

enum status attention_all(const struct kernels *kernels, struct pool *pool, const struct attention *a, int64_t kv_heads,
                          int64_t tokens) {
  const int64_t hdp = a->kv.head_dim_padded, rows = kv_heads * a->group * ceil_div(a->kv.tiles * TILE, SEGMENT);
  struct attention_run run = {kernels, a, kv_heads, tokens, room(rows * hdp * 4),
                              room(rows * (int64_t)sizeof(struct softmax_state)), NULL, scratch_of(hdp, hdp)};
  run.scratch = room(run.scratch_bytes * pool_threads(pool));
  struct phase phases[2] = {0};
  enum status status = NO_MEMORY;
  if (run.partial && run.states && run.scratch) {
    struct job job = {.run = run_attention, .argument = &run, .phases = phases};
    pool_run(pool, &job);
    status = DONE;
  }
  free(run.partial);
  free(run.states);
  free(run.scratch);
  return status;
}

/* ---- memory */

struct read_run {
  const uint8_t *data;
  int64_t bytes;
  atomic_ulong sum; /* keeps the compiler from leaving the reads out */
};

static void run_read(void *argument, struct job *job, int thread) {
  (void)thread;
  enum { STEP = 16 << 20 };
  struct read_run *run = argument;
  for (int64_t task; (task = job_next(job, 0, ceil_div(run->bytes, STEP))) >= 0;) {
    const uint64_t *from = (const uint64_t *)(run->data + task * STEP);
    const int64_t words = at_most(STEP, run->bytes - task * STEP) / 8;
    uint64_t sum[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= words; i += 32)
      for (int k = 0; k < 32; k++) sum[k] += from[i + k];
    for (; i < words; i++) sum[0] += from[i];
    for (int k = 1; k < 32; k++) sum[0] += sum[k];
    atomic_fetch_add(&run->sum, sum[0]);
  }
}

uint64_t read_all(struct pool *pool, const uint8_t *data, int64_t bytes) {
  struct phase phase = {0};
  struct read_run run = {data, bytes, 0};
  struct job job = {.run = run_read, .argument = &run, .phases = &phase};
  pool_run(pool, &job);
  return atomic_load(&run.sum);
}

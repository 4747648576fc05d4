/* Types shared by every file of the extension: matrices, activations, the table of kernels, the thread pool.
 *
 * Knows layouts and sizes; does not know Python. Legend: T tokens, K columns of a weight matrix (inputs),
 * M rows (outputs), HD head dim, S cached length.
 */
#ifndef TIERCEL_CPU_H
#define TIERCEL_CPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ggml's type ids, as in the GGUF file. */
enum quant_type {
  TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q5_1 = 7, TYPE_Q8_0 = 8,
  TYPE_Q2_K = 10, TYPE_Q3_K = 11, TYPE_Q4_K = 12, TYPE_Q5_K = 13, TYPE_Q6_K = 14, TYPE_BF16 = 30
};

/* A span is 256 consecutive inputs of a row: one K-quant block, or eight blocks of 32. Inside a span the
 * activations are rounded in 16 groups of 16. */
enum { SPAN = 256, GROUP = 16, GROUPS = SPAN / GROUP, LANES = 16 };

/* The bytes of a span are kept as four vectors of 64: the 32-element chunks 0|2, 1|3, 4|6, 5|7, an order in which
 * the K-quants unpack without moving bytes between registers. Lane l = 4g + p then belongs to the 16 bytes at g of
 * vector p (simd_*.h, vi_reduce4). */
static inline int offset_of_lane(int lane) { return (lane & 3) * 64 + (lane >> 2) * 16; }
static inline int group_of_lane(int lane) { /* in the natural order of inputs */
  return (lane & 2) << 2 | (lane & 8) >> 1 | (lane & 1) << 1 | (lane & 4) >> 2;
}

static inline int64_t spans_of(int64_t k) { return (k + SPAN - 1) / SPAN; }

/* Rows that are unpacked together: few enough that all they take, UNPACKED_BYTES a span, keeps within a share of a
 * common L2 cache, many enough that a tile of activations is read once for all of them. */
enum { PANEL_ROWS = 16, UNPACKED_BYTES = SPAN + 2 * LANES * 4, PANEL_BYTES = 384 << 10, MOST_ROWS_TOGETHER = 64 };
static inline int64_t rows_together(int64_t k) {
  const int64_t n = PANEL_BYTES / (spans_of(k) * UNPACKED_BYTES) / PANEL_ROWS * PANEL_ROWS;
  return n < PANEL_ROWS ? PANEL_ROWS : n > MOST_ROWS_TOGETHER ? MOST_ROWS_TOGETHER : n;
}

struct matrix {
  const uint8_t *data; /* ggml's row-major blocks, [M, row_bytes] */
  int type;            /* enum quant_type */
  int64_t rows, cols;  /* M, K */
  int64_t row_bytes;
};

/* Activations of T rows, and the same rounded to 8 bits for matrices that use it; padded with zeros to whole spans.
 *
 * x = scale * q for each group of 16. Up to MOST_FOR_GEMV rows lie one after another as row_spans, more as tiles of
 * columns (elementwise.h), which take as much. */
enum { MOST_FOR_GEMV = 2 };
struct row_span {
  int8_t q[SPAN];      /* in the order of vectors */
  float scale[LANES];
  float sum[LANES];    /* scale * (sum of q), for types with a minimum or a zero point */
};
struct activations {
  const float *x;      /* [T, stride] */
  int64_t stride;
  int64_t count;       /* T */
  int64_t spans;       /* per row */
  struct row_span *rounded; /* [T, spans], whatever the order */
};

/* The KV cache of one layer. Keys are stored transposed in tiles of TILE positions, so that one query
 * element multiplies TILE keys at once; tiles sit at absolute positions, which makes a row's result
 * independent of how the prompt was cut. HDP is head dim rounded up to 16, the rest is zero. */
enum { TILE = 64, SEGMENT = 256 };
struct kv_layer {
  void *keys;       /* [KVH, tiles, HDP, TILE] */
  void *values;     /* [KVH, tiles, TILE, HDP] */
  bool half;        /* float16, else float32 */
  int64_t tiles;    /* capacity / TILE, rounded up */
  int head_dim, head_dim_padded;
};

/* Rows of queries that share one KV head: row r is position `start_pos + r / group`, head `r % group`. */
struct attention {
  struct kv_layer kv;
  const float *q;     /* [T, q_stride], heads side by side, scale applied */
  float *out;         /* [T, q_stride] */
  int64_t q_stride, start_pos;
  int64_t window;     /* how many positions back are seen, itself included; 0 is all */
  int group;          /* query heads for each KV head */
};

enum { MAX_ROWS = 4 }; /* query rows that one call of `attend` handles together */

/* Running softmax of one query row: out = o / l. */
struct softmax_state { float m, l; };

/* One table for each instruction set; every function works on a part of the job and is called by any thread. */
struct kernels {
  const char *name;
  /* Spans first..last-1 of row t, of which k inputs exist. */
  void (*round_row)(const struct activations *a, int64_t t, int64_t k, int64_t first, int64_t last);
  /* out[t * ldo + r] for rows r0 <= r < r1; out is indexed by absolute row. */
  void (*matmul)(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,
                 int64_t ldo, uint8_t *scratch);
  void (*matmul_float)(const struct matrix *w, const struct activations *a, int64_t r0, int64_t r1, float *out,
                       int64_t ldo, uint8_t *scratch);
  void (*dequantize)(const struct matrix *w, int64_t row, float *out);
  void (*rmsnorm)(const float *x, const float *weight, int64_t n, float eps, float *out);
  void (*add)(float *x, const float *y, int64_t n);
  void (*scale)(float *x, float factor, int64_t n);
  void (*swiglu)(const float *gate, const float *up, int64_t n, float *out);
  void (*geglu)(const float *gate, const float *up, int64_t n, float *out);
  void (*softmax)(const float *x, int64_t n, float *out);
  void (*rope)(float *x, const float *cos, const float *sin, int64_t half, bool neox);
  void (*append)(const struct kv_layer *kv, int64_t kv_head, int64_t pos, const float *k, const float *v);
  /* Rows r0..r0+n over the positions of one segment; state and o (n rows of HDP) are written, not accumulated. */
  void (*attend)(const struct attention *a, int64_t kv_head, int64_t r0, int n, int64_t segment,
                 struct softmax_state *state, float *o);
  void (*merge)(struct softmax_state *into, float *o, const struct softmax_state *from, const float *p, int64_t n);
};

extern const struct kernels kernels_portable;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif
#if defined(__aarch64__)
extern const struct kernels kernels_neon, kernels_neon_dotprod;
#endif

/* dispatch.c: the table for `name`, or the best one this processor runs when `name` is NULL; NULL if it cannot. */
const struct kernels *kernels_select(const char *name);

/* dispatch.c */
int64_t block_size(int type);  /* elements of a block; 0 for an unknown type */
int64_t block_bytes(int type);
bool is_float_type(int type);
int64_t matmul_scratch(int64_t cols); /* bytes of scratch for one thread, for matrices up to `cols` inputs */

/* threads.c: a pool whose threads walk through the phases of a job together. A phase is a number of tasks; it ends
 * when all its tasks are done, not when all threads have come: where cores are shared, a thread that is kept
 * waiting by the system holds up no more than the task it was in. Threads spin briefly, then sleep. */
struct pool;
struct phase {
  _Alignas(64) atomic_long next; /* the first task that nobody has taken */
  atomic_long done;
};
struct job {
  void (*run)(void *argument, struct job *job, int thread);
  void *argument;
  const volatile int32_t *cancel; /* non-zero asks to stop; may be NULL */
  struct phase *phases;           /* all zero at the start; enough for the whole job */
  struct pool *pool;              /* set by pool_run */
};
struct pool *pool_new(int threads);
void pool_free(struct pool *pool);
int pool_threads(const struct pool *pool);
void pool_run(struct pool *pool, struct job *job); /* the caller is thread 0; returns when every thread has left */

static inline bool job_cancelled(const struct job *job) { return job->cancel && *job->cancel; }
/* The next of a phase's `count` tasks, or -1 when all are taken or the job was cancelled; job_done follows each. */
int64_t job_next(struct job *job, int phase, int64_t count);
void job_done(struct job *job, int phase, int64_t count);
/* Return when all tasks of a phase are done, or the job was cancelled. */
void job_wait(struct job *job, int phase, int64_t count);

#endif

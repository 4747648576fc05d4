/* A decoder's weights and working memory, and the two steps over them.
 *
 * Weights are addressed by weight block: block 2i is the attention of layer i, block 2i + 1 its feed-forward. */
#ifndef TIERCEL_FORWARD_H
#define TIERCEL_FORWARD_H

#include "cpu.h"

/* The order of a layer's tensors in the array that Python passes; absent ones have no data. */
enum layer_tensor {
  ATTN_NORM, ATTN_Q, ATTN_K, ATTN_V, ATTN_Q_NORM, ATTN_K_NORM, ATTN_OUTPUT, POST_ATTENTION_NORM,
  FFN_NORM, FFN_GATE, FFN_UP, FFN_DOWN, POST_FFW_NORM, LAYER_TENSORS
};

struct sizes {
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, rope_dim, vocab;
  int64_t max_tokens;      /* rows of one call */
  int64_t threads;
  int64_t neox, gelu, float_precision; /* flags */
};

struct model {
  const struct kernels *kernels;
  struct pool *pool;
  struct sizes size;
  float eps, query_scale;
  struct matrix *tensors;  /* [layers, LAYER_TENSORS]; the data of streamed blocks comes and goes */
  int64_t *windows;        /* [layers], 0 sees all */
  struct matrix output_norm;
  /* Working memory of one call. */
  float *normed, *q, *k, *v, *attended, *gate, *up, *update;
  struct row_span *rounded;   /* of the activations of one product at a time */
  float *partial;             /* [heads * segments, HDP]; grown when the context does */
  struct softmax_state *states;
  int64_t partial_rows;
  uint8_t *scratch;           /* [threads, scratch_bytes] */
  int64_t scratch_bytes;
  struct phase *phases;
  int64_t n_phases;
};

/* Cosines and sines of T positions for one rotation, [T, rope_dim / 2]. */
struct rotation { const float *cos, *sin; };

struct pass {
  float *x;                   /* [T, D], changed in place */
  int64_t tokens, start_pos;
  int64_t first, last;        /* blocks first..last-1 */
  struct rotation rotation, local_rotation; /* the second for layers with a window */
  uint8_t *keys, *values;     /* [layers, KVH, tiles, ...], see kv_layer */
  int64_t tiles;
  const volatile int32_t *cancel;
};

struct model *model_new(struct sizes size, const struct kernels *kernels); /* NULL when memory is short */
void model_free(struct model *model);
int64_t model_head_dim_padded(const struct model *model);

enum status { DONE, CANCELLED, NO_MEMORY };
enum status model_blocks(struct model *model, const struct pass *pass);
/* The final norm of rows of x [R, D], times some rows of the output matrix: logits[r * vocab + i]; R <= max_tokens. */
enum status model_head(struct model *model, const struct matrix *output, const float *x, int64_t rows, float *logits);

/* One product by itself, [T, K] x [M, K] -> [T, M]: the path of the layers, for tests and the bench. */
enum status matmul_all(const struct kernels *kernels, struct pool *pool, const struct matrix *w, const float *x,
                       int64_t tokens, bool float_precision, float *out);
/* Attention of T new positions over a filled cache. */
enum status attention_all(const struct kernels *kernels, struct pool *pool, const struct attention *a, int64_t kv_heads,
                          int64_t tokens);
/* Read every byte once on all threads, to measure how fast memory is; returns a sum of the words. */
uint64_t read_all(struct pool *pool, const uint8_t *data, int64_t bytes);
#endif

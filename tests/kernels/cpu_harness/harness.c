/* Runs the kernels of this processor on the cases of a file and compares: `harness FILE`.
 *
 * Every result must be within what its case allows of what the oracle says, and equal bit for bit however many
 * rows share a call and threads share the work. Prints the name of the instruction set, or what differs and
 * exits with 1. vectors.py writes the file and knows what the numbers mean; nothing here needs Python.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"

enum op { MATMUL, RMSNORM, SOFTMAX, SWIGLU, GEGLU, ROPE, ATTENTION };
enum { SIZES = 7, MAX_ARRAYS = 5 };

struct test {
  int64_t op, size[SIZES], arrays; /* as in the file, followed by each array's bytes and content */
  const void *array[MAX_ARRAYS];   /* the last two: what the oracle says, and how far from it is allowed */
};

static const struct kernels *set;
static struct pool *pools[2]; /* of one thread and of two */
static int cases, failures;

static void fail(const char *what, int64_t at, float got, float expected, float allowed) {
  printf("case %d, %s: element %lld is %.9g, not %.9g within %.3g\n", cases, what, (long long)at, got, expected,
         allowed);
  failures++;
}

static void expect_close(const struct test *c, const char *what, const float *got, int64_t n) {
  const float *expected = c->array[c->arrays - 2], *allowed = c->array[c->arrays - 1];
  for (int64_t i = 0; i < n; i++)
    if (!(fabsf(got[i] - expected[i]) <= allowed[i])) { /* a NaN is not close */
      fail(what, i, got[i], expected[i], allowed[i]);
      return;
    }
}

static void expect_same(const char *what, const float *got, const float *expected, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(&got[i], &expected[i], sizeof *got)) {
      fail(what, i, got[i], expected[i], 0);
      return;
    }
}

static void *room(int64_t bytes) {
  void *p = calloc((size_t)bytes, 1);
  if (!p) exit(2);
  return p;
}

/* weights, x [T, K] */
static void test_matmul(const struct test *c) {
  const int type = (int)c->size[0];
  const int64_t rows = c->size[1], cols = c->size[2], tokens = c->size[3];
  const bool float_precision = c->size[4];
  const struct matrix w = {c->array[0], type, rows, cols, cols / block_size(type) * block_bytes(type)};
  const float *x = c->array[1];
  float *whole = room(tokens * rows * 4), *part = room(tokens * rows * 4);
  matmul_all(set, pools[0], &w, x, tokens, float_precision, whole);
  expect_close(c, "matmul", whole, tokens * rows);
  const int64_t together[] = {1, 3, tokens};
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < 3; i++)
      for (int64_t t = 0; t + together[i] <= tokens; t += together[i]) {
        matmul_all(set, pools[p], &w, x + t * cols, together[i], float_precision, part);
        expect_same("matmul of other columns or threads", part, whole + t * rows, together[i] * rows);
      }
  free(whole);
  free(part);
}

/* x [R, n], and a weight [n] or a second [R, n] */
static void test_rows(const struct test *c) {
  const int64_t rows = c->size[0], n = c->size[1];
  const float *second = c->array[1];
  float *out = room(rows * n * 4);
  for (int64_t at = 0; at < rows * n; at += n) {
    const float *x = (const float *)c->array[0] + at;
    switch (c->op) {
      case RMSNORM: set->rmsnorm(x, second, n, 1e-5f, out + at); break;
      case SOFTMAX: set->softmax(x, n, out + at); break;
      case SWIGLU: set->swiglu(x, second + at, n, out + at); break;
      default: set->geglu(x, second + at, n, out + at);
    }
  }
  expect_close(c, "rows", out, rows * n);
  free(out);
}

/* x [T, H, HD], cos and sin [T, half] */
static void test_rope(const struct test *c) {
  const int64_t tokens = c->size[0], heads = c->size[1], head_dim = c->size[2], half = c->size[3];
  const float *cos = c->array[1], *sin = c->array[2];
  float *x = room(tokens * heads * head_dim * 4);
  memcpy(x, c->array[0], (size_t)(tokens * heads * head_dim) * sizeof *x);
  for (int64_t i = 0; i < tokens * heads; i++)
    set->rope(x + i * head_dim, cos + i / heads * half, sin + i / heads * half, half, c->size[4]);
  expect_close(c, "rope", x, tokens * heads * head_dim);
  free(x);
}

/* q [T, H, HD], k and v [S, KVH, HD] */
static void test_attention(const struct test *c) {
  const int64_t tokens = c->size[0], kv_heads = c->size[1], group = c->size[2], head_dim = c->size[3];
  const int64_t start = c->size[4], width = kv_heads * group * head_dim, length = start + tokens;
  const int64_t tiles = (length + TILE - 1) / TILE, padded = (head_dim + LANES - 1) / LANES * LANES;
  const int64_t cache = kv_heads * tiles * TILE * padded * 4;
  float *whole = room(tokens * width * 4), *part = room(tokens * width * 4);
  struct attention a = {{room(cache), room(cache), c->size[6], tiles, (int)head_dim, (int)padded},
                        c->array[0], whole, width, start, c->size[5], (int)group};
  for (int64_t i = 0; i < length * kv_heads; i++)
    set->append(&a.kv, i % kv_heads, i / kv_heads, (const float *)c->array[1] + i * head_dim,
                (const float *)c->array[2] + i * head_dim);
  attention_all(set, pools[0], &a, kv_heads, tokens);
  expect_close(c, "attention", whole, tokens * width);
  for (int p = 0; p < 2; p++) {
    a.q = c->array[0], a.out = part, a.start_pos = start;
    attention_all(set, pools[p], &a, kv_heads, tokens);
    expect_same("attention on other threads", part, whole, tokens * width);
    for (int64_t t = 0; t < tokens; t++, a.q += width, a.start_pos++) {
      attention_all(set, pools[p], &a, kv_heads, 1);
      expect_same("attention of one position", part, whole + t * width, width);
    }
  }
  free(a.kv.keys);
  free(a.kv.values);
  free(whole);
  free(part);
}

static bool read_test(FILE *file, struct test *c) {
  if (fread(c, 8, 2 + SIZES, file) != 2 + SIZES) return false;
  for (int64_t i = 0; i < c->arrays; i++) {
    int64_t bytes;
    if (fread(&bytes, 8, 1, file) != 1) exit(2);
    void *content = room(bytes);
    if (fread(content, 1, (size_t)bytes, file) != (size_t)bytes) exit(2);
    c->array[i] = content;
  }
  return true;
}

int main(int argc, char **argv) {
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (!file) return 2;
  set = kernels_select(NULL);
  pools[0] = pool_new(1);
  pools[1] = pool_new(2);
  struct test c;
  for (; read_test(file, &c); cases++) {
    if (c.op == MATMUL) test_matmul(&c);
    else if (c.op == ROPE) test_rope(&c);
    else if (c.op == ATTENTION) test_attention(&c);
    else test_rows(&c);
    for (int64_t i = 0; i < c.arrays; i++) free((void *)c.array[i]);
  }
  fclose(file);
  pool_free(pools[0]);
  pool_free(pools[1]);
  if (!failures) puts(set->name);
  return failures > 0;
}

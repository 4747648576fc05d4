/* The Python face of the kernels: checks sizes, releases the GIL, calls. Limited API, buffers only.
 *
 * `kernels/cpu.py` is the one caller; it knows the meaning of every argument and what may be passed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "forward.h"

static const char CAPSULE[] = "kernels._cpu.model";

static PyObject *fail(PyObject *type, const char *text) {
  PyErr_SetString(type, text);
  return NULL;
}

static bool holds(const Py_buffer *b, int64_t count, int64_t item) { return b->len == count * item; }

static const struct kernels *select_set(const char *name) {
  const struct kernels *set = kernels_select(name);
  if (!set) PyErr_SetString(PyExc_ValueError, "this processor has no such instruction set");
  return set;
}

/* A view of `bytes` as a matrix; false with an error set when they do not fit. */
static bool view(struct matrix *m, const Py_buffer *b, int type, int64_t rows, int64_t cols) {
  const int64_t size = block_size(type);
  if (!size || rows < 1 || cols < 1 || cols % size) {
    PyErr_SetString(PyExc_ValueError, "unknown type, or columns that are no multiple of its block");
    return false;
  }
  *m = (struct matrix){b->buf, type, rows, cols, cols / size * block_bytes(type)};
  if (!holds(b, rows, m->row_bytes)) PyErr_SetString(PyExc_ValueError, "weights of the wrong length");
  return holds(b, rows, m->row_bytes);
}

static PyObject *py_sets(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  PyObject *list = PyList_New(0);
  static const char *const names[] = {"avx512", "avx2", "neon-dotprod", "neon", "portable"};
  for (size_t i = 0; list && i < sizeof names / sizeof *names; i++) {
    if (!kernels_select(names[i])) continue;
    PyObject *name = PyUnicode_FromString(names[i]);
    if (!name || PyList_Append(list, name)) Py_CLEAR(list);
    Py_XDECREF(name);
  }
  return list;
}

static PyObject *status_result(enum status status) {
  if (status == NO_MEMORY) return PyErr_NoMemory();
  return PyBool_FromLong(status == DONE);
}

static PyObject *py_matmul(PyObject *self, PyObject *args) {
  (void)self;
  const char *name;
  int type, threads, float_precision;
  long long rows, cols, tokens;
  Py_buffer w, x, out;
  if (!PyArg_ParseTuple(args, "ziiLLLpy*y*w*", &name, &threads, &type, &rows, &cols, &tokens, &float_precision, &w, &x, &out))
    return NULL;
  PyObject *result = NULL;
  struct matrix m;
  const struct kernels *set = select_set(name);
  if (set && view(&m, &w, type, rows, cols)) {
    if (tokens < 1 || threads < 1 || !holds(&x, tokens * cols, 4) || !holds(&out, tokens * rows, 4)) {
      fail(PyExc_ValueError, "activations or result of the wrong length");
    } else {
      enum status status = NO_MEMORY;
      Py_BEGIN_ALLOW_THREADS;
      struct pool *pool = pool_new(threads);
      if (pool) {
        status = matmul_all(set, pool, &m, x.buf, tokens, float_precision, out.buf);
        pool_free(pool);
      }
      Py_END_ALLOW_THREADS;
      result = status_result(status);
    }
  }
  PyBuffer_Release(&w);
  PyBuffer_Release(&x);
  PyBuffer_Release(&out);
  return result;
}

static PyObject *py_embedding(PyObject *self, PyObject *args) {
  (void)self;
  const char *name;
  int type;
  float factor;
  long long rows, cols;
  Py_buffer w, ids, out;
  if (!PyArg_ParseTuple(args, "ziLLfy*y*w*", &name, &type, &rows, &cols, &factor, &w, &ids, &out)) return NULL;
  PyObject *result = NULL;
  struct matrix m;
  const struct kernels *set = select_set(name);
  if (set && view(&m, &w, type, rows, cols)) {
    const int64_t count = ids.len / 4;
    const int32_t *id = ids.buf;
    bool fits = holds(&out, count * cols, 4);
    for (int64_t i = 0; i < count; i++) fits = fits && id[i] >= 0 && id[i] < rows;
    if (!fits) {
      fail(PyExc_ValueError, "an id outside the table, or a result of the wrong length");
    } else {
      Py_BEGIN_ALLOW_THREADS;
      for (int64_t i = 0; i < count; i++) {
        set->dequantize(&m, id[i], (float *)out.buf + i * cols);
        if (factor != 1.0f) set->scale((float *)out.buf + i * cols, factor, cols);
      }
      Py_END_ALLOW_THREADS;
      result = Py_NewRef(Py_None);
    }
  }
  PyBuffer_Release(&w);
  PyBuffer_Release(&ids);
  PyBuffer_Release(&out);
  return result;
}

/* rows(set, op, x, y, n, eps, out): row-wise operations over x [R, n]; y is a second [R, n], a weight [n], or empty. */
static PyObject *py_rows(PyObject *self, PyObject *args) {
  (void)self;
  const char *name, *op;
  long long n;
  float eps;
  Py_buffer x, y, out;
  if (!PyArg_ParseTuple(args, "zsy*y*Lfw*", &name, &op, &x, &y, &n, &eps, &out)) return NULL;
  PyObject *result = NULL;
  const struct kernels *set = select_set(name);
  const bool norm = !strcmp(op, "rmsnorm"), pair = !strcmp(op, "swiglu") || !strcmp(op, "geglu");
  if (set && (n < 1 || x.len % (n * 4) || out.len != x.len || (norm && !holds(&y, n, 4)) || (pair && y.len != x.len))) {
    fail(PyExc_ValueError, "rows of the wrong length");
  } else if (set && !norm && !pair && strcmp(op, "softmax")) {
    fail(PyExc_ValueError, "no such operation");
  } else if (set) {
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t at = 0; at < x.len / 4; at += n) {
      const float *a = (const float *)x.buf + at, *b = y.buf;
      float *to = (float *)out.buf + at;
      if (norm) set->rmsnorm(a, b, n, eps, to);
      else if (!pair) set->softmax(a, n, to);
      else (op[0] == 's' ? set->swiglu : set->geglu)(a, b + at, n, to);
    }
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
  }
  PyBuffer_Release(&x);
  PyBuffer_Release(&y);
  PyBuffer_Release(&out);
  return result;
}

/* rope(set, x [T, H, HD] in place, cos [T, half], sin, heads, head_dim, half, neox) */
static PyObject *py_rope(PyObject *self, PyObject *args) {
  (void)self;
  const char *name;
  long long heads, hd, half;
  int neox;
  Py_buffer x, cos, sin;
  if (!PyArg_ParseTuple(args, "zw*y*y*LLLp", &name, &x, &cos, &sin, &heads, &hd, &half, &neox)) return NULL;
  PyObject *result = NULL;
  const struct kernels *set = select_set(name);
  if (set) {
    const int64_t tokens = heads > 0 && hd > 0 ? x.len / 4 / (heads * hd) : 0;
    if (half < 1 || 2 * half > hd || !holds(&x, tokens * heads * hd, 4) || !holds(&cos, tokens * half, 4) ||
        !holds(&sin, tokens * half, 4)) {
      fail(PyExc_ValueError, "heads or angles of the wrong length");
    } else {
      Py_BEGIN_ALLOW_THREADS;
      for (int64_t i = 0; i < tokens * heads; i++)
        set->rope((float *)x.buf + i * hd, (const float *)cos.buf + i / heads * half, (const float *)sin.buf + i / heads * half,
                  half, neox);
      Py_END_ALLOW_THREADS;
      result = Py_NewRef(Py_None);
    }
  }
  PyBuffer_Release(&x);
  PyBuffer_Release(&cos);
  PyBuffer_Release(&sin);
  return result;
}

static int64_t cache_bytes(int64_t kv_heads, int64_t tiles, int64_t hdp, bool half) {
  return kv_heads * tiles * TILE * hdp * (half ? 2 : 4);
}

/* attention(set, threads, q [T, H, HD], k [S, KVH, HD], v, keys, values, kv_heads, group, head_dim, start_pos, window,
 * half, out): appends S keys and values at positions 0.. to the (zeroed) cache, then attends T queries from start_pos. */
static PyObject *py_attention(PyObject *self, PyObject *args) {
  (void)self;
  const char *name;
  int threads, half;
  long long kv_heads, group, hd, start, window;
  Py_buffer q, k, v, keys, values, out;
  if (!PyArg_ParseTuple(args, "ziy*y*y*w*w*LLLLLpw*", &name, &threads, &q, &k, &v, &keys, &values, &kv_heads, &group, &hd,
                        &start, &window, &half, &out))
    return NULL;
  PyObject *result = NULL;
  const struct kernels *set = select_set(name);
  if (set && kv_heads > 0 && group > 0 && hd > 0 && threads > 0 && start >= 0 && window >= 0) {
    const int64_t hdp = (hd + LANES - 1) / LANES * LANES, width = kv_heads * group * hd, tokens = q.len / 4 / width;
    const int64_t length = k.len / 4 / (kv_heads * hd), tiles = (length + TILE - 1) / TILE;
    if (tokens < 1 || !holds(&q, tokens * width, 4) || out.len != q.len || !holds(&k, length * kv_heads * hd, 4) ||
        v.len != k.len || start + tokens > length || keys.len != cache_bytes(kv_heads, tiles, hdp, half) ||
        values.len != keys.len) {
      fail(PyExc_ValueError, "queries, keys, values or cache of the wrong length");
    } else {
      struct attention a = {{keys.buf, values.buf, half, tiles, (int)hd, (int)hdp}, q.buf, out.buf, width, start, window,
                            (int)group};
      enum status status = NO_MEMORY;
      Py_BEGIN_ALLOW_THREADS;
      for (int64_t i = 0; i < length * kv_heads; i++)
        set->append(&a.kv, i % kv_heads, i / kv_heads, (const float *)k.buf + i * hd, (const float *)v.buf + i * hd);
      struct pool *pool = pool_new(threads);
      if (pool) {
        status = attention_all(set, pool, &a, kv_heads, tokens);
        pool_free(pool);
      }
      Py_END_ALLOW_THREADS;
      result = status_result(status);
    }
  } else if (set) {
    fail(PyExc_ValueError, "sizes of attention must be positive");
  }
  PyBuffer_Release(&q);
  PyBuffer_Release(&k);
  PyBuffer_Release(&v);
  PyBuffer_Release(&keys);
  PyBuffer_Release(&values);
  PyBuffer_Release(&out);
  return result;
}

/* ---- a whole model */

static void destroy(PyObject *capsule) { model_free(PyCapsule_GetPointer(capsule, CAPSULE)); }

/* Rows of (address, type, rows, cols) to matrices; no rows is no matrix, no address is one that comes later. */
static bool take_matrices(struct matrix *to, const int64_t *from, int64_t count) {
  for (int64_t i = 0; i < count; i++, from += 4) {
    if (!from[2]) continue;
    const int64_t size = block_size((int)from[1]);
    if (!size || from[2] < 1 || from[3] < 1 || from[3] % size) return false;
    to[i] = (struct matrix){(const uint8_t *)(uintptr_t)from[0], (int)from[1], from[2], from[3],
                            from[3] / size * block_bytes((int)from[1])};
  }
  return true;
}

/* model(set, sizes int64 [13], eps, query_scale, layers int64 [L, 13, 4], windows int64 [L], output_norm int64 [4]) */
static PyObject *py_model(PyObject *self, PyObject *args) {
  (void)self;
  const char *name;
  float eps, query_scale;
  Py_buffer sizes, layers, windows, norm;
  if (!PyArg_ParseTuple(args, "zy*ffy*y*y*", &name, &sizes, &eps, &query_scale, &layers, &windows, &norm)) return NULL;
  PyObject *result = NULL;
  struct sizes s;
  const struct kernels *set = select_set(name);
  if (set && sizes.len == sizeof s) {
    memcpy(&s, sizes.buf, sizeof s);
    if (!holds(&layers, s.layers * LAYER_TENSORS * 4, 8) || !holds(&windows, s.layers, 8) || !holds(&norm, 4, 8)) {
      fail(PyExc_ValueError, "tables of the wrong length");
    } else {
      struct model *m = model_new(s, set);
      if (!m) {
        PyErr_NoMemory();
      } else if (!take_matrices(m->tensors, layers.buf, s.layers * LAYER_TENSORS) || !take_matrices(&m->output_norm, norm.buf, 1)) {
        model_free(m);
        fail(PyExc_ValueError, "a tensor of unknown type or shape");
      } else {
        memcpy(m->windows, windows.buf, (size_t)windows.len);
        m->eps = eps;
        m->query_scale = query_scale;
        result = PyCapsule_New(m, CAPSULE, destroy);
        if (!result) model_free(m);
      }
    }
  } else if (set) {
    fail(PyExc_ValueError, "sizes of the wrong length");
  }
  PyBuffer_Release(&sizes);
  PyBuffer_Release(&layers);
  PyBuffer_Release(&windows);
  PyBuffer_Release(&norm);
  return result;
}

/* place(model, layer, tensor, address): where a matrix lies from now on, 0 for nowhere. */
static PyObject *py_place(PyObject *self, PyObject *args) {
  (void)self;
  PyObject *capsule;
  long long layer, tensor, address;
  if (!PyArg_ParseTuple(args, "OLLL", &capsule, &layer, &tensor, &address)) return NULL;
  struct model *m = PyCapsule_GetPointer(capsule, CAPSULE);
  if (!m) return NULL;
  if (layer < 0 || layer >= m->size.layers || tensor < 0 || tensor >= LAYER_TENSORS)
    return fail(PyExc_ValueError, "no such tensor");
  m->tensors[layer * LAYER_TENSORS + tensor].data = (const uint8_t *)(uintptr_t)address;
  return Py_NewRef(Py_None);
}

/* Whether every matrix of blocks first..last-1 has a place. */
static bool placed(const struct model *m, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; block++)
    for (int64_t i = block % 2 ? FFN_NORM : ATTN_NORM; i < (block % 2 ? LAYER_TENSORS : FFN_NORM); i++) {
      const struct matrix *w = &m->tensors[block / 2 * LAYER_TENSORS + i];
      if (w->rows && !w->data) return false;
    }
  return true;
}

/* blocks(model, first, last, x [T, D] in place, start_pos, cos, sin, local_cos, local_sin, keys, values, tiles, cancel)
 * -> whether it ran to its end */
static PyObject *py_blocks(PyObject *self, PyObject *args) {
  (void)self;
  PyObject *capsule;
  long long first, last, start, tiles;
  Py_buffer x, cos, sin, local_cos, local_sin, keys, values, cancel;
  if (!PyArg_ParseTuple(args, "OLLw*Ly*y*y*y*w*w*Ly*", &capsule, &first, &last, &x, &start, &cos, &sin, &local_cos,
                        &local_sin, &keys, &values, &tiles, &cancel))
    return NULL;
  PyObject *result = NULL;
  struct model *m = PyCapsule_GetPointer(capsule, CAPSULE);
  if (m) {
    const struct sizes *s = &m->size;
    const int64_t tokens = x.len / 4 / s->hidden, angles = tokens * (s->rope_dim / 2);
    const int64_t bytes = s->layers * cache_bytes(s->kv_heads, tiles, model_head_dim_padded(m), !s->float_precision);
    if (tokens < 1 || tokens > s->max_tokens || !holds(&x, tokens * s->hidden, 4) || first < 0 || last < first ||
        last > 2 * s->layers || start < 0 || start + tokens > tiles * TILE || !holds(&cos, angles, 4) || !holds(&sin, angles, 4) ||
        !holds(&local_cos, angles, 4) || !holds(&local_sin, angles, 4) || keys.len != bytes || values.len != bytes ||
        cancel.len != 4) {
      fail(PyExc_ValueError, "arrays of the wrong length, or a position outside the cache");
    } else if (!placed(m, first, last)) {
      fail(PyExc_ValueError, "a matrix of these blocks is nowhere");
    } else {
      struct pass p = {x.buf, tokens, start, first, last, {cos.buf, sin.buf}, {local_cos.buf, local_sin.buf},
                       keys.buf, values.buf, tiles, cancel.buf};
      enum status status;
      Py_BEGIN_ALLOW_THREADS;
      status = model_blocks(m, &p);
      Py_END_ALLOW_THREADS;
      result = status_result(status);
    }
  }
  Py_buffer *const all[] = {&x, &cos, &sin, &local_cos, &local_sin, &keys, &values, &cancel};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) PyBuffer_Release(all[i]);
  return result;
}

/* head(model, x [R, D], type, data of n rows of the output matrix, first_row, logits [R, V]): fills columns
 * first_row..first_row+n-1 of the logits. */
static PyObject *py_head(PyObject *self, PyObject *args) {
  (void)self;
  PyObject *capsule;
  int type;
  long long first;
  Py_buffer x, data, logits;
  if (!PyArg_ParseTuple(args, "Oy*iy*Lw*", &capsule, &x, &type, &data, &first, &logits)) return NULL;
  PyObject *result = NULL;
  struct model *m = PyCapsule_GetPointer(capsule, CAPSULE);
  if (m) {
    const int64_t rows = x.len / 4 / m->size.hidden, size = block_size(type);
    const int64_t row_bytes = size ? m->size.hidden / size * block_bytes(type) : 0;
    const int64_t count = row_bytes ? data.len / row_bytes : 0;
    struct matrix output;
    if (rows < 1 || rows > m->size.max_tokens || !holds(&x, rows * m->size.hidden, 4) || first < 0 ||
        first + count > m->size.vocab || !holds(&logits, rows * m->size.vocab, 4)) {
      fail(PyExc_ValueError, "rows or logits of the wrong length");
    } else if (view(&output, &data, type, count, m->size.hidden)) {
      enum status status;
      Py_BEGIN_ALLOW_THREADS;
      status = model_head(m, &output, x.buf, rows, (float *)logits.buf + first);
      Py_END_ALLOW_THREADS;
      result = status_result(status);
    }
  }
  PyBuffer_Release(&x);
  PyBuffer_Release(&data);
  PyBuffer_Release(&logits);
  return result;
}

/* read(threads, data): reads every byte once. */
static PyObject *py_read(PyObject *self, PyObject *args) {
  (void)self;
  int threads;
  Py_buffer data;
  if (!PyArg_ParseTuple(args, "iy*", &threads, &data)) return NULL;
  PyObject *result = NULL;
  if (threads < 1 || data.len % 8) {
    fail(PyExc_ValueError, "threads must be positive and the data whole words of 8 bytes");
  } else {
    uint64_t sum = 0;
    struct pool *pool;
    Py_BEGIN_ALLOW_THREADS;
    pool = pool_new(threads);
    if (pool) {
      sum = read_all(pool, data.buf, data.len);
      pool_free(pool);
    }
    Py_END_ALLOW_THREADS;
    result = pool ? PyLong_FromUnsignedLongLong(sum) : PyErr_NoMemory();
  }
  PyBuffer_Release(&data);
  return result;
}

static PyMethodDef METHODS[] = {
    {"sets", py_sets, METH_NOARGS, "Names of the instruction sets this processor runs, best first."},
    {"matmul", py_matmul, METH_VARARGS, NULL},       {"embedding", py_embedding, METH_VARARGS, NULL},
    {"rows", py_rows, METH_VARARGS, NULL},           {"rope", py_rope, METH_VARARGS, NULL},
    {"attention", py_attention, METH_VARARGS, NULL}, {"model", py_model, METH_VARARGS, NULL},
    {"place", py_place, METH_VARARGS, NULL},         {"blocks", py_blocks, METH_VARARGS, NULL},
    {"head", py_head, METH_VARARGS, NULL},           {"read", py_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "kernels._cpu", "The CPU kernels.", -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) { return PyModule_Create(&MODULE); }

// What the lanes of a warp do together: shuffles, votes, sums, tensor cores.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime.h"

namespace emulator {

namespace {

[[noreturn]] void fail_shuffle(unsigned lane, unsigned source) {
  fail("a shuffle: lane %u reads lane %u, which takes no part", lane, source);
}

}  // namespace

void shuffle(void *const *operands) {
  for (unsigned lane = 0; lane < WARP; lane++) {
    if (!operands[lane]) continue;
    Shuffle *own = (Shuffle *)operands[lane], *source = (Shuffle *)operands[own->source];
    if (!source) fail_shuffle(lane, own->source);
    own->result = source->value;
  }
}

void vote(void *const *operands) {
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < WARP; lane++)
    if (operands[lane]) ballot |= ((Vote *)operands[lane])->predicate << lane;
  for (unsigned lane = 0; lane < WARP; lane++)
    if (operands[lane]) ((Vote *)operands[lane])->result = ballot;
}

namespace {

void ask_whole_warp(void *const *operands) {
  for (unsigned lane = 0; lane < WARP; lane++)
    if (!operands[lane]) fail("a tensor core operation: lane %u has ended", lane);
}

// The words of the 16 rows of A and the 8 columns of B, in row order; a row is 4 * N_PARTS words.
template <int N_PARTS> struct Fragments {
  unsigned a[16][4 * N_PARTS], b[8][4 * N_PARTS];
  explicit Fragments(void *const *operands) {
    ask_whole_warp(operands);
    for (unsigned lane = 0; lane < WARP; lane++) {
      const Mma &own = *(const Mma *)operands[lane];
      unsigned g = lane / 4, t = lane % 4;
      for (int part = 0; part < N_PARTS; part++) {
        a[g][4 * part + t] = own.a[2 * part];
        a[g + 8][4 * part + t] = own.a[2 * part + 1];
        b[g][4 * part + t] = own.b[part];
      }
    }
  }
};

// c[i] of every lane += the product of its row and column.
template <class Number, class Product> void accumulate(void *const *operands, Product product) {
  for (unsigned lane = 0; lane < WARP; lane++) {
    Number *c = (Number *)((const Mma *)operands[lane])->c;
    for (unsigned i = 0; i < 4; i++) c[i] = product(c[i], lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
  }
}

template <int N_PARTS> void mma_s8(void *const *operands) {
  constexpr int N = 16 * N_PARTS;
  Fragments<N_PARTS> words(operands);
  const signed char (*a)[N] = (const signed char (*)[N])words.a, (*b)[N] = (const signed char (*)[N])words.b;
  accumulate<int>(operands, [&](int c, unsigned row, unsigned column) {
    int sum = 0;
    for (int k = 0; k < N; k++) sum += a[row][k] * b[column][k];
    return (int)((unsigned)c + (unsigned)sum);
  });
}

// Sums exactly, rounds once; the hardware is a little less exact, in a way that nobody has written down.
template <int N> void add_products(void *const *operands, const float (&a)[16][N], const float (&b)[8][N]) {
  accumulate<float>(operands, [&](float c, unsigned row, unsigned column) {
    double sum = c;
    for (int k = 0; k < N; k++) sum += (double)a[row][k] * b[column][k];
    return (float)sum;
  });
}

void load_rows(void *const *operands, bool transposed) {
  ask_whole_warp(operands);
  unsigned short matrices[4][8][8];
  for (unsigned lane = 0; lane < WARP; lane++) {
    const void *row = ((const Matrices *)operands[lane])->row;
    if (!is_shared(row)) fail("load_matrices: lane %u's row is not in shared memory", lane);
    if ((uintptr_t)row % 16) fail("load_matrices: lane %u's row is not aligned to 16 bytes", lane);
    memcpy(matrices[lane / 8][lane % 8], row, 16);
  }
  for (unsigned lane = 0; lane < WARP; lane++)
    for (unsigned i = 0; i < 4; i++) {
      unsigned g = lane / 4, k = lane % 4 * 2;
      unsigned low = transposed ? matrices[i][k][g] : matrices[i][g][k];
      unsigned high = transposed ? matrices[i][k + 1][g] : matrices[i][g][k + 1];
      ((const Matrices *)operands[lane])->result[i] = high << 16 | low;
    }
}

// As five shuffles do it, each of all lanes: the same sums in the same order.
template <class Join> void reduce(void *const *operands, Join join) {
  float values[WARP] = {}, before[WARP];
  for (unsigned lane = 0; lane < WARP; lane++)
    if (operands[lane]) values[lane] = *(const float *)operands[lane];
  for (unsigned distance = WARP / 2; distance; distance /= 2) {
    memcpy(before, values, sizeof before);
    for (unsigned lane = 0; lane < WARP; lane++) {
      if (!operands[lane]) continue;
      if (!operands[lane ^ distance]) fail_shuffle(lane, lane ^ distance);
      values[lane] = join(before[lane], before[lane ^ distance]);
    }
  }
  for (unsigned lane = 0; lane < WARP; lane++)
    if (operands[lane]) *(float *)operands[lane] = values[lane];
}

}  // namespace

void warp_sum(void *const *operands) {
  reduce(operands, [](float a, float b) { return a + b; });
}
void warp_max(void *const *operands) {
  reduce(operands, [](float a, float b) { return fmaxf(a, b); });
}

void mma_s8_k32(void *const *operands) { mma_s8<2>(operands); }
void mma_s8_k16(void *const *operands) { mma_s8<1>(operands); }

void mma_f16_k16(void *const *operands) {
  Fragments<2> words(operands);
  float a[16][16], b[8][16];
  auto unpack = [](float *values, const unsigned *halves) {
    for (int i = 0; i < 16; i++) values[i] = half_to_float(halves[i / 2] >> i % 2 * 16 & 0xffffu);
  };
  for (int row = 0; row < 16; row++) unpack(a[row], words.a[row]);
  for (int column = 0; column < 8; column++) unpack(b[column], words.b[column]);
  add_products(operands, a, b);
}

void mma_tf32_k8(void *const *operands) {
  Fragments<2> words(operands);
  float a[16][8], b[8][8];
  auto unpack = [](float *values, const unsigned *floats) {
    for (int i = 0; i < 8; i++) {
      unsigned bits = floats[i] & ~0x1fffu;
      memcpy(values + i, &bits, sizeof bits);
    }
  };
  for (int row = 0; row < 16; row++) unpack(a[row], words.a[row]);
  for (int column = 0; column < 8; column++) unpack(b[column], words.b[column]);
  add_products(operands, a, b);
}

void load_matrices(void *const *operands) { load_rows(operands, false); }
void load_matrices_transposed(void *const *operands) { load_rows(operands, true); }

}  // namespace emulator

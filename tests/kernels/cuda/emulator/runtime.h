// What a kernel compiled as C++ and the runtime that runs it say to each other. Includes nothing, so that a
// kernel compiles in a fraction of a second.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

namespace emulator {

constexpr unsigned WARP = 32;

// The part of a thread that kernels see.
struct Thread {
  uint3 index, block;
  unsigned lane;
};
extern Thread *current;
extern uint3 block_size, grid_size;

// Ends the launch with an error that names the block and the thread. printf's words.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A warp's operation, done once for all lanes by the last that comes: operands[lane] is what that lane gave, null
// for lanes that do not take part.
using Operation = void(void *const *operands);
// Waits until every lane of `lanes` that has not ended is here; `name` is for messages.
void meet(unsigned lanes, const char *name, Operation *operation, void *operand);
// Waits until every thread of the block that has not ended is here.
void meet_block();
// The same of all blocks of a cluster.
void meet_cluster();

void wait_for_previous();
void let_next_start();

unsigned long long nanoseconds();

unsigned char *dynamic_shared();
bool is_shared(const void *address);
// The same place in another block of the cluster, which has to be there still.
void *shared_of(const void *address, unsigned rank);

// cp.async: the copy is made when it is waited for, no sooner, so that a forgotten wait shows.
void copy_later(void *to_shared, const void *from, unsigned n_bytes, bool valid);
void commit_copies();
void finish_copies(unsigned n_pending_groups);

inline float half_to_float(unsigned half) {
  // As a float's exponent and mantissa the bits mean 2^-112 times the value, subnormals included.
  unsigned bits = (half & 0x7fffu) << 13;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  __builtin_memcpy(&bits, &value, sizeof value);
  if ((half & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
  bits |= (half & 0x8000u) << 16;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// To nearest, ties to even; 65520 and more are infinite; every NaN is 0x7fff.
inline unsigned float_to_half(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof value);
  unsigned sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return 0x7fffu;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;
  if (bits < 0x38800000u) {  // subnormal: the sum's last place is 2^-24, a half's smallest step
    __builtin_memcpy(&value, &bits, sizeof value);
    value += 0.5f;
    __builtin_memcpy(&bits, &value, sizeof value);
    return sign | (bits - 0x3f000000u);
  }
  bits += 0xfffu + (bits >> 13 & 1u);
  return sign | (bits - 0x38000000u) >> 13;
}

struct Shuffle {
  unsigned long long value, result;
  unsigned source;
};
Operation shuffle;
struct Vote {
  unsigned predicate, result;
};
Operation vote;
struct Mma {
  void *c;  // int[4] or float[4]
  unsigned a[4], b[2];
};
struct Matrices {
  unsigned *result;
  const void *row;
};
// These take all 32 lanes, and end the launch where one of them has ended.
Operation mma_s8_k32, mma_s8_k16, mma_f16_k16, mma_tf32_k8, load_matrices, load_matrices_transposed;
// Of a float of each lane, in its place.
Operation warp_sum, warp_max;

}  // namespace emulator

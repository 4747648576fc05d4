// kernels/cuda/ptx.cuh in plain C++, the same names one for one; what each does is said there.
#pragma once

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define DEVICE __device__ __forceinline__
#define KERNEL void
#define SHARED_MEMORY(name) u8 *const name = emulator::dynamic_shared()

// ---- half floats

DEVICE float half_to_float(u32 bits) { return emulator::half_to_float(bits & 0xffffu); }
DEVICE u32 pack_halves(float low, float high) {
  return emulator::float_to_half(high) << 16 | emulator::float_to_half(low);
}
DEVICE u16 float_to_half(float value) { return (u16)pack_halves(value, 0.0f); }
// Products and sums of two halves, rounded to float and then to half, are those rounded once.
DEVICE u32 multiply_halves(u32 a, u32 b) {
  return pack_halves(half_to_float(a) * half_to_float(b), half_to_float(a >> 16) * half_to_float(b >> 16));
}
DEVICE u32 add_halves(u32 a, u32 b) {
  return pack_halves(half_to_float(a) + half_to_float(b), half_to_float(a >> 16) + half_to_float(b >> 16));
}

// ---- numbers

DEVICE float fast_exp2(float v) {
  float power = exp2f(v);
  return power < 0x1p-126f ? 0.0f : power;
}

// ---- global loads

template <class T> DEVICE T emulated_load(const void *p) {
  if ((size_t)p % sizeof(T))
    emulator::fail("a load of %d bytes at %p, which is not aligned", (int)sizeof(T), p);
  if (emulator::is_shared(p)) emulator::fail("a global load of shared memory");
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
DEVICE const u8 *settled(const u8 *p) { return p; }
DEVICE uint4 load16(const void *p) { return emulated_load<uint4>(p); }
DEVICE uint2 load8(const void *p) { return emulated_load<uint2>(p); }
DEVICE u32 load4(const void *p) { return emulated_load<u32>(p); }
DEVICE u32 load2(const void *p) { return emulated_load<u16>(p); }
DEVICE uint4 of_host16(const void *p) { return emulated_load<uint4>(p); }
DEVICE uint4 stream16(const void *p) { return emulated_load<uint4>(p); }
DEVICE uint2 stream8(const void *p) { return emulated_load<uint2>(p); }
DEVICE u32 stream4(const void *p) { return emulated_load<u32>(p); }

// ---- copies into shared memory

DEVICE void copy_async16(void *to_shared, const void *from, bool valid) {
  emulator::copy_later(to_shared, from, 16, valid);
}
DEVICE void copy_async8(void *to_shared, const void *from) { emulator::copy_later(to_shared, from, 8, true); }
DEVICE void copy_async4(void *to_shared, const void *from) { emulator::copy_later(to_shared, from, 4, true); }
DEVICE void copies_commit() { emulator::commit_copies(); }
template <int PENDING> DEVICE void copies_wait() { emulator::finish_copies(PENDING); }

// ---- tensor cores

DEVICE void mma_s8_k32(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::Mma operand = {c, {a0, a1, a2, a3}, {b0, b1}};
  emulator::meet(0xffffffffu, "mma_s8_k32", emulator::mma_s8_k32, &operand);
}
DEVICE void mma_s8_k16(int (&c)[4], u32 a0, u32 a1, u32 b0) {
  emulator::Mma operand = {c, {a0, a1}, {b0}};
  emulator::meet(0xffffffffu, "mma_s8_k16", emulator::mma_s8_k16, &operand);
}
DEVICE void mma_f16_k16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::Mma operand = {c, {a0, a1, a2, a3}, {b0, b1}};
  emulator::meet(0xffffffffu, "mma_f16_k16", emulator::mma_f16_k16, &operand);
}
DEVICE void mma_tf32_k8(float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  const u32 a[4] = {__float_as_uint(a0), __float_as_uint(a1), __float_as_uint(a2), __float_as_uint(a3)};
  emulator::Mma operand = {c, {a[0], a[1], a[2], a[3]}, {__float_as_uint(b0), __float_as_uint(b1)}};
  emulator::meet(0xffffffffu, "mma_tf32_k8", emulator::mma_tf32_k8, &operand);
}
DEVICE void load_matrices(u32 (&r)[4], const void *row) {
  emulator::Matrices operand = {r, row};
  emulator::meet(0xffffffffu, "load_matrices", emulator::load_matrices, &operand);
}
DEVICE void load_matrices_transposed(u32 (&r)[4], const void *row) {
  emulator::Matrices operand = {r, row};
  emulator::meet(0xffffffffu, "load_matrices_transposed", emulator::load_matrices_transposed, &operand);
}

// ---- blocks that wait for one another

DEVICE u32 count_arrival(u32 *counter) { return atomicAdd(counter, 1u); }

// ---- clusters

#define CLUSTER_OF(n)
DEVICE void cluster_arrive() {}
DEVICE void cluster_wait() { emulator::meet_cluster(); }
DEVICE void expect_arrivals(u64 *arrivals, u32 n_bytes) { *arrivals = n_bytes; }
DEVICE void send_to_cluster(float *to, int rank, float v, u64 *arrivals) {
  *(float *)emulator::shared_of(to, rank) = v;
  *(u64 *)emulator::shared_of(arrivals, rank) -= sizeof v;
}
DEVICE void wait_for_arrivals(u64 *arrivals) {
  emulator::meet_cluster();
  if (*arrivals) emulator::fail("%lld bytes are expected that were not sent", (s64)*arrivals);
}

// ---- time

DEVICE u64 nanoseconds() { return emulator::nanoseconds(); }

// ---- programmatic dependent launch

DEVICE void wait_for_previous() { emulator::wait_for_previous(); }
DEVICE void let_next_start() { emulator::let_next_start(); }

// ---- warps

// Five shuffles, for which the lanes meet only once.
DEVICE float warp_sum(float v) {
  emulator::meet(0xffffffffu, "warp_sum", emulator::warp_sum, &v);
  return v;
}
DEVICE float warp_max(float v) {
  emulator::meet(0xffffffffu, "warp_max", emulator::warp_max, &v);
  return v;
}

// CUDA's words as plain C++: included before a kernel's source, which then compiles with g++. What CUDA has
// and kernels/cuda does not use is left out. What CUDA leaves undefined ends the launch with an error.
#pragma once
#include "runtime.h"

#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// A section of their own: the runtime fills it with 0xFF before every block.
#define __shared__ static __attribute__((section("emulated_shared")))
#define __CUDA_ARCH__ 900

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block)
#define blockDim emulator::block_size
#define gridDim emulator::grid_size
#define warpSize 32

using size_t = decltype(sizeof(0));

extern "C" {
int printf(const char *format, ...) noexcept;
float ceilf(float) noexcept, cosf(float) noexcept, erff(float) noexcept, exp2f(float) noexcept,
    expf(float) noexcept, fabsf(float) noexcept, floorf(float) noexcept, fmaf(float, float, float) noexcept,
    fmaxf(float, float) noexcept, fminf(float, float) noexcept, log2f(float) noexcept, logf(float) noexcept,
    powf(float, float) noexcept, rintf(float) noexcept, roundf(float) noexcept, sinf(float) noexcept,
    sqrtf(float) noexcept, tanhf(float) noexcept, truncf(float) noexcept;
}

namespace {

// ---- vectors

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- numbers

template <class To, class From> inline To emulated_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
inline int __float_as_int(float v) { return emulated_bits<int>(v); }
inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
inline float __int_as_float(int v) { return emulated_bits<float>(v); }

// To nearest, ties to even; saturates, and NaN is 0.
inline int __float2int_rn(float v) {
  if (v != v) return 0;
  if (v >= 2147483648.0f) return 2147483647;
  if (v <= -2147483648.0f) return -2147483647 - 1;
  return (int)__builtin_lrintf(v);
}
inline float __int2float_rn(int v) { return (float)v; }

inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline bool isnan(float v) { return v != v; }
inline bool isinf(float v) { return __builtin_isinf(v); }
inline bool isfinite(float v) { return __builtin_isfinite(v); }
inline int abs(int v) { return v < 0 ? -v : v; }
inline float abs(float v) { return fabsf(v); }

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }

inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (int)(signed char)(a >> i) * (signed char)(b >> i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
  return c;
}
// Selectors of 8 and more mean another thing to the hardware than to CUDA's manual.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
  if (selectors & 0x8888u) emulator::fail("__byte_perm with selectors 0x%x: each must be below 8", selectors);
  unsigned long long both = (unsigned long long)high << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (selectors >> 4 * i & 7) & 255) << 8 * i;
  return result;
}

// ---- threads that meet

inline void __syncthreads() { emulator::meet_block(); }
inline void __syncwarp(unsigned lanes = 0xffffffffu) {
  emulator::meet(lanes, "__syncwarp", nullptr, nullptr);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}

// A source outside the lane's segment of `width` lanes is the lane itself.
template <class T>
inline T emulated_shuffle(unsigned lanes, const char *name, T value, int source, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if (width < 1 || width > 32 || width & (width - 1)) emulator::fail("%s of width %d", name, width);
  int lane = (int)emulator::current->lane, segment = lane & -width;
  bool inside = source >= segment && source < segment + width;
  emulator::Shuffle operand = {0, 0, (unsigned)(inside ? source : lane)};
  __builtin_memcpy(&operand.value, &value, sizeof value);
  emulator::meet(lanes, name, emulator::shuffle, &operand);
  __builtin_memcpy(&value, &operand.result, sizeof value);
  return value;
}
template <class T> inline T __shfl_sync(unsigned lanes, T value, int source, int width = 32) {
  int segment = (int)emulator::current->lane & -width;
  return emulated_shuffle(lanes, "__shfl_sync", value, segment + (source & (width - 1)), width);
}
template <class T> inline T __shfl_xor_sync(unsigned lanes, T value, int bits, int width = 32) {
  return emulated_shuffle(lanes, "__shfl_xor_sync", value, (int)emulator::current->lane ^ bits, width);
}
template <class T> inline T __shfl_down_sync(unsigned lanes, T value, unsigned distance, int width = 32) {
  int source = (int)(emulator::current->lane + distance);
  return emulated_shuffle(lanes, "__shfl_down_sync", value, source, width);
}
template <class T> inline T __shfl_up_sync(unsigned lanes, T value, unsigned distance, int width = 32) {
  int source = (int)emulator::current->lane - (int)distance;
  return emulated_shuffle(lanes, "__shfl_up_sync", value, source, width);
}
inline unsigned __ballot_sync(unsigned lanes, int predicate) {
  emulator::Vote operand = {predicate != 0, 0};
  emulator::meet(lanes, "__ballot_sync", emulator::vote, &operand);
  return operand.result;
}
inline int __any_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, predicate) != 0; }
inline int __all_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, !predicate) == 0; }

// ---- atomics: a thread keeps the processor between two meetings, so plain code is atomic. All return what was
// there before.

template <class T> inline T emulated_replace(T *address, T value) {
  T old = *address;
  *address = value;
  return old;
}
inline int atomicAdd(int *address, int value) { return emulated_replace(address, *address + value); }
inline unsigned atomicAdd(unsigned *address, unsigned value) {
  return emulated_replace(address, *address + value);
}
inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value) {
  return emulated_replace(address, *address + value);
}
inline float atomicAdd(float *address, float value) { return emulated_replace(address, *address + value); }
inline int atomicMax(int *address, int value) { return emulated_replace(address, max(*address, value)); }
inline unsigned atomicMax(unsigned *address, unsigned value) {
  return emulated_replace(address, max(*address, value));
}
inline unsigned long long atomicMax(unsigned long long *address, unsigned long long value) {
  return emulated_replace(address, max(*address, value));
}
inline int atomicMin(int *address, int value) { return emulated_replace(address, min(*address, value)); }
inline unsigned atomicMin(unsigned *address, unsigned value) {
  return emulated_replace(address, min(*address, value));
}
inline unsigned long long atomicMin(unsigned long long *address, unsigned long long value) {
  return emulated_replace(address, min(*address, value));
}
inline int atomicOr(int *address, int value) { return emulated_replace(address, *address | value); }
inline unsigned atomicOr(unsigned *address, unsigned value) {
  return emulated_replace(address, *address | value);
}
inline int atomicExch(int *address, int value) { return emulated_replace(address, value); }
inline unsigned atomicExch(unsigned *address, unsigned value) { return emulated_replace(address, value); }
inline int atomicCAS(int *address, int compare, int value) {
  return emulated_replace(address, *address == compare ? value : *address);
}
inline unsigned atomicCAS(unsigned *address, unsigned compare, unsigned value) {
  return emulated_replace(address, *address == compare ? value : *address);
}
inline unsigned long long atomicCAS(unsigned long long *address, unsigned long long compare,
                                    unsigned long long value) {
  return emulated_replace(address, *address == compare ? value : *address);
}

// ---- what the launcher calls

template <class T> struct EmulatedCode;  // how an argument is passed: one letter for the Python side
template <class T> struct EmulatedCode<T *> {
  static constexpr char letter = 'p';
};
template <> struct EmulatedCode<int> {
  static constexpr char letter = 'i';
};
template <> struct EmulatedCode<unsigned> {
  static constexpr char letter = 'u';
};
template <> struct EmulatedCode<long long> {
  static constexpr char letter = 'l';
};
template <> struct EmulatedCode<unsigned long long> {
  static constexpr char letter = 'L';
};
template <> struct EmulatedCode<float> {
  static constexpr char letter = 'f';
};

template <int... I> struct EmulatedIndices {};
template <int N, int... I> struct EmulatedCount : EmulatedCount<N - 1, N - 1, I...> {};
template <int... I> struct EmulatedCount<0, I...> {
  using Indices = EmulatedIndices<I...>;
};
template <class... A, int... I>
inline void emulated_call(void (*kernel)(A...), void **arguments, EmulatedIndices<I...>) {
  kernel(*(A *)arguments[I]...);
}
template <class... A> inline void emulated_call(void (*kernel)(A...), void **arguments) {
  emulated_call(kernel, arguments, typename EmulatedCount<sizeof...(A)>::Indices());
}
template <class... A> inline const char *emulated_letters(void (*)(A...)) {
  static const char letters[] = {EmulatedCode<A>::letter..., '\0'};
  return letters;
}

}  // namespace

extern "C" {
extern char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));
}
// After a kernel's source: the names by which the launcher finds the kernel in the shared object.
#define EMULATED_KERNEL(kernel)                                                \
  extern "C" {                                                                 \
  void emulated_invoke(void **arguments) { emulated_call(kernel, arguments); } \
  const char *emulated_signature() { return emulated_letters(kernel); }        \
  void *emulated_shared_begin() { return __start_emulated_shared; }            \
  void *emulated_shared_end() { return __stop_emulated_shared; }               \
  }

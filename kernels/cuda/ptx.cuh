// What plain C++ has no word for: half floats, streamed loads, tensor cores, dependent launches.
//
// Every instruction that a kernel needs beyond CUDA's intrinsics stands here and nowhere else, so that the
// tests can put plain C++ in its place and run the kernels without a GPU. Includes nothing: NVRTC gets one
// source string.
#pragma once

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
// A kernel's dynamic shared memory, 16-byte aligned.
#define SHARED_MEMORY(name) extern __shared__ __align__(16) u8 name[]

// ---- half floats; a half is the low 16 bits of a word

DEVICE float half_to_float(u32 bits) {
  float value;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
  return value;
}
DEVICE u32 pack_halves(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
DEVICE u16 float_to_half(float value) { return (u16)pack_halves(value, 0.0f); }
// Two products of halves, each rounded once.
DEVICE u32 multiply_halves(u32 a, u32 b) {
  u32 both;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}
DEVICE u32 add_halves(u32 a, u32 b) {
  u32 both;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}

// ---- numbers

// 2^v to 2 units in the last place; 0 for -infinity and for results below 2^-126.
DEVICE float fast_exp2(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}

// ---- global loads; `stream` is for what is read once: it does not stay in L1
// volatile, and never .nc: the assembler would sink the loads behind the arithmetic they are to overlap with.

// An address that the compiler cannot take apart: loads at constant distances from it need no arithmetic of their own.
DEVICE const u8 *settled(const u8 *p) {
  asm("" : "+l"(p));
  return p;
}
DEVICE uint4 load16(const void *p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEVICE uint2 load8(const void *p) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE u32 load4(const void *p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEVICE u32 load2(const void *p) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
// Of the host's memory, as it is now.
DEVICE uint4 of_host16(const void *p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE uint4 stream16(const void *p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEVICE uint2 stream8(const void *p) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE u32 stream4(const void *p) {
  u32 v;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// ---- copies into shared memory that do not pass through registers

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes; zeros where `valid` is false.
DEVICE void copy_async16(void *to_shared, const void *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
               "r"(valid ? 16 : 0) : "memory");
}
// 8 and 4 bytes.
DEVICE void copy_async8(void *to_shared, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to_shared)), "l"(from) : "memory");
}
DEVICE void copy_async4(void *to_shared, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to_shared)), "l"(from) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// ---- tensor cores. Lane l of a warp is (g, t) = (l / 4, l % 4). The accumulators c[0..3] of every shape are rows
// g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1 of the 16 x 8 result.

// A: 16 rows of 32 bytes: a0 is row g, bytes 4t..4t+3; a1 row g + 8; a2 row g, bytes 16+4t..; a3 row g + 8.
// B: 8 columns of 32 bytes: b0 is column g, bytes 4t..4t+3; b1 bytes 16+4t... All bytes are signed.
DEVICE void mma_s8_k32(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// As above with 16 bytes a row: a0 is row g, bytes 4t..4t+3; a1 row g + 8; b0 column g.
DEVICE void mma_s8_k16(int (&c)[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
}
// A: 16 rows of 16 halves: a0 is row g, elements 2t and 2t + 1; a1 row g + 8; a2 row g, elements 2t + 8 and
// 2t + 9; a3 row g + 8. B: 8 columns of 16 halves: b0 is column g, elements 2t and 2t + 1; b1 2t + 8 and 2t + 9.
DEVICE void mma_f16_k16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// A: 16 rows of 8 floats, of which the low 13 bits do not count: a0 is row g, element t; a1 row g + 8; a2 row g, element
// t + 4; a3 row g + 8. B: 8 columns of 8: b0 is column g, element t; b1 element t + 4.
DEVICE void mma_tf32_k8(float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
// Four 8 x 8 matrices of halves from shared memory: lane l gives the address of row l % 8 of matrix l / 8 and
// receives in r[i] elements 2t and 2t + 1 of row g of matrix i.
DEVICE void load_matrices(u32 (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// The same, each matrix transposed.
DEVICE void load_matrices_transposed(u32 (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// ---- blocks that wait for one another

// Add one to a counter; the value before. What this thread did before, and what it saw of others through a barrier, is
// done for whoever finds the addition in the counter, and here the other way round.
DEVICE u32 count_arrival(u32 *counter) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// ---- clusters: blocks side by side that see one another's shared memory, from compute capability 9.0 on

#if __CUDA_ARCH__ >= 900
#define CLUSTER_OF(n) __cluster_dims__(n, 1, 1)
#else
#define CLUSTER_OF(n)
#endif
// All threads of all blocks come to both: no thread goes beyond the second before all have come to the first, and what
// expect_arrivals did before it is seen.
DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// One thread, once: so many bytes will come to this block, counted in `arrivals` of its shared memory.
DEVICE void expect_arrivals(u64 *arrivals, u32 n_bytes) {
#if __CUDA_ARCH__ >= 900
  const u32 at = shared_address(arrivals);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(n_bytes) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Store at this place of shared memory in block `rank`, and count it there. (Barriers of the cluster would order plain
// stores, but each waits for all that its threads have under way in global memory too.)
DEVICE void send_to_cluster(float *to, int rank, float v, u64 *arrivals) {
#if __CUDA_ARCH__ >= 900
  u32 at, counter;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(to)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(shared_address(arrivals)), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(v),
               "r"(counter) : "memory");
#endif
}
// Until all that is expected has come.
DEVICE void wait_for_arrivals(u64 *arrivals) {
#if __CUDA_ARCH__ >= 900
  u32 done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(shared_address(arrivals)) : "memory");
  } while (!done);
#endif
}

// ---- time

// Of a clock that runs on whatever is launched; it goes on in steps of up to a microsecond or so.
DEVICE u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

// ---- programmatic dependent launch, from compute capability 9.0 on; nothing below

// What the kernels before this one wrote may be read from here on.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be put on the processors as they become free.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- warps

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
DEVICE float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

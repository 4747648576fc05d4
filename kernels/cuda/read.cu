// Plain reads of device memory, for the rate that nothing can exceed: data [n_pieces] of 16 bytes. Every thread has
// eight of them under way; a block of the grid takes every gridDim-th run of 8 * blockDim pieces. `out` receives
// something only when all that a thread read comes to one value, so that the reads are not for nothing.
#include "ptx.cuh"

constexpr int IN_FLIGHT = 8;

KERNEL __launch_bounds__(512)
read(const u8 *data, u64 n_pieces, u32 *out) {
  let_next_start();
  wait_for_previous();
  u32 all = 0;
  const u64 run = (u64)IN_FLIGHT * blockDim.x;
  for (u64 first = blockIdx.x * run + threadIdx.x; first < n_pieces; first += gridDim.x * run) {
    uint4 pieces[IN_FLIGHT] = {};
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + i * blockDim.x < n_pieces) pieces[i] = stream16(data + (first + i * blockDim.x) * 16);
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) all ^= pieces[i].x ^ pieces[i].y ^ pieces[i].z ^ pieces[i].w;
  }
  if (all == 0x5a17c3e9u) *out = all;
}

// A plain copy in device memory, for its rate: to and from [n_pieces] of 16 bytes, in the order of read.cu.
#include "ptx.cuh"

constexpr int IN_FLIGHT = 4;

KERNEL __launch_bounds__(512)
copy(uint4 *to, const uint4 *from, u64 n_pieces) {
  let_next_start();
  wait_for_previous();
  const u64 run = (u64)IN_FLIGHT * blockDim.x;
  for (u64 first = blockIdx.x * run + threadIdx.x; first < n_pieces; first += gridDim.x * run) {
    uint4 pieces[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + i * blockDim.x < n_pieces) pieces[i] = stream16(from + first + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + i * blockDim.x < n_pieces) to[first + i * blockDim.x] = pieces[i];
  }
}

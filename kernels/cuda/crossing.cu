// Hidden states to the host's page-locked memory and back: [n_pieces] of 16 bytes. Kernels, as a copy engine would make
// them wait behind megabytes of weights.
#include "ptx.cuh"

constexpr int IN_FLIGHT = 4;

template <bool FROM_HOST> DEVICE void copy(uint4 *to, const uint4 *from, u64 n_pieces) {
  let_next_start();
  wait_for_previous();
  const u64 run = (u64)IN_FLIGHT * blockDim.x;
  for (u64 first = blockIdx.x * run + threadIdx.x; first < n_pieces; first += gridDim.x * run) {
    uint4 pieces[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      const uint4 *piece = from + first + i * blockDim.x;
      if (first + i * blockDim.x < n_pieces) pieces[i] = FROM_HOST ? of_host16(piece) : load16(piece);
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + i * blockDim.x < n_pieces) to[first + i * blockDim.x] = pieces[i];
  }
}

// The host may read `to` once an event behind the kernel is reached.
KERNEL __launch_bounds__(128)
to_host(uint4 *to, const uint4 *from, u64 n_pieces) {
  copy<false>(to, from, n_pieces);
}

KERNEL __launch_bounds__(128)
from_host(uint4 *to, const uint4 *from, u64 n_pieces) {
  copy<true>(to, from, n_pieces);
}

// Sums and maxima over a block. `partial` is 32 words of shared memory that the kernel uses for nothing else:
// one barrier is then enough.
#pragma once
#include "ptx.cuh"

DEVICE float block_sum(float v, float *partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  v = warp_sum(v);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  return warp_sum(lane < n_warps ? partial[lane] : 0.0f);
}

DEVICE u32 warp_largest(u32 v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

DEVICE u32 block_largest(u32 v, u32 *partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  v = warp_largest(v);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  return warp_largest(lane < n_warps ? partial[lane] : 0u);
}

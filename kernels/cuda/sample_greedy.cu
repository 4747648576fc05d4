// The id of the largest logit, the lowest one of equals. Grid: one block for each SEARCHED logits.
//
// A decode step ends with this, and the next one waits for it: the blocks' maxima meet in one word of memory,
// and whichever block is last reads it.
#include "candidates.cuh"
#include "ptx.cuh"

DEVICE u64 warp_best(u64 best) {
#pragma unroll
  for (int o = 16; o; o >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, o));
  return best;
}

// `best` and `n_done` are 0 between launches.
KERNEL __launch_bounds__(256)
sample_greedy(const float *logits, int n_vocab, u64 *best, u32 *n_done, int *state, int *host_id) {
  __shared__ u64 partial[8];
  let_next_start();
  wait_for_previous();
  u64 own = 0;
#pragma unroll
  for (int i = 0; i < SEARCHED / 256; i++) {
    const int id = blockIdx.x * SEARCHED + i * 256 + threadIdx.x;
    if (id < n_vocab) own = max(own, candidate(logits[id], id));
  }
  own = warp_best(own);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 1; i < 8; i++) own = max(own, partial[i]);
    atomicMax(best, own);
  }
  if (is_last_block(n_done) && threadIdx.x == 0) {
    const u64 found = *(volatile u64 *)best;
    *best = 0;
    publish(is_finite(found), id_of(found), state, host_id);
  }
}

// Logits with their ids as whole numbers that are in the order in which a draw looks at them: by descending
// logit, and of equal ones the lower id first, as np.argmax has it.
#pragma once
#include "ptx.cuh"
#include "rounding.cuh"

// Each block of a search looks at so many logits.
#define SEARCHED 1024

// 0 is below every candidate. A NaN is above all others, so that it is found.
DEVICE u64 candidate(float logit, u32 id) {
  u32 bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (logit != logit) bits = 0xffffffffu;
  return (u64)bits << 32 | (0xffffffffu - id);
}
DEVICE int id_of(u64 candidate) { return (int)(0xffffffffu - (u32)candidate); }
DEVICE float logit_of(u64 candidate) {
  const u32 bits = (u32)(candidate >> 32);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
DEVICE bool is_finite(u64 candidate) { return magnitude(logit_of(candidate)) < FIRST_NOT_FINITE; }

// The end of a draw, by one thread: the id for the next step and for the host (address may be null), which is
// told -1 when the best logit was not finite. The step that is perhaps under way then still has an id of the
// vocabulary.
DEVICE void publish(bool finite, int id, int *state, int *host_id) {
  state[9] = finite ? id : 0;
  state[10] = !finite;
  if (host_id) *(volatile int *)host_id = finite ? id : -1;
}

// Whether this block is the last one of the grid to come here; all its threads call it. What the other blocks
// wrote before may then be read. `n_done` is 0 between launches.
DEVICE bool is_last_block(u32 *n_done) {
  __shared__ u32 before;
  __syncthreads();
  if (threadIdx.x == 0) {
    before = count_arrival(n_done);
    if (before == gridDim.x - 1) *n_done = 0;
  }
  __syncthreads();
  return before == gridDim.x - 1;
}

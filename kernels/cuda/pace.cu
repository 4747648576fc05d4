// A lane whose copies take as long as on a slower link. `busy_until` is the time at which the link, as imitated, is free
// again, in nanoseconds of the GPU's clock; one lane goes by it.
#include "ptx.cuh"

// What a lane needs at most between two copies, to lay out what the first one brought: within it the second one begins as
// the first one ends, as if another lane had begun it.
constexpr u64 BETWEEN = 200000;
constexpr u32 LONGEST_NAP = 20000;

// Before a copy: it begins now, or at once behind the one before it, and takes `n_nanoseconds`.
KERNEL occupy(u64 *busy_until, u64 n_nanoseconds) {
  wait_for_previous();
  if (threadIdx.x) return;
  const u64 now = nanoseconds(), until = *busy_until;
  *busy_until = (until + BETWEEN < now ? now : until) + n_nanoseconds;
}

// After it: wait until the link is free.
KERNEL hold(const u64 *busy_until) {
  wait_for_previous();
  if (threadIdx.x) return;
  const u64 until = *busy_until;
  for (u64 now = nanoseconds(); now < until; now = nanoseconds())
    __nanosleep((u32)(until - now < LONGEST_NAP ? until - now : LONGEST_NAP));
}

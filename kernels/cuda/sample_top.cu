// Draw an id from the top_k most probable ones: top-k, top-p, min-p, temperature, draw. engine/sampler.py has
// the chain for the host; here it is for at most 64 candidates, without typical sampling.
//
// A warp sorts 64 logits in its registers, warps then merge their runs in pairs, keeping the better half,
// until a block has the 64 best of its SEARCHED logits. The last block to be done merges those of all blocks
// in the same way, and its first warp holds the candidates in order: two for each lane. The time does not
// depend on the values.
#include "candidates.cuh"
#include "ptx.cuh"

enum { RUN = 64, WARPS = SEARCHED / RUN, BATCH = 4 };

// 64 candidates of a warp in descending order: of rank `lane` and of rank 32 + lane.
struct Run {
  u64 upper, lower;
};

// One comparison of each element with the one `stride` lanes away.
DEVICE u64 compared(u64 own, int stride, bool descending) {
  const u64 other = __shfl_xor_sync(0xffffffffu, own, stride);
  return ((threadIdx.x & stride) == 0) == descending ? max(own, other) : min(own, other);
}

// Sort what falls and then rises, or the other way around.
DEVICE void sort_bitonic(Run &run) {
  const u64 larger = max(run.upper, run.lower), smaller = min(run.upper, run.lower);
  run.upper = larger, run.lower = smaller;
#pragma unroll
  for (int stride = 16; stride; stride >>= 1) {
    run.upper = compared(run.upper, stride, true);
    run.lower = compared(run.lower, stride, true);
  }
}

DEVICE void sort(Run &run) {
#pragma unroll
  for (int size = 2; size <= 32; size <<= 1) {
    const bool descending = (threadIdx.x % 32 & size) == 0;
#pragma unroll
    for (int stride = size >> 1; stride; stride >>= 1) {
      run.upper = compared(run.upper, stride, descending);
      run.lower = compared(run.lower, stride, size == 32 ? false : descending);
    }
  }
  sort_bitonic(run);
}

// Elements of a run in memory that meet this lane's when it is laid against it backwards.
DEVICE Run backwards(const u64 *run) {
  const int lane = threadIdx.x % 32;
  return {run[RUN - 1 - lane], run[RUN / 2 - 1 - lane]};
}

// The better half of both.
DEVICE void keep_best(Run &run, const Run &backwards_other) {
  run.upper = max(run.upper, backwards_other.upper);
  run.lower = max(run.lower, backwards_other.lower);
  sort_bitonic(run);
}

DEVICE void store(const Run &run, u64 *to) {
  const int lane = threadIdx.x % 32;
  to[lane] = run.upper;
  to[RUN / 2 + lane] = run.lower;
}

// The best of all warps' runs, in the first warp.
DEVICE void merge_warps(Run &run, u64 (*runs)[RUN]) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int half = WARPS / 2; half; half >>= 1) {
    if (warp >= half && warp < 2 * half) store(run, runs[warp]);
    __syncthreads();
    if (warp < half) keep_best(run, backwards(runs[warp + half]));
  }
}

// Two values of each lane, by rank.
struct Pair {
  float upper, lower;
};

// Sums of the values up to and including each rank.
DEVICE Pair running_sums(Pair v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const float upper = __shfl_up_sync(0xffffffffu, v.upper, o);
    const float lower = __shfl_up_sync(0xffffffffu, v.lower, o);
    if (lane >= o) v.upper += upper, v.lower += lower;
  }
  v.lower += __shfl_sync(0xffffffffu, v.upper, 31);
  return v;
}

// How many of the warp's 64 are true.
DEVICE int warp_count(bool upper, bool lower) { return (int)warp_sum((float)(upper + lower)); }

// The candidate drawn by one warp that holds `run`; `uniform` in [0, 1] says which.
DEVICE u64 drawn(const Run &run, int top_k, float top_p, float log_min_p, float temperature,
                 float uniform) {
  const int lane = threadIdx.x % 32;
  const float best = __shfl_sync(0xffffffffu, logit_of(run.upper), 0);
  const Pair below = {logit_of(run.upper) - best, logit_of(run.lower) - best};
  bool upper = lane < top_k && run.upper != 0, lower = lane + 32 < top_k && run.lower != 0;

  // Top-p keeps a candidate when those before it do not hold the mass yet.
  const Pair mass = {upper ? expf(below.upper) : 0.0f, lower ? expf(below.lower) : 0.0f};
  const Pair sums = running_sums(mass);
  const float all = __shfl_sync(0xffffffffu, sums.lower, 31);
  const float needed = top_p < 1.0f ? top_p * all : __uint_as_float(FIRST_NOT_FINITE);
  upper = upper && (lane == 0 || sums.upper - mass.upper < needed) && below.upper >= log_min_p;
  lower = lower && sums.lower - mass.lower < needed && below.lower >= log_min_p;

  const Pair weight = {upper ? expf(below.upper / temperature) : 0.0f,
                       lower ? expf(below.lower / temperature) : 0.0f};
  const Pair reached = running_sums(weight);
  const float target = uniform * __shfl_sync(0xffffffffu, reached.lower, 31);
  // Those of weight 0 are not drawn, not even by a uniform that was rounded to 1.
  const int n_kept = warp_count(weight.upper > 0.0f, weight.lower > 0.0f);
  const int n_passed = warp_count(reached.upper <= target, reached.lower <= target);
  const int rank = min(n_passed, n_kept - 1);
  const u64 from_upper = __shfl_sync(0xffffffffu, run.upper, rank % 32);
  const u64 from_lower = __shfl_sync(0xffffffffu, run.lower, rank % 32);
  return rank < 32 ? from_upper : from_lower;
}

// `lists` is [blocks][64]; `n_done` is 0 between launches. top_p >= 1 keeps all; temperature > 0.
KERNEL __launch_bounds__(SEARCHED / 2)
sample_top(const float *logits, int n_vocab, u64 *lists, u32 *n_done, int *state, int *host_id, int top_k,
           float top_p, float log_min_p, float temperature, float uniform) {
  __shared__ u64 runs[WARPS][RUN];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int id = blockIdx.x * SEARCHED + warp * RUN + lane;
  Run run;
  run.upper = id < n_vocab ? candidate(logits[id], id) : 0;
  run.lower = id + 32 < n_vocab ? candidate(logits[id + 32], id + 32) : 0;
  sort(run);
  merge_warps(run, runs);
  if (warp == 0) store(run, lists + blockIdx.x * RUN);
  if (!is_last_block(n_done)) return;

  run.upper = run.lower = 0;
  const int n_lists = gridDim.x;
  for (int first = warp; first < n_lists; first += BATCH * WARPS) {
    Run others[BATCH];  // loaded together: one latency, not four
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int list = first + i * WARPS;
      others[i].upper = others[i].lower = 0;
      if (list < n_lists) others[i] = backwards(lists + list * RUN);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) keep_best(run, others[i]);
  }
  merge_warps(run, runs);
  if (warp) return;
  const bool finite = is_finite(__shfl_sync(0xffffffffu, run.upper, 0));
  const u64 chosen = finite ? drawn(run, top_k, top_p, log_min_p, temperature, uniform) : 0;
  if (lane == 0) publish(finite, id_of(chosen), state, host_id);
}

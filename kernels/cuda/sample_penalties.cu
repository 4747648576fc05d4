// Lower the logits of ids in the penalties' window, in place; each distinct id once. engine/sampler.py has
// the same.
#include "ptx.cuh"

KERNEL sample_penalties(float *logits, const int *ids, const int *counts, int n_ids, float repeat,
                        float presence, float frequency) {
  let_next_start();
  wait_for_previous();
  const int i = threadIdx.x;
  if (i >= n_ids) return;
  float logit = logits[ids[i]];
  logit = logit > 0.0f ? logit / repeat : logit * repeat;
  logits[ids[i]] = logit - presence - frequency * (float)counts[i];
}

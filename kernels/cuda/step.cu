// What a pass begins with: its position and its ids, passed by value.
#include "ptx.cuh"

// `n_ids` of the ids given follow; with none, the id drawn last does.
KERNEL step(int *state, int position, int n_ids, int id0, int id1, int id2, int id3, int id4, int id5,
            int id6, int id7) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x) return;
  const int ids[8] = {id0, id1, id2, id3, id4, id5, id6, id7};
  state[0] = position;
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < n_ids) state[1 + i] = ids[i];
  if (n_ids == 0) state[1] = state[9];
}

// Attention in float precision: every product and sum in f32, any number of query tokens.
//
//   out[t, h] = sum over p of softmax(q[t, h] . k[p])[p] * v[p],  p <= start + t, and > start + t - window
// A block takes one query, (head, token) = (blockIdx.x, blockIdx.y), and goes through the positions it sees, one
// thread each for the scores, then one thread for each dim of the values. Simple rather than quick.
//
// q f32 [T][heads][HEAD_DIM], times the query scale; keys and values f32 [KV heads][positions][HEAD_DIM];
// out f32 [T][heads * HEAD_DIM].
#include "ptx.cuh"
#include "attention.cuh"

#ifndef GROUP
#error "GROUP: query heads of a KV head"
#endif

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
constexpr int DIMS = (HEAD_DIM + THREADS - 1) / THREADS;  // of a thread

KERNEL __launch_bounds__(THREADS)
attention_float(const float *q, const float *keys, const float *values, u64 head_bytes, const int *state,
                int window, float *out) {
  __shared__ float4 query[HEAD_DIM / 4];
  __shared__ float weights[THREADS];
  __shared__ float partial[WARPS];
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 row = ((u64)blockIdx.y * gridDim.x + head) * HEAD_DIM;
  keys += head / GROUP * (head_bytes / 4);
  values += head / GROUP * (head_bytes / 4);
  if (threadIdx.x < HEAD_DIM / 4) query[threadIdx.x] = ((const float4 *)(q + row))[threadIdx.x];
  const Sight sight(state[0] + (int)blockIdx.y, window);

  float top = LOWEST, sum = 0.0f, mixed[DIMS] = {};
  for (int base = sight.first; base <= sight.last; base += THREADS) {
    __syncthreads();  // the query is there, and the weights before these are used
    const int position = base + threadIdx.x;
    float score = MINUS_INFINITY;
    if (sight.sees(position)) {
      const float4 *const key = (const float4 *)(keys + (u64)position * HEAD_DIM);
      score = 0.0f;
      for (int i = 0; i < HEAD_DIM / 4; i++) {
        const float4 a = query[i], b = key[i];
        score += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
      }
    }
    float highest = warp_max(score);
    if (lane == 0) partial[warp] = highest;
    __syncthreads();
    highest = top;
    for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, partial[w]);
    const float fade = expf(top - highest);
    top = highest;
    weights[threadIdx.x] = expf(score - highest);
    __syncthreads();
    const int n = min(THREADS, sight.last + 1 - base);
    float total = 0.0f;
    for (int i = 0; i < n; i++) total += weights[i];
    sum = sum * fade + total;
#pragma unroll
    for (int j = 0; j < DIMS; j++) {
      const int dim = threadIdx.x + j * THREADS;
      if (dim >= HEAD_DIM) continue;
      mixed[j] *= fade;
      for (int i = 0; i < n; i++) mixed[j] += weights[i] * values[(u64)(base + i) * HEAD_DIM + dim];
    }
  }
#pragma unroll
  for (int j = 0; j < DIMS; j++)
    if (threadIdx.x + j * THREADS < HEAD_DIM) out[row + threadIdx.x + j * THREADS] = mixed[j] / sum;
}

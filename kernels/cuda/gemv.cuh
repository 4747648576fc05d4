// Rows of a matrix times columns of x, as gemv.cu and gemv_float.cu have it in common: who reads which weights, and
// where sums go. What a weight and x make is theirs.
//
// A team of WARPS_PER_ROW warps takes ROWS_PER_WARP rows (that many pairs when gated) side by side, so that each
// piece of x is loaded once for all of them. A warp takes 8 chunks of 128 at a time, every 8 * WARPS_PER_ROW of the
// row, UNROLL times before it computes. The order of all sums is fixed. Grid: outputs / outputs of a block; 32 *
// WARPS threads. The first weights are under way before the kernel before this one ends: no step writes weights.
#pragma once
#include "epilogue.cuh"
#include "formats.cuh"

#ifndef FORMAT
#error "FORMAT: a quant type"
#endif
#ifndef WIDTH
#error "WIDTH: weights of a row"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: what becomes of the sums"
#endif
#if !defined(WARPS_PER_ROW) || !defined(ROWS_PER_WARP) || !defined(WARPS) || !defined(UNROLL)
#error "WARPS_PER_ROW, ROWS_PER_WARP, WARPS (of a block), UNROLL: launch_settings.py chooses them"
#endif

using W = Weights<FORMAT, WIDTH>;

constexpr int CHUNKS_OF_WARP = 32 / LANES;
constexpr int STRIDE = CHUNKS_OF_WARP * WARPS_PER_ROW;
constexpr int STEPS = (W::CHUNKS + STRIDE - 1) / STRIDE;
constexpr int OUTPUTS = ROWS_PER_WARP;
constexpr int ROWS = IS_GATED<EPILOGUE> ? 2 * OUTPUTS : OUTPUTS;
static_assert(WARPS % WARPS_PER_ROW == 0);

// Bounds of a kernel of which a processor is to hold `warps` at once: without them the compiler aims at numbers of its
// own and spills for them.
#define RESIDENT(warps) __launch_bounds__(WARPS * 32, (warps) / WARPS > 1 ? (warps) / WARPS : 1)

// out[column * out_stride + row] (+)= what `add` summed up: add(raw, chunk, lane, sums) adds this lane's part of one
// chunk of each row, raw[ROWS], to sums[ROWS][N]. n_rows is at least ROWS.
template <int N, class Add>
DEVICE void multiply_rows(const u8 *weights, float *out, int n_rows, int out_stride, Add add) {
  __shared__ float partial[WARPS][ROWS][N];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES;
  const int n_outputs = IS_GATED<EPILOGUE> ? n_rows / 2 : n_rows;
  const int own = (blockIdx.x * (WARPS / WARPS_PER_ROW) + warp / WARPS_PER_ROW) * OUTPUTS;
  // The last team starts earlier rather than read beyond the end; what is another's it does not store.
  const int first = min(own, n_outputs - OUTPUTS);
  const int first_chunk = warp % WARPS_PER_ROW * CHUNKS_OF_WARP + threadIdx.x % 32 / LANES;
  const Planes planes = W::planes(weights, n_rows);

  W::Raw raw[UNROLL][ROWS];
  // Whether the chunk of a step exists; where all do, the compiler knows.
  auto inside = [&](int step) {
    return W::CHUNKS % (STRIDE * UNROLL) == 0 || step * STRIDE + first_chunk < W::CHUNKS;
  };
  auto load = [&](int step) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
      if (inside(step + u)) {
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
          const u64 row = (u64)first + k % OUTPUTS + (k < OUTPUTS ? 0 : n_outputs);
          raw[u][k] = W::load(planes, row, (step + u) * STRIDE + first_chunk, lane);
        }
      }
    // Keeps the loads before the arithmetic.
    __syncwarp();
  };
  load(0);
  wait_for_previous();

  // The sums that this thread stores, if it does: of row k, column n. What is added to them is read early.
  static_assert(OUTPUTS * N <= 32 * WARPS_PER_ROW);
  const int index = threadIdx.x % (32 * WARPS_PER_ROW), k = index % OUTPUTS, n = index / OUTPUTS;
  const bool stores = index < OUTPUTS * N && first + k >= own;
  float *to = out + (u64)n * out_stride + first + k;
  const float before = EPILOGUE == ADD && stores ? *to : 0.0f;

  float sums[ROWS][N] = {};
#pragma unroll 1
  for (int step = 0; step < STEPS; step += UNROLL) {
    if (step) load(step);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
      if (inside(step + u)) add(raw[u], (step + u) * STRIDE + first_chunk, lane, sums);
  }

#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      const float sum = warp_sum(sums[i][j]);
      if (threadIdx.x % 32 == 0) partial[warp][i][j] = sum;
    }
  if (WARPS_PER_ROW == 1) __syncwarp();
  else __syncthreads();
  if (!stores) return;
  const int first_warp = warp / WARPS_PER_ROW * WARPS_PER_ROW;
  auto sum_of = [&](int row) {
    float sum = partial[first_warp][row][n];
#pragma unroll
    for (int part = 1; part < WARPS_PER_ROW; part++) sum += partial[first_warp + part][row][n];
    return sum;
  };
  if constexpr (IS_GATED<EPILOGUE>) *to = join<EPILOGUE>(sum_of(k), sum_of(OUTPUTS + k));
  else if constexpr (EPILOGUE == ADD) *to = before + sum_of(k);
  else *to = sum_of(k);
}

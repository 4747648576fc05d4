// A quantised matrix times one column of rounded activations; gemv.cuh says how rows and warps are laid out.
//
// Weights in the planes of formats.cuh, x in those of rounding.cuh: 15 bits, so two dp4a for four weights,
//   group of 32:  c = 128 * dp4a(codes, hi) + dp4a(codes, lo)      whole numbers, exact
//   row:          sum over chunks of step of x * (sum over groups of scale * c) - minimum * (step * sum of x)
// Codes go in as they are stored: what is to be subtracted from them (MINUS) counts as a minimum of MINUS * scale.
// Reads the matrix once; x comes from L1.
#include "gemv.cuh"

// What a lane needs of x for one chunk.
struct Activations {
  u32 hi[WORDS], lo[WORDS];
  float step;
  // Step times sum of both halves of group `lane`, whose minimums this lane takes for all four.
  float sums[2];
};

DEVICE Activations load_activations(const u8 *q, const float *d, const float *s, int chunk, int lane) {
  Activations x;
  const u8 *at = q + (chunk * LANES + lane) * 16;
  constexpr int PLANE = W::CHUNKS * CHUNK / 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint4 hi = load16(at + half * PLANE), lo = load16(at + (2 + half) * PLANE);
    x.hi[4 * half] = hi.x, x.hi[4 * half + 1] = hi.y, x.hi[4 * half + 2] = hi.z, x.hi[4 * half + 3] = hi.w;
    x.lo[4 * half] = lo.x, x.lo[4 * half + 1] = lo.y, x.lo[4 * half + 2] = lo.z, x.lo[4 * half + 3] = lo.w;
  }
  x.step = __uint_as_float(load4(d + chunk));
  if constexpr (W::HAS_MINIMUM || W::MINUS != 0) {
    const uint2 sums = load8(s + chunk * 8 + lane * 2);
    x.sums[0] = __uint_as_float(sums.x), x.sums[1] = __uint_as_float(sums.y);
    if (W::SCALES == 4) x.sums[0] += x.sums[1];
  }
  return x;
}

// N words of codes from word `w` on times x. At most 8 * 128 * 16256, which a float holds exactly.
template <int N> DEVICE int dot(const W::Raw &raw, const Activations &x, int w) {
  int c = 0;
#pragma unroll
  for (int i = w; i < w + N; i++) c = __dp4a((int)W::plain_codes(raw, i), (int)x.hi[i], c);
  c *= 128;
#pragma unroll
  for (int i = w; i < w + N; i++) c = __dp4a((int)W::plain_codes(raw, i), (int)x.lo[i], c);
  return c;
}

// This lane's part of what a chunk adds to a row's sum.
DEVICE float chunk_sum(const W::Raw &raw, const Activations &x, int chunk, int lane) {
  // Scales of a group.
  constexpr int PARTS = W::SCALES / 4;
  float sum = 0.0f;
  // A code times a scale is at most 63 * 128, x 16256: below 2^31 for 16 of them, and for all 32 of six-bit scales.
  constexpr int GROUPS = W::BYTE_SCALES ? 2 : 4;
#pragma unroll
  for (int first = 0; first < 4; first += GROUPS) {
    int c = 0;
#pragma unroll
    for (int b = first; b < first + GROUPS; b++) {
      if constexpr (W::WHOLE_SCALES) {
#pragma unroll
        for (int p = 0; p < PARTS; p++)
          c += W::whole_scale(raw, chunk, PARTS * b + p) * dot<2 / PARTS>(raw, x, 2 * b + p);
      } else {
        sum = fmaf(W::scale(raw, chunk, b), (float)dot<2>(raw, x, 2 * b), sum);
      }
    }
    if constexpr (W::WHOLE_SCALES) sum += (float)c;
  }
  sum *= x.step;
  if constexpr (W::MINUS != 0) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const float sum_of_x = x.sums[p] * -(float)W::MINUS;
      const int i = PARTS * lane + p;
      if constexpr (W::WHOLE_SCALES) sum = fmaf((float)W::whole_scale(raw, chunk, i), sum_of_x, sum);
      else sum = fmaf(W::scale(raw, chunk, i), sum_of_x, sum);
    }
  }
  if constexpr (W::WHOLE_SCALES) sum *= W::unit(raw);
  if constexpr (W::HAS_MINIMUM) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) sum = fmaf(-W::minimum(raw, chunk, PARTS * lane + p), x.sums[p], sum);
  }
  return sum;
}

// The more each warp has under way, the fewer warps it takes; gated, it has twice as many addresses too.
constexpr int LOADS = ROWS * UNROLL + (ROWS > OUTPUTS ? 2 : 0);
constexpr int RESIDENT_WARPS = LOADS == 1 ? 40 : LOADS == 2 ? 32 : LOADS <= 4 ? 24 : 16;

KERNEL RESIDENT(RESIDENT_WARPS)
gemv(const u8 *weights, const u8 *q, const float *d, const float *s, float *out, int n_rows) {
  let_next_start();
  multiply_rows<1>(weights, out, n_rows, 0, [&](const W::Raw *raw, int chunk, int lane, float (*sums)[1]) {
    const Activations x = load_activations(q, d, s, chunk, lane);
#pragma unroll
    for (int k = 0; k < ROWS; k++) sums[k][0] += chunk_sum(raw[k], x, chunk, lane);
  });
}

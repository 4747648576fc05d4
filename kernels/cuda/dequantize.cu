// Rows of a matrix in the planes of formats.cuh -> rows of floats, out [n_rows][WIDTH] in f16 or f32.
//
// out = scale * code - minimum. A thread takes what one lane holds of two chunks: the planes are contiguous over rows
// and chunks, so a warp's loads are too, whatever WIDTH is. Stores are 16 bytes, 64 in a run.
// Moves the matrix once and 2 or 4 bytes a weight; on the path of prefill.
#include "formats.cuh"

#ifndef FORMAT
#error "FORMAT: a quant type"
#endif
#ifndef WIDTH
#error "WIDTH: weights of a row"
#endif
#ifndef OUTPUT
#error "OUTPUT: F16 or F32"
#endif

using W = Weights<FORMAT, WIDTH>;

// Whether elements 16w.. of a chunk are in the row: WIDTH is whole groups of 32.
DEVICE bool inside(int chunk, int w) { return WIDTH % CHUNK == 0 || chunk * CHUNK + w * 16 < WIDTH; }

// Write what lane `lane` holds of a chunk.
DEVICE void store_words(float *out, const W::Raw &raw, u64 row, int chunk, int lane) {
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const float4 v = W::values(raw, chunk, w);
    if (inside(chunk, w)) *(float4 *)(out + row * WIDTH + chunk * CHUNK + w * 16 + lane * 4) = v;
  }
}

// The same: two lanes exchange words, so that the even one has eight values of word w in a run, the odd one of
// word w + 1.
DEVICE void store_words(u16 *out, const W::Raw &raw, u64 row, int chunk, int lane) {
  const bool odd = lane & 1;
#pragma unroll
  for (int w = 0; w < WORDS; w += 2) {
    const float4 a = W::values(raw, chunk, w), b = W::values(raw, chunk, w + 1);
    const u32 a0 = pack_halves(a.x, a.y), a1 = pack_halves(a.z, a.w);
    const u32 b0 = pack_halves(b.x, b.y), b1 = pack_halves(b.z, b.w);
    const u32 other0 = __shfl_xor_sync(0xffffffffu, odd ? a0 : b0, 1);
    const u32 other1 = __shfl_xor_sync(0xffffffffu, odd ? a1 : b1, 1);
    const uint4 v = odd ? make_uint4(other0, other1, b0, b1) : make_uint4(a0, a1, other0, other1);
    const int element = chunk * CHUNK + (w + odd) * 16 + (lane & ~1) * 4;
    if (inside(chunk, w)) *(uint4 *)(out + row * WIDTH + element) = v;
  }
}

KERNEL dequantize(const u8 *matrix, int matrix_rows, int first_row, int n_rows, void *out) {
  let_next_start();
  constexpr int PIECES = 2;
  const Planes planes = W::planes(matrix, matrix_rows);
  const u32 end = (u32)n_rows * (W::CHUNKS * LANES);
  u32 row[PIECES];
  int chunk[PIECES];
  const int lane = threadIdx.x % LANES;
  W::Raw raw[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const u32 piece = (blockIdx.x * PIECES + i) * blockDim.x + threadIdx.x;
    // All lanes of a warp exchange values, so those beyond the end write the last chunk once more.
    const u32 read = piece < end ? piece : end - LANES + lane;
    row[i] = read / (W::CHUNKS * LANES);
    chunk[i] = read / LANES % W::CHUNKS;
    raw[i] = W::load(planes, first_row + (u64)row[i], chunk[i], lane);
  }
  __syncwarp();
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    if constexpr (OUTPUT == F16) store_words((u16 *)out, raw[i], row[i], chunk[i], lane);
    else store_words((float *)out, raw[i], row[i], chunk[i], lane);
  }
}

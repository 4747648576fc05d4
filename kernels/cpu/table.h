/* The table of one instruction set; included once by each isa_*.c after its vectors. */
#include "cpu.h"
#include "quants.h"
#include "elementwise.h"
#include "matmul.h"
#include "attention.h"

#define KERNEL_TABLE(set, text)                                                                          \
  const struct kernels kernels_##set = {                                                                 \
      .name = text, .round_row = round_row, .matmul = matmul, .matmul_float = matmul_float,              \
      .dequantize = dequantize, .rmsnorm = rmsnorm, .add = add, .scale = scale, .swiglu = swiglu,        \
      .geglu = geglu, .softmax = softmax, .rope = rope, .append = append, .attend = attend, .merge = merge}

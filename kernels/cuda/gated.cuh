// The inner values of a feed-forward layer: activation(gate) * up, or plain values where ACTIVATION is NONE.
#pragma once
#include "activation.cuh"
#include "rounding.cuh"

#ifndef ACTIVATION
#error "ACTIVATION: SILU, GELU or NONE"
#endif

// Floats in a token's row of input: gate, then up.
DEVICE u64 input_stride(int n_columns) { return (u64)n_columns * (ACTIVATION == NONE ? 1 : 2); }

// Four values of a token from `column` on; zeros beyond the row. `scale` multiplies gate and up; plain values
// have none.
DEVICE float4 inner_values(const float *row, float scale, int column, int n_columns) {
  float4 v = load_four(row, column, n_columns);
  if (ACTIVATION != NONE) {
    // The up row begins n_columns on, which keeps the alignment: a multiple of 4.
    const float4 up = load_four(row + n_columns, column, n_columns);
    v.x = activated<ACTIVATION>(v.x * scale) * (up.x * scale);
    v.y = activated<ACTIVATION>(v.y * scale) * (up.y * scale);
    v.z = activated<ACTIVATION>(v.z * scale) * (up.z * scale);
    v.w = activated<ACTIVATION>(v.w * scale) * (up.w * scale);
  }
  return v;
}

// What becomes of a product's sums: they are stored, added to what is there, or gate and up rows are joined.
#pragma once
#include "activation.cuh"

// Gated: the matrix holds gate rows, then as many up rows; output r is activation(row r) * row (r + n_rows / 2).
enum Epilogue { STORE, ADD, GATED_SILU, GATED_GELU };

template <int EPILOGUE_OF> constexpr bool IS_GATED = EPILOGUE_OF == GATED_SILU || EPILOGUE_OF == GATED_GELU;

template <int EPILOGUE_OF> DEVICE float join(float gate, float up) {
  return activated<EPILOGUE_OF == GATED_SILU ? SILU : GELU>(gate) * up;
}

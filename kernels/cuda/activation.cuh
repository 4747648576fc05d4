// The functions between the two halves of a feed-forward layer.
#pragma once
#include "ptx.cuh"

enum Activation { NONE, SILU, GELU };

// A large -v overflows to infinity, and v / infinity is the right 0.
DEVICE float silu(float v) { return v / (1.0f + expf(-v)); }
// With the tanh approximation: (1 + tanh(x)) / 2 = 1 / (1 + exp(-2x)). The factor is 2 sqrt(2 / pi).
DEVICE float gelu(float v) { return v / (1.0f + expf(-1.5957691216057308f * (v + 0.044715f * v * v * v))); }

template <int ACTIVATION_OF> DEVICE float activated(float v) {
  return ACTIVATION_OF == SILU ? silu(v) : ACTIVATION_OF == GELU ? gelu(v) : v;
}

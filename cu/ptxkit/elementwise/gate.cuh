// The operation of the pipeline examples, y = gelu(x) * gate in f32: 12 bytes per element, and enough arithmetic that
// overlapping it with the copies saves time.
#pragma once
#include "ptxkit/elementwise/activations.cuh"

namespace ptxkit {

__device__ __forceinline__ float4 gated(float4 x, float4 gate) {
    return make_float4(gelu_tanh(x.x) * gate.x, gelu_tanh(x.y) * gate.y, gelu_tanh(x.z) * gate.z,
                       gelu_tanh(x.w) * gate.w);
}

}  // namespace ptxkit

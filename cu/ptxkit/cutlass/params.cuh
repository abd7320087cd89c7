// The argument and the result of the builder kernel `ptxkit_build`, which computes the parameters of a CUTLASS kernel
// on the device. ptxkit/cutlass/params.py has the same layouts.
#pragma once

namespace ptxkit::cutlass {

// The problem to compute, d = alpha a b + beta c for each matrix of a batch.
struct Problem {
    int m, n, k, batches;
    void const *a, *b, *c;
    void* d;
    long long lda, ldb, ldc, ldd;                          // leading dimensions in elements
    long long batch_a, batch_b, batch_c, batch_d;          // elements from one matrix to the next
    float alpha, beta;
    int multiprocessors, clusters;                         // SMs of the device; maximum of active clusters, 0: unknown
    void* workspace;
    void const *a_scales, *b_scales;                       // scale factors of block-scaled a and b
};

// The launch configuration of the CUTLASS kernel for the problem; sizes in bytes.
struct Answer {
    unsigned long long params_bytes, workspace_bytes;
    unsigned long long clear_bytes;  // bytes at the end of the workspace that must be 0 when the kernel starts
    unsigned grid[3], block[3];
    unsigned shared_bytes, possible;  // possible: 1 if the kernel can compute this problem
};

}  // namespace ptxkit::cutlass

// Sets `count` words to 0. It is launched on the last clear_bytes of the workspace before each launch.
extern "C" __global__ void ptxkit_clear(unsigned* words, unsigned count) {
    const unsigned n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < count) words[n] = 0;
}

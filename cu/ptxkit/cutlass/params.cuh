// What the host asks the builder kernel, and what it answers. ptxkit/cutlass/params.py has the same layouts.
#pragma once

namespace ptxkit::cutlass {

struct Problem {
    int m, n, k, batches;
    void const *a, *b, *c;
    void* d;
    long long lda, ldb, ldc, ldd;                          // elements from one row (column) to the next
    long long batch_a, batch_b, batch_c, batch_d;          // elements from one matrix to the next
    float alpha, beta;
    int multiprocessors, clusters;                         // of the device; clusters that may be active at once, or 0
    void* workspace;
};

struct Answer {
    unsigned long long params_bytes, workspace_bytes;
    unsigned long long clear_bytes;  // so many at the workspace's end have to be 0 whenever the kernel starts
    unsigned grid[3], block[3];
    unsigned shared_bytes, possible;  // whether the kernel can compute this problem
};

}  // namespace ptxkit::cutlass

extern "C" __global__ void ptxkit_clear(unsigned* words, unsigned count) {
    const unsigned n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < count) words[n] = 0;
}

extern "C" __global__ void oob(float* y) { y[threadIdx.x + 200] = 1; }
extern "C" __global__ void dead(int* y) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    else if (threadIdx.x < 64) asm volatile("bar.sync 2, 64;");
    y[threadIdx.x] = 1;
}
extern "C" __global__ void traps(int* y) {
    y[threadIdx.x] = 3;
    if (threadIdx.x == 37) __trap();
    y[threadIdx.x] = 4;
}
extern "C" __global__ void race(int* y) {
    __shared__ int s[64];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[threadIdx.x ^ 32];
}
extern "C" __global__ void flag(volatile int* y) {
    if (threadIdx.x == 32) y[0] = 1;
    if (threadIdx.x == 0) {
        while (y[0] == 0);
        y[1] = 2;
    }
}
extern "C" __global__ void diverge(int* y, int n) {
    int v = 0;
    if (threadIdx.x & 1) {
        for (int i = 0; i < threadIdx.x; ++i) v += y[i];
    } else {
        v = 5;
    }
    v = __shfl_sync(0xffffffff, v, 1);
    y[threadIdx.x] = v + n;
}
extern "C" __global__ void partly(int* y) {
    int v;
    if (threadIdx.x < 16) asm volatile("mov.u32 %0, 7;" : "=r"(v));
    __syncwarp();
    if (threadIdx.x < 16) y[threadIdx.x] = v;
}

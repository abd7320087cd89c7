// Kernels with few threads or much divergence, for emulator_corpus.py.

// recursive sort with a scratch array of malloc at each level
__device__ void msort(int* a, int n) {
    if (n < 2) return;
    int h = n / 2;
    msort(a, h); msort(a + h, n - h);
    int* t = (int*)malloc(n * sizeof(int));
    int i = 0, j = h, k = 0;
    while (i < h && j < n) t[k++] = a[i] <= a[j] ? a[i++] : a[j++];
    while (i < h) t[k++] = a[i++];
    while (j < n) t[k++] = a[j++];
    for (i = 0; i < n; i++) a[i] = t[i];
    free(t);
}
extern "C" __global__ void merge_sort(int* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; msort(x + (size_t)i * n, n); }
__device__ __noinline__ void qsort_(int* a, int lo, int hi) {
    if (lo >= hi) return;
    int p = a[(lo + hi) / 2], i = lo, j = hi;
    while (i <= j) {
        while (a[i] < p) i++;
        while (a[j] > p) j--;
        if (i <= j) { int t = a[i]; a[i] = a[j]; a[j] = t; i++; j--; }
    }
    qsort_(a, lo, j); qsort_(a, i, hi);
}
extern "C" __global__ void quick_sort(int* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; qsort_(x + (size_t)i * n, 0, n - 1); }

// attention of one warp for each head: blocks of keys and values in shared memory, a query for each lane, softmax with a running
// maximum and sum in global memory
extern "C" __global__ void attention(const float* q, const float* k, const float* v, int n, int d, int blocks, int,
                                     int keys, int, float scale, float* sums, float* maxima, float* out) {
    extern __shared__ float shared[];
    float *some_k = shared, *some_v = some_k + keys * d, *query = some_v + keys * d + threadIdx.x * d;
    float* weight = some_v + keys * d + blockDim.x * d + threadIdx.x * keys;
    size_t head = (size_t)blockIdx.y * n;
    for (int b = 0; b < blocks; b++) {
        for (int i = threadIdx.x; i < keys * d; i += blockDim.x) {
            some_k[i] = k[(head + b * keys) * d + i];
            some_v[i] = v[(head + b * keys) * d + i];
        }
        __syncthreads();
        for (size_t row = head + threadIdx.x; row < head + n; row += blockDim.x) {
            for (int c = 0; c < d; c++) query[c] = q[row * d + c];
            float before = maxima[row], top = before, sum = 0;
            for (int key = 0; key < keys; key++) {
                float dot = 0;
                for (int c = 0; c < d; c++) dot += query[c] * some_k[key * d + c];
                weight[key] = dot * scale;
                top = fmaxf(top, weight[key]);
            }
            for (int key = 0; key < keys; key++) sum += weight[key] = __expf(weight[key] - top);
            float kept = sums[row] * __expf(before - top), whole = kept + sum;
            for (int c = 0; c < d; c++) {
                float part = kept * out[row * d + c];
                for (int key = 0; key < keys; key++) part += weight[key] * some_v[key * d + c];
                out[row * d + c] = part / whole;
            }
            maxima[row] = top;
            sums[row] = whole;
        }
        __syncthreads();
    }
}

// deep divergence, with a barrier behind it and a vote inside
extern "C" __global__ void escape(int* out, float cx, float cy, float step, int limit) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    float x0 = cx + step * (blockIdx.x * blockDim.x + threadIdx.x), y0 = cy, x = 0, y = 0;
    int n = 0;
    while (n < limit) {
        float a = x * x, b = y * y;
        if (a + b > 4.f) break;
        y = 2 * x * y + y0; x = a - b + x0; n++;
        if (n & 1) { if (x < 0) x = x + 1e-7f; else if (y > 0) y = y - 1e-7f; else x = x * 1.0000001f; }
    }
    atomicAdd(&total, n);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = n + (threadIdx.x == 0 ? total : 0);
}

// walk of a binary tree with a stack in local memory: count keys within a range
struct Node { int key, left, right; };
extern "C" __global__ void tree(const Node* nodes, const int* lo, const int* hi, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, stack[64], top = 0, count = 0;
    stack[top++] = 0;
    while (top) {
        int k = stack[--top];
        Node n = nodes[k];
        if (n.key >= lo[i] && n.key < hi[i]) count++;
        if (n.left >= 0 && n.key > lo[i]) stack[top++] = n.left;
        if (n.right >= 0 && n.key < hi[i]) stack[top++] = n.right;
    }
    out[i] = count;
}

// byte-wise parser with a switch: numbers, strings, brackets
extern "C" __global__ void parse(const unsigned char* text, const int* begin, const int* end, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, depth = 0, deepest = 0, strings = 0; long long sum = 0, number = 0;
    int state = 0;
    for (int k = begin[i]; k < end[i]; k++) {
        unsigned char c = text[k];
        switch (state) {
            case 0:
                switch (c) {
                    case '[': case '{': depth++; if (depth > deepest) deepest = depth; break;
                    case ']': case '}': depth--; break;
                    case '"': state = 1; break;
                    case ',': case ':': case ' ': break;
                    default: if (c >= '0' && c <= '9') { number = c - '0'; state = 2; }
                }
                break;
            case 1: if (c == '\\') state = 3; else if (c == '"') { state = 0; strings++; } break;
            case 2: if (c >= '0' && c <= '9') number = number * 10 + c - '0'; else { sum += number; state = 0; k--; } break;
            case 3: state = 1; break;
        }
    }
    out[4 * i] = deepest; out[4 * i + 1] = strings; out[4 * i + 2] = (int)sum; out[4 * i + 3] = depth;
}

// warp collectives in divergent loops: cooperative search of a hash table
extern "C" __global__ void probe(const unsigned* keys, const unsigned* table, int mask, int* found, int n) {
    int lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (int q = warp; q < n; q += gridDim.x * blockDim.x / 32) {
        unsigned key = keys[q]; unsigned h = key * 2654435761u;
        int where = -1;
        for (int t = 0; t < 64; t++) {
            unsigned at = (h + t * 32 + lane) & mask, v = table[at];
            unsigned hit = __ballot_sync(~0u, v == key), hole = __ballot_sync(~0u, v == 0);
            if (hit) { where = __shfl_sync(~0u, (int)at, __ffs(hit) - 1); break; }
            if (hole) break;
        }
        if (lane == 0) found[q] = where;
    }
}

// Kernels in which each thread executes a sequential program, with a few warps: for emulator_corpus.py.

// a search tree of nodes from malloc, built by recursion, summed and freed
struct Leaf { int key, count; Leaf *left, *right; };
__device__ Leaf* insert(Leaf* at, int key) {
    if (!at) {
        at = (Leaf*)malloc(sizeof(Leaf));
        at->key = key; at->count = 1; at->left = at->right = nullptr;
        return at;
    }
    if (key == at->key) at->count++;
    else if (key < at->key) at->left = insert(at->left, key);
    else at->right = insert(at->right, key);
    return at;
}
__device__ long long consume(Leaf* at, int depth) {
    if (!at) return 0;
    long long sum = (long long)at->key * at->count * depth + consume(at->left, depth + 1) + consume(at->right, depth + 1);
    free(at);
    return sum;
}
extern "C" __global__ void search_tree(const int* keys, int n, long long* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Leaf* root = nullptr;
    for (int k = 0; k < n; k++) root = insert(root, keys[i * n + k]);
    out[i] = consume(root, 1);
}

// counts in a hash table, whose slots are claimed by compare-and-swap
extern "C" __global__ void hash_count(const unsigned* keys, int n, unsigned* table, int* counts, unsigned mask) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned key = keys[i], at = (key * 2654435769u) >> 7 & mask;
        while (true) {
            unsigned old = atomicCAS(&table[at], 0, key);
            if (old == 0 || old == key) { atomicAdd(&counts[at], 1); break; }
            at = (at + 1) & mask;
        }
    }
}

// breadth-first search of a grid with walls by one CTA, with two queues in shared memory
extern "C" __global__ void breadth_first(const unsigned char* wall, int width, int height, int start, int* distance) {
    __shared__ int queue[2][2048], count[2];
    for (int i = threadIdx.x; i < width * height; i += blockDim.x) distance[i] = -1;
    if (threadIdx.x == 0) { queue[0][0] = start; count[0] = 1; count[1] = 0; }
    __syncthreads();
    if (threadIdx.x == 0) distance[start] = 0;
    __syncthreads();
    for (int level = 0, now = 0; count[now]; level++, now ^= 1) {
        for (int i = threadIdx.x; i < count[now]; i += blockDim.x) {
            int at = queue[now][i], x = at % width, y = at / width;
            for (int d = 0; d < 4; d++) {
                int u = x + (d == 0) - (d == 1), v = y + (d == 2) - (d == 3);
                if (u < 0 || v < 0 || u >= width || v >= height || wall[v * width + u]) continue;
                if (atomicCAS(&distance[v * width + u], -1, level + 1) == -1)
                    queue[now ^ 1][atomicAdd(&count[now ^ 1], 1)] = v * width + u;
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) count[now] = 0;
        __syncthreads();
    }
}

// occurrences of a pattern (Knuth, Morris, Pratt), a part of the text for each thread
extern "C" __global__ void find_pattern(const char* text, int n, const char* pattern, int m, int part, int* out) {
    int fail[16], i = blockIdx.x * blockDim.x + threadIdx.x, found = 0;
    fail[0] = 0;
    for (int k = 1, j = 0; k < m; k++) {
        while (j && pattern[k] != pattern[j]) j = fail[j - 1];
        if (pattern[k] == pattern[j]) j++;
        fail[k] = j;
    }
    int first = i * part, last = min(n, first + part + m - 1);
    for (int k = first, j = 0; k < last; k++) {
        while (j && text[k] != pattern[j]) j = fail[j - 1];
        if (text[k] == pattern[j]) j++;
        if (j == m) { found++; j = fail[j - 1]; }
    }
    out[i] = found;
}

// Mandelbrot set with an early exit, in double precision
extern "C" __global__ void mandelbrot(int* out, int width, int height, int limit) {
    for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < width * height; p += gridDim.x * blockDim.x) {
        double cx = -2.0 + 2.5 * (p % width) / width, cy = -1.25 + 2.5 * (p / width) / height, x = 0, y = 0;
        int n = 0;
        for (; n < limit; n++) {
            double a = x * x, b = y * y;
            if (a + b > 4.0) break;
            y = 2 * x * y + cy;
            x = a - b + cx;
        }
        out[p] = n;
    }
}

// queens on a board, by recursion; the first rows are given by the thread
__device__ int place(int n, int row, unsigned columns, unsigned left, unsigned right) {
    if (row == n) return 1;
    int count = 0;
    unsigned open = ~(columns | left | right) & ((1u << n) - 1);
    while (open) {
        unsigned bit = open & -open;
        open ^= bit;
        count += place(n, row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1);
    }
    return count;
}
extern "C" __global__ void queens(int n, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, a = i % n, b = i / n;
    if (b >= n) return;
    unsigned p = 1u << a, q = 1u << b;
    bool allowed = p != q && (p << 1) != q && (p >> 1) != q;
    out[i] = allowed ? place(n, 2, p | q, (p << 2) | (q << 1), (p >> 2) | (q >> 1)) : 0;
}

// a priority queue in local memory: the sum of the k smallest of n numbers, each with its rank
extern "C" __global__ void heap_select(const int* x, int n, int k, long long* out) {
    int heap[64], size = 0, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < n; j++) {
        int v = x[i * n + j];
        if (size == k) { if (v >= heap[0]) continue; }
        else { heap[size++] = v; int c = size - 1;
            while (c && heap[(c - 1) / 2] < heap[c]) { int t = heap[c]; heap[c] = heap[(c - 1) / 2]; heap[(c - 1) / 2] = t; c = (c - 1) / 2; }
            continue; }
        heap[0] = v;
        for (int c = 0;;) {
            int d = 2 * c + 1;
            if (d >= size) break;
            if (d + 1 < size && heap[d + 1] > heap[d]) d++;
            if (heap[d] <= heap[c]) break;
            int t = heap[c]; heap[c] = heap[d]; heap[d] = t; c = d;
        }
    }
    long long sum = 0;
    while (size) {
        sum += (long long)heap[0] * size;
        heap[0] = heap[--size];
        for (int c = 0;;) {
            int d = 2 * c + 1;
            if (d >= size) break;
            if (d + 1 < size && heap[d + 1] > heap[d]) d++;
            if (heap[d] <= heap[c]) break;
            int t = heap[c]; heap[c] = heap[d]; heap[d] = t; c = d;
        }
    }
    out[i] = sum;
}

// LZ77: literals and copies of what was written before
extern "C" __global__ void unpack(const unsigned char* packed, const int* begin, unsigned char* out, int room, int* sizes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, at = 0;
    unsigned char* to = out + i * room;
    for (int k = begin[i]; k < begin[i + 1];) {
        int token = packed[k++];
        if (token & 128) {
            int count = (token & 127) + 3, back = packed[k] | packed[k + 1] << 8;
            k += 2;
            for (int j = 0; j < count; j++, at++) to[at] = to[at - back];
        } else
            for (int j = 0; j <= token; j++) to[at++] = packed[k++];
    }
    sizes[i] = at;
}

// a stack machine with a switch
extern "C" __global__ void interpret(const int* code, const int* begin, const int* input, int* out) {
    int stack[32], top = 0, i = blockIdx.x * blockDim.x + threadIdx.x, k = begin[i], counter = input[i];
    for (;;) {
        int c = code[k++];
        switch (c & 15) {
            case 0: out[i] = top ? stack[top - 1] : -1; return;
            case 1: stack[top++] = c >> 4; break;
            case 2: top--; stack[top - 1] += stack[top]; break;
            case 3: top--; stack[top - 1] -= stack[top]; break;
            case 4: top--; stack[top - 1] *= stack[top]; break;
            case 5: top--; stack[top - 1] = stack[top] ? stack[top - 1] / stack[top] : 7; break;
            case 6: stack[top] = stack[top - 1]; top++; break;
            case 7: { int t = stack[top - 1]; stack[top - 1] = stack[top - 2]; stack[top - 2] = t; } break;
            case 8: if (counter-- > 0) k += c >> 4; break;
            case 9: stack[top++] = counter; break;
            case 10: stack[top - 1] = max(stack[top - 1], c >> 4); break;
            default: stack[top - 1] ^= c;
        }
    }
}

// functions chosen from a table
typedef int (*Function)(int, int);
__device__ int twist(int a, int b) { return a * 31 ^ b; }
__device__ int gcd(int a, int b) { a = abs(a) & 1023; b = abs(b) & 1023; while (b) { int t = a % b; a = b; b = t; } return a; }
__device__ int bits(int a, int b) { int n = 0; for (unsigned v = a ^ b; v; v &= v - 1) n++; return n; }
__device__ int steps(int a, int) { int n = 0; for (int v = (abs(a) & 255) + 1; v != 1; n++) v = v & 1 ? 3 * v + 1 : v / 2; return n; }
__device__ Function table[4] = {twist, gcd, bits, steps};
extern "C" __global__ void dispatch(const int* x, int n, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, a = i;
    for (int k = 0; k < n; k++) { int v = x[i * n + k]; a = a * 5 + table[v & 3](v, a); }
    out[i] = a;
}

// Element-wise kernels: vectors of elements, which are converted to f32 for arithmetic, and the loops over an array
// that these kernels share.
//
// Arrays may have any length and alignment. If all pointers are aligned to 16 bytes, complete vectors are accessed with
// 128-bit accesses. Otherwise, and in an incomplete last vector, elements are accessed individually, and adjacent lanes
// access adjacent elements.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/target.cuh"

namespace ptxkit {

// Cache policy of the accesses to device memory. It does not change results.
enum Cache {
    CACHE_KEEP = 0,    // ld.global, st.global: the next kernel finds all data in L2
    CACHE_STREAM = 1,  // loads do not allocate in L1, stores are st.global.cs
    CACHE_ONCE = 2,    // as CACHE_STREAM, and loads have the L2 policy evict_first
    CACHE_OUTPUT = 3,  // loads have the L2 policy evict_first, so that L2 keeps the stored data
    CACHE_INPUT = 4,   // loads have the L2 policy evict_last; stored data then goes to device memory in a steady stream
};

// ---------------------------------------------------------------------------------------------------------------------
// Vectors

// The L2 policy of loads. Kernels with many loads create it once.
template <int CACHE>
__device__ __forceinline__ unsigned long long load_policy() {
    if constexpr (CACHE == CACHE_INPUT) return createpolicy_L2_evict_last();
    else if constexpr (CACHE == CACHE_ONCE || CACHE == CACHE_OUTPUT) return createpolicy_L2_evict_first();
    else return 0;
}

template <int CACHE, class Word>
__device__ __forceinline__ Word load_word(const Word* pointer, unsigned long long policy = load_policy<CACHE>()) {
    if constexpr (CACHE == CACHE_KEEP) return ld_global(pointer);
    else if constexpr (CACHE == CACHE_STREAM) return ld_global_L1_no_allocate(pointer);
    else if constexpr (CACHE == CACHE_INPUT) return ld_global(pointer, policy);
    else return ld_global_L1_no_allocate(pointer, policy);
}

template <int CACHE, class Word>
__device__ __forceinline__ void store_word(Word* pointer, Word word) {
    if constexpr (CACHE == CACHE_STREAM || CACHE == CACHE_ONCE) st_global_cs(pointer, word);
    else *pointer = word;
}

// WORDS 32-bit words, in 128-bit accesses as far as possible, then 64 and 32 bits.
template <int CACHE, int WORDS>
__device__ __forceinline__ void load_words(const void* pointer, unsigned (&words)[WORDS],
                                           unsigned long long policy = load_policy<CACHE>()) {
    const unsigned* from = static_cast<const unsigned*>(pointer);
#pragma unroll
    for (int i = 0; i + 4 <= WORDS; i += 4) {
        uint4 quad = load_word<CACHE>(reinterpret_cast<const uint4*>(from + i), policy);
        words[i] = quad.x, words[i + 1] = quad.y, words[i + 2] = quad.z, words[i + 3] = quad.w;
    }
    if constexpr (WORDS % 4 >= 2) {
        uint2 pair = load_word<CACHE>(reinterpret_cast<const uint2*>(from + WORDS / 4 * 4), policy);
        words[WORDS / 4 * 4] = pair.x, words[WORDS / 4 * 4 + 1] = pair.y;
    }
    if constexpr (WORDS % 2) words[WORDS - 1] = load_word<CACHE>(from + WORDS - 1, policy);
}

template <int CACHE, int WORDS>
__device__ __forceinline__ void store_words(void* pointer, const unsigned (&words)[WORDS]) {
    unsigned* to = static_cast<unsigned*>(pointer);
#pragma unroll
    for (int i = 0; i + 4 <= WORDS; i += 4) {
        uint4 quad = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
        store_word<CACHE>(reinterpret_cast<uint4*>(to + i), quad);
    }
    if constexpr (WORDS % 4 >= 2) {
        uint2 pair = make_uint2(words[WORDS / 4 * 4], words[WORDS / 4 * 4 + 1]);
        store_word<CACHE>(reinterpret_cast<uint2*>(to + WORDS / 4 * 4), pair);
    }
    if constexpr (WORDS % 2) store_word<CACHE>(to + WORDS - 1, words[WORDS - 1]);
}

// N elements of float, f16 or bf16 in registers, in the format of memory. An element is converted when it is read, so
// that a load does not wait for an earlier one. N * sizeof(T) is a multiple of 4, and pointers are aligned to it, up to
// 16 bytes.
template <class T, int N>
struct Vector {
    static constexpr int size = N, words = N * static_cast<int>(sizeof(T)) / 4;
    unsigned word[words];

    template <int CACHE>
    __device__ __forceinline__ void load(const T* pointer, unsigned long long policy = load_policy<CACHE>()) {
        load_words<CACHE>(pointer, word, policy);
    }

    template <int CACHE>
    __device__ __forceinline__ void store(T* pointer) const {
        store_words<CACHE>(pointer, word);
    }

    __device__ __forceinline__ float operator[](int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(word[i]);
        else return i % 2 ? Convert<T>::high(word[i / 2]) : Convert<T>::low(word[i / 2]);
    }

    // Takes the elements from 16 bytes.
    __device__ __forceinline__ void set(uint4 quad) {
        static_assert(words == 4, "16 bytes");
        word[0] = quad.x, word[1] = quad.y, word[2] = quad.z, word[3] = quad.w;
    }

    // Sets element i to element(i), rounded to T.
    template <class Element>
    __device__ __forceinline__ void fill(Element element) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            if constexpr (sizeof(T) == 4) word[i] = __float_as_uint(element(i));
            else word[i] = Convert<T>::pack(element(2 * i), element(2 * i + 1));
        }
    }
};

// Elements of T in 16 bytes.
template <class T>
constexpr int vector_width = 16 / sizeof(T);

// Loads one element as f32, from memory that no thread writes while the kernel runs, so that the compiler may move the
// load before stores.
__device__ __forceinline__ float load_element(const float* pointer) { return __ldg(pointer); }
template <class T>
__device__ __forceinline__ float load_element(const T* pointer) {
    return to_f32(T{__ldg(&pointer->bits)});
}

// The same from memory that the previous grid may have written, after waiting for it: see ld_global.
__device__ __forceinline__ float load_after_wait(const float* pointer) {
    return __uint_as_float(ld_global(reinterpret_cast<const unsigned*>(pointer)));
}
template <class T>
__device__ __forceinline__ float load_after_wait(const T* pointer) {
    return to_f32(T{ld_global(&pointer->bits)});
}

// Whether all pointers are aligned to 16 bytes.
template <class... T>
__device__ __forceinline__ bool aligned16(const T*... pointers) {
    return ((reinterpret_cast<size_t>(pointers) | ...) & 15) == 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// The loop over an array

// A function object for loops without a request: it takes any arguments, and does nothing.
struct Nothing {
    template <class... T>
    __device__ __forceinline__ void operator()(T...) const {}
};

// CTAs of 256 threads that an SM holds at a time.
constexpr unsigned RESIDENT_CTAS = TargetLimits::THREADS_PER_SM / 256;

// Lets the next grid start and waits for the previous one. If all CTAs are resident at a time, request() is called before: it
// asks L2 to load what this thread reads, so that the latency of device memory overlaps with the end of the previous grid. Its
// writes go to L2 as well, so that a request has no effect on what a later load returns.
//
// The next grid may start at once where an SM has at most one CTA. With more of them, its CTAs would be placed on the SMs that
// have room, several on some of them, and it starts when the previous grid has ended.
template <class Request>
__device__ __forceinline__ void follow_with_requests(Request request) {
#if PTXKIT_SM >= 90
    const unsigned sms = nsmid();
    if (gridDim.x > RESIDENT_CTAS * sms) return follow_previous_grid();
    if (gridDim.x <= sms) launch_next_grid();
    request();
    wait_for_previous_grid();
    if (gridDim.x > sms) launch_next_grid();
#endif
}

// Runs over n elements in tiles of THREADS * VECTORS vectors of WIDTH elements. With one CTA per tile (STRIDE false)
// the grid is cdiv(n, THREADS * VECTORS * WIDTH); with STRIDE the grid may have any size, and CTAs take every
// gridDim.x-th tile.
//
// load(k, i) and store(k, i) receive the number k of a vector of the thread and its first element i. All loads of a
// tile come before its stores, so that VECTORS accesses of each array are in flight per thread. one(i) computes a
// single element. request(i) requests the vector of each input that begins with element i.
template <int THREADS, int VECTORS, int WIDTH, bool STRIDE, class Load, class Store, class One, class Request = Nothing>
__device__ __forceinline__ void for_each_vector(long long n, bool aligned, Load load, Store store, One one,
                                                Request request = Request()) {
    constexpr unsigned tile = THREADS * VECTORS * WIDTH;
    follow_with_requests([&] {
        const long long first = static_cast<long long>(blockIdx.x) * tile + threadIdx.x * WIDTH;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            if (first + k * THREADS * WIDTH < n) request(first + k * THREADS * WIDTH);
        }
    });
    for (long long begin = static_cast<long long>(blockIdx.x) * tile; begin < n;
         begin += static_cast<long long>(gridDim.x) * tile) {
        if (aligned && n - begin >= tile) {
            const long long first = begin + threadIdx.x * WIDTH;  // the other terms of the address are immediates
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                // This condition is always true. Without it, ptxas moves loads to after the uses of earlier ones in
                // order to save registers, and fewer loads are in flight.
                if (VECTORS <= 2 || k * THREADS + threadIdx.x < VECTORS * blockDim.x)
                    load(k, first + k * THREADS * WIDTH);
            }
#pragma unroll
            for (int k = 0; k < VECTORS; k++) store(k, first + k * THREADS * WIDTH);
        } else {
            const unsigned count = n - begin < tile ? n - begin : tile;
            unsigned i = threadIdx.x;
            if (aligned) {  // the incomplete last tile: its complete vectors, then the elements of an incomplete one
                const unsigned whole = count / WIDTH;
#pragma unroll 1
                for (unsigned vector = threadIdx.x; vector < whole; vector += THREADS) {
                    load(0, begin + vector * WIDTH);
                    store(0, begin + vector * WIDTH);
                }
                i = whole * WIDTH + (THREADS - 1 - threadIdx.x);  // warps without a vector, which need not wait for it
            }
            for (; i + 3 * THREADS < count; i += 4 * THREADS) {  // four loads in flight
#pragma unroll
                for (int k = 0; k < 4; k++) one(begin + i + k * THREADS);
            }
            for (; i < count; i += THREADS) one(begin + i);
        }
        if constexpr (!STRIDE) break;
    }
}

// IndicesBelow<N>() is an Indices<0, 1, ... N - 1>, from which a function deduces these numbers as a parameter pack.
template <int... I>
struct Indices {};
template <int N, int... I>
struct IndicesBelow : IndicesBelow<N - 1, N - 1, I...> {};
template <int... I>
struct IndicesBelow<0, I...> : Indices<I...> {};

// op(v[0][k][j], v[1][k][j], ...)
template <class Op, class V, int... I>
__device__ __forceinline__ float apply_to_inputs(Op op, const V& v, int k, int j, Indices<I...>) {
    return op(v[I][k][j]...);
}

// out[i] = op(in[i]...) for inputs of one type; op takes and returns f32.
template <int THREADS, int VECTORS, int CACHE, bool STRIDE, class Op, class T, class... In>
__device__ __forceinline__ void elementwise(long long n, Op op, T* out, const In*... in) {
    constexpr int width = vector_width<T>, inputs = sizeof...(In);
    const unsigned long long policy = load_policy<CACHE>();
    Vector<T, width> v[inputs][VECTORS];
    auto load = [&](int k, long long i) {
        int input = 0;
        (v[input++][k].template load<CACHE>(in + i, policy), ...);
    };
    auto store = [&](int k, long long i) {
        Vector<T, width> result;
        result.fill([&](int j) { return apply_to_inputs(op, v, k, j, IndicesBelow<inputs>()); });
        result.template store<CACHE>(out + i);
    };
    auto one = [&](long long i) { out[i] = Convert<T>::from_f32(op(load_element(in + i)...)); };
    auto request = [&](long long i) { (prefetch_global_L2(in + i), ...); };
    for_each_vector<THREADS, VECTORS, width, STRIDE>(n, aligned16(out, in...), load, store, one, request);
}

// The same with one element per thread, as in a straightforward first version. The grid is cdiv(n, THREADS).
template <int THREADS, class Op, class T, class... In>
__device__ __forceinline__ void elementwise_scalar(long long n, Op op, T* out, const In*... in) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    follow_with_requests([&] {
        if (i < n) (prefetch_global_L2(in + i), ...);
    });
    if (i < n) out[i] = Convert<T>::from_f32(op(load_after_wait(in + i)...));
}

// ---------------------------------------------------------------------------------------------------------------------
// The loop over rows, for operations that need an element's column

// Runs over rows x cols elements. LANES threads (a power of two up to THREADS) take one vector each of LANES * WIDTH
// columns, in ROWS rows, so that values that depend only on the column are loaded once for all of them. THREADS / LANES
// such groups take adjacent rows. The grid is cdiv(rows, ROWS * THREADS / LANES) * cdiv(cols, LANES * WIDTH).
//
// column(c) receives the first column of the thread's vectors; load(k, i) and store(k, i) receive the number k of its
// row and the index i of the vector's first element in the array. Without alignment, or if cols is not a multiple of
// WIDTH, one(i, c) computes all elements. ahead(k, i, c) is called before the previous grid has ended.
template <int THREADS, int LANES, int ROWS, int WIDTH, class Column, class Load, class Store, class One,
          class Ahead = Nothing>
__device__ __forceinline__ void for_each_row_vector(unsigned rows, unsigned cols, bool aligned, Column column,
                                                    Load load, Store store, One one, Ahead ahead = Ahead()) {
    static_assert(THREADS % LANES == 0 && (LANES & (LANES - 1)) == 0, "LANES is a power of two up to THREADS");
    constexpr unsigned part = LANES * WIDTH, groups = THREADS / LANES;
    launch_next_grid();
    const unsigned parts = (cols - 1) / part + 1, lane = threadIdx.x % LANES;
    const unsigned first_row = blockIdx.x / parts * (groups * ROWS) + threadIdx.x / LANES;
    const unsigned first_column = blockIdx.x % parts * part;
    const long long first = static_cast<long long>(first_row) * cols, step = static_cast<long long>(groups) * cols;
    if (aligned && cols % WIDTH == 0) {
        const unsigned c = first_column + lane * WIDTH;
        if (c >= cols) return wait_for_previous_grid();
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (first_row + k * groups < rows) ahead(k, first + k * step + c, c);
        }
        wait_for_previous_grid();
        column(c);
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (first_row + k * groups < rows) load(k, first + k * step + c);
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (first_row + k * groups < rows) store(k, first + k * step + c);
        }
        return;
    }
    wait_for_previous_grid();
    for (unsigned k = 0; k < ROWS && first_row + k * groups < rows; k++) {
        for (unsigned c = first_column + lane; c < cols && c < first_column + part; c += LANES)
            one(first + k * step + c, c);
    }
}

}  // namespace ptxkit

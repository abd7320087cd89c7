// Step 19 of matmul_wgmma.cu, for small products with a short k, whose time is the latency of one CTA: the launch, the first byte from
// device memory, the products, and the stores. Each thread executes few instructions, and many small CTAs share the SMs.
//
// All threads of a CTA copy the aligned vectors that contain the rows of a tile (cp.async), of up to Tile::STAGES chunks of Tile::DEPTH
// elements along k at the same time. The rows stay where the copies put them. A row that begins within a vector begins at the same place
// in shared memory: a lane adds this place to its address, and reads for mma.sync the words of its elements. If the row begins within a
// word, it reads the next word too and takes two bytes of each. ldmatrix and wgmma need rows at multiples of 16 bytes, and so another pass
// through shared memory.
//
// Elements of c are put into shared memory as they lie in device memory, from a multiple of 16 bytes on, and stored by whole vectors. If a
// tile has all columns of a contiguous c, its rows are one row to store.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/mma.cuh"

using namespace ptxkit;

constexpr unsigned SHORT_VECTOR = 8;  // elements

// DOWN x ACROSS warps with WM rows and WN columns of c each, DEEP times, which divide k; DEPTH elements of k in a chunk. PITCH: bytes of the
// vectors with a chunk of a row, an odd number of vectors, so that rows begin in different banks. LANES: threads that copy a row.
template <int DOWN_, int ACROSS_, int DEEP_, int WM_, int WN_, int DEPTH_, int STAGES_>
struct ShortTile {
    static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, DEEP = DEEP_, WM = WM_, WN = WN_;
    static constexpr unsigned DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr unsigned PITCH = DEPTH * 2 + 16, LANES = DEPTH / 8;
    static constexpr unsigned ROWS = DOWN * WM, COLUMNS = ACROSS * WN, THREADS = 32 * DOWN * ACROSS * DEEP;
    static_assert(WM % 16 == 0 && WN % 8 == 0 && THREADS / LANES % 8 == 0, "threads copy rows that are a multiple of 8 apart");
    static_assert((COLUMNS & (COLUMNS - 1)) == 0, "neighbouring threads store a row");
};

// LINES rows of a matrix in a tile, of which a thread copies the vectors at `column` of every STRIDE-th one. These are a multiple of 8 rows
// apart, and therefore begin at the same place of an aligned vector. What is not copied is left as it is: lines after the last row of the
// matrix, whose sums are not stored, and elements after the end of a row, which are replaced by zeros when they are multiplied.
template <unsigned LINES, class Tile, class T>
struct ShortRows {
    static constexpr unsigned THREADS = Tile::THREADS, STRIDE = THREADS / Tile::LANES, OF_THREAD = (LINES - 1) / STRIDE + 1;
    static_assert(LINES <= THREADS, "a thread copies the last vector of a line");
    const T* from;  // the vector at `column` of the first line of this thread
    const T* of_tile;
    size_t stride;
    unsigned to, column, rows, before, lines, pitch, k;  // before: elements of the first vector before a line
    bool ends;  // whether the matrix may end within the last vector of the last line of this thread

    __device__ __forceinline__ ShortRows(const T* matrix, unsigned first, unsigned all_rows, unsigned k, unsigned pitch)
        : column(threadIdx.x % Tile::LANES), lines(min(LINES, all_rows - first)), pitch(pitch), k(k) {
        const unsigned line = threadIdx.x / Tile::LANES;
        before = line * (pitch % 8) % 8;
        of_tile = matrix + static_cast<size_t>(first) * pitch;
        from = of_tile + static_cast<size_t>(line) * pitch + column * SHORT_VECTOR - before;
        stride = static_cast<size_t>(STRIDE) * pitch;
        rows = line < lines ? (lines - 1 - line) / STRIDE + 1 : 0;
        to = line * Tile::PITCH + column * 16;
        const unsigned after = all_rows - 1 - (first + line + (rows - 1) * STRIDE);  // rows after the last line of this thread
        ends = rows > 0 && after * pitch < SHORT_VECTOR;
    }

    // Copies the vectors with the elements of k from `begin` on.
    __device__ __forceinline__ void copy(unsigned stage, unsigned begin) const {
        if (const unsigned x = begin + column * SHORT_VECTOR; x < before + k) {
            const bool cut = ends && x + SHORT_VECTOR > before + k;  // the matrix ends within the last vector
            const unsigned whole = rows - cut;
            const T* at = from + begin;
#pragma unroll
            for (unsigned i = 0; i < OF_THREAD; i++) {
                if (i < whole) cp_async_cg_shared_global_L2_128B(stage + to + i * (STRIDE * Tile::PITCH), at);
                at += stride;
            }
            if (cut) {
                cp_async_cg_shared_global_L2_128B(stage + to + whole * (STRIDE * Tile::PITCH), from + begin + whole * stride,
                                                  (before + k - x) * 2);
            }
        }
        if (k - begin + SHORT_VECTOR > Tile::DEPTH && threadIdx.x < lines) {  // the last vector of a chunk, for a line of each thread
            const unsigned line = threadIdx.x, before = line * (pitch % 8) % 8, x = begin + Tile::DEPTH;
            if (x < before + k) {
                const unsigned bytes = min(before + k - x, SHORT_VECTOR) * 2;
                cp_async_cg_shared_global_L2_128B(stage + line * Tile::PITCH + Tile::DEPTH * 2,
                                                  of_tile + static_cast<size_t>(line) * pitch - before + x, bytes);
            }
        }
    }
};

// The two elements at an address, of which the first one is the upper half of a word if ODD and `halves` says so.
template <bool ODD>
__device__ __forceinline__ unsigned short_pair(unsigned address, unsigned halves) {
    const unsigned first = ld_shared_u32(address);
    return ODD ? prmt_b32(first, ld_shared_u32(address + 4), halves) : first;
}

// The part of a word with elements `first` and `first` + 1 that is among `count` elements.
__device__ __forceinline__ unsigned short_mask(unsigned first, unsigned count) {
    return first + 1 < count ? 0xffffffff : first < count ? 0xffff : 0;
}

// Adds the products of 16 elements of k, or of the first `left` of them if MASKED. `a` and `b`: addresses of the words with the first
// elements of this lane.
template <bool ODD, bool MASKED, class Tile, class T>
__device__ __forceinline__ void multiply_step(float (&sums)[Tile::WM / 16][Tile::WN / 8][4], unsigned a, unsigned b,
                                              unsigned a_halves, unsigned b_halves, unsigned left) {
    Fragments<Tile::WM, Tile::WN> of;
    const unsigned first = laneid() % 4 * 2;
    const unsigned masks[2] = {short_mask(first, left), short_mask(first + 8, left)};
    auto masked = [&](unsigned pair, int part) { return MASKED ? pair & masks[part] : pair; };
#pragma unroll
    for (int i = 0; i < Tile::WM / 16; i++) {
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const unsigned at = a + (16 * i + part % 2 * 8) * Tile::PITCH + part / 2 * 16;
            of.a[i][part] = masked(short_pair<ODD>(at, a_halves), part / 2);
        }
    }
#pragma unroll
    for (int j = 0; j < Tile::WN / 8; j++) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            of.b[j][part] = masked(short_pair<ODD>(b + 8 * j * Tile::PITCH + part * 16, b_halves), part);
        }
    }
    of.template multiply<T>(sums);
}

// Adds the products of `count` elements of k, of every DEEP-th step of 16 from number `part` on. What is beside a row may be infinite or
// not a number, and must not be multiplied, not even by zero.
template <bool ODD, class Tile, class T>
__device__ __forceinline__ void multiply_rows(float (&sums)[Tile::WM / 16][Tile::WN / 8][4], unsigned a, unsigned b,
                                              unsigned a_halves, unsigned b_halves, unsigned count, unsigned part) {
    constexpr unsigned NEXT = 32 * Tile::DEEP;
    a += 32 * part;
    b += 32 * part;
    unsigned step = part;
#pragma unroll 2
    for (; step < count / 16; step += Tile::DEEP, a += NEXT, b += NEXT) {
        multiply_step<ODD, false, Tile, T>(sums, a, b, a_halves, b_halves, 16);
    }
    if (step == count / 16 && count % 16 > 0) multiply_step<ODD, true, Tile, T>(sums, a, b, a_halves, b_halves, count % 16);
}

// Adds the sums of the DEEP warps that have the same rows and columns, in the order of their parts, to those of the first of them.
// `group`: number of these warps among others. `shared`: memory that no warp reads any more.
template <class Tile>
__device__ __forceinline__ void add_parts(float (&sums)[Tile::WM / 16][Tile::WN / 8][4], unsigned char* shared, unsigned group,
                                          unsigned part) {
    constexpr unsigned GROUPS = Tile::DOWN * Tile::ACROSS, VECTORS = Tile::WM / 16 * (Tile::WN / 8);
    float4* const of_group = reinterpret_cast<float4*>(shared) + group * VECTORS * 32 + laneid();
    if (part > 0) {
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
            const float* const d = sums[v / (Tile::WN / 8)][v % (Tile::WN / 8)];
            of_group[((part - 1) * GROUPS * VECTORS + v) * 32] = {d[0], d[1], d[2], d[3]};
        }
    }
    barrier_sync();
    if (part > 0) return;
#pragma unroll
    for (unsigned v = 0; v < VECTORS; v++) {
        float* const d = sums[v / (Tile::WN / 8)][v % (Tile::WN / 8)];
#pragma unroll
        for (unsigned other = 0; other + 1 < Tile::DEEP; other++) {
            const float4 more = of_group[(other * GROUPS * VECTORS + v) * 32];
            d[0] += more.x, d[1] += more.y, d[2] += more.z, d[3] += more.w;
        }
    }
}

template <class Tile, class T, int EPILOGUE>
__global__ void __launch_bounds__(Tile::THREADS)
    matmul_short_k(const T* a, const T* b, T* c, const T* bias, unsigned m, unsigned n, unsigned k, float alpha, float beta,
                   unsigned pitch, unsigned a_pitch, unsigned b_pitch) {
    constexpr unsigned ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, THREADS = Tile::THREADS, VECTOR = SHORT_VECTOR;
    constexpr unsigned STAGE = (ROWS + COLUMNS) * Tile::PITCH, STAGED = COLUMNS + VECTOR;
    extern __shared__ __align__(16) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned row = blockIdx.x * ROWS, col = blockIdx.y * COLUMNS, chunks = (k - 1) / Tile::DEPTH + 1;
    const unsigned group = warp % (Tile::DOWN * Tile::ACROSS), part = warp / (Tile::DOWN * Tile::ACROSS);
    const unsigned own_row = group / Tile::ACROSS * Tile::WM + lane / 4, own_col = group % Tile::ACROSS * Tile::WN;
    const ShortRows<ROWS, Tile, T> of_a(a, row, m, k, a_pitch);
    const ShortRows<COLUMNS, Tile, T> of_b(b, col, n, k, b_pitch);
    follow_previous_grid<true>();  // grids that start early fill the SMs unevenly, which took 2 us more than it saved
    const unsigned a_before = lane / 4 * (a_pitch % 8) % 8, b_before = lane / 4 * (b_pitch % 8) % 8;
    const unsigned a_halves = a_before % 2 ? 0x5432 : 0x3210, b_halves = b_before % 2 ? 0x5432 : 0x3210;
    const unsigned a_at = own_row * Tile::PITCH + (a_before / 2 + lane % 4) * 4;
    const unsigned b_at = (ROWS + own_col + lane / 4) * Tile::PITCH + (b_before / 2 + lane % 4) * 4;
    float sums[Tile::WM / 16][Tile::WN / 8][4] = {};
#pragma unroll 1
    for (unsigned i = 0; i < chunks + Tile::STAGES - 1; i++) {  // copies chunk i, and multiplies an earlier one
        if (i >= Tile::STAGES) barrier_sync();  // all warps have read the stage
        if (i < chunks) {
            const unsigned stage = base + i % Tile::STAGES * STAGE;
            of_a.copy(stage, i * Tile::DEPTH);
            of_b.copy(stage + ROWS * Tile::PITCH, i * Tile::DEPTH);
        }
        cp_async_commit_group();
        if (i < Tile::STAGES - 1) continue;
        cp_async_wait_group<Tile::STAGES - 1>();
        barrier_sync();
        const unsigned chunk = i - (Tile::STAGES - 1), stage = base + chunk % Tile::STAGES * STAGE;
        const unsigned count = min(k - chunk * Tile::DEPTH, Tile::DEPTH);
        if ((a_pitch | b_pitch) % 2) multiply_rows<true, Tile, T>(sums, stage + a_at, stage + b_at, a_halves, b_halves, count, part);
        else multiply_rows<false, Tile, T>(sums, stage + a_at, stage + b_at, a_halves, b_halves, count, part);
    }
    if constexpr (Tile::DEEP > 1) {
        static_assert((Tile::DEEP - 1) * ROWS * COLUMNS * 4 <= STAGE, "sums replace the copies");
        barrier_sync();  // no warp multiplies any more
        add_parts<Tile>(sums, shared, group, part);
    }

    // The elements of c in shared memory, each row as many elements after a multiple of 16 bytes as in device memory.
    const ElementOutput<EPILOGUE, T> output{c, bias, m, n, pitch, alpha, beta};
    const unsigned staged = base + min(chunks, Tile::STAGES) * STAGE, lines = min(ROWS, m - row), width = min(COLUMNS, n - col);
    T* const corner = c + static_cast<size_t>(row) * pitch + col;
    const unsigned first = reinterpret_cast<unsigned long long>(corner) / sizeof(T) % VECTOR;
    const bool flat = width == pitch;  // the rows of the tile are one row in memory
    auto phase = [&](unsigned r) { return (first + r * pitch) % VECTOR; };
    if (part == 0) {
        const unsigned line = flat ? pitch : STAGED, left = own_col + lane % 4 * 2;
        const unsigned at = staged + (own_row * line + (flat ? first : phase(own_row)) + left) * 2;
        const bool pairs = !flat && (first | pitch) % 2 == 0;
#pragma unroll
        for (int i = 0; i < Tile::WM / 16; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned of_row = at + (16 * i + 8 * half) * line * 2;
#pragma unroll
                for (int j = 0; j < Tile::WN / 8; j++) {
                    const float* const d = sums[i][j] + 2 * half;
                    const unsigned found = output.finish(d[0], d[1], row + own_row + 16 * i + 8 * half, col + left + 8 * j);
                    if (pairs) {
                        st_shared(of_row + 16 * j, found);
                    } else {
                        if (left + 8 * j < width) st_shared(of_row + 16 * j, static_cast<unsigned short>(found));
                        if (left + 8 * j + 1 < width) st_shared(of_row + 16 * j + 2, static_cast<unsigned short>(found >> 16));
                    }
                }
            }
        }
    }
    barrier_sync();
    const unsigned char* const from = shared + (staged - base);
    if (flat) {
        const unsigned count = first + lines * width;
        for (unsigned at = threadIdx.x * VECTOR; at < count; at += THREADS * VECTOR) {
            const T* const found = reinterpret_cast<const T*>(from) + at;
            T* const to = corner - first + at;
            if (at >= first && at + VECTOR <= count) {
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(found);
            } else {
                for (unsigned i = 0; i < VECTOR; i++) {
                    if (at + i >= first && at + i < count) to[i] = found[i];
                }
            }
        }
        return;
    }
    {  // whole vectors: LANES neighbouring threads store those of a row
        constexpr unsigned LANES = (COLUMNS - 1) / VECTOR + 1, AT_ONCE = THREADS / LANES;
        const unsigned line = threadIdx.x / LANES, shift = phase(line), vector = threadIdx.x % LANES + (shift > 0);
        T* to = corner + static_cast<size_t>(line) * pitch + VECTOR * vector - shift;
        const unsigned char* at = from + (line * STAGED + VECTOR * vector) * 2;
        if (vector < (shift + width) / VECTOR) {
#pragma unroll
            for (unsigned i = 0; i < (ROWS - 1) / AT_ONCE + 1; i++) {
                if (line + i * AT_ONCE < lines) {
                    *reinterpret_cast<uint4*>(to + i * AT_ONCE * static_cast<size_t>(pitch)) =
                        *reinterpret_cast<const uint4*>(at + i * AT_ONCE * STAGED * 2);
                }
            }
        }
    }
    if ((first | pitch | width) % VECTOR == 0) return;
    {  // elements before the first and after the last of them
        constexpr unsigned AT_ONCE = THREADS / VECTOR;
        const unsigned line = threadIdx.x / VECTOR, shift = phase(line), element = threadIdx.x % VECTOR;
        const unsigned end = shift + width, last = end - end % VECTOR;
        const bool head = shift > 0 && element >= shift && element < end, tail = (last > 0 || shift == 0) && last + element < end;
        T* const to = corner + static_cast<size_t>(line) * pitch - shift + element;
        const T* const at = reinterpret_cast<const T*>(from) + line * STAGED + element;
#pragma unroll
        for (unsigned i = 0; i < (ROWS - 1) / AT_ONCE + 1; i++) {
            if (line + i * AT_ONCE >= lines) break;
            const size_t next = i * AT_ONCE * static_cast<size_t>(pitch);
            if (head) to[next] = at[i * AT_ONCE * STAGED];
            if (tail) to[next + last] = at[i * AT_ONCE * STAGED + last];
        }
    }
}

// Step 19 of matmul_wgmma.cu, for small products with a short k, whose time is the latency of one CTA: the launch, the bytes from device
// memory, the products, and the stores. A warp that has a scheduler for itself executes few instructions in a microsecond, so that each
// thread executes as few as possible, and many small CTAs share the SMs.
//
// The rows of a tile of a contiguous matrix are one piece of memory. One thread copies the pieces of a and of b to shared memory
// (cp.async.bulk), with all of k at once. Before that, while the previous grid still runs, it requests them from device memory to L2: a
// request reads nothing that the previous grid might write. If the rows are not one piece, or would begin in the same banks, all threads copy the
// vectors that contain a row (cp.async).
//
// The rows stay where the copies put them. A row that begins within a vector begins at the same place in shared memory: a lane adds this
// place to its address, and reads for mma.sync the words of its elements. If the row begins within a word, it reads a third word and takes
// two bytes of each. Rows at multiples of 16 bytes are read by ldmatrix.
//
// Elements of c are stored from registers, or put into shared memory first, as they lie in device memory, from a multiple of 16 bytes on, and
// stored by whole vectors. If a tile has all columns of a contiguous c, its rows are one row to store.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/short_rows.cuh"
#include "ptxkit/ptx/integer.cuh"
#include "ptxkit/ptx/mbarrier.cuh"

using namespace ptxkit;

constexpr unsigned SHORT_BARRIER_BYTES = 16;

// DOWN x ACROSS warps with WM rows and WN columns of c each, DEEP times, which divide k. STAGED: c is stored through shared memory.
template <int DOWN_, int ACROSS_, int DEEP_, int WM_, int WN_, int STAGED_>
struct ShortTile {
    static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, DEEP = DEEP_, WM = WM_, WN = WN_;
    static constexpr bool STAGED = STAGED_;
    static constexpr unsigned ROWS = DOWN * WM, COLUMNS = ACROSS * WN, THREADS = 32 * DOWN * ACROSS * DEEP;
    static_assert(WM % 16 == 0 && WN % 16 == 0, "rows of a tile begin at multiples of 16 bytes, and ldmatrix reads 16 of them");
    static_assert((COLUMNS & (COLUMNS - 1)) == 0, "neighbouring threads store a row");
    static_assert(THREADS >= 64, "a warp copies the last elements of both matrices while another one copies the pieces");
};

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

// Stores the sums of a tile whose first element of c is at (row, col) through shared memory, from `from` on: each row as many elements
// after a multiple of 16 bytes as in device memory. (own_row, own_col): the first sum of a lane's warp; `part`: see add_parts.
template <class Tile, class T, class Out>
__device__ __forceinline__ void store_staged(const float (&sums)[Tile::WM / 16][Tile::WN / 8][4], const Out& output, unsigned char* from,
                                             unsigned row, unsigned col, unsigned own_row, unsigned own_col, unsigned part) {
    constexpr unsigned ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, THREADS = Tile::THREADS, VECTOR = SHORT_VECTOR;
    constexpr unsigned STAGED = COLUMNS + VECTOR;
    const unsigned lane = laneid();
    own_row += lane / 4;
    const unsigned lines = min(ROWS, output.m - row), width = min(COLUMNS, output.n - col), pitch = output.pitch;
    T* const corner = output.c + static_cast<size_t>(row) * pitch + col;
    const unsigned first = reinterpret_cast<unsigned long long>(corner) / sizeof(T) % VECTOR;
    const bool flat = width == pitch;  // the rows of the tile are one row in memory
    auto phase = [&](unsigned r) { return (first + r * pitch) % VECTOR; };
    if (part == 0) {
        const unsigned line = flat ? pitch : STAGED, left = own_col + lane % 4 * 2;
        const unsigned at = cvta_to_shared(from) + (own_row * line + (flat ? first : phase(own_row)) + left) * 2;
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
        static_assert(AT_ONCE % VECTOR == 0, "all rows of a thread begin at the same place of a vector");
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
        static_assert(AT_ONCE % VECTOR == 0, "all rows of a thread begin at the same place of a vector");
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

// Stores the sums of a warp, whose first one is at (row, col), from registers: pairs where all rows of c begin at words.
template <class Tile, class T, class Out>
__device__ __forceinline__ void store_directly(const float (&sums)[Tile::WM / 16][Tile::WN / 8][4], const Out& output, unsigned row,
                                               unsigned col) {
    row += laneid() / 4, col += laneid() % 4 * 2;
    T* to = output.c + static_cast<size_t>(row) * output.pitch + col;
    const bool pairs = (reinterpret_cast<unsigned long long>(output.c) / sizeof(T) | output.pitch) % 2 == 0;
#pragma unroll
    for (int i = 0; i < Tile::WM / 8; i++, row += 8, to += static_cast<size_t>(8) * output.pitch) {
        if (row >= output.m) return;
#pragma unroll
        for (int j = 0; j < Tile::WN / 8; j++) {
            const float* const d = sums[i / 2][j] + i % 2 * 2;
            const unsigned found = output.finish(d[0], d[1], row, col + 8 * j), x = col + 8 * j;
            if (pairs && x + 1 < output.n) {
                *reinterpret_cast<unsigned*>(to + 8 * j) = found;
            } else {
                if (x < output.n) reinterpret_cast<unsigned short*>(to)[8 * j] = found;
                if (x + 1 < output.n) reinterpret_cast<unsigned short*>(to)[8 * j + 1] = found >> 16;
            }
        }
    }
}

// `staged_at`: byte of shared memory from which on c is stored with Tile::STAGED.
template <class Tile, class T, int EPILOGUE>
__global__ void __launch_bounds__(Tile::THREADS)
    matmul_short_k(const T* a, const T* b, T* c, const T* bias, unsigned m, unsigned n, unsigned k, float alpha, float beta,
                   unsigned pitch, unsigned a_pitch, unsigned b_pitch, unsigned a_stride, unsigned b_stride, unsigned staged_at) {
    extern __shared__ __align__(16) unsigned char shared[];
    const unsigned barrier = cvta_to_shared(shared), a_tile = barrier + SHORT_BARRIER_BYTES, b_tile = a_tile + Tile::ROWS * a_stride * 2;
    const unsigned lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned row = blockIdx.x * Tile::ROWS, col = blockIdx.y * Tile::COLUMNS;
    const ShortRows<T> of_a(a, row, Tile::ROWS, m, k, a_pitch, a_stride), of_b(b, col, Tile::COLUMNS, n, k, b_pitch, b_stride);
    // What the copies of pieces need is computed before the wait.
    const unsigned a_bytes = optimization_barrier(of_a.piece ? of_a.vector_bytes() : 0);
    const unsigned b_bytes = optimization_barrier(of_b.piece ? of_b.vector_bytes() : 0);
    const T *const a_from = optimization_barrier(of_a.from), *const b_from = optimization_barrier(of_b.from);
    const bool pieces = a_bytes + b_bytes > 0, by_threads = !of_a.piece || !of_b.piece, rests = of_a.has_rest() || of_b.has_rest();
    if (threadIdx.x == 0) {
        of_a.request();
        of_b.request();
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
    }
    if (pieces) barrier_sync();
    // The next grid starts after the wait, so that the requests of one grid alone are on their way. With more, SMs are filled unevenly, which
    // takes longer than it saves.
    follow_previous_grid_later();
    if (threadIdx.x == 0 && pieces) {
        mbarrier_arrive_expect_tx(barrier, a_bytes + b_bytes);
        if (a_bytes > 0) cp_async_bulk_shared_global(a_tile, a_from, a_bytes, barrier);
        if (b_bytes > 0) cp_async_bulk_shared_global(b_tile, b_from, b_bytes, barrier);
    }
    if (!of_a.piece) of_a.template copy_rows<Tile::THREADS>(a_tile);
    if (!of_b.piece) of_b.template copy_rows<Tile::THREADS>(b_tile);
    if (by_threads) cp_async_commit_group();
    if (of_a.has_rest() && threadIdx.x / SHORT_VECTOR == 4) of_a.copy_rest(a_tile, threadIdx.x % SHORT_VECTOR);
    if (of_b.has_rest() && threadIdx.x / SHORT_VECTOR == 5) of_b.copy_rest(b_tile, threadIdx.x % SHORT_VECTOR);
    const unsigned group = warp % (Tile::DOWN * Tile::ACROSS), part = warp / (Tile::DOWN * Tile::ACROSS);
    const unsigned own_row = group / Tile::ACROSS * Tile::WM, own_col = group % Tile::ACROSS * Tile::WN;
    float sums[Tile::WM / 16][Tile::WN / 8][4] = {};
    if (by_threads) cp_async_wait_group<0>();
    if (by_threads || rests) barrier_sync();
    if (pieces) mbarrier_wait(barrier, 0);

    multiply_short_rows<Tile::WM, Tile::WN, Tile::DEEP>(sums, of_a, of_b, a_tile, b_tile, own_row, own_col, part);
    if constexpr (Tile::DEEP > 1) {
        barrier_sync();  // no warp multiplies any more, and sums replace the copies
        add_parts<Tile>(sums, shared + SHORT_BARRIER_BYTES, group, part);
    }
    const ElementOutput<EPILOGUE, T> output{c, bias, m, n, pitch, alpha, beta};
    if constexpr (Tile::STAGED) store_staged<Tile, T>(sums, output, shared + staged_at, row, col, own_row, own_col, part);
    else if (part == 0) store_directly<Tile, T>(sums, output, row + own_row, col + own_col);
}

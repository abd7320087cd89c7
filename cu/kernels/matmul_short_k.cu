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
template <int DOWN_, int ACROSS_, int DEEP_, int WM_, int WN_, int DEPTH_>
struct ShortTile {
    static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, DEEP = DEEP_, WM = WM_, WN = WN_;
    static constexpr unsigned DEPTH = DEPTH_, STAGES = DEPTH_ == 64 ? 5 : 3;
    static constexpr unsigned PITCH = DEPTH * 2 + 16, LANES = DEPTH / 8;
    static constexpr unsigned ROWS = DOWN * WM, COLUMNS = ACROSS * WN, THREADS = 32 * DOWN * ACROSS * DEEP;
    static_assert(WM % 16 == 0 && WN % 8 == 0 && THREADS / LANES % 8 == 0, "threads copy rows that are a multiple of 8 apart");
    static_assert((COLUMNS & (COLUMNS - 1)) == 0, "neighbouring threads store a row");
};

// LINES rows of a matrix in a tile, of which a thread copies the vectors at one place of every STRIDE-th row. These rows are a multiple
// of 8 apart, and therefore begin at the same place of an aligned vector. What is not copied is left as it is: lines after the last row of
// the matrix, whose sums are not stored, and elements after the end of a row, which are replaced by zeros when they are multiplied.
template <unsigned LINES, class Tile, class T>
struct ShortRows {
    static constexpr unsigned STRIDE = Tile::THREADS / Tile::LANES, OF_THREAD = (LINES - 1) / STRIDE + 1;
    static_assert(LINES <= Tile::THREADS, "a thread copies the last vector of a line");
    const T* of_tile;
    unsigned lines, pitch, k;
    bool inside;  // whether the tile does not have the last row of the matrix

    __device__ __forceinline__ ShortRows(const T* matrix, unsigned first, unsigned all_rows, unsigned k, unsigned pitch)
        : of_tile(matrix + static_cast<size_t>(first) * pitch), lines(min(LINES, all_rows - first)), pitch(pitch), k(k),
          inside(first + LINES < all_rows) {}

    // Elements before a line in its first vector, whose number in the tile is a multiple of 8 from that in the matrix.
    __device__ __forceinline__ unsigned before(unsigned line) const { return line * (pitch % SHORT_VECTOR) % SHORT_VECTOR; }

    // Copies the vectors with the elements of k from `begin` on.
    __device__ __forceinline__ void copy(unsigned stage, unsigned begin) const {
        const unsigned line = threadIdx.x / Tile::LANES, column = threadIdx.x % Tile::LANES, x = begin + column * SHORT_VECTOR;
        const unsigned end = before(line) + k, to = stage + line * Tile::PITCH + column * 16;
        const T* from = of_tile + static_cast<size_t>(line) * pitch + x - before(line);
        const size_t stride = static_cast<size_t>(STRIDE) * pitch;
        if (x < end && inside) {
#pragma unroll
            for (unsigned i = 0; i < OF_THREAD; i++) {
                if (LINES % STRIDE == 0 || line + i * STRIDE < LINES) cp_async_cg_shared_global_L2_128B(to + i * (STRIDE * Tile::PITCH), from);
                from += stride;
            }
        } else if (x < end) {
            const unsigned left = min(end - x, SHORT_VECTOR) * 2;  // the matrix may end within the last vector of its last row
#pragma unroll 1
            for (unsigned row = line, at = to; row < lines; row += STRIDE, at += STRIDE * Tile::PITCH) {
                cp_async_cg_shared_global_L2_128B(at, from, row + 1 < lines ? 16 : left);
                from += stride;
            }
        }
        if (k - begin + SHORT_VECTOR > Tile::DEPTH && threadIdx.x < lines) {  // the last vector of a chunk, for a line of each thread
            const unsigned line = threadIdx.x, end = before(line) + k, x = begin + Tile::DEPTH;
            if (x < end) {
                cp_async_cg_shared_global_L2_128B(stage + line * Tile::PITCH + Tile::DEPTH * 2,
                                                  of_tile + static_cast<size_t>(line) * pitch + x - before(line),
                                                  min(end - x, SHORT_VECTOR) * 2);
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
    const unsigned ahead = min(chunks, Tile::STAGES) - 1;  // chunks that are copied before the first one is multiplied
#pragma unroll 1
    for (unsigned i = 0; i < chunks + ahead; i++) {
        if (i < chunks) {
            const unsigned stage = base + i % Tile::STAGES * STAGE;
            if (i >= Tile::STAGES) barrier_sync();  // all warps have read the stage
            of_a.copy(stage, i * Tile::DEPTH);
            of_b.copy(stage + ROWS * Tile::PITCH, i * Tile::DEPTH);
            cp_async_commit_group();
        }
        if (i < ahead) continue;
        const unsigned chunk = i - ahead, stage = base + chunk % Tile::STAGES * STAGE;
        if (i < chunks && ahead == Tile::STAGES - 1) cp_async_wait_group<Tile::STAGES - 1>();
        else cp_async_wait_all();
        barrier_sync();
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
        auto each = [&](auto store) {  // of two elements at a column, whose place in shared memory is `to`
#pragma unroll
            for (int i = 0; i < Tile::WM / 16; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const unsigned down = 16 * i + 8 * half, of_row = at + down * line * 2;
#pragma unroll
                    for (int j = 0; j < Tile::WN / 8; j++) {
                        const float* const d = sums[i][j] + 2 * half;
                        const unsigned column = left + 8 * j;
                        store(of_row + 16 * j, column, output.finish(d[0], d[1], row + own_row + down, col + column));
                    }
                }
            }
        };
        auto upper = [](unsigned pair) { return static_cast<unsigned short>(pair >> 16); };
        if (flat) {  // what is after the last column is the next row
            each([&](unsigned to, unsigned column, unsigned pair) {
                if (column < width) st_shared(to, static_cast<unsigned short>(pair));
                if (column + 1 < width) st_shared(to + 2, upper(pair));
            });
        } else if ((first | pitch) % 2 == 0) {
            each([&](unsigned to, unsigned, unsigned pair) { st_shared(to, pair); });
        } else {
            each([&](unsigned to, unsigned, unsigned pair) {
                st_shared(to, static_cast<unsigned short>(pair));
                st_shared(to + 2, upper(pair));
            });
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
        const bool head = line < lines && shift > 0 && element >= shift && element < end;
        const bool tail = line < lines && (last > 0 || shift == 0) && last + element < end;
        T* const to = corner + static_cast<size_t>(line) * pitch - shift + element;
        const T* const at = reinterpret_cast<const T*>(from) + line * STAGED + element;
        constexpr unsigned COUNT = (ROWS - 1) / AT_ONCE + 1;
        T heads[COUNT], tails[COUNT];
#pragma unroll
        for (unsigned i = 0; i < COUNT; i++) {
            if (head) heads[i] = at[i * AT_ONCE * STAGED];
            if (tail) tails[i] = at[i * AT_ONCE * STAGED + last];
        }
#pragma unroll
        for (unsigned i = 0; i < COUNT; i++) {
            const size_t next = i * AT_ONCE * static_cast<size_t>(pitch);
            const bool there = line + i * AT_ONCE < lines;
            if (head && there) to[next] = heads[i];
            if (tail && there) to[next + last] = tails[i];
        }
    }
}

// Step 17 of matmul_wgmma.cu, for rows of any length where a launch that copies them first would take as long as the product:
// with a short k, or few rows of a.
//
// All threads of a CTA copy the aligned vectors that contain the rows of a tile (cp.async), of up to SHIFTED_STAGES steps along k at
// the same time, shift them into vectors of the rows, and store these where TMA would have put them, for wgmma. Step 11 loads the
// same vectors into registers, a few at a time, and waits for each batch. Several CTAs share an SM, so that one copies
// while another one shifts or multiplies.
//
// Where there are few tiles, the CTAs of a cluster multiply a part of k each. Each CTA then adds its share of the rows of the tile,
// which it reads from the shared memory of all of them, in the order of the parts.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/staged_rows.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"
#include "ptxkit/ptx/async_copy.cuh"

using namespace ptxkit;

constexpr unsigned SHIFTED_STAGES = 4;
constexpr unsigned ALIGNED_BYTES = 9 * 16;  // of the aligned vectors with the 128 bytes of a row in a step

// CONSUMERS: warpgroups, each with 64 rows of a tile. COLUMNS: of a tile, a multiple of 64.
template <int CONSUMERS_, int COLUMNS_>
struct ShiftedTile {
    static constexpr int CONSUMERS = CONSUMERS_, COLUMNS = COLUMNS_;
};

// LINES rows of a matrix in a tile, of which a thread copies and shifts the vectors at `column` of every STRIDE-th one. These are a
// multiple of 8 rows apart, and therefore begin at the same place of an aligned vector. Lines beyond the last row of the
// matrix are left as they are: their sums are not stored.
template <int LINES, int THREADS, class T>
struct ShiftedRows {
    static constexpr unsigned STRIDE = THREADS / 8, OF_THREAD = LINES / STRIDE;
    static_assert(STRIDE % 8 == 0 && LINES % STRIDE == 0, "all lines of a thread begin at the same place");
    const T* from;  // the aligned vector with element 0 of the first line
    size_t stride;
    unsigned line, column, rows, before;  // before: elements of that vector before the line
    int k;

    __device__ __forceinline__ ShiftedRows(const T* matrix, unsigned first, unsigned all_rows, unsigned k, unsigned pitch)
        : line(threadIdx.x / 8), column(threadIdx.x % 8), k(k) {
        const unsigned row = first + line;
        before = row % 8 * (pitch % 8) % 8;
        from = matrix + static_cast<size_t>(row) * pitch - before;
        stride = static_cast<size_t>(STRIDE) * pitch;
        rows = row < all_rows ? (all_rows - 1 - row) / STRIDE + 1 : 0;
    }

    // Copies the vectors of a step to shared memory, one line after another.
    __device__ __forceinline__ void copy(unsigned to, unsigned step) const {
        auto vectors = [&](unsigned which) {
            const int x = step * WGMMA_BK + which * 8;  // from the aligned vector on
            const int bytes = max(0, min(k + int(before) - x, 8)) * 2;
#pragma unroll
            for (unsigned i = 0; i < OF_THREAD; i++) {
                const unsigned at = to + (line + i * STRIDE) * ALIGNED_BYTES + which * 16;
                if (i < rows) cp_async_cg_shared_global_L2_128B(at, from + i * stride + x, bytes);
            }
        };
        vectors(column);
        if (before > 0 && column == 0) vectors(8);
    }

    // Stores the vectors of the rows, with the 128-byte swizzle.
    __device__ __forceinline__ void shift(unsigned to, unsigned copied) const {
#pragma unroll
        for (unsigned i = 0; i < OF_THREAD; i++) {
            if (i >= rows) continue;
            const unsigned at = copied + (line + i * STRIDE) * ALIGNED_BYTES + column * 16;
            uint4 found = ld_shared_v4(at);
            if (before > 0) found = shifted<sizeof(T)>(found, ld_shared_v4(at + 16), before * sizeof(T));
            st_shared(to + swizzled<128>((line + i * STRIDE) * 128 + column * 16), found);
        }
    }
};

template <class Tile, class T, int EPILOGUE>
__global__ void __launch_bounds__(128 * Tile::CONSUMERS)
    matmul_shifted(const T* a, const T* b, T* c, const T* bias, unsigned m, unsigned n, unsigned k, float alpha, float beta,
                   unsigned pitch, unsigned a_pitch, unsigned b_pitch, unsigned parts) {
    constexpr int THREADS = 128 * Tile::CONSUMERS, COLUMNS = Tile::COLUMNS;
    constexpr unsigned ROWS = 64 * Tile::CONSUMERS, LINES = ROWS + COLUMNS, PITCH = COLUMNS + 4;
    constexpr unsigned TILE = LINES * WGMMA_ROW_BYTES, COPIED = LINES * ALIGNED_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned down = (m - 1) / ROWS + 1, all_steps = (k - 1) / WGMMA_BK + 1, part = blockIdx.x % parts;
    const unsigned row = blockIdx.x / parts % down * ROWS, col = blockIdx.x / parts / down * COLUMNS;
    const unsigned begin = all_steps * part / parts, steps = all_steps * (part + 1) / parts - begin;
    const unsigned copied = base + min(steps, 2u) * TILE;  // after one tile or two, which take turns
    const ShiftedRows<ROWS, THREADS, T> of_a(a, row, m, k, a_pitch);
    const ShiftedRows<COLUMNS, THREADS, T> of_b(b, col, n, k, b_pitch);
    auto copy = [&](unsigned step) {
        const unsigned to = copied + step % SHIFTED_STAGES * COPIED;
        if (step < steps) {
            of_b.copy(to + ROWS * ALIGNED_BYTES, begin + step);
            of_a.copy(to, begin + step);
        }
        cp_async_commit_group();
    };

    follow_previous_grid();
    for (unsigned i = 0; i < SHIFTED_STAGES; i++) copy(i);
    float sums[1][COLUMNS / 2];
    for (unsigned step = 0; step < steps; step++) {
        const unsigned tile = base + step % 2 * TILE, from = copied + step % SHIFTED_STAGES * COPIED;
        cp_async_wait_group<SHIFTED_STAGES - 1>();
        if (step > 0) wgmma_wait_group<1>();  // the product before the previous one is complete
        barrier_sync();
        of_a.shift(tile, from);
        of_b.shift(tile + ROWS * WGMMA_ROW_BYTES, from + ROWS * ALIGNED_BYTES);
        fence_proxy_async_shared_cta();  // of each thread's own stores
        barrier_sync();
        copy(step + SHIFTED_STAGES);
        multiply_tile<T, Operands<>>(sums, tile + warp / 4 * WGMMA_BLOCK_BYTES, tile + ROWS * WGMMA_ROW_BYTES, step > 0);
    }
    wait_for_sums(sums);
    cp_async_wait_all();

    ElementOutput<EPILOGUE, T> output{c, bias, m, n, pitch, alpha, beta};
    if (parts == 1) {  // rows of c take the place of the copied vectors, which no thread reads any more
        unsigned char* const staged = shared + (copied - base) + warp * shifted_bytes<COLUMNS>;
        store_shifted_rows<1, COLUMNS>(sums, output, staged, row + warp / 4 * 64, col);
        return;
    }
    barrier_sync();  // no warp multiplies any more
    float* of_tile = reinterpret_cast<float*>(shared);
    float* own = of_tile + (warp * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; j += 4) {
        *reinterpret_cast<float2*>(own + 2 * j) = {sums[0][j], sums[0][j + 1]};
        *reinterpret_cast<float2*>(own + 2 * j + 8 * PITCH) = {sums[0][j + 2], sums[0][j + 3]};
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    float* box = of_tile + ROWS * PITCH + warp * STAGED_COLUMNS;  // a row of this warp
#pragma unroll 1
    for (unsigned pass = 0; pass < COLUMNS / STAGED_COLUMNS; pass++) {
        const unsigned first = col + STAGED_COLUMNS * pass;
        const auto columns = output.columns(first);
#pragma unroll 1
        for (unsigned r = warp * parts + part; r < min(ROWS, m - row); r += 4 * Tile::CONSUMERS * parts) {
            const unsigned at = base + (r * PITCH + STAGED_COLUMNS * pass + 2 * lane) * 4;
            float x = 0, y = 0;
            for (unsigned i = 0; i < parts; i++) {
                const unsigned of_cta = mapa_shared_cluster(at, i);
                x += ld_shared_cluster_f32(of_cta);
                y += ld_shared_cluster_f32(of_cta + 4);
            }
            __syncwarp();  // the previous row has been read
            *reinterpret_cast<float2*>(box + 2 * lane) = {x, y};
            __syncwarp();
            output.row(box, row + r, first, columns);
        }
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA exits while another one reads its sums
}

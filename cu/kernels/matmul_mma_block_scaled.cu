// Block-scaled matrix product by mma.sync, for sm_120a: c = a b^T, where a is m x k and b is n x k, both quantized to
// MXFP8, MXFP4 or NVFP4 by quantize_blocks.cu, k a multiple of 32. c is m x n in bf16, row-major with n a multiple of 8;
// sums are f32.
//
// It is step 5 of matmul_mma.cu with scale factors: cp.async fills a ring of tiles, ldmatrix loads operands, and the
// sums are stored through shared memory. sm_120 has neither tensor memory nor wgmma, and 99 KB of shared memory for a
// CTA. An operand of mma.sync is 32 bytes wide whatever the elements are, and has the layout of 16 elements of 16 bits,
// so that the tiles are copied and loaded as matrices of 16-bit units.
#include "ptxkit/gemm/block_scale.cuh"
#include "ptxkit/gemm/mma.cuh"

using namespace ptxkit;

constexpr int ROW_UNITS = 64;  // 16-bit units of a row of a tile: 128 bytes

// Where the 16 bytes with the factors of rows r, r + 32, r + 64 and r + 96 are in a group of scale factors in shared
// memory. A lane reads those of r = lane / 4 + 8 (lane % 4); the rotation of each eight places by two spreads the reads
// of eight lanes over all banks.
__device__ __forceinline__ unsigned scale_place(unsigned r) { return r & 24 | (r + r / 8 * 2) & 7; }

// The scale factors of a stage, in shared memory: for 128 rows of a, then for 128 of b, SCALE_BYTES for each group of
// four factors, as in device memory (block_scale.cuh) but for the order of the 16 bytes.
template <class Format>
struct Scales {
    static constexpr int groups = ROW_UNITS * 16 / Format::bits / Format::block / SCALE_COLUMNS;
    static constexpr int operand_bytes = groups * SCALE_BYTES, bytes = 2 * operand_bytes;
    static constexpr int atoms = bytes / 16;

    // Copies those of stage number `step`; groups beyond the matrices are zero. `row` and `col` are those of the CTA's
    // tile, `across` the groups of a row.
    template <int THREADS>
    static __device__ __forceinline__ void copy(unsigned to, const unsigned char* a, const unsigned char* b,
                                                unsigned row, unsigned col, unsigned step, unsigned across) {
        const size_t a_group = static_cast<size_t>(row / SCALE_ROWS) * across + step * groups;
        const size_t b_group = static_cast<size_t>(col / SCALE_ROWS) * across + step * groups;
#pragma unroll
        for (int first = 0; first < atoms; first += THREADS) {
            const unsigned atom = first + threadIdx.x, within = atom % (atoms / 2);
            if (atom >= atoms) break;
            const unsigned char* from = atom < atoms / 2 ? a + a_group * SCALE_BYTES : b + b_group * SCALE_BYTES;
            const bool inside = step * groups + within / (SCALE_BYTES / 16) < across;
            cp_async_cg_shared_global(to + (atom / 32 * 32 + scale_place(atom % 32)) * 16, from + within * 16,
                                      inside ? 16 : 0);
        }
    }
};

// The scale factors of ROWS rows of an operand for one group: words[i] has those of row first_row + 32 i + lane_row.
template <int ROWS>
__device__ __forceinline__ void load_scales(unsigned (&words)[ROWS / 32], const unsigned char* group,
                                            unsigned first_row, unsigned lane_row) {
    const uint4 four = *reinterpret_cast<const uint4*>(group + scale_place(lane_row) * 16);
    const unsigned first = first_row % SCALE_ROWS / 32;
#pragma unroll
    for (int i = 0; i < ROWS / 32; i++) {
        const unsigned at = first + i, low = at & 1 ? four.y : four.x, high = at & 1 ? four.w : four.z;
        words[i] = at & 2 ? high : low;
    }
}

template <class Format, class S>
__global__ void __launch_bounds__(S::threads) matmul_mma_block_scaled(const unsigned char* a, const unsigned char* b,
                                                                      const unsigned char* a_scales,
                                                                      const unsigned char* b_scales, bf16* c, int m,
                                                                      int n, int k) {
    constexpr int BM = S::BM, BN = S::BN, WM = S::WM, WN = S::WN, STAGES = S::STAGES;
    constexpr int scales_at = S::stage_bytes, stage_bytes = S::stage_bytes + Scales<Format>::bytes;
    static_assert(S::BK == ROW_UNITS, "rows of tiles have 128 bytes");
    static_assert(SCALE_ROWS % BM == 0 && SCALE_ROWS % BN == 0, "a stage has the scale factors of 128 rows");
    static_assert(WM % 32 == 0 && WN % 32 == 0, "a lane loads scale factors of every 32nd row");
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
    static_assert(S::warps * S::box_bytes <= STAGES * stage_bytes, "the sums are stored through the stages");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), end = base + STAGES * stage_bytes;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const TileIndex t = grouped_tile<S::GROUP>(blockIdx.x, (m - 1) / BM + 1, (n - 1) / BN + 1);
    const unsigned row = t.row * BM, col = t.col * BN;
    const unsigned units = k * Format::bits / 16, steps = (units - 1) / ROW_UNITS + 1;
    const unsigned across = (k / Format::block - 1) / SCALE_COLUMNS + 1;
    auto next = [&](unsigned stage) { return stage + stage_bytes == end ? base : stage + stage_bytes; };

    // Past the last step the copies are zeros.
    Copier<BM, ROW_UNITS, S::threads, true, unsigned short> a_copier;
    Copier<BN, ROW_UNITS, S::threads, true, unsigned short> b_copier;
    a_copier.begin(reinterpret_cast<const unsigned short*>(a), row, m, units);
    b_copier.begin(reinterpret_cast<const unsigned short*>(b), col, n, units);
    unsigned filled = base, step_filled = 0;
    auto fill = [&] {
        a_copier.copy(filled);
        b_copier.copy(filled + S::a_bytes);
        Scales<Format>::template copy<S::threads>(filled + scales_at, a_scales, b_scales, row, col, step_filled,
                                                  across);
        cp_async_commit_group();
        a_copier.advance();
        b_copier.advance();
        filled = next(filled);
        step_filled++;
    };

    follow_previous_grid();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) fill();
    float sums[WM / 16][WN / 8][4] = {};
    const OperandOffsets<ROW_UNITS, true> offsets(warp_row, warp_col);
    // The row of each 32 whose factors this lane holds. Of a, row g of matrix 2 i + h has them in thread 4 g + 2 h, and row
    // g + 8 in the next thread; of b, column g of matrix 4 j + t has them in thread 4 g + t.
    const unsigned scale_row = lane / 4 + lane % 4 * 8;
    unsigned read = base;
    for (unsigned step = 0; step < steps; step++) {
        cp_async_wait_group<STAGES - 2>();  // this stage is filled
        barrier_sync();                     // for all threads, which have read the stage that is filled next
        fill();
        unsigned a_scale[WM / 32], b_scale[WN / 32];
#pragma unroll
        for (int part = 0; part < ROW_UNITS / 16; part++) {
            // An instruction that needs four factors for each row takes a whole group; others take one or two bytes.
            const int group = part * Format::scales / SCALE_COLUMNS, byte = part * Format::scales % SCALE_COLUMNS;
            if (byte == 0) {
                const unsigned char* scales = shared + (read - base) + scales_at + group * SCALE_BYTES;
                load_scales<WM>(a_scale, scales, row + warp_row, scale_row);
                load_scales<WN>(b_scale, scales + Scales<Format>::operand_bytes, col + warp_col, scale_row);
            }
            Fragments<WM, WN> fragments;
            fragments.load(read, read + S::a_bytes, offsets, 16 * part);
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
#pragma unroll
                for (int j = 0; j < WN / 8; j++) {
                    Format::multiply(sums[i][j], fragments.a[i], fragments.b[j], a_scale[i / 2], b_scale[j / 4], byte,
                                     i % 2, j % 4);
                }
            }
        }
        read = next(read);
    }
    cp_async_wait_all();
    barrier_sync();  // all stages have been read
    const Output<PLAIN, bf16> output{c, nullptr, unsigned(m), unsigned(n), 1.0f, 0.0f};
    store_through_shared<WM, WN>(sums, output, shared + warp * S::box_bytes, row + warp_row, col + warp_col);
}

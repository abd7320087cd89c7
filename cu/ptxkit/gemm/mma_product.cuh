// A matrix product by mma.sync from a ring of tiles that cp.async fills: c = a b^T, where a is m x k, b is n x k and c
// is m x n, all row-major with rows of a multiple of 16 bytes, in bf16 or f16 with sums in f32.
// cu/kernels/matmul_mma.cu explains it step by step. The epilogue is an object with the members of Output in gemm.cuh.
#pragma once
#include "ptxkit/gemm/mma.cuh"

namespace ptxkit {

// The product as the body of a kernel with S::threads threads and one CTA for each tile of c. Dynamic shared memory:
// the stages and, with COALESCED, a box of S::box_bytes for each warp, through which it stores the sums. AHEAD: the
// fragments of the next part are loaded during the products of this one.
template <class T, class S, bool AHEAD, bool COALESCED, class Out>
__device__ __forceinline__ void mma_product(const T* a, const T* b, const Out& output, int m, int n, int k) {
    constexpr int BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN, STAGES = S::STAGES, GROUP = S::GROUP;
    constexpr int stage_bytes = S::stage_bytes, parts = BK / 16;
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), end = base + STAGES * stage_bytes;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const TileIndex t = grouped_tile<GROUP>(blockIdx.x, (m - 1) / BM + 1, (n - 1) / BN + 1);
    const unsigned steps = (k - 1) / BK + 1;
    auto next = [&](unsigned stage) { return stage + stage_bytes == end ? base : stage + stage_bytes; };

    // A stage is filled in parts, the last of which commits the cp.async group. Past the last step the copies are
    // zeros.
    Copier<BM, BK, S::threads, true, T> a_copier;
    Copier<BN, BK, S::threads, true, T> b_copier;
    a_copier.begin(a, t.row * BM, m, k);
    b_copier.begin(b, t.col * BN, n, k);
    unsigned filled = base, read = base;
    auto fill = [&](int part, int all) {
        a_copier.copy(filled, part, all);
        b_copier.copy(filled + S::a_bytes, part, all);
        if (part + 1 == all) {
            cp_async_commit_group();
            a_copier.advance();
            b_copier.advance();
            filled = next(filled);
        }
    };
    // Waits until the next stage is filled and all warps have read the stage before the current one.
    auto wait_for_stage = [] {
        cp_async_wait_group<STAGES - 2>();
        barrier_sync();
    };
    const OperandOffsets<BK, true> offsets(warp_row, warp_col);
    auto load = [&](Fragments<WM, WN>& fragments, unsigned stage, int part) {
        fragments.load(stage, stage + S::a_bytes, offsets, part * 16);
    };

    follow_previous_grid();
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) fill(0, 1);
    float sums[WM / 16][WN / 8][4] = {};
    Fragments<WM, WN> fragments[2];
    if constexpr (AHEAD) {
        wait_for_stage();
        load(fragments[0], read, 0);
    }
    for (unsigned step = 0; step < steps; step++) {
        const unsigned following = next(read);
        if constexpr (!AHEAD) {
            wait_for_stage();
            fill(0, 1);
        }
#pragma unroll
        for (int part = 0; part < parts; part++) {
            if constexpr (AHEAD) {
                const bool last = part == parts - 1;
                if (last) wait_for_stage();  // the last fragments of this stage have been loaded
                load(fragments[(part + 1) % 2], last ? following : read, (part + 1) % parts);
                if (!last) fill(part, parts - 1);
                fragments[part % 2].template multiply<T>(sums);
            } else {
                load(fragments[0], read, part);
                fragments[0].template multiply<T>(sums);
            }
        }
        read = following;
    }
    const unsigned row = t.row * BM + warp_row, col = t.col * BN + warp_col;
    if constexpr (COALESCED) {
        store_through_shared<WM, WN>(sums, output, shared + STAGES * stage_bytes + warp * S::box_bytes, row, col);
    } else {
        store_from_registers<WM, WN>(sums, output, row, col);
    }
    cp_async_wait_all();  // shared memory is released when the CTA exits
}

}  // namespace ptxkit

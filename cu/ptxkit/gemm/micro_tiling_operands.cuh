// How producer threads fill a stage of the ring of micro_tiling.cuh with step `step` of k of a tile of a and of b: by TMA,
// which needs rows of multiples of 16 bytes, or by cp.async, for rows of any length. The contents are the same: rows of a
// swizzled, zeros beyond the matrices. A stage's mbarrier expects ARRIVALS arrivals. REGISTERS: of a producer thread, to
// which setmaxnreg limits its warpgroup. WHOLE: rows of c are stored as vectors of 16 bytes.
//
// Producers permit the next grid to start (griddepcontrol.launch_dependents) after their last copies. CTAs that start earlier are
// placed on idle SMs, several on one: small products take up to a fifth less time since they start later.
#pragma once
#include "ptxkit/gemm/micro_tiling.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/wgmma.cuh"

namespace ptxkit::micro_tiling {

// One thread issues two boxes. WHOLE: rows of c are multiples of 16 bytes; as an argument of the kernel, it made step 9 1 to 2%
// slower.
template <bool WHOLE_ = true>
struct BoxedOperands {
    static constexpr bool WHOLE = WHOLE_;
    static constexpr int THREADS = 1, ARRIVALS = 1, REGISTERS = 24;
    const TensorMap &a, &b;

    template <class Tile>
    struct Of {
        const BoxedOperands& operands;
        TileOrigin origin;

        __device__ __forceinline__ Of(const BoxedOperands& operands, TileOrigin origin, int, int, int, int)
            : operands(operands), origin(origin) {}
        __device__ __forceinline__ void copy(unsigned stage, int step, unsigned barrier) const {
            constexpr int A_BYTES = Tile::BM * Tile::BK * 4, BYTES = A_BYTES + Tile::BN * Tile::BK * 4;
            mbarrier_arrive_expect_tx(barrier, BYTES);
            cp_async_bulk_tensor_2d_shared_global(stage, operands.a, step * Tile::BK, origin.row, barrier);
            cp_async_bulk_tensor_2d_shared_global(stage + A_BYTES, operands.b, origin.col, step * Tile::BK, barrier);
        }
    };
};

// Threads that fill the ring for THREADS that multiply: a warpgroup, which gives them registers (setmaxnreg), or half of one if those are
// no whole warpgroups.
template <int THREADS>
constexpr int PRODUCERS = THREADS % 128 == 0 ? 128 : 64;

template <class Tile>
constexpr int ALL_THREADS = InterleavedLanesOf<Tile>::THREADS + PRODUCERS<InterleavedLanesOf<Tile>::THREADS>;

// How many threads of a warp copy a row of so many copies: the largest power of two of which the row has a multiple.
__host__ __device__ constexpr int copies_across(int copies) { return (copies & -copies) < 32 ? copies & -copies : 32; }

// What one of THREADS copies of a tile of ROWS x COLS elements, WIDE of them at a time: it keeps its column, so that its
// addresses advance by constants; a warp copies some neighbouring rows at a time, or a row by as many copies as it needs. Each
// instruction of a producer takes an issue slot from the multiplications.
template <int THREADS, int WIDE, int ROWS, int COLS>
struct Elements {
    static constexpr int ACROSS = copies_across(COLS / WIDE), DOWN = THREADS / ACROSS;  // threads of a pass
    static constexpr int PASSES = (ROWS - 1) / DOWN + 1, ALONG = COLS / (ACROSS * WIDE);
    static constexpr bool ALL = ROWS >= DOWN;  // threads have a row; otherwise those of the first ROWS rows
    static_assert((ALL ? ROWS % DOWN : 0) == 0 && COLS % (ACROSS * WIDE) == 0, "whole passes");

    static __device__ __forceinline__ int row(int thread) { return thread / ACROSS; }
    static __device__ __forceinline__ int col(int thread) { return thread % ACROSS * WIDE; }

    // Copies, or writes zeros where `inside` is false.
    template <bool INSIDE>
    static __device__ __forceinline__ void copy(unsigned to, const float* from, bool inside) {
        if constexpr (INSIDE) {
            if constexpr (WIDE == 1) cp_async_ca_shared_global_4(to, from);
            else if constexpr (WIDE == 2) cp_async_ca_shared_global_8(to, from);
            else cp_async_cg_shared_global(to, from);
        } else {
            if constexpr (WIDE == 1) cp_async_ca_shared_global_4(to, from, inside ? 4 : 0);
            else if constexpr (WIDE == 2) cp_async_ca_shared_global_8(to, from, inside ? 8 : 0);
            else cp_async_cg_shared_global(to, from, inside ? 16 : 0);
        }
    }
};

// THREADS copy elements of rows of any length: a_wide and b_wide of them at a time, 1, 2 or 4, of which rows of a and of b
// have a multiple.
template <int THREADS_>
struct CopiedOperands {
    static constexpr bool WHOLE = false;
    static constexpr int THREADS = THREADS_, ARRIVALS = THREADS, REGISTERS = 48;
    const float *a, *b;
    int a_wide, b_wide;

    template <class Tile>
    struct Of {
        static constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, SPAN = BK * 4;
        const CopiedOperands& operands;
        const float *from_a, *from_b;
        int n, k, rows, columns;  // rows of a from the thread's first one on, columns of b from its first one on
        bool whole;               // the tile is within the matrices, and takes a path without comparisons
        static_assert(InterleavedLanesOf<Tile>::THREADS % THREADS == 0, "thread() is the number of a producer");

        __device__ __forceinline__ Of(const CopiedOperands& operands, TileOrigin origin, int thread, int m, int n, int k)
            : operands(operands), n(n), k(k), whole(origin.row + BM <= m && origin.col + BN <= n) {
            const int row = thread * operands.a_wide / BK, col = thread * operands.a_wide % BK;
            from_a = operands.a + static_cast<size_t>(origin.row + row) * k + col;
            rows = m - origin.row - row;
            const int b_across = across(operands.b_wide);  // elements of a pass
            const int b_row = thread * operands.b_wide / b_across, b_col = thread * operands.b_wide % b_across;
            from_b = operands.b + static_cast<size_t>(b_row) * n + origin.col + b_col;
            columns = n - origin.col - b_col;
        }

        static __device__ __forceinline__ int across(int wide) {
            if constexpr ((BN & (BN - 1)) == 0) return BN < 32 * wide ? BN : 32 * wide;
            else return wide == 1 ? copies_across(BN) : wide == 2 ? copies_across(BN / 2) * 2 : copies_across(BN / 4) * 4;
        }

        // Read again for each step, which takes fewer registers.
        static __device__ __forceinline__ int thread() { return threadIdx.x % THREADS; }

        template <int WIDE, bool INSIDE>
        __device__ __forceinline__ void copy_a(unsigned stage, int step) const {
            using E = Elements<THREADS, WIDE, BM, BK>;
            static_assert(E::ALONG == 1, "a thread has one column of a");
            const int row = E::row(thread()), col = E::col(thread());
            if (!E::ALL && row >= BM) return;
            const unsigned to = swizzled<SPAN>(row * SPAN + col * 4);
            const bool inside = col < k - step * BK;
            const float* a = from_a + step * BK;
#pragma unroll
            for (int s = 0; s < E::PASSES; ++s) {
                // Each bit of the row's number comes either from the thread or from s, and so does each bit of the swizzle.
                const unsigned pass = s * E::DOWN * SPAN, atom = swizzled<SPAN>(pass) ^ pass;
                E::template copy<INSIDE>(stage + (to ^ atom) + pass, a, inside && s * E::DOWN < rows);
                a += static_cast<size_t>(E::DOWN) * k;
            }
        }

        // Rows of b after those of last_depth are not read.
        static __device__ __forceinline__ bool skipped(int row, int left) {
            return row >= (left + CHUNK - 1) / CHUNK * CHUNK;
        }

        template <int WIDE, bool INSIDE>
        __device__ __forceinline__ void copy_b(unsigned stage, int step) const {
            using E = Elements<THREADS, WIDE, BK, BN>;
            const int row = E::row(thread()), left = k - step * BK;  // elements of k in this step and the later ones
            if (!E::ALL && row >= BK) return;
            const unsigned to = stage + BM * SPAN + (row * BN + E::col(thread())) * 4;
            const float* b = from_b + static_cast<size_t>(step * BK) * n;
#pragma unroll
            for (int s = 0; s < E::PASSES; ++s) {
                if (!INSIDE && skipped(row + s * E::DOWN, left)) break;
                const bool inside = row + s * E::DOWN < left;
#pragma unroll
                for (int p = 0; p < E::ALONG; ++p)
                    E::template copy<INSIDE>(to + (s * E::DOWN * BN + p * E::ACROSS * WIDE) * 4, b + p * E::ACROSS * WIDE,
                                             inside && p * E::ACROSS * WIDE < columns);
                b += static_cast<size_t>(E::DOWN) * n;
            }
        }

        template <bool INSIDE>
        __device__ __forceinline__ void copy_step(unsigned stage, int step) const {
            if (operands.a_wide == 1) copy_a<1, INSIDE>(stage, step);
            else if (operands.a_wide == 2) copy_a<2, INSIDE>(stage, step);
            else copy_a<4, INSIDE>(stage, step);
            if (operands.b_wide == 1) copy_b<1, INSIDE>(stage, step);
            else if (operands.b_wide == 2) copy_b<2, INSIDE>(stage, step);
            else copy_b<4, INSIDE>(stage, step);
        }

        __device__ __forceinline__ void copy(unsigned stage, int step, unsigned barrier) const {
            if (whole && (step + 1) * BK <= k) copy_step<true>(stage, step);
            else copy_step<false>(stage, step);
            cp_async_mbarrier_arrive_noinc(barrier);
        }
    };
};

template <class Tile>
using CopiedOperandsOf = CopiedOperands<PRODUCERS<InterleavedLanesOf<Tile>::THREADS>>;

// Registers of a consumer thread: those of the SM that remain when each thread of the producer warpgroup keeps PRODUCER. Consumers
// that are no whole warpgroups keep those with which they were launched.
template <int THREADS, int CTAS, int PRODUCER>
struct Registers {
    static constexpr bool MOVED = THREADS % 128 == 0;
    static constexpr int AT_LAUNCH = TargetLimits::REGISTERS_PER_SM / CTAS / (THREADS + PRODUCERS<THREADS>) / 8 * 8;
    static constexpr int LEFT = (AT_LAUNCH * (THREADS + 128) - PRODUCER * 128) / THREADS / 8 * 8,
                         CONSUMER = LEFT < 240 ? LEFT : 240;
    static_assert(!MOVED || (AT_LAUNCH >= PRODUCER && AT_LAUNCH <= CONSUMER),
                  "setmaxnreg takes from the producer and gives to the others");

    static __device__ __forceinline__ void give() {
        if constexpr (MOVED) setmaxnreg_dec<PRODUCER>();
    }
    static __device__ __forceinline__ void take() {
        if constexpr (MOVED) setmaxnreg_inc<CONSUMER>();
    }
};

}  // namespace ptxkit::micro_tiling

// How producer threads fill a stage of the ring of micro_tiling.cuh with step `step` of k of a tile of a and of b: by TMA,
// which needs rows of multiples of 16 bytes, or by cp.async, for rows of any length. The contents are the same: rows of a
// swizzled, zeros beyond the matrices. A stage's mbarrier expects ARRIVALS arrivals. REGISTERS: of a producer thread, to
// which setmaxnreg limits its warpgroup.
#pragma once
#include "ptxkit/gemm/micro_tiling.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"

namespace ptxkit::micro_tiling {

// One thread issues two boxes. WHOLE: rows of c are multiples of 16 bytes.
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

// 128 threads copy WIDE elements each at a time: 1, or 2 where n and k are even. A thread keeps its columns, so that its
// addresses advance by constants: of a, a warp copies some neighbouring rows at a time; of b, one row, by as many copies as
// the row needs. Tiles and steps within the matrices take a path without comparisons, because each instruction of a producer
// takes an issue slot from the multiplications.
template <int WIDE>
struct CopiedOperands {
    static constexpr bool WHOLE = false;
    static constexpr int THREADS = 128, ARRIVALS = THREADS, REGISTERS = 40;
    static_assert(WIDE == 1 || WIDE == 2, "copies of 4 or 8 bytes");
    const float *a, *b;

    // Copies, or writes zeros where `inside` is false.
    template <bool INSIDE>
    static __device__ __forceinline__ void element(unsigned to, const float* from, bool inside) {
        if constexpr (INSIDE) {
            if constexpr (WIDE == 1) cp_async_ca_shared_global_4(to, from);
            else cp_async_ca_shared_global_8(to, from);
        } else {
            if constexpr (WIDE == 1) cp_async_ca_shared_global_4(to, from, inside ? 4 : 0);
            else cp_async_ca_shared_global_8(to, from, inside ? 8 : 0);
        }
    }

    template <class Tile>
    struct Of {
        static constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, SPAN = BK * 4;
        static constexpr int A_ACROSS = BK / WIDE, A_ROWS = THREADS / A_ACROSS;  // threads of a row, rows of a pass
        static constexpr int B_ACROSS = BN / WIDE < 32 ? BN / WIDE : 32, B_ROWS = THREADS / B_ACROSS;
        static_assert(BM % A_ROWS == 0 && BK % B_ROWS == 0, "whole passes");
        const float *from_a, *from_b;
        int rows, columns, k, n;  // of a from the thread's first row on, of b from its first column on
        unsigned to_a, to_b, a_column, b_row;
        bool whole;  // the tile is within the matrices

        __device__ __forceinline__ Of(const CopiedOperands& operands, TileOrigin origin, int thread, int m, int n, int k)
            : k(k), n(n), whole(origin.row + BM <= m && origin.col + BN <= n) {
            const int row = thread / A_ACROSS, col = thread % B_ACROSS * WIDE;
            a_column = thread % A_ACROSS * WIDE;
            b_row = thread / B_ACROSS;
            from_a = operands.a + static_cast<size_t>(origin.row + row) * k + a_column;
            from_b = operands.b + static_cast<size_t>(b_row) * n + origin.col + col;
            rows = m - origin.row - row;
            columns = n - origin.col - col;
            to_a = swizzled<SPAN>(row * SPAN + a_column * 4);
            to_b = BM * SPAN + (b_row * BN + col) * 4;
        }

        template <bool INSIDE>
        __device__ __forceinline__ void copy_step(unsigned stage, int step) const {
            const int left = k - step * BK;  // elements of k in this step and the later ones
            const float *a = from_a + step * BK, *b = from_b + static_cast<size_t>(step * BK) * n;
            const bool a_inside = static_cast<int>(a_column) < left;
#pragma unroll
            for (int s = 0; s < BM / A_ROWS; ++s) {
                // Each bit of the row's number comes either from the thread or from s, and so does each bit of the swizzle.
                const unsigned pass = s * A_ROWS * SPAN, atom = swizzled<SPAN>(pass) ^ pass;
                element<INSIDE>(stage + (to_a ^ atom) + pass, a, a_inside && s * A_ROWS < rows);
                a += static_cast<size_t>(A_ROWS) * k;
            }
#pragma unroll
            for (int s = 0; s < BK / B_ROWS; ++s) {
                const bool row_inside = static_cast<int>(b_row) + s * B_ROWS < left;
#pragma unroll
                for (int p = 0; p < BN; p += B_ACROSS * WIDE)
                    element<INSIDE>(stage + to_b + (s * B_ROWS * BN + p) * 4, b + p, row_inside && p < columns);
                b += static_cast<size_t>(B_ROWS) * n;
            }
        }

        __device__ __forceinline__ void copy(unsigned stage, int step, unsigned barrier) const {
            if (whole && (step + 1) * BK <= k) copy_step<true>(stage, step);
            else copy_step<false>(stage, step);
            cp_async_mbarrier_arrive_noinc(barrier);
        }
    };
};

// Registers of a consumer thread: those of the SM that remain when each thread of the producer warpgroup keeps PRODUCER.
template <int THREADS, int CTAS, int PRODUCER_>
struct Registers {
    static constexpr int PRODUCER = PRODUCER_, AT_LAUNCH = TargetLimits::REGISTERS_PER_SM / CTAS / (THREADS + 128) / 8 * 8;
    static constexpr int LEFT = (AT_LAUNCH * (THREADS + 128) - PRODUCER * 128) / THREADS / 8 * 8,
                         CONSUMER = LEFT < 240 ? LEFT : 240;
    static_assert(THREADS % 128 == 0, "whole warpgroups multiply");
    static_assert(AT_LAUNCH >= PRODUCER && AT_LAUNCH <= CONSUMER,
                  "setmaxnreg takes from the producer and gives to the others");
};

}  // namespace ptxkit::micro_tiling

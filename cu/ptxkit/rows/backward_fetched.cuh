// The gradients of a norm in one reading, as in backward_rows.cuh, by CTAs with warps of their own that fetch rows.
#pragma once
#include "ptxkit/ptx/wgmma.cuh"
#include "ptxkit/rows/backward_rows.cuh"
#include "ptxkit/rows/tile_scheduler.cuh"

namespace ptxkit {

// Warps that fetch rows for the GROUPS groups of THREADS threads. Registers go to the quarters of an SM, so that one takes as many of
// them as four; and four give theirs, as a warpgroup, to 512 threads, which would run short.
template <int THREADS, int GROUPS>
constexpr int producer_warps = GROUPS < 4 && THREADS < 512 ? GROUPS : 4;

// Rows of two matrices on their way to shared memory, for each group of threads that takes rows, and beside them gamma if SMEM_GAMMA. Lanes
// of further warps fetch them, with their statistics, as soon as there is room: the warps that compute a row wait for one another in
// each, and whoever had to fetch besides would be last.
// Dynamic shared memory: 2 * STAGES * THREADS * VECTORS * 16 bytes, and LANES * VECTORS * 16 for gamma.
template <bool CENTERED, class T, class S, int STAGES, int MAX_IN_FLIGHT, bool SMEM_GAMMA>
struct Fetched {
    static constexpr int warps = producer_warps<S::THREADS, S::groups>;
    // 640 threads have 96 registers each
    static constexpr bool gives = S::THREADS == 512 && (PTXKIT_SM90A || PTXKIT_SM100F);
    static constexpr int words = S::VECTORS * S::LANES;          // 16 bytes each, of a row
    struct Shared {
        unsigned long long full[S::groups][STAGES], empty[S::groups][STAGES];
        Statistics statistics[S::groups][STAGES];
    };
    Shared& shared;
    uint4* slots;

    // One barrier of all threads.
    __device__ __forceinline__ explicit Fetched(Shared& shared) : shared(shared) {
        extern __shared__ __align__(128) uint4 fetched_slots[];  // bulk copies to less aligned shared memory are up to a fifth slower
        slots = fetched_slots;
        if (threadIdx.x == 0) {
            init_ring<S::groups * STAGES>(cvta_to_shared(shared.full), 1, cvta_to_shared(shared.empty), 1);
        }
        barrier_sync();
    }

    // All threads that compute rows.
    static __device__ __forceinline__ void barrier() {
        constexpr int free = S::warps == 1 ? 0 : S::groups;  // groups of several warps have a barrier each, from 0
        static_assert(free < 16, "16 barriers");
        barrier_sync<free>(S::THREADS);
    }

    // What the threads that compute rows do first: what no copy fills is 0, and with SMEM_GAMMA gamma is there.
    __device__ __forceinline__ void begin(const Place<S>& all, const T* gamma) const {
        const unsigned thread = threadIdx.x % S::LANES, group = threadIdx.x / S::LANES;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if (i * S::WIDTH < all.held) continue;
#pragma unroll 1
            for (int r = 0; r < 2 * STAGES; r++) slots[(r * S::groups + group) * words + i * S::LANES + thread] = uint4{};
        }
        if constexpr (SMEM_GAMMA) {
#pragma unroll
            for (int i = 0; i < S::VECTORS; i++) {
                if (group != i % S::groups) continue;
                uint4 quad = {};
                if (i * S::WIDTH < all.held) quad = ld_global(reinterpret_cast<const uint4*>(gamma) + i * S::threads + all.thread);
                slots[2 * STAGES * S::groups * words + i * S::LANES + thread] = quad;
            }
            barrier();
        }
    }

    // Fetches a group's rows: what one thread does. With more asked for than memory takes to stay busy, what is written waits. So no
    // more than MAX_IN_FLIGHT rows are, if it is not 0; and a row when its statistics are there, which takes its time where memory is
    // busy: on an H200, 16384x4096 in f32, 187 us for layer normalization's gradients, against 202 with all asked for at once.
    __device__ __forceinline__ void fetch(unsigned group, const T* x, const T* dy, const float* means, const float* rstds,
                                          unsigned rows, unsigned cols) const {
        const unsigned long long policy = load_policy<CACHE_INPUT>();
        const unsigned bytes = chunk_bytes<T, S>(cols);
        Ring<STAGES> at, behind;  // MAX_IN_FLIGHT rows
        unsigned turn = 0;
        for (unsigned row = blockIdx.x / S::CTAS * S::groups + group; row < rows; row += rows_taken<S>(), turn++) {
            if (turn >= STAGES) mbarrier_wait(cvta_to_shared(&shared.empty[group][at.stage]), at.parity ^ 1);
            if (MAX_IN_FLIGHT > 0 && turn >= MAX_IN_FLIGHT) {
                mbarrier_wait(cvta_to_shared(&shared.full[group][behind.stage]), behind.parity);
                behind.advance();
            }
            shared.statistics[group][at.stage] = {mean_at<CENTERED>(means, row), rstds[row]};
            const unsigned there = cvta_to_shared(&shared.full[group][at.stage]);
            const size_t first = static_cast<size_t>(row) * cols;
            mbarrier_arrive_expect_tx(there, 2 * bytes);
            copy_chunks<CACHE_INPUT, S>(cvta_to_shared(row_of(group, at.stage, 0)), x + first, cols, there, policy);
            copy_chunks<CACHE_INPUT, S>(cvta_to_shared(row_of(group, at.stage, 1)), dy + first, cols, there, policy);
            at.advance();
        }
    }

    __device__ __forceinline__ Statistics wait(unsigned group, const Ring<STAGES>& at) const {
        mbarrier_wait(cvta_to_shared(&shared.full[group][at.stage]), at.parity);
        return shared.statistics[group][at.stage];
    }

    // What GradientsOfRows::add asks for; `gamma` is asked unless SMEM_GAMMA.
    __device__ __forceinline__ auto columns(unsigned group, unsigned stage, const Row<S>& gamma) const {
        const unsigned thread = threadIdx.x % S::LANES;
        const uint4 *x = row_of(group, stage, 0) + thread, *dy = row_of(group, stage, 1) + thread;
        const uint4* kept = slots + 2 * STAGES * S::groups * words + thread;
        return [=, &gamma](int i, float (&v)[S::WIDTH], float (&u)[S::WIDTH], float (&weight)[S::WIDTH]) {
            Vector<T, S::WIDTH> vector[3];
            vector[0].set(x[i * S::LANES]), vector[1].set(dy[i * S::LANES]);
            if constexpr (SMEM_GAMMA) vector[2].set(kept[i * S::LANES]);
#pragma unroll
            for (int j = 0; j < S::WIDTH; j++) {
                v[j] = vector[0][j], u[j] = vector[1][j];
                if constexpr (SMEM_GAMMA) weight[j] = vector[2][j];
                else weight[j] = gamma.v[i][j];
            }
        };
    }

    // All threads of the group have read the stage: there is room.
    __device__ __forceinline__ void release(unsigned group, unsigned stage) const {
        if constexpr (S::warps == 1) bar_warp_sync(all_lanes);
        if (threadIdx.x % S::LANES == 0) mbarrier_arrive(cvta_to_shared(&shared.empty[group][stage]));
    }

private:
    // The group's row of x (0) or dy (1) in a stage.
    __device__ __forceinline__ uint4* row_of(unsigned group, unsigned stage, unsigned array) const {
        return slots + ((2 * stage + array) * S::groups + group) * words;
    }
};

// f(turn) for each row of the caller's group: `place` is there, and turn alternates between 0 and 1.
template <class S, class F>
__device__ __forceinline__ void each_row(Place<S>& place, unsigned rows, unsigned cols, const F& f) {
    unsigned turn = 0;
#pragma unroll 1
    for (unsigned row = place.row; row < rows; row += rows_taken<S>(), turn ^= 1) {
        place.take(row, cols, cols);
        f(turn);
    }
}

// What the warps that compute a row tell each other, where others of their CTA do something else: in a CTA across a barrier, in a
// cluster by st.async, as barrier.cluster would be for all. All threads of the cluster construct it, and have then started.
template <class Record, class S, bool CLUSTER = (S::CTAS > 1)>
struct RecordsBesideOthers {
    using Shared = RowRecords<Record, S, 2>;
    Shared& records;

    __device__ __forceinline__ explicit RecordsBesideOthers(Shared& shared) : records(shared) {}
};
template <class Record, class S>
struct RecordsBesideOthers<Record, S, true> {
    using Shared = typename SentRecords<Record, S>::Shared;
    SentRecords<Record, S> records;

    __device__ __forceinline__ explicit RecordsBesideOthers(Shared& shared) : records(shared) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
};

// What backward_rows does, by groups of LANES threads that take a row each, or clusters of CTAs, and warps that fetch rows. Shares of
// dgamma and dbeta meet in the CTA, in fixed order, and go to its row of `gammas` and `betas`, or its cluster's.
template <bool CENTERED, class T, class Tile>
__device__ __forceinline__ void backward_rows_fetched(const T* x, const T* dy, const T* gamma, const float* means,
                                                      const float* rstds, T* dx, float* gammas, float* betas, int rows, int cols) {
    constexpr int THREADS = Tile::THREADS, LANES = Tile::LANES, CTAS = Tile::CTAS, STAGES = Tile::STAGES;
    constexpr bool SMEM_GAMMA = Tile::SMEM_GAMMA;
    using S = RowBesideOthers<THREADS, LANES, Tile::VECTORS, CTAS, vector_width<T>>;
    using Rows = Fetched<CENTERED, T, S, STAGES, Tile::MAX_IN_FLIGHT, SMEM_GAMMA>;
    using Records = RecordsBesideOthers<GradientRecord<CENTERED>, S>;
    __shared__ typename Records::Shared shared_records;
    __shared__ typename Rows::Shared shared;
    const Rows fetched(shared);
    Records among(shared_records);
    Place<S> place(rows, cols, aligned16(x, dy, gamma, dx));
    follow_previous_grid();
    const bool copies = place.vectors;  // else rows are loaded when their turn comes
    if (threadIdx.x >= THREADS) {
        if constexpr (Rows::gives) setmaxnreg_dec<32>();
        const unsigned group = (threadIdx.x - THREADS) / 32 + threadIdx.x % 32 * Rows::warps;
        if (copies && group < S::groups) fetched.fetch(group, x, dy, means, rstds, rows, cols);
        return;
    }
    if constexpr (Rows::gives) setmaxnreg_inc<112>();
    const unsigned group = threadIdx.x / LANES;
    const float inverse_cols = 1.0f / cols;
    const Place<S> all = place.any(cols);
    GradientsOfRows<CENTERED, S> gradients;
    if (copies) {
        place.vectors = true;
        fetched.begin(all, gamma);
        Row<S> weight;
        if constexpr (!SMEM_GAMMA) weight = all.load_shared(gamma);
        Ring<STAGES> at;
        each_row(place, rows, cols, [&](unsigned turn) {
            const Statistics statistics = fetched.wait(group, at);
            const Row<S> row = gradients.add(fetched.columns(group, at.stage, weight), statistics, inverse_cols, among.records,
                                             turn, [&] { fetched.release(group, at.stage); });
            at.advance();
            place.template store<CACHE_INPUT>(dx, row);
        });
    } else {
        const Row<S> weight = all.load_shared(gamma);
        each_row(place, rows, cols, [&](unsigned turn) {
            const Statistics statistics = {mean_at<CENTERED>(means, place.row), rstds[place.row]};
            const Row<S> of_x = place.template load<CACHE_STREAM>(x), of_dy = place.template load<CACHE_STREAM>(dy);
            const Row<S> row = gradients.add(columns_of(of_x, of_dy, weight), statistics, inverse_cols, among.records, turn, [] {});
            place.template store<CACHE_INPUT>(dx, row);
        });
    }
    gradients.meet(reinterpret_cast<float4*>(fetched.slots), [] { Rows::barrier(); });
    if (group == 0) gradients.store(all, blockIdx.x / CTAS, cols, gammas, betas);
}

}  // namespace ptxkit

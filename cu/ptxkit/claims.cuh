// Long rows by clusters that stay: each claims another row when there is room for it. What all rows share is then fetched once a
// cluster and not once a row. How many clusters a GPU holds at a time nobody knows before: a cluster lies within a GPC, and GPCs
// have different numbers of SMs. Were rows dealt out beforehand, those of a cluster that finds no room would be computed last, alone.
//
// CTAs of a cluster that stays must not meet at barrier.cluster: its release waits until device memory has taken the row before.
// They send each other what they have to say with st.async, and wait for so many bytes.
#pragma once
#include "cluster.cuh"
#include "row_pipeline.cuh"

namespace ptxkit {

// Nothing is claimed yet. Launched ahead of each kernel that claims rows.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) unclaimed(unsigned* next) {
    follow_previous_grid();
    if (threadIdx.x == 0) *next = 0;
}

// 32 bits for each of CTAS CTAs: lane i of a warp sends them to CTA i, to the same place there, and to the mbarrier there.
template <int CTAS>
__device__ __forceinline__ void send_word(const void* place, unsigned word, const void* barrier) {
    if (laneid() < CTAS) {
        st_async_shared_cluster(mapa_shared_cluster(cvta_to_shared(place), laneid()), word,
                                mapa_shared_cluster(cvta_to_shared(barrier), laneid()));
    }
}

// What RowRecords does. Records of a turn are written over two turns later: whoever sends those has got the ones of the turn between,
// from warps that had read the first.
template <class Record, class S>
struct SentRecords {
    static_assert(S::CTAS > 1, "st.async is for clusters");
    using Shape = S;
    struct Shared {
        Record slots[2][S::warps];
        unsigned long long there[2];
    };
    Shared& shared;
    unsigned count = 0;

    // All threads construct it before their CTAs tell each other that they have started.
    __device__ __forceinline__ explicit SentRecords(Shared& shared) : shared(shared) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2; i++) mbarrier_init(cvta_to_shared(&shared.there[i]), 1);
            fence_mbarrier_init_release_cluster();
        }
    }

    __device__ __forceinline__ const Record* gather(Record mine, unsigned = 0) {
        const unsigned at = count & 1, parity = count >> 1 & 1;
        count++;
        const unsigned warp = cluster_ctarank() * S::cta_warps + threadIdx.x / 32;
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(cvta_to_shared(&shared.there[at]), sizeof(shared.slots[at]));
        unsigned words[sizeof(Record) / 4];
        memcpy(words, &mine, sizeof(Record));
#pragma unroll
        for (int i = 0; i < sizeof(Record) / 4; i++) {
            send_word<S::CTAS>(reinterpret_cast<unsigned*>(&shared.slots[at][warp]) + i, words[i], &shared.there[at]);
        }
        mbarrier_wait(cvta_to_shared(&shared.there[at]), parity);
        return shared.slots[at];
    }
};

// Sum of a value of every thread of a row.
template <class T, class S>
__device__ __forceinline__ T row_sum(T value, SentRecords<T, S>& records, unsigned = 0) {
    value = warp_sum<32>(value);
    const T* all = records.gather(value);
    return sum_over_warps<S>([&](unsigned i) { return all[i]; });
}

// Rows that the cluster has claimed, AHEAD turns before their own; past the last one there are none. The first warp of the first CTA
// claims them and tells the others.
template <class S, int AHEAD>
struct Claims {
    // Whoever tells the row of turn t + AHEAD has got the records of turn t - 1. Others may still be in that turn, in no earlier one.
    static constexpr unsigned places = AHEAD <= 2 ? 4 : 8;
    static_assert(places >= AHEAD + 2, "a place is free when it is told again");
    struct Shared {
        unsigned rows[places];
        unsigned long long there[places];
    };
    Shared& shared;
    unsigned* next;
    unsigned claimed = 0;  // and not told yet

    // Claims the rows of the first turns. The memory that `next` points at was set to 0. All threads construct it before their CTAs
    // tell each other that they have started.
    __device__ __forceinline__ Claims(Shared& shared, unsigned* next) : shared(shared), next(next) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < places; i++) mbarrier_init(cvta_to_shared(&shared.there[i]), 1);
            fence_mbarrier_init_release_cluster();
        }
    }

    // Claims and tells the rows of the first turns; all CTAs have started.
    __device__ __forceinline__ void begin() {
        claim(AHEAD + 1);
        const unsigned first = shfl_sync_idx(all_lanes, claimed, 0);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) tell(i, first + i);
        claimed = first + AHEAD;
    }

    // Of this turn, or up to AHEAD - 1 later.
    __device__ __forceinline__ unsigned row(unsigned turn) const {
        mbarrier_wait(cvta_to_shared(&shared.there[turn % places]), turn / places & 1);
        return shared.rows[turn % places];
    }

    // Tells the row AHEAD turns later, and claims the one after it. Called in each turn, ahead of its records.
    __device__ __forceinline__ void go_on(unsigned turn) {
        tell(turn + AHEAD, shfl_sync_idx(all_lanes, claimed, 0));
        claim(1);
    }

    // In place of a turn: until all that was told is there, and nothing is written any more to this CTA.
    __device__ __forceinline__ void end(unsigned turn) const {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) row(turn + i);
    }

private:
    static __device__ __forceinline__ bool claims() {
        return cluster_ctarank() == 0 && threadIdx.x < 32;
    }

    __device__ __forceinline__ void claim(unsigned count) {
        if (claims() && threadIdx.x == 0) claimed = atomicAdd(next, count);
    }

    __device__ __forceinline__ void tell(unsigned turn, unsigned row) const {
        const void* there = &shared.there[turn % places];
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(cvta_to_shared(there), 4);
        if (claims()) send_word<S::CTAS>(&shared.rows[turn % places], row, there);
    }
};

// f(place, row) for each row of `matrix` that the cluster claims, with `fill` for padding. f gathers records. started() is called
// once and waits for the other CTAs of the cluster.
//
// A stage is filled again as soon as all threads of the CTA have read it.
template <class T, class S, int STAGES, int CACHE, class Started, class F>
__device__ __forceinline__ void rows_claimed(const Ahead<T, S, 1, STAGES, CACHE>& ahead, Place<S> place, unsigned rows, unsigned cols,
                                             const T* matrix, float fill, Claims<S, STAGES + 1>& claims, Started started, F f) {
    started();
    claims.begin();
    const bool copies = ahead.copies(place);
    if (copies) {
#pragma unroll
        for (unsigned i = 0; i < STAGES; i++) ahead.begin_row(claims.row(i), rows, cols, i, matrix);
    }
    Ring<STAGES> at;
    unsigned turn = 0;
#pragma unroll 1
    for (unsigned row_number; (row_number = claims.row(turn)) < rows; turn++) {
        place.take(row_number, cols, cols);
        claims.go_on(turn);
        ahead.wait(place, at.stage, at.parity);
        Row<S> row = ahead.row(place, at.stage, 0, matrix, fill);
        barrier_sync();
        if (copies && threadIdx.x < 32) ahead.begin_row(claims.row(turn + STAGES), rows, cols, at.stage, matrix);
        f(place, row);
        at.advance();
    }
    claims.end(turn);
}

}  // namespace ptxkit

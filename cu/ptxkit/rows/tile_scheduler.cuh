// Dynamic persistent kernels for long rows: each cluster takes the next row from an atomic counter when it has room for it. Weights
// are then fetched once a cluster and not once a row. The number of clusters that a GPU holds at a time is not known beforehand, as a
// cluster lies within a GPC and GPCs have different numbers of SMs. With rows distributed beforehand, those of a cluster that finds
// no room would be computed last, alone.
//
// CTAs of a cluster that stays must not meet at barrier.cluster: its release waits until device memory has taken the row before.
// They send each other what they have to say with st.async, and wait for so many bytes.
#pragma once
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

namespace ptxkit {

// Tile parameters of a persistent kernel. Descriptions give them by name (PersistentTile in ptxkit/kernels/rows/row_pipeline.py).
template <int THREADS_, int VECTORS_, int CTAS_, int CACHE_, int CHUNK_VECTORS_, int STAGES_, int CTAS_PER_SM_, bool FULL_TILE_,
          int SMEM_VECTORS_>
struct PersistentTile {
    static constexpr int THREADS = THREADS_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape, with LANES = THREADS
    static constexpr int CACHE = CACHE_;                  // a Cache of elementwise.cuh
    static constexpr int CHUNK_VECTORS = CHUNK_VECTORS_;  // vectors of a thread in a chunk of a row, which is fetched as one
    static constexpr int STAGES = STAGES_;                // chunks in flight or waiting in shared memory
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    static constexpr bool FULL_TILE = FULL_TILE_;         // each register of the cluster holds a column
    static constexpr int SMEM_VECTORS = SMEM_VECTORS_;    // vectors of each weight array that a thread keeps in shared memory
    template <class T>
    using Shape = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
};

// Sets the row counter of the tile scheduler to 0. Launched before each persistent kernel.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) reset_tile_scheduler(unsigned* next) {
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

// What the warps of a row tell each other: those of a CTA across a barrier, then the first warps of the CTAs with st.async, 16 bytes
// at a time where a record is longer than a word. Were all warps to tell each other, a row of 16 CTAs would send 65536 records, and
// each warp would read 256.
template <class Record, class S>
struct SentRecords {
    static_assert(S::CTAS > 1, "st.async is for clusters");
    static_assert(sizeof(Record) == 4 || sizeof(Record) <= 16, "one word or four");
    using Shape = S;
    static constexpr bool by_ctas = true;
    struct alignas(sizeof(Record) > 4 ? 16 : 4) Slot {
        Record record;
    };
    struct Shared {
        Slot warps[2][S::cta_warps], ctas[2][S::CTAS];
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

    // Gives the records of the CTA's warps. They are written over two turns later, behind the barrier of the turn between.
    __device__ __forceinline__ const Slot* of_warps(Record mine) const {
        Slot* all = shared.warps[count & 1];
        if (laneid() == 0) all[threadIdx.x / 32].record = mine;
        if constexpr (S::alone) barrier_sync();
        else barrier_sync<0>(S::LANES);
        return all;
    }

    // Then gives the records of the CTAs, of which each warp knows its own. They, too, are written over two turns later: whoever sends
    // those has got the ones of the turn between, from CTAs that had read the first before their barrier.
    __device__ __forceinline__ const Slot* of_ctas(Record mine) {
        const unsigned at = count & 1, parity = count >> 1 & 1;
        count++;
        const unsigned there = cvta_to_shared(&shared.there[at]), slot = cvta_to_shared(&shared.ctas[at][cluster_ctarank()]);
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(there, sizeof(shared.ctas[at]));
        if (threadIdx.x < S::CTAS) {
            const unsigned to = mapa_shared_cluster(slot, laneid()), barrier = mapa_shared_cluster(there, laneid());
            if constexpr (sizeof(Slot) == 16) {
                float4 words = {};
                memcpy(&words, &mine, sizeof(Record));
                st_async_shared_cluster(to, words, barrier);
            } else {
                unsigned word;
                memcpy(&word, &mine, sizeof(word));
                st_async_shared_cluster(to, word, barrier);
            }
        }
        mbarrier_wait(there, parity);
        return shared.ctas[at];
    }
};

// Sum of a value of every thread of a row.
template <class T, class S>
__device__ __forceinline__ T row_sum(T value, SentRecords<T, S>& records, unsigned = 0) {
    const auto* warps = records.of_warps(warp_sum<32>(value));
    const auto* ctas = records.of_ctas(sum_below<S::cta_warps>([&](unsigned i) { return warps[i].record; }));
    return sum_below<S::CTAS>([&](unsigned i) { return ctas[i].record; });
}

// The tile scheduler: rows of the cluster, taken AHEAD iterations before they are computed. The first warp of the cluster's first CTA
// takes them from the atomic counter `next` and sends their numbers to the other CTAs.
template <class S, int AHEAD>
struct TileScheduler {
    // Whoever tells the row of turn t + AHEAD has got the records of turn t - 1. Others may still be in that turn, in no earlier one.
    static constexpr unsigned places = AHEAD <= 2 ? 4 : AHEAD <= 6 ? 8 : 16;
    static_assert(places >= AHEAD + 2, "a place is free when it is told again");
    struct Shared {
        unsigned rows[places];
        unsigned long long there[places];
    };
    Shared& shared;
    unsigned* next;
    unsigned taken = 0;  // from the counter, not sent yet

    // The memory that `next` points at was set to 0. All threads construct it before their CTAs tell each other that they have
    // started.
    __device__ __forceinline__ TileScheduler(Shared& shared, unsigned* next) : shared(shared), next(next) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < places; i++) mbarrier_init(cvta_to_shared(&shared.there[i]), 1);
            fence_mbarrier_init_release_cluster();
        }
    }

    // Takes and sends the rows of the first iterations. All CTAs have started.
    __device__ __forceinline__ void begin() {
        take_rows(AHEAD + 1);
        const unsigned first = shfl_sync_idx(all_lanes, taken, 0);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) tell(i, first + i);
        taken = first + AHEAD;
    }

    // Of this turn, or up to AHEAD - 1 later.
    __device__ __forceinline__ unsigned row(unsigned turn) const {
        mbarrier_wait(cvta_to_shared(&shared.there[turn % places]), turn / places & 1);
        return shared.rows[turn % places];
    }

    // Sends the row of AHEAD iterations later, and takes the one after it. Called in each iteration, before its records are exchanged.
    __device__ __forceinline__ void go_on(unsigned turn) {
        tell(turn + AHEAD, shfl_sync_idx(all_lanes, taken, 0));
        take_rows(1);
    }

    // In place of a turn: until all that was told is there, and nothing is written any more to this CTA.
    __device__ __forceinline__ void end(unsigned turn) const {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) row(turn + i);
    }

private:
    static __device__ __forceinline__ bool is_scheduler_warp() {
        return cluster_ctarank() == 0 && threadIdx.x < 32;
    }

    __device__ __forceinline__ void take_rows(unsigned count) {
        if (is_scheduler_warp() && threadIdx.x == 0) taken = atomicAdd(next, count);
    }

    __device__ __forceinline__ void tell(unsigned turn, unsigned row) const {
        const void* there = &shared.there[turn % places];
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(cvta_to_shared(there), 4);
        if (is_scheduler_warp()) send_word<S::CTAS>(&shared.rows[turn % places], row, there);
    }
};

// The rows of a cluster come to shared memory in chunks of CHUNK_VECTORS vectors a thread, STAGES chunks of this row and the next
// ones at a time. Each is fetched again as soon as all threads of the CTA have read it, so that device memory is asked for a steady
// stream. Dynamic shared memory: STAGES * CHUNK_VECTORS * THREADS * 16 bytes.
//
// On an H200 rows in halves, and little more than one row on its way, are faster than whole rows or more of them: layernorm of 1024
// rows of 131072 takes 258 us with three halves of 32 KB a CTA, 261 with four, and 263 with two whole rows.
template <class T, class S, int CHUNK_VECTORS, int STAGES, int CACHE>
struct ChunkPipeline {
    static_assert(S::VECTORS % CHUNK_VECTORS == 0, "rows in whole parts");
    static constexpr int parts = S::VECTORS / CHUNK_VECTORS;             // of a row
    static constexpr int ahead = (parts - 1 + STAGES) / parts;  // turns that the last part to be asked for is ahead, at most
    static_assert(parts == 1 || STAGES > 1, "a part is fetched when the next one was read");
    static constexpr unsigned chunk = S::LANES * S::WIDTH;  // columns that lie together
    struct Shared {
        unsigned long long full[STAGES], empty[STAGES];
    };
    Shared& shared;
    uint4* slots;

    // All threads construct it before their CTAs tell each other that they have started. One barrier.
    __device__ __forceinline__ explicit ChunkPipeline(Shared& shared) : shared(shared) {
        extern __shared__ __align__(128) uint4 chunk_slots[];  // bulk copies to less aligned shared memory are up to a fifth slower
        slots = chunk_slots;
        if (threadIdx.x == 0) init_ring<STAGES>(cvta_to_shared(shared.full), 1, cvta_to_shared(shared.empty), S::cta_warps);
        barrier_sync();
    }

    // Behind the stages: shared memory for something else.
    __device__ __forceinline__ uint4* behind() const { return slots + STAGES * CHUNK_VECTORS * S::LANES; }

    static __device__ __forceinline__ bool copies(const Place<S>& place) { return PTXKIT_SM >= 90 && place.vectors; }

    // Fetches part `part` of a row to a stage that nobody reads any more: what one thread does. Nothing past the last row.
    __device__ __forceinline__ void fetch(unsigned row, unsigned rows, unsigned cols, int part, unsigned stage,
                                          const T* matrix) const {
        if (row >= rows) return;
        const unsigned full = cvta_to_shared(shared.full) + 8 * stage, to = cvta_to_shared(slots) + stage * (16 * CHUNK_VECTORS * S::LANES);
        const unsigned begins = cluster_ctarank() * chunk + part * (CHUNK_VECTORS * S::CTAS * chunk);
        const T* from = matrix + static_cast<size_t>(row) * cols + begins;
        auto bytes = [&](int i) {
            const unsigned column = begins + i * (S::CTAS * chunk);
            return column < cols ? ::min(chunk, cols - column) * static_cast<unsigned>(sizeof(T)) : 0;
        };
        unsigned all = 0;
#pragma unroll
        for (int i = 0; i < CHUNK_VECTORS; i++) all += bytes(i);
        mbarrier_arrive_expect_tx(full, all);
        const unsigned long long policy = load_policy<CACHE>();
#pragma unroll
        for (int i = 0; i < CHUNK_VECTORS; i++) {
            if (const unsigned size = bytes(i)) {
                copy_ahead<CACHE>(to + i * (16 * S::LANES), from + i * (S::CTAS * chunk), size, full, policy);
            }
        }
    }

    // The first STAGES parts: what one thread does.
    template <class Scheduler>
    __device__ __forceinline__ void begin(const Scheduler& scheduler, unsigned rows, unsigned cols, const T* matrix) const {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) fetch(scheduler.row(i / parts), rows, cols, i % parts, i, matrix);
    }

    // The row that is there, of turn `turn`, with `fill` for padding. `at` is the stage of its first part, and then that of the
    // next row's. The parts that are STAGES later are fetched: part i by warp i, when all warps have read what lay there.
    template <class Scheduler>
    __device__ __forceinline__ Row<S> row(const Place<S>& place, Ring<STAGES>& at, float fill, const Scheduler& scheduler, unsigned turn,
                                          unsigned rows, const T* matrix) const {
        const unsigned full = cvta_to_shared(shared.full), empty = cvta_to_shared(shared.empty);
        Row<S> row;
        Ring<STAGES> before = at;
        auto refill = [&](int part) {
            if (threadIdx.x / 32 == part % S::cta_warps) {
                if (laneid() == 0) {
                    mbarrier_wait(empty + 8 * before.stage, before.parity);
                    fetch(scheduler.row(turn + (part + STAGES) / parts), rows, place.cols, (part + STAGES) % parts, before.stage, matrix);
                }
                bar_warp_sync(all_lanes);
            }
        };
#pragma unroll
        for (int part = 0; part < parts; part++) {
            mbarrier_wait(full + 8 * at.stage, at.parity);
#pragma unroll
            for (int i = part * CHUNK_VECTORS; i < (part + 1) * CHUNK_VECTORS; i++) {
                const bool there = i * S::WIDTH < place.held;
                Vector<T, S::WIDTH> vector;
                if (there) vector.set(slots[(at.stage * CHUNK_VECTORS + i % CHUNK_VECTORS) * S::LANES + threadIdx.x]);
                else vector.fill([&](int) { return fill; });
#pragma unroll
                for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
            }
            bar_warp_sync(all_lanes);
            if (laneid() == 0) mbarrier_arrive(empty + 8 * at.stage);
            if (part > 0) refill(part - 1);
            before = at;
            at.advance();
        }
        refill(parts - 1);
        return row;
    }
};

// f(place, row) for each row of `matrix` that the cluster takes, with `fill` for padding. f gathers records. started() is called
// once and waits for the other CTAs of the cluster. FULL_TILE: a row fills the cluster's registers.
template <bool FULL_TILE, class T, class S, int CHUNK_VECTORS, int STAGES, int CACHE, int AHEAD, class Started, class F>
__device__ __forceinline__ void persistent_rows(const ChunkPipeline<T, S, CHUNK_VECTORS, STAGES, CACHE>& parts, Place<S> place, unsigned rows,
                                             unsigned cols, const T* matrix, float fill, TileScheduler<S, AHEAD>& scheduler,
                                             Started started, F f) {
    static_assert(AHEAD > ChunkPipeline<T, S, CHUNK_VECTORS, STAGES, CACHE>::ahead, "rows are told before their first part is fetched");
    started();
    scheduler.begin();
    if (parts.copies(place) && threadIdx.x == 0) parts.begin(scheduler, rows, cols, matrix);
    bar_warp_sync(all_lanes);
    with_place<FULL_TILE>(place, [&](Place<S> place) {
        const bool copies = parts.copies(place);
        Ring<STAGES> at;
        unsigned turn = 0;
#pragma unroll 1
        for (unsigned row_number; (row_number = scheduler.row(turn)) < rows; turn++) {
            place.take(row_number, cols, cols);
            if constexpr (FULL_TILE) place.assume_full_tile();
            scheduler.go_on(turn);
            Row<S> row;
            if (copies) row = parts.row(place, at, fill, scheduler, turn, rows, matrix);
            else row = place.template load<CACHE>(matrix, fill);
            f(place, row);
        }
        scheduler.end(turn);
    });
}

}  // namespace ptxkit

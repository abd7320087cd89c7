// Dynamic persistent kernels for long rows: each cluster takes the next row from an atomic counter when it has room for
// it (TileScheduler), and prefetches it to shared memory in chunks (ChunkPipeline). Weights are then read once per
// cluster instead of once per row. A static distribution of rows would be slower: the number of clusters that are
// resident at a time is not known beforehand, since a cluster lies within a GPC and GPCs differ in their number of SMs;
// the rows of a cluster that becomes resident last would be computed last, alone.
//
// Invariant: after they have started, the CTAs of a cluster exchange data only with st.async, whose bytes the receiver
// expects at an mbarrier, and never execute barrier.cluster in the loop over rows. The release of barrier.cluster waits
// until the stores of the previous row have reached device memory. Buffers that st.async writes are reused two
// iterations later (ClusterRecords) or AHEAD + 2 iterations later (TileScheduler); the comments there say why no CTA
// can still read them.
#pragma once
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

namespace ptxkit {

// Tile parameters of a persistent kernel. Descriptions give them by name (PersistentTile in
// ptxkit/kernels/rows/row_pipeline.py).
template <int THREADS_, int VECTORS_, int CTAS_, int CACHE_, int CHUNK_VECTORS_, int STAGES_, int CTAS_PER_SM_,
          bool FULL_TILE_, int SMEM_VECTORS_>
struct PersistentTile {
    static constexpr int THREADS = THREADS_, VECTORS = VECTORS_, CTAS = CTAS_;  // as in RowShape, with LANES = THREADS
    static constexpr int CACHE = CACHE_;                                        // a Cache of elementwise.cuh
    // vectors of a thread in a chunk of a row; a chunk is the unit in which rows are copied to shared memory
    static constexpr int CHUNK_VECTORS = CHUNK_VECTORS_;
    static constexpr int STAGES = STAGES_;  // chunks in flight or in shared memory at a time
    static constexpr int CTAS_PER_SM = CTAS_PER_SM_;
    static constexpr bool FULL_TILE = FULL_TILE_;  // each register of the cluster holds a column
    // vectors of each weight array that a thread keeps in shared memory
    static constexpr int SMEM_VECTORS = SMEM_VECTORS_;
    template <class T>
    using Shape = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
};

// Sets the row counter of the tile scheduler to 0. Launched before each persistent kernel.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) reset_tile_scheduler(unsigned* next) {
    follow_previous_grid();
    if (threadIdx.x == 0) *next = 0;
}

// Sends one 32-bit word to each of CTAS CTAs: lane i of the warp writes it to the same address in CTA i and reports it
// to the mbarrier at the same address there.
template <int CTAS>
__device__ __forceinline__ void send_word(const void* layout, unsigned word, const void* barrier) {
    if (laneid() < CTAS) {
        st_async_shared_cluster(mapa_shared_cluster(cvta_to_shared(layout), laneid()), word,
                                mapa_shared_cluster(cvta_to_shared(barrier), laneid()));
    }
}

// Exchange of one record per warp of a row that a cluster holds, in two levels: the warps of a CTA exchange theirs
// across a CTA barrier, and then the CTAs exchange one record each with st.async, 16 bytes at a time where a record is
// longer than a word. In one level, a row of 16 CTAs would send 65536 records, and each warp would read 256.
template <class Record, class S>
struct ClusterRecords {
    static_assert(S::CTAS > 1, "st.async is for clusters");
    static_assert(sizeof(Record) == 4 || sizeof(Record) <= 16, "one word or four");
    using Shape = S;
    static constexpr bool two_level = true;
    struct alignas(sizeof(Record) > 4 ? 16 : 4) Slot {
        Record record;
    };
    struct Shared {
        Slot warps[2][S::cta_warps], ctas[2][S::CTAS];
        unsigned long long full[2];  // mbarriers
    };
    Shared& shared;
    unsigned count = 0;

    // All threads construct it before row_arrive, so that every CTA finds the mbarriers of the others initialised.
    __device__ __forceinline__ explicit ClusterRecords(Shared& shared) : shared(shared) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2; i++) mbarrier_init(cvta_to_shared(&shared.full[i]), 1);
            fence_mbarrier_init_release_cluster();
        }
    }

    // Publishes the caller's record and returns those of all warps of the CTA. A slot is overwritten two iterations
    // later, after the barrier of the iteration between.
    __device__ __forceinline__ const Slot* of_warps(Record mine) const {
        Slot* all = shared.warps[count & 1];
        if (laneid() == 0) all[threadIdx.x / 32].record = mine;
        if constexpr (S::whole_cta) barrier_sync();
        else barrier_sync<0>(S::LANES);
        return all;
    }

    // Then exchanges the CTA's combined record, the same in all its warps, and returns those of all CTAs. A slot is
    // overwritten two iterations later: a CTA that sends it has received the records of the iteration between, whose
    // senders had read the first ones before their CTA barrier.
    __device__ __forceinline__ const Slot* of_ctas(Record mine) {
        const unsigned at = count & 1, parity = count >> 1 & 1;
        count++;
        const unsigned full = cvta_to_shared(&shared.full[at]),
                       slot = cvta_to_shared(&shared.ctas[at][cluster_ctarank()]);
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(full, sizeof(shared.ctas[at]));
        if (threadIdx.x < S::CTAS) {
            const unsigned to = mapa_shared_cluster(slot, laneid()), barrier = mapa_shared_cluster(full, laneid());
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
        mbarrier_wait(full, parity);
        return shared.ctas[at];
    }
};

// Sum over all threads of a row.
template <class T, class S>
__device__ __forceinline__ T row_sum(T value, ClusterRecords<T, S>& records, unsigned = 0) {
    const auto* warps = records.of_warps(warp_sum<32>(value));
    const auto* ctas = records.of_ctas(sum_below<S::cta_warps>([&](unsigned i) { return warps[i].record; }));
    return sum_below<S::CTAS>([&](unsigned i) { return ctas[i].record; });
}

// Hands out rows to the cluster, AHEAD iterations before they are computed. The first warp of the cluster's first CTA
// takes row numbers from the atomic counter `next` and sends them to all CTAs. Numbers at or past the last row end the
// loop.
template <class S, int AHEAD>
struct TileScheduler {
    // The warp that sends the row of iteration t + AHEAD has received the records of iteration t - 1, so other CTAs are
    // in iteration t - 1 or later, and still read slots from t - 1 on.
    static constexpr unsigned slots = AHEAD <= 2 ? 4 : AHEAD <= 6 ? 8 : 16;
    static_assert(slots >= AHEAD + 2, "a slot is overwritten only after all CTAs have read it");
    struct Shared {
        unsigned rows[slots];
        unsigned long long full[slots];  // mbarriers
    };
    Shared& shared;
    unsigned* next;
    unsigned taken = 0;  // the next row number, taken from the counter and not sent yet

    // *next must be 0 when the kernel starts. All threads construct it before row_arrive.
    __device__ __forceinline__ TileScheduler(Shared& shared, unsigned* next) : shared(shared), next(next) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < slots; i++) mbarrier_init(cvta_to_shared(&shared.full[i]), 1);
            fence_mbarrier_init_release_cluster();
        }
    }

    // Takes and sends the rows of the first AHEAD iterations. All CTAs must have started.
    __device__ __forceinline__ void begin() {
        take_rows(AHEAD + 1);
        const unsigned first = shfl_sync_idx(all_lanes, taken, 0);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) send_row(i, first + i);
        taken = first + AHEAD;
    }

    // The row of this iteration, or of one up to AHEAD - 1 later.
    __device__ __forceinline__ unsigned row(unsigned iteration) const {
        mbarrier_wait(cvta_to_shared(&shared.full[iteration % slots]), iteration / slots & 1);
        return shared.rows[iteration % slots];
    }

    // Sends the row that is AHEAD iterations later and takes the one after it. Called in each iteration before its
    // records are exchanged.
    __device__ __forceinline__ void advance(unsigned iteration) {
        send_row(iteration + AHEAD, shfl_sync_idx(all_lanes, taken, 0));
        take_rows(1);
    }

    // Called after the last iteration: waits for all row numbers that were sent, so that no st.async writes to a CTA
    // that has exited.
    __device__ __forceinline__ void end(unsigned iteration) const {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) row(iteration + i);
    }

private:
    static __device__ __forceinline__ bool is_scheduler_warp() { return cluster_ctarank() == 0 && threadIdx.x < 32; }

    __device__ __forceinline__ void take_rows(unsigned count) {
        if (is_scheduler_warp() && threadIdx.x == 0) taken = atomicAdd(next, count);
    }

    __device__ __forceinline__ void send_row(unsigned iteration, unsigned row) const {
        const void* barrier = &shared.full[iteration % slots];
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(cvta_to_shared(barrier), 4);
        if (is_scheduler_warp()) send_word<S::CTAS>(&shared.rows[iteration % slots], row, barrier);
    }
};

// A ring of STAGES chunks in shared memory, through which the rows of a cluster pass. A chunk has CHUNK_VECTORS vectors
// of each thread. A stage is refilled as soon as all threads of the CTA have read it, so that device memory receives a
// steady stream of requests.
//
// Dynamic shared memory: STAGES * CHUNK_VECTORS * THREADS * 16 bytes.
//
// On an H200, chunks of half a row with little more than one row in flight are faster than whole rows or more of them:
// layernorm of 1024 rows of 131072 takes 258 us with three chunks of 32 KB per CTA, 261 us with four, and 263 us with
// two whole rows.
template <class T, class S, int CHUNK_VECTORS, int STAGES, int CACHE>
struct ChunkPipeline {
    static_assert(S::VECTORS % CHUNK_VECTORS == 0, "rows in whole chunks");
    static constexpr int chunks = S::VECTORS / CHUNK_VECTORS;  // of a row
    // maximum number of iterations between the request of a chunk and its use
    static constexpr int ahead = (chunks - 1 + STAGES) / chunks;
    static_assert(chunks == 1 || STAGES > 1, "the stage of a chunk is refilled while the next chunk is read");
    static constexpr unsigned segment = S::LANES * S::WIDTH;  // contiguous columns of a CTA
    struct Shared {
        unsigned long long full[STAGES], empty[STAGES];
    };
    Shared& shared;
    uint4* slots;

    // All threads construct it before row_arrive. Executes one barrier.
    __device__ __forceinline__ explicit ChunkPipeline(Shared& shared) : shared(shared) {
        // bulk copies to a less aligned address take up to a fifth longer
        extern __shared__ __align__(128) uint4 chunk_slots[];
        slots = chunk_slots;
        if (threadIdx.x == 0)
            init_ring<STAGES>(cvta_to_shared(shared.full), 1, cvta_to_shared(shared.empty), S::cta_warps);
        barrier_sync();
    }

    // Dynamic shared memory after the stages, for other uses.
    __device__ __forceinline__ uint4* after_stages() const { return slots + STAGES * CHUNK_VECTORS * S::LANES; }

    static __device__ __forceinline__ bool copies(const RowLayout<S>& layout) {
        return PTXKIT_SM >= 90 && layout.vectors;
    }

    // Starts to copy a chunk of a row to a stage that has been read. One thread calls it. It does nothing past the last
    // row.
    __device__ __forceinline__ void fetch(unsigned row, unsigned rows, unsigned cols, int chunk, unsigned stage,
                                          const T* matrix) const {
        if (row >= rows) return;
        const unsigned full = cvta_to_shared(shared.full) + 8 * stage,
                       to = cvta_to_shared(slots) + stage * (16 * CHUNK_VECTORS * S::LANES);
        const unsigned begins = cluster_ctarank() * segment + chunk * (CHUNK_VECTORS * S::CTAS * segment);
        const T* from = matrix + static_cast<size_t>(row) * cols + begins;
        auto bytes = [&](int i) {
            const unsigned column = begins + i * (S::CTAS * segment);
            return column < cols ? ::min(segment, cols - column) * static_cast<unsigned>(sizeof(T)) : 0;
        };
        unsigned all = 0;
#pragma unroll
        for (int i = 0; i < CHUNK_VECTORS; i++) all += bytes(i);
        mbarrier_arrive_expect_tx(full, all);
        const unsigned long long policy = load_policy<CACHE>();
#pragma unroll
        for (int i = 0; i < CHUNK_VECTORS; i++) {
            if (const unsigned size = bytes(i)) {
                bulk_copy<CACHE>(to + i * (16 * S::LANES), from + i * (S::CTAS * segment), size, full, policy);
            }
        }
    }

    // Starts to copy the first STAGES chunks. One thread calls it.
    template <class Scheduler>
    __device__ __forceinline__ void begin(const Scheduler& scheduler, unsigned rows, unsigned cols,
                                          const T* matrix) const {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) fetch(scheduler.row(i / chunks), rows, cols, i % chunks, i, matrix);
    }

    // Waits for the row of `iteration` and returns it, with `fill` for padding. `at` is the stage of its first chunk
    // and afterwards that of the next row. Each stage is refilled with the chunk that is STAGES later: the stage of
    // chunk i by warp i, when all warps have read it.
    template <class Scheduler>
    __device__ __forceinline__ Row<S> row(const RowLayout<S>& layout, Ring<STAGES>& at, float fill,
                                          const Scheduler& scheduler, unsigned iteration, unsigned rows,
                                          const T* matrix) const {
        const unsigned full = cvta_to_shared(shared.full), empty = cvta_to_shared(shared.empty);
        Row<S> row;
        Ring<STAGES> before = at;
        auto refill = [&](int chunk) {
            if (threadIdx.x / 32 == chunk % S::cta_warps) {
                if (laneid() == 0) {
                    mbarrier_wait(empty + 8 * before.stage, before.parity);
                    fetch(scheduler.row(iteration + (chunk + STAGES) / chunks), rows, layout.cols,
                          (chunk + STAGES) % chunks, before.stage, matrix);
                }
                bar_warp_sync(all_lanes);
            }
        };
#pragma unroll
        for (int chunk = 0; chunk < chunks; chunk++) {
            mbarrier_wait(full + 8 * at.stage, at.parity);
#pragma unroll
            for (int i = chunk * CHUNK_VECTORS; i < (chunk + 1) * CHUNK_VECTORS; i++) {
                const bool valid = i * S::WIDTH < layout.valid;
                Vector<T, S::WIDTH> vector;
                if (valid) vector.set(slots[(at.stage * CHUNK_VECTORS + i % CHUNK_VECTORS) * S::LANES + threadIdx.x]);
                else vector.fill([&](int) { return fill; });
#pragma unroll
                for (int j = 0; j < S::WIDTH; j++) row.v[i][j] = vector[j];
            }
            bar_warp_sync(all_lanes);
            if (laneid() == 0) mbarrier_arrive(empty + 8 * at.stage);
            if (chunk > 0) refill(chunk - 1);
            before = at;
            at.advance();
        }
        refill(chunks - 1);
        return row;
    }
};

// Calls f(layout, row) for each row of `matrix` that the scheduler gives the cluster, with `fill` for padding. f must
// exchange records once, which keeps the CTAs within one iteration of each other. started() is called once and waits
// until all CTAs of the cluster have started.
template <bool FULL_TILE, class T, class S, int CHUNK_VECTORS, int STAGES, int CACHE, int AHEAD, class Started, class F>
__device__ __forceinline__ void persistent_rows(const ChunkPipeline<T, S, CHUNK_VECTORS, STAGES, CACHE>& chunks,
                                                RowLayout<S> layout, unsigned rows, unsigned cols, const T* matrix,
                                                float fill, TileScheduler<S, AHEAD>& scheduler, Started started, F f) {
    static_assert(AHEAD > ChunkPipeline<T, S, CHUNK_VECTORS, STAGES, CACHE>::ahead,
                  "rows are sent before their first chunk is fetched");
    started();
    scheduler.begin();
    if (chunks.copies(layout) && threadIdx.x == 0) chunks.begin(scheduler, rows, cols, matrix);
    bar_warp_sync(all_lanes);
    with_layout<FULL_TILE>(layout, [&](RowLayout<S> layout) {
        const bool copies = chunks.copies(layout);
        Ring<STAGES> at;
        unsigned iteration = 0;
#pragma unroll 1
        for (unsigned row_number; (row_number = scheduler.row(iteration)) < rows; iteration++) {
            layout.take(row_number, cols, cols);
            if constexpr (FULL_TILE) layout.assume_full_tile();
            scheduler.advance(iteration);
            Row<S> row;
            if (copies) row = chunks.row(layout, at, fill, scheduler, iteration, rows, matrix);
            else row = layout.template load<CACHE>(matrix, fill);
            f(layout, row);
        }
        scheduler.end(iteration);
    });
}

}  // namespace ptxkit

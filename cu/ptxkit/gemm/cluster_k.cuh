// A product by wgmma in which the CTAs of a cluster divide k: c = a b^T. A cluster computes one tile of c, and each of its CTAs,
// the `parts`, multiplies an equal share of the steps of k. For results with fewer tiles than the GPU has SMs.
//
// The sums are added within the cluster, through distributed shared memory, without arrays in device memory and without a second
// launch. They lie in registers as wgmma leaves them: a thread has vectors of four, and vector v of thread t has the same
// elements of the tile in every CTA. Each CTA therefore owns some of the vectors. After the last product, when no CTA of the
// cluster reads its ring any more, the CTAs send their vectors to the owners (st.async), whose rings receive them by sender and
// thread: neighbouring threads write and read neighbouring 16 bytes, without a transposition. An owner adds what it has received
// in the order of the parts, so that every launch gives the same bits. Neighbouring vectors have different owners, so that all
// CTAs receive at the same time.
//
// A producer warp fills a ring of as many stages as shared memory holds. Tiles and epilogues are those of stream_k.cuh. Warps
// whose rows are beyond the last one of a send nothing.
#pragma once
#include "ptxkit/gemm/stream_k.cuh"
#include "ptxkit/ptx/cluster.cuh"

namespace ptxkit {

// Four sums as st.async stores them.
__device__ __forceinline__ float4 bits_of_sums(const float* d) { return {d[0], d[1], d[2], d[3]}; }
__device__ __forceinline__ float4 bits_of_sums(const int* d) {
    return {__int_as_float(d[0]), __int_as_float(d[1]), __int_as_float(d[2]), __int_as_float(d[3])};
}

// Which CTA owns which vectors of a tile: of units of UNIT vectors, which have 16 columns where the tile allows it, 32 bytes of
// a row of c in 16 bits, a CTA owns every `parts`-th one.
template <class Tile>
struct ClusterOwners {
    static constexpr unsigned UNIT = Tile::COLUMNS % 16 == 0 ? 2 : 1, UNITS = Tile::VECTORS / UNIT;
    unsigned parts, part;

    // Units that each CTA owns at most: CTAs have as much room for each sender.
    __device__ __forceinline__ unsigned most() const { return (UNITS - 1) / parts + 1; }

    // Units that this CTA owns.
    __device__ __forceinline__ unsigned own() const { return part < UNITS ? (UNITS - 1 - part) / parts + 1 : 0; }

    // First row in the tile of a warp's vector.
    static __device__ __forceinline__ unsigned row(unsigned warp, unsigned vector) {
        return warp / 4 * (64 * Tile::ROWS) + vector / (Tile::COLUMNS / 8) * 64 + warp % 4 * 16;
    }

    // Byte offset of a vector of this thread from sender number `sender` in the shared memory of its owner. `slot` is the number
    // of its unit among those of the owner.
    __device__ __forceinline__ unsigned offset(unsigned sender, unsigned slot, unsigned in_unit) const {
        return (((sender * most() + slot) * UNIT + in_unit) * Tile::THREADS + threadIdx.x) * 16;
    }

    // Bytes that this CTA receives of a tile with `rows` rows in a.
    __device__ __forceinline__ unsigned bytes(unsigned rows) const {
        unsigned found = 0;
        for (unsigned slot = 0; slot < own(); slot++) {
            for (unsigned warp = 0; warp < Tile::THREADS / 32; warp++) {
                // all vectors of a unit have the same rows
                if (row(warp, (slot * parts + part) * UNIT) < rows) found += UNIT * 32 * 16;
            }
        }
        return found * parts;
    }
};

// The product as the body of a kernel with 128 CONSUMERS + 32 threads, clusters of `parts` CTAs, one cluster for each tile, and
// dynamic shared memory for `stages` x STAGE_BYTES and for `parts` x most() x UNIT x THREADS x 16 bytes, which share it. Tiles are
// numbered down the rows of a first: `down` of them; `of_product` are those of a product of a batch. k has at least as many
// `steps` as a cluster CTAs. `loaded` are the rows of a in a tile that are loaded.
template <class Tile, class T, class Of, class Out, class Sum = typename WgmmaOf<T>::Sum>
__device__ __forceinline__ void cluster_k_product(const TensorMap& a_map, const TensorMap& b_map, Out& output, unsigned down,
                                                  unsigned of_product, unsigned steps, unsigned loaded, unsigned stages) {
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, HEIGHT = Tile::HEIGHT;
    constexpr int BK = wgmma_depth<T>;
    constexpr bool BATCHED = Of::BATCHED;
    constexpr unsigned a_bytes = HEIGHT * WGMMA_ROW_BYTES, stage_bytes = Tile::STAGE_BYTES;
    using Vector = typename VectorOf<Sum>::type;
    using Owners = ClusterOwners<Tile>;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * STREAM_K_MAX_STAGES + 1];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * STREAM_K_MAX_STAGES;
    const unsigned received = empty + 8 * STREAM_K_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const Owners owners = {cluster_nctarank(), cluster_ctarank()};
    const unsigned parts = owners.parts, part = owners.part;
    unsigned tile = blockIdx.x / parts;
    const unsigned product = BATCHED ? tile / of_product : 0;
    if constexpr (BATCHED) tile -= product * of_product;
    const unsigned row = tile % down * HEIGHT, col = tile / down * COLUMNS, rows = output.m - row;
    const unsigned begin = steps * part / parts, end = steps * (part + 1) / parts;
    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        for (unsigned s = 0; s < stages; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 4 * CONSUMERS);
        }
        mbarrier_init(received, 1);
        fence_mbarrier_init_release_cluster();
        mbarrier_arrive_expect_tx(received, owners.bytes(rows));
    }
    __syncwarp();
    barrier_sync();
    follow_previous_grid();

    RingOf ring(stages);
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned bytes = (loaded + COLUMNS) * WGMMA_ROW_BYTES;
            for (unsigned step = begin; step < end; step++) {
                const unsigned a = base + ring.stage * stage_bytes, barrier = full + 8 * ring.stage;
                mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, bytes);
                load_rows<Of::B_MAJOR, COLUMNS, 1, BATCHED>(a + a_bytes, b_map, step * BK, col, barrier, 0, product);
                load_shared_rows<Of::A_MAJOR, BATCHED>(a, a_map, loaded, step * BK, row, barrier, 0, false, product);
                ring.advance();
            }
        }
        __syncwarp();
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
        return;
    }
    const unsigned consumer = warp / 4;
    Sum sums[ROWS][COLUMNS / 2];
    unsigned previous = 0;
    for (unsigned step = begin; step < end; step++) {
        const unsigned a = base + ring.stage * stage_bytes;
        mbarrier_wait(full + 8 * ring.stage, ring.parity);
        multiply_tile<T, Of>(sums, a + consumer * ROWS * WGMMA_BLOCK_BYTES, a + a_bytes, step > begin);
        wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
        if (step > begin && lane == 0) mbarrier_arrive(empty + 8 * previous);
        previous = ring.stage;
        ring.advance();
    }
    wait_for_sums(sums);
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA reads its ring any more, so that sums may take its place

    unsigned owner = 0, slot = 0;
#pragma unroll
    for (int unit = 0; unit < int(Owners::UNITS); unit++) {
        if (Owners::row(warp, unit * Owners::UNIT) < rows) {
            const unsigned barrier = mapa_shared_cluster(received, owner);
            const unsigned to = mapa_shared_cluster(base + owners.offset(part, slot, 0), owner);
#pragma unroll
            for (int i = 0; i < int(Owners::UNIT); i++) {
                const int v = unit * Owners::UNIT + i;
                st_async_shared_cluster(to + i * Tile::THREADS * 16,
                                        bits_of_sums(&sums[v / (COLUMNS / 8)][v % (COLUMNS / 8) * 4]), barrier);
            }
        }
        if (++owner == parts) {
            owner = 0;
            slot++;
        }
    }
    if constexpr (BATCHED) output.product = product;
    mbarrier_wait(received, 0);
    for (unsigned own = 0; own < owners.own(); own++) {
        const unsigned first = (own * parts + part) * Owners::UNIT;
        if (Owners::row(warp, first) >= rows) continue;
#pragma unroll
        for (unsigned i = 0; i < Owners::UNIT; i++) {
            Vector sum = *reinterpret_cast<const Vector*>(shared + owners.offset(0, own, i));
#pragma unroll 4
            for (unsigned sender = 1; sender < parts; sender++) {
                const Vector more = *reinterpret_cast<const Vector*>(shared + owners.offset(sender, own, i));
                sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
            }
            store_vector<Tile>(sum, output, first + i, threadIdx.x, row, col);
        }
    }
}

}  // namespace ptxkit

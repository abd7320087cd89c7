// Attention of few queries, whose time is that of reading keys and values. What the kernels of attention_decode.cu share.
//
// The rows of a tile are queries of all heads that share a head of keys: row r of a sequence is query r / group in head
// r % group of these. Keys and values are then read once for all of them. A CTA has KEY_WARPS groups of ROW_WARPS warps. A
// warp computes 16 rows, by mma.sync; a group has tiles of BN keys of its own in shared memory, STAGES of them, and does not
// wait for the other groups until the end. The keys of a sequence are divided into parts, one for each CTA. Maxima, sums and
// results of groups, of the CTAs of a cluster, and of the parts are combined in a fixed order.
#pragma once
#include "ptxkit/attention/mma_tiles.cuh"
#include "ptxkit/attention/sequence.cuh"
#include "ptxkit/attention/wgmma_tiles.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/narrow.cuh"

namespace ptxkit {

// The description gives the parameters by name (DecodeTile in ptxkit/kernels/attention/decode.py).
template <int D_, int BYTES_, int ROW_WARPS_, int KEY_WARPS_, int BN_, int STAGES_, int CLUSTER_, bool PERSISTENT_>
struct DecodeTile {
    static constexpr int D = D_;                  // elements of a head
    static constexpr int BYTES = BYTES_;          // of an element
    static constexpr int ROW_WARPS = ROW_WARPS_;  // warps of a group, 16 rows each
    static constexpr int KEY_WARPS = KEY_WARPS_;  // groups, with keys of their own
    static constexpr int BN = BN_;                // keys of a tile
    static constexpr int STAGES = STAGES_;        // tiles of keys and values of each group in shared memory
    static constexpr int CLUSTER = CLUSTER_;      // CTAs of a cluster, which share the keys of a part
    static constexpr bool PERSISTENT = PERSISTENT_;  // a CTA takes one work item after the other
    static constexpr int ROWS = 16 * ROW_WARPS, THREADS = 32 * ROW_WARPS * KEY_WARPS;
    static constexpr int row_bytes = D * BYTES, span = row_bytes < 128 ? row_bytes : 128;  // of the swizzle
    // Shared memory as byte offsets: rows of queries; tiles; results of groups, which take the place of the tiles unless the
    // tiles of the next work item are loaded meanwhile; mbarriers.
    static constexpr int q_bytes = ROWS * row_bytes, tile_bytes = BN * row_bytes, stage_bytes = 2 * tile_bytes;
    static constexpr int WIDTH = D + 8;  // f32 elements from a row of results to the next: without bank conflicts
    static constexpr int tiles_bytes = KEY_WARPS * STAGES * stage_bytes, results_bytes = KEY_WARPS * ROWS * WIDTH * 4;
    static constexpr int tiles = (PERSISTENT ? 2 : 1) * q_bytes, results = tiles + (PERSISTENT ? tiles_bytes : 0);
    static constexpr int sums = PERSISTENT || results_bytes > tiles_bytes ? results + results_bytes : tiles + tiles_bytes;
    static constexpr int barriers = sums + (KEY_WARPS + 1) * ROWS * 8, bytes = barriers + 8 * 2 * KEY_WARPS * STAGES;
};

// The maximum of a row of scores, in units of log2, and the sum of its exponentials relative to that.
struct RowSum {
    float maximum, sum;
};

// The offset of a byte in a tile of ROWS rows of D elements: boxes with rows of SPAN bytes and the swizzle of that span.
template <int ROWS, int SPAN>
__device__ __forceinline__ unsigned box_offset(unsigned row, unsigned byte) {
    return byte / SPAN * (ROWS * SPAN) + swizzled<SPAN>(row * SPAN + byte % SPAN);
}

// Loads tiles by cp.async, by all threads of a group.
template <class T, class Tile>
struct AsyncTiles {
    static constexpr bool TMA = false;
    const T *k, *v;

    // Copies BN rows from number `key` on; those from number `count` on are zero.
    __device__ __forceinline__ void copy(unsigned tile, const T* from, int key, int head, int kv_heads, int count) const {
        constexpr int atoms = Tile::row_bytes / 16, threads = 32 * Tile::ROW_WARPS, step = threads / atoms;
        static_assert(threads % atoms == 0 && Tile::BN % step == 0, "as many 16-byte atoms for each thread");
        const int first = threadIdx.x % threads / atoms, byte = threadIdx.x % atoms * 16;
        const size_t stride = size_t(kv_heads) * Tile::row_bytes;
        const char* first_byte = reinterpret_cast<const char*>(from) + (key + first) * stride + head * Tile::row_bytes + byte;
#pragma unroll
        for (int i = 0; i < Tile::BN; i += step) {
            cp_async_cg_shared_global(tile + box_offset<Tile::BN, Tile::span>(first + i, byte), first_byte + i * stride,
                                      first + i < count ? 16 : 0);
        }
    }
};

// Loads tiles by TMA, by one thread of a group.
template <class T, class Tile>
struct BulkTiles {
    static constexpr bool TMA = true;
    const TensorMap &k, &v;
    int tokens;  // keys of all sequences

    // Copies BN rows of a sequence from its number `key` on; those beyond its end are zero.
    __device__ __forceinline__ void copy(unsigned tile, const TensorMap& map, const Sequence& sequence, int key, int head,
                                         unsigned barrier) const {
        constexpr int columns = Tile::span / Tile::BYTES;
        load_rows_of_sequence<Tile::D, Tile::BN, columns, Tile::span>(tile, map, head, sequence.k_first, sequence.k_count, key,
                                                                      tokens, barrier);
    }
};

// Elements have no scales.
struct NoScales {
    static constexpr bool ANY = false;
};

// Elements are multiplied by the scale of their head.
struct HeadScales {
    static constexpr bool ANY = true;
    const float *q, *k, *v;
};

// Products of elements of 16 bits: see mma_tiles.cuh.
template <class T, class Tile>
struct DecodeProducts {
    using Out = T;  // type of the results

    // s = q k^T for 16 rows of q from number `row`.
    static __device__ __forceinline__ void scores(float (&s)[Tile::BN / 2], unsigned q, unsigned row, unsigned k) {
        multiply_scores<Tile::ROWS, Tile::BN, Tile::D, T>(s, q, row, k);
    }

    // sums += p v, with the exponentials s.
    static __device__ __forceinline__ void values(float (&sums)[Tile::D / 2], const float (&s)[Tile::BN / 2], unsigned v) {
#pragma unroll
        for (int j = 0; j < Tile::BN / 16; j++) {
            unsigned p[4];
            pack_operand<T>(p, s, j);
            multiply_values<Tile::BN, Tile::D, T>(sums, p, v, 16 * j);
        }
    }

    // Stores the sums of this thread to two rows, 8 apart, of f32 in shared memory.
    static __device__ __forceinline__ void store(float* row, const float (&sums)[Tile::D / 2]) {
#pragma unroll
        for (int i = 0; i < Tile::D / 2; i += 2) {
            float* const to = row + i / 2 % 2 * 8 * Tile::WIDTH + i / 4 * 8 + laneid() % 4 * 2;
            *reinterpret_cast<float2*>(to) = {sums[i], sums[i + 1]};
        }
    }
};

// Products of e4m3 elements in f16, to which they are converted in registers. The sums of products are f32, and the
// exponentials are rounded to f16. ldmatrix gives a thread four consecutive elements of a row, of which the first two are
// elements 2 t and 2 t + 1 of an operand (t = lane % 4), and the others elements 2 t + 8 and 2 t + 9: as both operands have
// the elements in this order, the sum of their products is the same. Of the values, transposed by ldmatrix, it gives two
// keys with two columns each: sums 8 i to 8 i + 3 are those of even columns, and the next four those of odd ones.
template <class Tile>
struct DecodeProducts<e4m3, Tile> {
    using Out = bf16;
    static constexpr int BN = Tile::BN, D = Tile::D;

    static __device__ __forceinline__ unsigned low(unsigned four) { return cvt_rn_f16x2_e4m3x2(four & 0xffff); }
    static __device__ __forceinline__ unsigned high(unsigned four) { return cvt_rn_f16x2_e4m3x2(four >> 16); }

    static __device__ __forceinline__ void scores(float (&s)[BN / 2], unsigned q, unsigned row, unsigned k) {
        const unsigned lane = laneid();
#pragma unroll
        for (float& sum : s) sum = 0;
#pragma unroll 4
        for (int d = 0; d < D; d += 32) {
            unsigned rows[4], keys[4];
            ldmatrix_x4(rows, q + box_offset<Tile::ROWS, Tile::span>(row + lane % 16, d + lane / 16 * 16));
            const unsigned a[2][4] = {{low(rows[0]), low(rows[1]), high(rows[0]), high(rows[1])},
                                      {low(rows[2]), low(rows[3]), high(rows[2]), high(rows[3])}};
#pragma unroll
            for (int j = 0; j < BN / 8; j += 2) {
                ldmatrix_x4(keys, k + box_offset<BN, Tile::span>(8 * j + lane % 8 + lane / 16 * 8, d + lane / 8 % 2 * 16));
#pragma unroll
                for (int i = 0; i < 4; i++) mma(&s[4 * j + i / 2 * 4], a[i % 2], {low(keys[i]), high(keys[i])}, f16());
            }
        }
    }

    static __device__ __forceinline__ void values(float (&sums)[D / 2], const float (&s)[BN / 2], unsigned v) {
        const unsigned lane = laneid();
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            unsigned p[4];
            pack_operand<f16>(p, s, j);
#pragma unroll
            for (int d = 0; d < D; d += 32) {
                unsigned four[4];
                ldmatrix_x4_trans(four, v + box_offset<BN, Tile::span>(16 * j + lane % 16, d + lane / 16 * 16));
#pragma unroll
                for (unsigned& x : four) x = prmt_b32(x, 0, 0x3120);  // two keys of a column side by side
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    float* const columns = &sums[d / 2 + i * 4];
                    mma(columns, p, {low(four[i]), low(four[i + 1])}, f16());
                    mma(columns + 4, p, {high(four[i]), high(four[i + 1])}, f16());
                }
            }
        }
    }

    static __device__ __forceinline__ void store(float* row, const float (&sums)[D / 2]) {
#pragma unroll
        for (int i = 0; i < D / 2; i += 8) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float* const to = row + r * 8 * Tile::WIDTH + i * 2 + laneid() % 4 * 4;
                *reinterpret_cast<float4*>(to) = {sums[i + 2 * r], sums[i + 4 + 2 * r], sums[i + 1 + 2 * r], sums[i + 5 + 2 * r]};
            }
        }
    }
};

// Where the results of a row are written.
template <class T>
struct DecodeRow {
    T* o;              // of all rows, or partial results
    float* partial_o;  // or null
    float* logarithm;
    size_t row;        // in o
    float factor, log_sum;

    // Results `x` and `y` of columns `column` and the next one, not divided by the sum of the exponentials.
    template <int D>
    __device__ __forceinline__ void store(int column, float x, float y) const {
        x *= factor, y *= factor;
        if (partial_o != nullptr) *reinterpret_cast<float2*>(partial_o + row * D + column) = {x, y};
        else *reinterpret_cast<unsigned*>(o + row * D + column) = Convert<T>::pack(x, y);
    }
    template <int D>
    __device__ __forceinline__ void store(int column, float4 x) const {
        x = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
        if (partial_o != nullptr) *reinterpret_cast<float4*>(partial_o + row * D + column) = x;
        else *reinterpret_cast<uint2*>(o + row * D + column) = {Convert<T>::pack(x.x, x.y), Convert<T>::pack(x.z, x.w)};
    }
    __device__ __forceinline__ void store_logarithm() const { *logarithm = log_sum; }
};

// Where results are written. Row r of a sequence is query r / group in head r % group of those that share a head of keys.
template <class T>
struct DecodeRows {
    T* o;
    float *lse, *partial_o, *partial_lse;
    int tokens, heads, first_token, first_head, group;
    int part;  // whose results are partial: f32, with logarithms in units of log2; or below 0
    float scale = 1;  // of the values

    __device__ __forceinline__ DecodeRow<T> row(int row, RowSum total) const {
        constexpr float ln2 = 0.693147180559945f;
        const int token = first_token + row / group, head = first_head + row % group;
        const float factor = total.sum == 0 ? 0 : scale / total.sum;
        const float log_sum = total.sum == 0 ? -infinity() : total.maximum + lg2_approx(total.sum);
        const size_t row_of_o = size_t(token) * heads + head;
        if (part < 0) return {o, nullptr, lse + size_t(head) * tokens + token, row_of_o, factor, log_sum * ln2};
        const size_t of_part = size_t(part) * tokens * heads + row_of_o;
        return {o, partial_o, partial_lse + of_part, of_part, factor, log_sum};
    }
};

// Sums of `count` parts in the order of the parts. total(i) is the maximum and the sum of part i, sums(i) its four results.
template <class Total, class Sums>
__device__ __forceinline__ float4 combine(int count, RowSum& combined, Total total, Sums sums) {
    float highest = -infinity();
#pragma unroll
    for (int i = 0; i < count; i++) highest = fmaxf(highest, total(i).maximum);
    const float base = highest == -infinity() ? 0 : highest;
    float4 x = {};
    combined = {highest, 0};
#pragma unroll
    for (int i = 0; i < count; i++) {
        const RowSum of_part = total(i);
        const float factor = ex2_approx_ftz(of_part.maximum - base);
        const float4 y = sums(i);
        combined.sum = fmaf(of_part.sum, factor, combined.sum);
        x = {fmaf(y.x, factor, x.x), fmaf(y.y, factor, x.y), fmaf(y.z, factor, x.z), fmaf(y.w, factor, x.w)};
    }
    return x;
}

// A work item: a tile of rows of a head of keys, and a part of the keys of a sequence.
template <class Tile, bool CAUSAL>
struct DecodeItem {
    Sequence sequence{0, 0};
    int kv_head, part, first_row, count, begin, tiles;  // count: rows that exist; begin: the first key of the CTA

    // Item `index` of row tiles x heads of keys x parts x sequences. rank: of the CTA in its cluster.
    __device__ __forceinline__ DecodeItem(unsigned index, const int* q_starts, const int* k_starts, int group, int kv_heads,
                                          int parts, int row_tiles, int part_keys, int rank) {
        first_row = index % row_tiles * Tile::ROWS;
        index /= row_tiles;
        kv_head = index % kv_heads;
        index /= kv_heads;
        part = index % parts;
        sequence = Sequence(q_starts, k_starts, index / parts);
        count = max(0, min(Tile::ROWS, sequence.q_count * group - first_row));
        const int end = count > 0 ? sequence.visible_before<CAUSAL>((first_row + count - 1) / group + 1) : 0;
        begin = min(end, (part * Tile::CLUSTER + rank) * part_keys);
        tiles = (min(end - begin, part_keys) + Tile::BN - 1) / Tile::BN;
    }
};

// Adds the results of the CTAs of a cluster, which are in the shared memory of each, in the order of their ranks.
template <class Tile, class Out, class Item>
__device__ __forceinline__ void combine_ctas(const DecodeRows<Out>& out, const Item& item, const float* results,
                                             const RowSum* of_cta, int rank) {
    constexpr int D = Tile::D, WIDTH = Tile::WIDTH, THREADS = Tile::THREADS, CLUSTER = Tile::CLUSTER;
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    const unsigned first_result = cvta_to_shared(results), first_sum = cvta_to_shared(of_cta);
    for (int i = rank * THREADS + threadIdx.x; i < item.count * (D / 4); i += CLUSTER * THREADS) {
        const int row = i / (D / 4), column = i % (D / 4) * 4;
        RowSum total;
        const float4 x = combine(
            CLUSTER, total,
            [&](int number) -> RowSum {
                const unsigned place = mapa_shared_cluster(first_sum + row * 8, number);
                return {ld_shared_cluster_f32(place), ld_shared_cluster_f32(place + 4)};
            },
            [&](int number) -> float4 {
                const uint4 bits = ld_shared_cluster_v4(mapa_shared_cluster(first_result + (row * WIDTH + column) * 4, number));
                return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
            });
        const DecodeRow<Out> of_row = out.row(item.first_row + row, total);
        of_row.template store<D>(column, x);
        if (column == 0) of_row.store_logarithm();
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();  // no CTA exits while another one reads its results
}

// The body of the kernels. There is a work item for each tile of rows, head of keys, part of the keys and sequence, in this
// order: CTAs that run at the same time read all heads of a key. A cluster has one work item. With PERSISTENT, a CTA takes every
// gridDim.x-th one, and each group requests its first keys of the next one before it has multiplied its last ones of this.
// part_keys: keys of a CTA, a multiple of BN.
template <class T, class Tile, bool CAUSAL, class Loads, class Scales, class Products = DecodeProducts<T, Tile>>
__device__ __forceinline__ void attend_few(const Loads& loads, const Scales& scales, const T* q, typename Products::Out* o,
                                           float* lse, const int* q_starts, const int* k_starts, int tokens, int heads,
                                           int kv_heads, float* partial_o, float* partial_lse, int parts, int row_tiles,
                                           int part_keys, unsigned items, float scale) {
    constexpr int D = Tile::D, ROWS = Tile::ROWS, BN = Tile::BN, STAGES = Tile::STAGES, WIDTH = Tile::WIDTH;
    constexpr int ROW_WARPS = Tile::ROW_WARPS, KEY_WARPS = Tile::KEY_WARPS, THREADS = Tile::THREADS, CLUSTER = Tile::CLUSTER;
    constexpr bool PERSISTENT = Tile::PERSISTENT;
    static_assert(!PERSISTENT || (CLUSTER == 1 && Loads::TMA), "persistent CTAs load by TMA, and have no clusters");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tiles = cvta_to_shared(shared), lane = laneid();
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);  // the same in all lanes
    const unsigned of_keys = warp / ROW_WARPS, row_warp = warp % ROW_WARPS;
    const unsigned stages = q_tiles + Tile::tiles + of_keys * (STAGES * Tile::stage_bytes);
    const unsigned full = q_tiles + Tile::barriers + of_keys * (16 * STAGES), empty = full + 8 * STAGES;
    const bool leader = row_warp == 0 && lane == 0;  // of the group

    if constexpr (Loads::TMA) {
        if (leader) init_ring<STAGES>(full, 1, empty, ROW_WARPS);
        barrier_sync();
    }
    follow_previous_grid();

    const int group = heads / kv_heads, rank = CLUSTER > 1 ? cluster_ctarank() : 0;
    using Item = DecodeItem<Tile, CAUSAL>;
    auto item_at = [&](unsigned index) {
        return Item(index, q_starts, k_starts, group, kv_heads, parts, row_tiles, part_keys, rank);
    };
    auto of_group = [&](const Item& item) { return (item.tiles + KEY_WARPS - 1 - int(of_keys)) / KEY_WARPS; };
    unsigned index = blockIdx.x / CLUSTER;
    Item item = item_at(index);
    if (!PERSISTENT && item.count == 0) return;

    // The tile that the group loads next: number `loaded` of the `to_load` of an item.
    Item loading = item;
    unsigned load_index = index;
    int loaded = 0, to_load = of_group(loading);
    auto find = [&] {
        while (PERSISTENT && loaded == to_load && (load_index += gridDim.x) < items) {
            loading = item_at(load_index);
            loaded = 0, to_load = of_group(loading);
        }
    };
    auto load = [&](unsigned stage) {
        if (loaded == to_load) return;
        const int key = loading.begin + (loaded * KEY_WARPS + of_keys) * BN, kv_head = loading.kv_head;
        const unsigned k_tile = stages + stage * Tile::stage_bytes, v_tile = k_tile + Tile::tile_bytes;
        if constexpr (Loads::TMA) {
            if (leader) {
                mbarrier_arrive_expect_tx(full + 8 * stage, Tile::stage_bytes);
                loads.copy(k_tile, loads.k, loading.sequence, key, kv_head, full + 8 * stage);
                loads.copy(v_tile, loads.v, loading.sequence, key, kv_head, full + 8 * stage);
            }
        } else {
            const int first_key = loading.sequence.k_first + key;
            loads.copy(k_tile, loads.k, first_key, kv_head, kv_heads, loading.sequence.k_count - key);
            loads.copy(v_tile, loads.v, first_key, kv_head, kv_heads, loading.sequence.k_count - key);
        }
        loaded++;
        find();
    };
    auto load_queries = [&](const Item& of, unsigned tile) {
        constexpr int atoms = Tile::row_bytes / 16;
        for (int i = threadIdx.x; i < ROWS * atoms; i += THREADS) {
            const int row = i / atoms, atom = i % atoms, of_sequence = of.first_row + row;
            const size_t token = of.sequence.q_first + of_sequence / group;
            const T* from = q + (token * heads + of.kv_head * group + of_sequence % group) * D + atom * (16 / Tile::BYTES);
            cp_async_cg_shared_global(tile + box_offset<ROWS, Tile::span>(row, atom * 16), from, row < of.count ? 16 : 0);
        }
        cp_async_commit_group();
    };
    auto synchronize = [&] {  // the warps of the group
        if constexpr (ROW_WARPS == 1) __syncwarp();
        else barrier_sync_below<1 + KEY_WARPS>(1 + of_keys, 32 * ROW_WARPS);
    };

    unsigned q_tile = q_tiles;
    load_queries(item, q_tile);
    find();
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        load(i);
        if constexpr (!Loads::TMA) cp_async_commit_group();
    }
    float* const results = reinterpret_cast<float*>(shared + Tile::results);
    RowSum *const of_groups = reinterpret_cast<RowSum*>(shared + Tile::sums), *const of_cta = of_groups + KEY_WARPS * ROWS;
    const unsigned first = row_warp * 16;
    Ring<STAGES> at;
    while (true) {
        cp_async_wait_group<Loads::TMA ? 0 : STAGES>();
        barrier_sync();  // all threads have copied queries, and have read the previous results
        const unsigned following = index + gridDim.x;
        Item next = item;
        if (PERSISTENT && following < items) {
            next = item_at(following);
            load_queries(next, 2 * q_tiles + Tile::q_bytes - q_tile);  // the other tile of queries
        }
        int visible[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            visible[r] = item.sequence.template visible<CAUSAL>((item.first_row + first + lane / 4 + 8 * r) / group);
        }
        const int unmasked = item.sequence.template visible<CAUSAL>(item.first_row / group);  // keys that all rows see
        float row_scale[2] = {1, 1};
        if constexpr (Scales::ANY) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = min(first + lane / 4 + 8 * r, unsigned(max(1, item.count) - 1));
                row_scale[r] = scales.q[item.kv_head * group + (item.first_row + row) % group] * scales.k[item.kv_head];
            }
        }
        OnlineSoftmax softmax{scale};
        float sums[D / 2] = {};
        const int mine = of_group(item);
        for (int i = 0; i < mine; i++) {
            const int key = item.begin + (i * KEY_WARPS + of_keys) * BN;
            const unsigned k_tile = stages + at.stage * Tile::stage_bytes, v_tile = k_tile + Tile::tile_bytes;
            if constexpr (Loads::TMA) {
                mbarrier_wait(full + 8 * at.stage, at.parity);
            } else {
                cp_async_wait_group<STAGES - 1>();
                synchronize();
            }
            float s[BN / 2], factor[2];
            Products::scores(s, q_tile, first, k_tile);
            if constexpr (Scales::ANY) scale_rows(s, row_scale);
            if (key + BN > unmasked) mask_scores(s, key, visible);
            softmax.add(s, factor);
            scale_rows(sums, factor);
            Products::values(sums, s, v_tile);
            if constexpr (!Loads::TMA) {
                synchronize();  // all warps of the group have read the tile
            } else if constexpr (ROW_WARPS == 1) {
                __syncwarp();
            } else {
                __syncwarp();
                if (lane == 0) mbarrier_arrive(empty + 8 * at.stage);
                if (leader && loaded < to_load) mbarrier_wait(empty + 8 * at.stage, at.parity);
            }
            load(at.stage);
            if constexpr (!Loads::TMA) cp_async_commit_group();
            at.advance();
        }
        softmax.finish();
        if constexpr (!Loads::TMA) cp_async_wait_all();
        if constexpr (!PERSISTENT) barrier_sync();  // all groups have read their tiles, whose place the results take

        Products::store(results + (of_keys * ROWS + first + lane / 4) * WIDTH, sums);
        if (lane % 4 == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float maximum = softmax.maximum[r] == -infinity() ? -infinity() : softmax.maximum[r] * scale;
                of_groups[of_keys * ROWS + first + lane / 4 + 8 * r] = {maximum, softmax.sum[r]};
            }
        }
        barrier_sync();
        using Out = typename Products::Out;
        DecodeRows<Out> out{o, lse, partial_o, partial_lse, tokens, heads, item.sequence.q_first, item.kv_head * group, group,
                            parts > 1 ? item.part : -1};
        if constexpr (Scales::ANY) out.scale = scales.v[item.kv_head];
        for (int i = threadIdx.x; i < item.count * (D / 4); i += THREADS) {
            const int row = i / (D / 4), column = i % (D / 4) * 4;
            auto place = [&](int number) { return results + (number * ROWS + row) * WIDTH + column; };
            RowSum total;
            const float4 x = combine(
                KEY_WARPS, total, [&](int number) { return of_groups[number * ROWS + row]; },
                [&](int number) { return *reinterpret_cast<const float4*>(place(number)); });
            if constexpr (CLUSTER == 1) {
                const DecodeRow<Out> of_row = out.row(item.first_row + row, total);
                of_row.template store<D>(column, x);
                if (column == 0) of_row.store_logarithm();
            } else {
                *reinterpret_cast<float4*>(place(0)) = x;
                if (column == 0) of_cta[row] = total;
            }
        }
        if constexpr (CLUSTER > 1) combine_ctas<Tile>(out, item, results, of_cta, rank);
        if (!PERSISTENT || following >= items) return;
        item = next;
        index = following;
        q_tile = 2 * q_tiles + Tile::q_bytes - q_tile;
    }
}

}  // namespace ptxkit

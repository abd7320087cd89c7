// Attention, forward, of e4m3 elements with one scale for each head: o = softmax(q k^T / sqrt(D)) v, where q, k and v are
// the elements times the scales of their heads. Shapes, sequences, masks and the logarithms of sums are those of
// attention.cu; o has bf16 elements.
//
// - `attention_e4m3_dequantize` writes bf16 elements times their scale, for the kernels of attention.cu.
// - `attention_e4m3_transpose` writes the values with the keys as the contiguous dimension: the second operand of an e4m3
//     product must be K-major, and the keys are its K.
// - `attention_e4m3`: both products by wgmma on e4m3, in the form of attention_specialized. Exponentials are rounded to
//     e4m3 in registers, relative to 2^8 times the maximum of a row, which uses more of the type's range. Each product of
//     exponentials with the values of a tile has its own accumulators and is added in f32, because wgmma keeps 13 bits of
//     fraction of e4m3 sums.
//
// Source: Shah et al., "FlashAttention-3" (2024), which transposes in the kernel.
#include "ptxkit/attention/e4m3_consumer.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"

using namespace ptxkit;

// One row (a head of a token) for each group of D / 16 threads. scales: of each of `heads` heads.
template <int D, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_e4m3_dequantize(const e4m3* from, const float* scales, bf16* to,
                                                                     long long rows, int heads) {
    follow_previous_grid();
    constexpr int lanes = D / 16;
    const long long row = blockIdx.x * (THREADS / lanes * 1ll) + threadIdx.x / lanes;
    if (row >= rows) return;
    const float scale = scales[row % heads];
    const size_t first = row * D + threadIdx.x % lanes * 16;
    const uint4 packed = *reinterpret_cast<const uint4*>(from + first);
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
    unsigned results[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const unsigned pair = cvt_rn_f16x2_e4m3x2(words[i / 2] >> (i % 2 * 16) & 0xffff);
        results[i] = Convert<bf16>::pack(Convert<f16>::low(pair) * scale, Convert<f16>::high(pair) * scale);
    }
    uint4* out = reinterpret_cast<uint4*>(to + first);
    out[0] = {results[0], results[1], results[2], results[3]};
    out[1] = {results[4], results[5], results[6], results[7]};
}

// ---------------------------------------------------------------------------------------------------------------------
// Transposed values: (kv_heads, D, columns). Sequence i begins at a column that is a multiple of 16, as TMA and the
// order below need; columns between sequences are zero.

// Of each 16 keys, the one in column c. A thread has the exponentials of columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16
// in its accumulators, where t = lane % 4, and columns 4 t to 4 t + 3 in the register of an operand. With keys in this
// order it packs its own exponentials.
__device__ __forceinline__ int key_of_column(int c) { return c / 4 * 2 + c % 2 + c % 4 / 2 * 8; }

enum { TRANSPOSED = 128 };  // columns of a CTA

template <int D, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_e4m3_transpose(const unsigned char* v, unsigned char* transposed,
                                                                    const int* k_starts, int kv_heads, int columns,
                                                                    unsigned* next) {
    constexpr int stride = D + 16;  // in shared memory
    __shared__ __align__(16) unsigned char tile[TRANSPOSED * stride];
    follow_previous_grid();
    if (next != nullptr && (blockIdx.x | blockIdx.y | blockIdx.z | threadIdx.x) == 0) *next = 0;
    const int i = blockIdx.z, kv_head = blockIdx.y, first = first_column(k_starts, i), key = blockIdx.x * TRANSPOSED;
    const int width = first_column(k_starts, i + 1) - first;  // columns of the sequence, with those of zeros after it
    if (key >= width) return;
    const int keys = k_starts[i + 1] - k_starts[i] - key;
    const unsigned char* from = v + ((size_t(k_starts[i]) + key) * kv_heads + kv_head) * D;
    for (int j = threadIdx.x; j < TRANSPOSED * D / 16; j += THREADS) {
        const int row = j / (D / 16), c = j % (D / 16) * 16;
        uint4 elements = {};
        if (row < keys) elements = *reinterpret_cast<const uint4*>(from + size_t(row) * kv_heads * D + c);
        *reinterpret_cast<uint4*>(tile + row * stride + c) = elements;
    }
    barrier_sync();
    for (int j = threadIdx.x; j < TRANSPOSED / 16 * D; j += THREADS) {
        const int group = j / D * 16, d = j % D;
        if (key + group >= width) break;
        unsigned words[4];
#pragma unroll
        for (int c = 0; c < 16; c++) {
            const unsigned element = tile[(group + key_of_column(c)) * stride + d];
            words[c / 4] = c % 4 == 0 ? element : words[c / 4] | element << c % 4 * 8;
        }
        *reinterpret_cast<uint4*>(transposed + (size_t(kv_head) * D + d) * columns + first + key + group) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------

// Work items `blockIdx.x`, `blockIdx.x + gridDim.x`, ... of `tiles` tiles for each of `heads` heads of each sequence.
// scale: log2(e) / sqrt(D).
template <class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_e4m3(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const float* q_scales, const float* k_scales, const float* v_scales,
    bf16* o, float* lse, const int* q_starts, const int* k_starts, int tokens, int heads, int kv_heads, int tiles,
    int sequences, float scale) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    constexpr int span = Tile::k_span;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + Tile::k, v_tiles = q_tile + Tile::v;
    const unsigned q_full = q_tile + Tile::barriers, q_empty = q_full + 8;
    const unsigned k_full = q_empty + 8, k_empty = k_full + 8 * STAGES;
    const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        mbarrier_init(q_full, 1);
        mbarrier_init(q_empty, 4 * CONSUMERS);  // one lane of each warp
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
        init_ring<STAGES>(v_full, 1, v_empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned works = unsigned(tiles) * heads * sequences;
    // All tiles of a head come before the next head, so that CTAs that run at the same time share keys and values in L2;
    // with a causal mask the last tiles, which take longest, first.
    auto query_of = [&](unsigned work) { return int(CAUSAL ? tiles - 1 - work % tiles : work % tiles) * BM; };
    unsigned q_parity = 0;
    if (warp < 4) {
        setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            E4m3KeysAndValues<Tile> keys_and_values{k_tiles, v_tiles, k_full, k_empty, v_full, v_empty};
            for (unsigned work = blockIdx.x; work < works; work += gridDim.x) {
                const int query = query_of(work), head = work / tiles % heads, kv_head = head / (heads / kv_heads);
                const int i = work / tiles / heads, column = first_column(k_starts, i);
                const Sequence sequence(q_starts, k_starts, i);
                if (query >= sequence.q_count) continue;
                const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
                mbarrier_wait(q_empty, q_parity ^ 1);
                mbarrier_arrive_expect_tx(q_full, Tile::q_bytes);
                for (int d = 0; d < D; d += span) {
                    cp_async_bulk_tensor_3d_shared_global(q_tile + d * BM, q_map, d, head, sequence.q_first + query,
                                                          q_full);
                }
                q_parity ^= 1;
                keys_and_values.load(k_map, v_map, sequence, column, kv_head, steps);
            }
        }
    } else {
        setmaxnreg_inc<Tile::REGISTERS>();
        const unsigned number = warp / 4 - 1;
        E4m3Consumer<Tile> consumer{q_tile + number * 64 * span, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, number};
        for (unsigned work = blockIdx.x; work < works; work += gridDim.x) {
            const int query = query_of(work), head = work / tiles % heads, kv_head = head / (heads / kv_heads);
            const Sequence sequence(q_starts, k_starts, work / tiles / heads);
            if (query >= sequence.q_count) continue;
            const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
            const int row = query + number * 64 + warp % 4 * 16, first = row + laneid() / 4;
            const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
            const int unmasked = sequence.visible<CAUSAL>(query + number * 64) / BN;  // tiles that all rows see
            consumer.softmax = {scale * q_scales[head] * k_scales[kv_head]};
#pragma unroll
            for (float& sum : consumer.sums) sum = 0;
            mbarrier_wait(q_full, q_parity);
            q_parity ^= 1;
            if (steps > 0) {
                if (Tile::PING_PONG && number == 1) barrier_arrive(1, 256);  // the first warpgroup begins
                const int last = steps - 1;
                consumer.template multiply_tile<false>(last == 0, last >= unmasked, last * BN, visible);
                for (int step = last - 1; step >= 0; step--) {
                    consumer.template multiply_tile<Tile::OVERLAP>(step == 0, step >= unmasked, step * BN, visible);
                }
                if constexpr (Tile::OVERLAP) consumer.multiply_values();
            }
            consumer.signal(q_empty);  // all scores have been computed
            store_rows<BM, D>(consumer.sums, consumer.softmax, shared + Tile::results, number * 64 + warp % 4 * 16,
                              WarpRows<bf16>(o, lse, sequence, row, tokens, heads, head, D), v_scales[kv_head]);
            __syncwarp();  // before the next results
        }
    }
}

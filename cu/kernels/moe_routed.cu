// A mixture of experts on quantized tokens: each token is routed to the TOP_K experts with the largest logits, which
// are networks with SwiGLU, and their results are added with the softmax of the logits as weights. The products are
// those of moe_int8.cu; here are the routing, what happens between the products, and the sum over a token's experts.
//
// A pair is a token and one of its experts, number token * top_k + slot. Pairs are sorted by expert, so that an
// expert's tokens are consecutive rows; row[pair] is the row of a pair, token[row] the token of a row. No row is left
// empty: tiles that reach beyond the rows of an expert compute rows of the next one, and do not store them.
//
// 1. `moe_gate`: a warp per token finds its experts and their weights.
// 2. `moe_sort`: a CTA per expert counts the pairs of lower experts and numbers its own, in the order of the pairs.
// 3. `moe_permute`: copies the tokens to their rows, for TMA. It lets the product start when the pairs are sorted, so that
//     the product loads its first weights while the tokens are copied.
// 4. The product with gates and factors; its epilogue computes SwiGLU (FORMAT F32 or OWN). It lets the next grids start when
//     the tokens are copied, so that the second product may read the offsets before its wait too.
// 5. `moe_requantize`, unless the epilogue has quantized the results.
// 6. The product with the down projection, in bf16, or in parts of k (FORMAT SUMS) for few tokens.
// 7. `moe_combine`: adds the results of a token's experts in the order of its slots.
//
// The unfused chain has a launch for each operation: `gate_softmax`, `gate_top_k`, `gate_normalize`, `moe_sort`,
// `moe_permute`, product, `dequantize_sums`, `swiglu_blocks`, `row_scales`, `quantize_row`, product,
// `dequantize_sums`, `moe_combine`.
#include "ptxkit/gemm/grouped.cuh"
#include "ptxkit/rows/reduce.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Routing

// An unsigned integer whose order is that of the numbers; +0 and -0 have the same.
__device__ __forceinline__ unsigned ordered(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The TOP_K largest of `values`, of `experts` elements, by a warp: calls found(slot, expert, value) in descending
// order; of equal values the one with the lower index comes first. Lane l has the elements l, l + 32, ..., EACH at most.
template <int EACH, class Found>
__device__ __forceinline__ void warp_top_k(const float* values, int experts, int top_k, const Found& found) {
    const unsigned lane = laneid();
    float own[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) own[i] = lane + 32 * i < experts ? values[lane + 32 * i] : 0.0f;
    unsigned left = 0;  // bit i: element i exists and was not found yet
#pragma unroll
    for (int i = 0; i < EACH; i++) left |= (lane + 32 * i < experts) << i;
    for (int slot = 0; slot < top_k; slot++) {
        unsigned best = 0, at = MAX_EXPERTS;
        float value = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const unsigned key = ordered(own[i]);
            if ((left >> i & 1) && (at == MAX_EXPERTS || key > best)) best = key, at = lane + 32 * i, value = own[i];
        }
        const unsigned largest = redux_sync_max(all_lanes, best);
        const unsigned lowest = MAX_EXPERTS - redux_sync_max(all_lanes, best == largest ? MAX_EXPERTS - at : 0);
        if (lowest % 32 == lane) left &= ~(1u << lowest / 32);
        found(slot, lowest, __shfl_sync(all_lanes, value, lowest % 32));
    }
}

// expert[pair] and weight[pair] = exp(logit) / sum of exp(logits), over the token's experts with RENORMALIZE, else
// over all. A warp per token.
template <int THREADS, int EACH, bool RENORMALIZE>
__global__ void __launch_bounds__(THREADS) moe_gate(const float* logits, int* expert, float* weight, int tokens,
                                                    int experts, int top_k) {
    follow_previous_grid();
    const unsigned token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = laneid();
    if (token >= tokens) return;
    const float* values = logits + static_cast<size_t>(token) * experts;
    float largest = 0.0f, sum = 0.0f;
    warp_top_k<EACH>(values, experts, top_k, [&](int slot, unsigned chosen, float value) {
        if (slot == 0) largest = value;
        const float term = expf(value - largest);
        sum += term;
        if (lane == 0) {
            expert[token * top_k + slot] = chosen;
            weight[token * top_k + slot] = term;
        }
    });
    if constexpr (!RENORMALIZE) {
        sum = 0.0f;
        for (int e = lane; e < experts; e += 32) sum += expf(values[e] - largest);
        sum = warp_sum<32>(sum);
    }
    __syncwarp();
    for (int slot = lane; slot < top_k; slot += 32) weight[token * top_k + slot] /= sum;
}

// Sorts the pairs by expert: offsets[e] is the first row of expert e, of experts + 1 elements. A CTA per expert.
// Sets the magnitudes that the CTAs of a product exchange, and their counters, to 0 if `largest` is not null.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) moe_sort(const int* expert, int* offsets, int* row, int* token,
                                                    unsigned* largest, unsigned* arrived, int pairs, int top_k,
                                                    int blocks) {
    constexpr int warps = THREADS / 32;
    __shared__ int own[warps], lower[warps];
    follow_previous_grid();
    const int warp = threadIdx.x / 32, lane = laneid(), mine = blockIdx.x;
    const int each = ((pairs + warps - 1) / warps + 31) / 32 * 32, begin = min(pairs, warp * each),
              end = min(pairs, begin + each);
    if (largest) {
        const int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
        for (int i = first; i < pairs; i += step) largest[i] = 0;
        for (int i = first; i < blocks; i += step) arrived[i] = 0;
    }
    int equal = 0, below = 0;
#pragma unroll 4
    for (int p = begin + lane; p < end; p += 32) {
        equal += expert[p] == mine;
        below += expert[p] < mine;
    }
    equal = redux_sync_add(all_lanes, equal);
    below = redux_sync_add(all_lanes, below);
    if (lane == 0) own[warp] = equal, lower[warp] = below;
    barrier_sync();
    int first = 0, next = 0;
    for (int w = 0; w < warps; w++) {
        first += lower[w];
        next += w < warp ? own[w] : 0;
    }
    if (threadIdx.x == 0) {
        offsets[mine] = first;
        if (mine == gridDim.x - 1) offsets[mine + 1] = pairs;
    }
    if (equal == 0) return;
    next += first;
    for (int base = begin; base < end; base += 32) {
        const int p = base + lane;
        const bool here = p < end && expert[p] == mine;
        const unsigned matching = vote_sync_ballot(all_lanes, here);
        if (here) {
            const int at = next + __popc(matching & ((1u << lane) - 1));
            row[p] = at;
            token[at] = p / top_k;
        }
        next += __popc(matching);
    }
}

// The tokens and their scales in the order of the rows; `bytes` of a token, a multiple of 16.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) moe_permute(const uint4* x, const float* scales, const int* token,
                                                       uint4* sorted, float* sorted_scales, int bytes) {
    follow_previous_grid_later();
    const int from = token[blockIdx.x], atoms = bytes / 16;
    const uint4* source = x + static_cast<size_t>(from) * atoms;
    uint4* to = sorted + static_cast<size_t>(blockIdx.x) * atoms;
    for (int i = threadIdx.x; i < atoms; i += THREADS) to[i] = source[i];
    if (threadIdx.x == 0) sorted_scales[blockIdx.x] = scales[from];
}

// ---------------------------------------------------------------------------------------------------------------------
// Between and after the products

// Vector number `at` of four elements of h.
__device__ __forceinline__ float4 four_of(const float* h, int at) { return reinterpret_cast<const float4*>(h)[at]; }
__device__ __forceinline__ float4 four_of(const bf16* h, int at) {
    const uint2 v = reinterpret_cast<const uint2*>(h)[at];
    return {Convert<bf16>::low(v.x), Convert<bf16>::high(v.x), Convert<bf16>::low(v.y), Convert<bf16>::high(v.y)};
}

// q = round(h / scale), with the scale of each row from its largest magnitude. A CTA per row. Each thread keeps VECTORS
// vectors of four elements in registers; what a longer row has beyond these is read a second time.
template <class T, class H, int THREADS, int VECTORS>
__global__ void __launch_bounds__(THREADS) moe_requantize(const H* h, unsigned* q, float* scales, int cols) {
    __shared__ CtaSlots<float, THREADS / 32> slots;
    follow_previous_grid();
    const int vectors = cols / 4;
    h += static_cast<size_t>(blockIdx.x) * cols;
    q += static_cast<size_t>(blockIdx.x) * vectors;
    auto magnitude = [](float4 v) {
        return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    };
    float4 kept[VECTORS];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        kept[i] = at < vectors ? four_of(h, at) : make_float4(0, 0, 0, 0);
        largest = fmaxf(largest, magnitude(kept[i]));
    }
    for (int at = threadIdx.x + VECTORS * THREADS; at < vectors; at += THREADS)
        largest = fmaxf(largest, magnitude(four_of(h, at)));
    const RowQuantizer<T> quantizer(cta_max<THREADS>(largest, slots));
    auto word = [&](float4 v) {
        const unsigned low = Narrow<T>::quantize(v.x * quantizer.inverse) |
                             Narrow<T>::quantize(v.y * quantizer.inverse) << 8;
        return low | Narrow<T>::quantize(v.z * quantizer.inverse) << 16 |
               static_cast<unsigned>(Narrow<T>::quantize(v.w * quantizer.inverse)) << 24;
    };
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (at < vectors) q[at] = word(kept[i]);
    }
    for (int at = threadIdx.x + VECTORS * THREADS; at < vectors; at += THREADS) q[at] = word(four_of(h, at));
    if (threadIdx.x == 0) scales[blockIdx.x] = quantizer.scale;
}

// y[token] = sum of weight[pair] * results[row[pair]] over the slots in their order. A thread has eight columns.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) moe_combine(const bf16* results, const int* row, const float* weight,
                                                       bf16* y, int top_k, int cols) {
    follow_previous_grid();
    const unsigned token = blockIdx.x, col = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (col >= cols) return;
    float sums[8] = {};
#pragma unroll 8
    for (int slot = 0; slot < top_k; slot++) {
        const int pair = token * top_k + slot;
        const uint4 v = *reinterpret_cast<const uint4*>(results + static_cast<size_t>(row[pair]) * cols + col);
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
        const float w = weight[pair];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[2 * i] = fmaf(w, Convert<bf16>::low(words[i]), sums[2 * i]);
            sums[2 * i + 1] = fmaf(w, Convert<bf16>::high(words[i]), sums[2 * i + 1]);
        }
    }
    uint4 packed;
    packed.x = Convert<bf16>::pack(sums[0], sums[1]);
    packed.y = Convert<bf16>::pack(sums[2], sums[3]);
    packed.z = Convert<bf16>::pack(sums[4], sums[5]);
    packed.w = Convert<bf16>::pack(sums[6], sums[7]);
    *reinterpret_cast<uint4*>(y + static_cast<size_t>(token) * cols + col) = packed;
}

// The same from the sums of the down projection in PARTS parts of k, which are added first.
template <class T, int THREADS, int PARTS>
__global__ void __launch_bounds__(THREADS) moe_combine_parts(const typename Narrow<T>::Sum* sums, const int* row,
                                                             const int* expert, const float* weight,
                                                             const float* token_scales, const float* weight_scales,
                                                             bf16* y, int pairs, int top_k, int cols) {
    follow_previous_grid();
    const unsigned token = blockIdx.x, col = blockIdx.y * THREADS + threadIdx.x;
    if (col >= cols) return;
    float total = 0.0f;
#pragma unroll 4
    for (int slot = 0; slot < top_k; slot++) {
        const int pair = token * top_k + slot, from = row[pair];
        typename Narrow<T>::Sum sum = 0;
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            sum += sums[(static_cast<size_t>(part) * pairs + from) * cols + col];
        const float scale = token_scales[from] * weight_scales[static_cast<size_t>(expert[pair]) * cols + col];
        total = fmaf(weight[pair], static_cast<float>(sum) * scale, total);
    }
    y[static_cast<size_t>(token) * cols + col] = Convert<bf16>::from_f32(total);
}

// ---------------------------------------------------------------------------------------------------------------------
// unfused

// Softmax of the logits of a token over all experts. A warp per token.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) gate_softmax(const float* logits, float* probabilities, int tokens,
                                                        int experts) {
    follow_previous_grid();
    const unsigned token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (token >= tokens) return;
    const float* values = logits + static_cast<size_t>(token) * experts;
    float* to = probabilities + static_cast<size_t>(token) * experts;
    float largest = -infinity(), sum = 0.0f;
    for (int e = laneid(); e < experts; e += 32) largest = fmaxf(largest, values[e]);
    largest = warp_max<32>(largest);
    for (int e = laneid(); e < experts; e += 32) sum += expf(values[e] - largest);
    sum = warp_sum<32>(sum);
    for (int e = laneid(); e < experts; e += 32) to[e] = expf(values[e] - largest) / sum;
}

// The experts of a token, by their logits, and their probabilities.
template <int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS) gate_top_k(const float* logits, const float* probabilities, int* expert,
                                                      float* weight, int tokens, int experts, int top_k) {
    follow_previous_grid();
    const unsigned token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (token >= tokens) return;
    const size_t first = static_cast<size_t>(token) * experts;
    warp_top_k<EACH>(logits + first, experts, top_k, [&](int slot, unsigned chosen, float) {
        if (laneid() == 0) {
            expert[token * top_k + slot] = chosen;
            weight[token * top_k + slot] = probabilities[first + chosen];
        }
    });
}

// Divides the weights of a token by their sum.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) gate_normalize(float* weight, int tokens, int top_k) {
    follow_previous_grid();
    const int token = blockIdx.x * THREADS + threadIdx.x;
    if (token >= tokens) return;
    float sum = 0.0f;
    for (int slot = 0; slot < top_k; slot++) sum += weight[token * top_k + slot];
    for (int slot = 0; slot < top_k; slot++) weight[token * top_k + slot] /= sum;
}

// The expert of each row.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) row_experts(const int* expert, const int* row, int* of_row, int pairs) {
    follow_previous_grid();
    const int pair = blockIdx.x * THREADS + threadIdx.x;
    if (pair < pairs) of_row[row[pair]] = expert[pair];
}

// x = sums * scale of the row * scale of the expert's column. A CTA per row.
template <class T, class Out, int THREADS>
__global__ void __launch_bounds__(THREADS) dequantize_sums(const typename Narrow<T>::Sum* sums,
                                                           const float* token_scales, const float* weight_scales,
                                                           const int* of_row, Out* x, int cols) {
    follow_previous_grid();
    const size_t row = static_cast<size_t>(blockIdx.x) * cols;
    const float* columns = weight_scales + static_cast<size_t>(of_row[blockIdx.x]) * cols;
    const float scale = token_scales[blockIdx.x];
    for (int c = threadIdx.x; c < cols; c += THREADS)
        x[row + c] = Convert<Out>::from_f32(static_cast<float>(sums[row + c]) * scale * columns[c]);
}

// h = silu(gate) * factor, which alternate in blocks of 8. A CTA per row of `cols` results.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) swiglu_blocks(const float* x, float* h, int cols) {
    follow_previous_grid();
    const float* from = x + static_cast<size_t>(blockIdx.x) * cols * 2;
    for (int c = threadIdx.x; c < cols; c += THREADS) {
        const int gate = c / 8 * 16 + c % 8;
        h[static_cast<size_t>(blockIdx.x) * cols + c] = silu(from[gate]) * from[gate + 8];
    }
}

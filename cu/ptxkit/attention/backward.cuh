// What the kernels of attention's backward pass share. With S = scale q k^T, P = exp(S - lse), dP = do v^T and
// delta = rowsum(do * o):
//
//     dS = P * (dP - delta)    dv = P^T do    dk = scale dS^T q    dq = scale dS k
//
// Sums over keys are needed for dq, sums over queries for dk and dv. A CTA that keeps a tile of keys therefore computes
// P^T and dS^T: rows are keys, columns are queries. Registers have the layout in online_softmax.cuh.
#pragma once
#include "ptxkit/attention/mma_tiles.cuh"
#include "ptxkit/attention/sequence.cuh"

namespace ptxkit {

// Rows of the arrays that the preprocessing launch writes are padded: sequence i begins at a multiple of PADDING, so
// that tiles of up to PADDING queries are aligned and contain one sequence only.
enum { PADDING = 128 };

// The number of the first row of sequence i, whose first query is number q_first of all. There are at least as many
// rows before the next sequence as the sequence's queries, rounded up to a multiple of PADDING, because
// (q_first + count) / PADDING + 1 >= q_first / PADDING + ceil(count / PADDING).
__device__ __forceinline__ size_t padded_first(int q_first, int i) {
    return (static_cast<size_t>(q_first / PADDING) + i) * PADDING;
}

// The queries that see a tile of COUNT keys from number `key` of a sequence on.
struct VisibleFrom {
    int first;     // the first query that sees one of the keys
    int unmasked;  // the first query from which on all of them are visible, and exist

    template <bool CAUSAL>
    static __device__ __forceinline__ VisibleFrom tile(const Sequence& sequence, int key, int count) {
        return {max(0, query<CAUSAL>(sequence, key)),
                key + count > sequence.k_count ? 0x7fffffff : max(0, query<CAUSAL>(sequence, key + count - 1))};
    }

    // The first query that sees a key; negative if there were queries before the first that saw it. Queries see no key
    // past the last.
    template <bool CAUSAL>
    static __device__ __forceinline__ int query(const Sequence& sequence, int key) {
        return key >= sequence.k_count ? 0x7fffffff : CAUSAL ? key + sequence.q_count - sequence.k_count : 0;
    }
};

// A tile of BM queries of a head, in the order in which a CTA with a tile of keys computes them: the tiles of one head
// after those of another.
template <int BM>
struct QueryTile {
    int head, query;

    // first, count: the first query of the first tile, and the number of queries.
    __device__ __forceinline__ void advance(int first, int count) {
        query += BM;
        if (query >= count) {
            query = first;
            head++;
        }
    }
};

// Sets the scores of a thread's two keys to minus infinity for the queries before from[r]. query: of the tile's first
// column.
template <int N>
__device__ __forceinline__ void mask_queries(float (&s)[N], int query, const int (&from)[2]) {
    query += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (query + i / 4 * 8 + i % 2 < from[i / 2 % 2]) s[i] = -infinity();
    }
}

// Replaces scores, not multiplied by the scale, by probabilities. scale: includes log2(e). lse: in shared memory,
// multiplied by log2(e), of the tile's first query; infinity for queries without probabilities.
template <int N>
__device__ __forceinline__ void probabilities_by_column(float (&s)[N], float scale, const float* lse) {
    lse += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 base = *reinterpret_cast<const float2*>(lse + 2 * i);
        s[i] = ex2_approx_ftz(fmaf(s[i], scale, -base.x));
        s[i + 1] = ex2_approx_ftz(fmaf(s[i + 1], scale, -base.y));
        s[i + 2] = ex2_approx_ftz(fmaf(s[i + 2], scale, -base.x));
        s[i + 3] = ex2_approx_ftz(fmaf(s[i + 3], scale, -base.y));
    }
}

// Replaces dP by dS = P * (dP - delta). delta: in shared memory, of the tile's first query.
template <int N>
__device__ __forceinline__ void gradients_by_column(float (&dp)[N], const float (&p)[N], const float* delta) {
    delta += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 mean = *reinterpret_cast<const float2*>(delta + 2 * i);
        dp[i] = p[i] * (dp[i] - mean.x);
        dp[i + 1] = p[i + 1] * (dp[i + 1] - mean.y);
        dp[i + 2] = p[i + 2] * (dp[i + 2] - mean.x);
        dp[i + 3] = p[i + 3] * (dp[i + 3] - mean.y);
    }
}

// The same for a thread's two queries, where rows are queries and columns are keys.
template <int N>
__device__ __forceinline__ void probabilities_by_row(float (&s)[N], float scale, const float (&lse)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = ex2_approx_ftz(fmaf(s[i], scale, -lse[i / 2 % 2]));
}

template <int N>
__device__ __forceinline__ void gradients_by_row(float (&dp)[N], const float (&p)[N], const float (&delta)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) dp[i] = p[i] * (dp[i] - delta[i / 2 % 2]);
}

// The f32 sums of dq of one head, to which CTAs add: blocks of 64 queries x 64 elements, D / 64 blocks for 64 queries.
// A block has the order in which 128 threads hold it: float4 number j of thread t, which has d[4 j] to d[4 j + 3] of
// the accumulators of mma.sync and wgmma, is at 128 j + t.
enum { BLOCK_ELEMENTS = 64 * 64 };

}  // namespace ptxkit

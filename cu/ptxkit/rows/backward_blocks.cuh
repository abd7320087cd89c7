// The gradients of a norm in one pass, as in backward_rows.cuh, for rows that begin between two vectors: the rows that a CTA
// computes at a time are copied to shared memory as one block of vectors, several blocks ahead, and threads access single columns
// of it there.
#pragma once
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/rows/backward_rows.cuh"

namespace ptxkit {

// S::groups consecutive rows of a matrix as one block of memory. It begins with the vector that has the first column of the first
// row, `head` elements before that column. The elements of neighbouring rows in its first and last vector are loaded, and not
// stored.
template <class S>
struct RowBlock {
    size_t first = 0;       // index of the first vector in the matrix, in elements
    unsigned head = 0;      // elements before the first column
    unsigned columns = 0;   // of all rows; 0 past the last row
    unsigned readable = 0;  // elements from `first` on that may be read: not those behind the end of the matrix
    unsigned cols;          // of a row

    __device__ __forceinline__ RowBlock(unsigned rows, unsigned cols, unsigned first_row) : cols(cols) {
        if (first_row >= rows) return;
        const size_t begin = static_cast<size_t>(first_row) * cols, rest = static_cast<size_t>(rows - first_row) * cols;
        head = static_cast<unsigned>(begin) % S::WIDTH;
        first = begin - head;
        columns = ::min(static_cast<unsigned>(S::groups), rows - first_row) * cols;
        const unsigned touched = (head + columns + (S::WIDTH - 1)) / S::WIDTH * S::WIDTH;
        readable = rest + head < touched ? static_cast<unsigned>(rest) + head : touched;
    }

    // Dynamic shared memory: as many vectors for each block as any block may touch.
    static __device__ __forceinline__ uint4* memory() {
        extern __shared__ uint4 row_blocks[];
        return row_blocks;
    }
    __device__ __forceinline__ uint4* vectors(unsigned which) const {
        return memory() + which * ((S::groups * cols + (2 * S::WIDTH - 2)) / S::WIDTH);
    }

    // Starts to copy the block of a matrix to place `which`.
    template <class T>
    __device__ __forceinline__ void begin(const T* matrix, unsigned which) const {
        const T* from = matrix + first;
        const unsigned to = cvta_to_shared(vectors(which));
        for (unsigned i = threadIdx.x * S::WIDTH; i < readable; i += blockDim.x * S::WIDTH) {
            const unsigned bytes = ::min(readable - i, static_cast<unsigned>(S::WIDTH)) * static_cast<unsigned>(sizeof(T));
            cp_async_cg_shared_global(to + i * static_cast<unsigned>(sizeof(T)), from + i, bytes);
        }
    }

    // All threads of the CTA. Groups of several warps use the barriers of lower numbers for their rows.
    static __device__ __forceinline__ void barrier() {
        barrier_sync<S::groups == 1 || S::LANES <= 32 ? 0 : S::groups>(blockDim.x);
    }

    // The first column of the thread that `layout` is of, in place `which`.
    template <class T>
    __device__ __forceinline__ typename RowLayout<S>::template SingleColumns<T> columns_of(const RowLayout<S>& layout,
                                                                                           unsigned which) const {
        const unsigned group = S::groups == 1 ? 0 : threadIdx.x / S::LANES;
        T* row = reinterpret_cast<T*>(vectors(which)) + head + group * cols;
        return typename RowLayout<S>::template SingleColumns<T>(row + layout.thread);
    }

    template <class T>
    __device__ __forceinline__ Row<S> load(const RowLayout<S>& layout, unsigned which) const {
        const auto at = columns_of<const T>(layout, which);
        Row<S> row;
        row.each([&](float& v, int k) { v = k < layout.valid ? to_f32(at[k]) : 0.0f; });
        return row;
    }

    // Stores the rows of all threads through place `which`, whose columns each thread has read itself.
    template <class T>
    __device__ __forceinline__ void store(T* matrix, const RowLayout<S>& layout, const Row<S>& row, unsigned which) const {
        const auto at = columns_of<T>(layout, which);
        row.each([&](float v, int k) {
            if (k < layout.valid) at[k] = Convert<T>::from_f32(v);
        });
        barrier();
        const unsigned end = head + columns;
        T* to = matrix + first;
        const uint4* vector = vectors(which);
        for (unsigned i = threadIdx.x * S::WIDTH; i < end; i += blockDim.x * S::WIDTH) {
            if (i >= head && i + S::WIDTH <= end) {
                *reinterpret_cast<uint4*>(to + i) = vector[i / S::WIDTH];
            } else {
                const T* single = reinterpret_cast<const T*>(vector);
#pragma unroll 1
                for (unsigned j = ::max(i, head); j < ::min(i + S::WIDTH, end); j++) to[j] = single[j];
            }
        }
    }
};

// Computes what backward_rows does. Tile::STAGES blocks of x and dy are in shared memory or in flight. The partial sums of dgamma
// and dbeta of a CTA are added in a fixed order and stored to a row of `gammas` and `betas` of its own.
//
// Dynamic shared memory: 2 * STAGES blocks, at least (CENTERED ? 2 : 1) * LANES * elements floats.
template <bool CENTERED, class T, class Tile, Activation A = NONE>
__device__ __forceinline__ void backward_row_blocks(const T* x, const T* dy, const T* gamma, const float* means,
                                                    const float* rstds, T* dx, float* gammas, float* betas, int rows, int cols,
                                                    const T* beta = nullptr) {
    constexpr int STAGES = Tile::STAGES;
    using S = RowShape<Tile::THREADS, Tile::LANES, Tile::VECTORS, 1, vector_width<T>>;
    using Block = RowBlock<S>;
    __shared__ RowRecords<GradientRecord<CENTERED>, S, 2> records;
    const bool copies = PTXKIT_SM >= 80 && aligned16(x, dy, dx);  // otherwise rows are loaded when they are computed
    RowLayout<S> layout(rows, cols, false);                       // single columns
    const RowIterations<S> iterations(rows, cols);
    const float inverse_cols = 1.0f / cols;
    auto block_of = [&](unsigned iteration) { return Block(rows, cols, blockIdx.x * S::groups + iteration * iterations.taken); };
    auto begin = [&](unsigned iteration) {
        if (!copies) return;
        const Block block = block_of(iteration);
        const unsigned which = iteration % STAGES * 2;
        block.begin(x, which);
        block.begin(dy, which + 1);
        cp_async_commit_group();
    };
    auto statistics_of = [&](const RowLayout<S>& layout) {
        return layout.cols ? Statistics{mean_at<CENTERED>(means, layout.row), rstds[layout.row]} : Statistics{};
    };
    follow_previous_grid();
#pragma unroll 1
    for (unsigned i = 0; i + 1 < STAGES; i++) begin(i);
    const RowLayout<S> all = layout.any(cols);
    GradientsOfRows<CENTERED, S, A> gradients;
    const ScaleShift<S, A> weights = load_weights<A>(all, gamma, beta);
    Statistics statistics = statistics_of(layout);
#pragma unroll 1
    for (unsigned iteration = 0; iteration < iterations.count; iteration++) {
        const Statistics of_row = statistics;
        const RowLayout<S> next = iterations.later(layout, 1);
        const Block block = block_of(iteration);
        const unsigned which = iteration % STAGES * 2;
        if (copies) cp_async_wait_group<STAGES - 2>();
        Block::barrier();  // the block has arrived, and the one before is stored
        begin(iteration + STAGES - 1);
        statistics = statistics_of(next);
        Row<S> of_x, of_dy;
        if (copies) of_x = block.template load<T>(layout, which), of_dy = block.template load<T>(layout, which + 1);
        else of_x = layout.template load<CACHE_STREAM>(x), of_dy = layout.template load<CACHE_STREAM>(dy);
        const Row<S> row =
            gradients.add(columns_of(of_x, of_dy, weights), of_row, inverse_cols, records, iteration & 1, [] {});
        if (copies) block.store(dx, layout, row, which);
        else layout.template store<CACHE_STREAM>(dx, row);
        layout = next;
    }
    if (copies) cp_async_wait_all();
    Block::barrier();
    gradients.reduce_groups(reinterpret_cast<float4*>(Block::memory()), [] { Block::barrier(); });
    if (threadIdx.x / S::LANES == 0) gradients.store(all, blockIdx.x, cols, gammas, betas);
}

}  // namespace ptxkit

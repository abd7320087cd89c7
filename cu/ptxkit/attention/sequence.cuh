// The sequences of a batch. Their tokens follow each other in the arrays (tokens, heads, D) of queries, keys and
// values: sequence i has the queries q_starts[i] to q_starts[i + 1] - 1, and keys and values k_starts[i] to
// k_starts[i + 1] - 1.
#pragma once

namespace ptxkit {

struct Sequence {
    int q_first, q_count, k_first, k_count;

    // A sequence at the beginning of arrays that have no others.
    __device__ __forceinline__ Sequence(int q_count, int k_count)
        : q_first(0), q_count(q_count), k_first(0), k_count(k_count) {}

    __device__ __forceinline__ Sequence(const int* q_starts, const int* k_starts, int i)
        : q_first(q_starts[i]),
          q_count(q_starts[i + 1] - q_first),
          k_first(k_starts[i]),
          k_count(k_starts[i + 1] - k_first) {}

    // The number of keys that a query sees: all, or with CAUSAL those up to its own position, where the last query and
    // the last key have the same position.
    template <bool CAUSAL>
    __device__ __forceinline__ int visible(int query) const {
        return CAUSAL ? max(0, min(k_count, query + 1 + k_count - q_count)) : k_count;
    }

    // The number of keys that at least one query of the rows below `end` sees.
    template <bool CAUSAL>
    __device__ __forceinline__ int visible_before(int end) const {
        return visible<CAUSAL>(min(end, q_count) - 1);
    }
};

// A tile of queries or keys of a head of a sequence, for CTAs that compute one after the other.
struct AttentionWork {
    int tile, head, sequence;

    // Work item `index` of tiles x heads x sequences. All tiles of a head come before the next head, so that CTAs that
    // run at the same time share what the tiles of the head read in L2. reversed: the last tiles first, which take
    // longest if they are of queries with a causal mask.
    __device__ __forceinline__ AttentionWork(unsigned index, unsigned tiles, unsigned heads, bool reversed) {
        const unsigned t = index % tiles;
        tile = reversed ? tiles - 1 - t : t;
        head = index / tiles % heads;
        sequence = index / tiles / heads;
    }

    // The same for the first `alone` heads of all sequences. The others are in sections of `section` heads: the first tiles of
    // all heads of a section, then their second ones. With `reversed` the tiles that take longest come first, and those of the
    // section share L2.
    __device__ __forceinline__ AttentionWork(unsigned index, unsigned tiles, unsigned heads, unsigned sequences,
                                             unsigned section, unsigned alone, bool reversed) {
        unsigned t = index % tiles, of_all = index / tiles;
        if (of_all >= alone) {
            const unsigned before = alone + (of_all - alone) / section * section, within = index - before * tiles;
            const unsigned together = min(section, heads * sequences - before);
            t = within / together;
            of_all = before + within % together;
        }
        tile = reversed ? tiles - 1 - t : t;
        head = of_all % heads;
        sequence = of_all / heads;
    }
};

// A tile of queries as a producer passes it to consumers in shared memory, which need not find its head and sequence, with several
// divisions, while they have no product in flight.
struct PassedQueries {
    int query, head;  // the first query of the tile in its sequence; -1 after the last tile
    int q_first, q_count, k_count;

    // The sequence, without the place of its keys.
    __device__ __forceinline__ Sequence sequence() const {
        Sequence found(q_count, k_count);
        found.q_first = q_first;
        return found;
    }
};

}  // namespace ptxkit

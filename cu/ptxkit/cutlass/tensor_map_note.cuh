// The arguments of cuTensorMapEncodeTiled as a structure of 128 bytes. cuTensorMapEncodeTiled is a host function, so
// the builder kernel writes a TensorMapNote in place of each tensor map, and the host replaces it by the encoded map.
// ptxkit/cutlass/params.py has the same layout.
#pragma once
#include <cute/numeric/numeric_types.hpp>
#include <cute/util/type_traits.hpp>

namespace ptxkit::cutlass {

constexpr uint64_t TENSOR_MAP_NOTE = 0x65746f6e70616d74;  // "tmapnote"

struct TensorMapNote {
    uint64_t head;
    uint64_t address;
    uint64_t strides[4];  // in bytes, of all dimensions except the innermost
    uint32_t sizes[5];    // size - 1, so that 2^32 can be represented
    uint16_t box[5];
    uint8_t element_strides[5];
    uint8_t element;  // CUtensorMapDataType
    uint8_t rank;
    uint8_t swizzle;       // number of XORed address bits: 0 no swizzle, 1 32 bytes, 2 64 bytes, 3 128 bytes
    uint8_t swizzle_base;  // 0: the swizzle permutes atoms of 16 bytes
    uint8_t rest[33];
    uint64_t tail;
};
static_assert(sizeof(TensorMapNote) == 128);

// The CUtensorMapDataType of an element type.
template <class T>
__device__ constexpr uint8_t tensor_map_element() {
    constexpr int bits = cute::sizeof_bits_v<T>;
    if constexpr (bits == 6) {
        return 15;  // 16U6_ALIGN16B
    } else if constexpr (cute::is_same_v<T, cute::float_e2m1_t> ||
                         cute::is_same_v<T, cute::type_erased_dynamic_float4_t>) {
        return 13;  // 16U4_ALIGN8B
    } else if constexpr (bits == 4) {
        return 14;  // 16U4_ALIGN16B, of the types "unpacksmem"
    } else if constexpr (cute::is_same_v<T, cute::half_t>) {
        return 6;
    } else if constexpr (cute::is_same_v<T, float>) {
        return 7;
    } else if constexpr (cute::is_same_v<T, double>) {
        return 8;
    } else if constexpr (cute::is_same_v<T, cute::bfloat16_t>) {
        return 9;
    } else if constexpr (cute::is_same_v<T, cute::tfloat32_t>) {
        return 11;
    } else if constexpr (cute::is_same_v<T, int32_t>) {
        return 3;
    } else if constexpr (cute::is_same_v<T, int64_t>) {
        return 5;
    } else {
        return bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : 4;
    }
}

// Writes a TensorMapNote to `map`. Strides are in bytes, sizes and box in elements, innermost dimension first.
template <class T, class Map, class Sizes, class Strides, class Box>
__device__ void note_tensor_map(Map& map, int rank, void const* address, Sizes const& sizes, Strides const& strides,
                                Box const& box, Box const& element_strides, uint32_t swizzle, uint32_t swizzle_base) {
    static_assert(sizeof(Map) == sizeof(TensorMapNote));
    TensorMapNote note = {};
    note.head = note.tail = TENSOR_MAP_NOTE;
    note.address = reinterpret_cast<uint64_t>(address);
    for (int i = 0; i < 4; ++i) {
        note.strides[i] = strides[i + 1];
    }
    for (int i = 0; i < 5; ++i) {
        note.sizes[i] = static_cast<uint32_t>(sizes[i] - 1);
        note.box[i] = static_cast<uint16_t>(box[i]);
        note.element_strides[i] = static_cast<uint8_t>(element_strides[i]);
    }
    note.element = tensor_map_element<T>();
    note.rank = static_cast<uint8_t>(rank);
    note.swizzle = static_cast<uint8_t>(swizzle);
    note.swizzle_base = static_cast<uint8_t>(swizzle_base);
    memcpy(&map, &note, sizeof(note));
}

}  // namespace ptxkit::cutlass

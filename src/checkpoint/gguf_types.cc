// SPDX-License-Identifier: Apache-2.0
#include "gguf_types.h"

#include <algorithm>
#include <array>
#include <optional>

#include "text.h"
#include "vitrine/quant.h"

namespace vitrine::checkpoint {
namespace {

/// The plain dtypes by their number among tensor types.
std::optional<DType> plain_dtype(uint32_t type) {
  switch (type) {
    case 0: return DType::kF32;
    case 1: return DType::kF16;
    case 24: return DType::kI8;
    case 25: return DType::kI16;
    case 26: return DType::kI32;
    case 27: return DType::kI64;
    case 28: return DType::kF64;
    case 30: return DType::kBF16;
    default: return std::nullopt;
  }
}

/// A type that exists and that this build does not read. `nearest` is the type to convert to, as
/// llama-quantize names it.
struct OtherType {
  uint32_t number;
  std::string_view name, nearest;
};

/// Types of activations, and ones that llama.cpp wrote once.
constexpr std::array kOldTypes = {
    OtherType{4, "Q4_2", "Q4_0"},
    OtherType{5, "Q4_3", "Q4_1"},
    OtherType{9, "Q8_1", "Q8_0"},
    OtherType{15, "Q8_K", "Q8_0"},
    OtherType{31, "Q4_0_4_4", "Q4_0"},
    OtherType{32, "Q4_0_4_8", "Q4_0"},
    OtherType{33, "Q4_0_8_8", "Q4_0"},
    OtherType{36, "IQ4_NL_4_4, or ik_llama.cpp's I2_S", "IQ4_NL"},
    OtherType{37, "IQ4_NL_4_8", "IQ4_NL"},
    OtherType{38, "IQ4_NL_8_8", "IQ4_NL"},
};

/// ik_llama.cpp's own (its ggml.h), by number.
constexpr std::array kIkTypes = {
    OtherType{97, "Q8_0_X4", "Q8_0"},      OtherType{98, "Q8_1_X4", "Q8_0"},
    OtherType{99, "Q8_2_X4", "Q8_0"},      OtherType{133, "Q6_0", "Q6_K"},
    OtherType{134, "IQ1_BN", "Q2_K"},      OtherType{135, "IQ2_BN", "Q2_K"},
    OtherType{136, "Q8_K64", "Q8_0"},      OtherType{137, "IQ2_K", "IQ2_S"},
    OtherType{138, "IQ3_K", "IQ3_S"},      OtherType{139, "IQ4_K", "Q4_K_S"},
    OtherType{140, "IQ5_K", "Q5_K_S"},     OtherType{141, "IQ6_K", "Q6_K"},
    OtherType{144, "IQ4_KS", "IQ4_XS"},    OtherType{145, "IQ2_KS", "IQ2_XS"},
    OtherType{146, "IQ4_KSS", "IQ4_XS"},   OtherType{147, "Q8_K16", "Q8_0"},
    OtherType{148, "Q8_K32", "Q8_0"},      OtherType{149, "Q8_KR8", "Q8_0"},
    OtherType{150, "Q8_K128", "Q8_0"},     OtherType{151, "Q8_KV", "Q8_0"},
    OtherType{152, "IQ5_KS", "Q5_K_S"},    OtherType{153, "IQ2_KT", "IQ2_XS"},
    OtherType{154, "IQ3_KT", "IQ3_XXS"},   OtherType{155, "IQ4_KT", "IQ4_XS"},
    OtherType{156, "IQ3_KS", "IQ3_XXS"},   OtherType{157, "IQ2_KL", "Q2_K"},
    OtherType{158, "IQ1_KT", "IQ1_M"},     OtherType{202, "Q4_0_R8", "Q4_0"},
    OtherType{206, "Q5_0_R4", "Q5_0"},     OtherType{208, "Q8_0_R8", "Q8_0"},
    OtherType{210, "Q2_K_R4", "Q2_K"},     OtherType{211, "Q3_K_R4", "Q3_K"},
    OtherType{212, "Q4_K_R4", "Q4_K"},     OtherType{213, "Q5_K_R4", "Q5_K"},
    OtherType{214, "Q6_K_R4", "Q6_K"},     OtherType{216, "IQ2_XXS_R4", "IQ2_XXS"},
    OtherType{217, "IQ2_XS_R4", "IQ2_XS"}, OtherType{218, "IQ3_XXS_R4", "IQ3_XXS"},
    OtherType{219, "IQ1_S_R4", "IQ1_S"},   OtherType{220, "IQ4_NL_R4", "IQ4_NL"},
    OtherType{221, "IQ3_S_R4", "IQ3_S"},   OtherType{222, "IQ2_S_R4", "IQ2_S"},
    OtherType{223, "IQ4_XS_R8", "IQ4_XS"}, OtherType{229, "IQ1_M_R4", "IQ1_M"},
    OtherType{230, "BF16_R16", "BF16"},    OtherType{233, "Q6_0_R4", "Q6_K"},
    OtherType{335, "IQ2_BN_R4", "Q2_K"},   OtherType{337, "IQ2_K_R4", "IQ2_S"},
    OtherType{338, "IQ3_K_R4", "IQ3_S"},   OtherType{339, "IQ4_K_R4", "Q4_K_S"},
    OtherType{340, "IQ5_K_R4", "Q5_K_S"},  OtherType{344, "IQ4_KS_R4", "IQ4_XS"},
    OtherType{352, "IQ5_KS_R4", "Q5_K_S"}, OtherType{397, "Q8_K_R16", "Q8_0"},
    OtherType{398, "Q8_KV_R8", "Q8_0"},    OtherType{399, "Q8_K_R8", "Q8_0"},
};

/// Throws for a number that is no type read here; `place` begins the message.
[[noreturn]] void refuse_type(const std::string& place, uint32_t type) {
  const std::string found = place + " has the type " + std::to_string(type);
  if (const auto* old = std::ranges::find(kOldTypes, type, &OtherType::number);
      old != kOldTypes.end()) {
    throw_unsupported(found + " (" + std::string(old->name) +
                      "), which no weights of today's files have; expected " +
                      std::string(old->nearest) + ", as llama.cpp's llama-quantize writes it");
  }
  if (const auto* other = std::ranges::find(kIkTypes, type, &OtherType::number);
      other != kIkTypes.end()) {
    const std::string_view nearest = other->nearest;
    const bool needs_importance =
        nearest.starts_with("IQ1") || nearest.starts_with("IQ2") || nearest == "IQ3_XXS";
    throw_unsupported(found + " (" + std::string(other->name) +
                      "), which only ik_llama.cpp reads; expected one of llama.cpp's, which its "
                      "llama-quantize makes of it: llama-quantize --allow-requantize " +
                      (needs_importance ? "--imatrix FILE " : "") + "IN.gguf OUT.gguf " +
                      std::string(nearest));
  }
  std::string known = "F32, F16, BF16";
  for (const BlockFormat& format : block_formats()) known += ", " + std::string(format.name);
  throw_bad_file(found + ", a number that names none; expected one of " + known);
}

}  // namespace

void set_tensor_type(const std::string& path, TensorInfo& info, uint32_t type) {
  const std::string place = path + ": tensor " + quote_text(info.name);
  info.block_format = find_block_format(type);
  const std::optional<DType> dtype = plain_dtype(type);
  if (info.block_format == nullptr && !dtype) refuse_type(place, type);
  info.dtype = dtype.value_or(DType::kF32);
  int64_t elements = 1;
  int64_t logical = 0;
  bool fits = true;
  for (int64_t extent : info.shape) fits &= !__builtin_mul_overflow(elements, extent, &elements);
  fits &= !__builtin_mul_overflow(elements, static_cast<int64_t>(dtype_size(info.dtype)), &logical);
  if (!fits) {
    throw_bad_file(place + " has the shape " + shape_text(info.shape) +
                   ", which overflows; expected a product below 2^63");
  }
  info.num_bytes = static_cast<uint64_t>(logical);
  info.stored_bytes = info.num_bytes;
  if (info.block_format == nullptr) return;
  const BlockFormat& format = *info.block_format;
  if (info.shape.back() % format.block_size != 0) {
    throw_bad_file(place + " has rows of " + std::to_string(info.shape.back()) +
                   " values; expected a multiple of " + std::to_string(format.block_size) +
                   ", the block of " + std::string(format.name));
  }
  info.stored_bytes = static_cast<uint64_t>(elements / format.block_size) *
                      static_cast<uint64_t>(format.block_bytes);
}

}  // namespace vitrine::checkpoint

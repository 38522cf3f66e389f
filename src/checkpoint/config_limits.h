// SPDX-License-Identifier: Apache-2.0
// The largest sizes that a model's configuration may name, in either format.
// They are far above any published model; products of any three stay within int64.
#pragma once

#include <cstdint>

namespace vitrine::checkpoint {

inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxVocabulary = 1 << 24;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 8192;
inline constexpr int64_t kMaxExperts = 65536;
inline constexpr int64_t kMaxLinearHeadWidth = 1024;  // of layers with a state
inline constexpr int64_t kMaxLinearTaps = 16;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

}  // namespace vitrine::checkpoint

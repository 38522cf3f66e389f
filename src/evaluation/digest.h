// SPDX-License-Identifier: Apache-2.0
// Private to the library: hashes that say whether two results are the same to the last bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "vitrine/evaluation.h"

namespace vitrine::evaluation {

/// SHA-256 over ids as little-endian int32, in hexadecimal.
std::string ids_sha256(std::span<const int32_t> ids);

/// EvaluatedItem::digest: over its prompt, its ids and the bits of each log-probability.
std::string item_digest(const EvaluatedItem& item);

}  // namespace vitrine::evaluation

// SPDX-License-Identifier: Apache-2.0
// What the pre-tokenizer and the decoder Metaspace of a tokenizer.json have in common.
#pragma once

#include <string>

#include "json_reader.h"

namespace vitrine::tokenizer {

struct Metaspace {
  enum class Scheme { kAlways, kFirst, kNever };  // which texts get a replacement before them
  std::string replacement;                        // one character that stands for a space
  Scheme scheme = Scheme::kAlways;
  bool split = true;  // words begin at a replacement

  static Metaspace load(const JsonNode& node);
};

}  // namespace vitrine::tokenizer

// SPDX-License-Identifier: Apache-2.0
// Text of strangers as ids.
#pragma once

#include <string_view>
#include <vector>

#include "vitrine/tokenizer.h"

namespace vitrine::http {

/// What spells a special token is text like any other.
inline std::vector<int32_t> plain_ids(const Tokenizer& tokenizer, std::string_view text,
                                      bool add_special_tokens = false) {
  return tokenizer.encode_guarded(tokenizer.guard_special_tokens(text), add_special_tokens);
}

}  // namespace vitrine::http

// SPDX-License-Identifier: Apache-2.0
// Private to the room: personal data and keys in texts, found by patterns and checksums. What they
// miss stays: a text that went through is not free of personal data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"

namespace vitrine::compress {

/// One kind of what is looked for, and how much of it was found.
struct ScrubCount {
  std::string_view kind;  ///< "email", "iban", …
  int64_t found = 0;
};

/// Replaces e-mail addresses, IBANs (ISO 13616, mod 97), card numbers (ISO/IEC 7812, Luhn), IP
/// addresses, telephone numbers and keys (long words of many different characters) by "<EMAIL>",
/// "<IBAN>", "<CARD>", "<IP>", "<PHONE>" and "<KEY>". Not thread-safe.
class Scrubber {
 public:
  Scrubber();
  /// Returns the text with stand-ins. It must be valid UTF-8. Throws kInvalidArgument for a text
  /// in which a search exceeds its limits.
  std::string scrub(std::string_view text);
  /// Returns what was found so far, kind by kind.
  const std::vector<ScrubCount>& counts() const { return counts_; }

 private:
  struct Kind {
    std::string_view stand_in;
    tokenizer::Regex pattern;
    bool (*is_real)(std::string_view match);
  };
  std::vector<Kind> kinds_;
  std::vector<ScrubCount> counts_;  // of each kind
};

}  // namespace vitrine::compress

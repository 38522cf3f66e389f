// SPDX-License-Identifier: Apache-2.0
// Tells on the terminal how far `vitrine quantize` is.
#pragma once

#include <string>

#include "vitrine/compress.h"

namespace cli {

/// "about 3 min left"; empty where it is not known.
std::string time_left(double seconds);

/// A line on a terminal, and what was kept of an earlier run. Not thread-safe.
class QuantizeLine {
 public:
  /// `keeps`: whether a run that is cancelled can be taken up again.
  explicit QuantizeLine(bool keeps);

  /// Shows it. Throws kCancelled after Ctrl-C.
  void show(const vitrine::QuantizeProgress& progress);
  /// Empties the line.
  void clear() const;

 private:
  bool keeps_, is_terminal_;
};

}  // namespace cli

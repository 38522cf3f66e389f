// SPDX-License-Identifier: Apache-2.0
// How much memory the records of a log may take, which a compressed file of a megabyte can have
// millions of.
#pragma once

#include <cstdint>
#include <string>

#include "vitrine/audit_log.h"

namespace cli {

/// Counts what pages take in memory, and of it their text, and refuses a log that takes more than
/// it may.
class RunMemory {
 public:
  /// `most` bytes; 0: half of the machine's memory.
  RunMemory(std::string path, uint64_t most);

  /// Throws with the log's name where the pages so far, this one included, take too much.
  void add(const vitrine::VtrPage& page);

 private:
  std::string path_;
  uint64_t most_ = 0, bytes_ = 0, text_bytes_ = 0;
};

}  // namespace cli

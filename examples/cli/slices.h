// Short runs of greedy decoding that can be compared with each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "vitrine/group.h"

namespace cli {

/// Decodes the same tokens from the same context again and again, with the recorder in one mode or
/// another. End of text is ignored. Where the context is full, a run starts over from the prefix.
///
/// Of an Engine, or of a Federation in its place.
template <typename Model>
class SliceRunner {
 public:
  /// `context` is the number of positions that a sequence of `engine` may have, more than
  /// `prefix.size()`; the prefix holds at least one id.
  SliceRunner(Model& engine, std::vector<int32_t> prefix, int64_t context);
  ~SliceRunner();
  SliceRunner(const SliceRunner&) = delete;
  SliceRunner& operator=(const SliceRunner&) = delete;

  /// How long to rest before each run: what an earlier one left to other threads is done then.
  void set_settle_time(std::chrono::milliseconds time) { settle_time_ = time; }

  /// Wall-clock seconds for `tokens` tokens. Switching the mode, one step in it and going back to
  /// the prefix happen before the clock starts.
  double run(vitrine::AuditMode mode, int tokens);

  /// Runs none, mode, mode, none (ABBA) and adds the two paired overheads, as fractions of the
  /// speed without the recorder.
  void run_pairs(vitrine::AuditMode mode, int tokens, std::vector<double>& overheads);

 private:
  void rewind();
  void step();

  Model& engine_;
  std::vector<int32_t> prefix_;
  int64_t context_;
  vitrine::SequenceId sequence_;
  int32_t next_ = 0;
  std::chrono::milliseconds settle_time_{0};
};

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
// Runs passes on the reference path with every dispatched op recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/ops/dispatch_recorder.h"
#include "vitrine/engine.h"

namespace vitrine::testing_support {

/// Folders of the test checkpoints: every architecture.
std::vector<std::string> oracle_names();

/// A checkpoint of `num_layers` layers that repeats the first two of the one in `folder`. With a
/// `model_type`, that is written into its config.
void write_stretched_checkpoint(const std::string& folder, const std::string& out, int num_layers,
                                const std::string& model_type = {});

/// Keeps the last record.
class LastRecordSink : public AuditSink {
 public:
  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override { ++commits; }
  std::vector<TokenRecord> decoded() const;

  AuditLayout layout;
  size_t commits = 0;

 private:
  std::vector<std::byte> buffer_;
  size_t record_bytes_ = 0;
};

struct RecordedRun {
  std::vector<DispatchedOp> load;    // making the engine and its first pass
  std::vector<DispatchedOp> passes;  // two prefills of two sequences, a fork, two decode passes …
  size_t num_plain_ops = 0;          // … so far; then a pass with forced routes and a sampled one
  std::vector<size_t> own_calls;     // of each pass: calls that our code made …
  std::vector<size_t> all_calls;     // … and with those that kernels made
  std::vector<uint64_t> readbacks;   // of each pass
  std::vector<TokenRecord> records;  // of all passes
};

RecordedRun record_reference_run(const std::string& folder, AuditMode mode, AuditLevel level,
                                 const Device& device = {}, bool attribution = false);

}  // namespace vitrine::testing_support

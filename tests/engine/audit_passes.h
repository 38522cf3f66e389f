// SPDX-License-Identifier: Apache-2.0
// Passes whose records tests compare.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {

inline EngineOptions audit_options(KernelPath path, AuditMode mode, AuditLevel level) {
  EngineOptions options = test_options();
  options.kernels = path;
  options.audit_mode = mode;
  options.audit_level = level;
  return options;
}

struct Passes {
  VectorSink sink;
  Rows rows;
  std::vector<int32_t> tokens;
  uint64_t readbacks = 0;
  uint64_t passes = 0;
};

// Two sequences: prefills of different lengths, a scored chunk, then decoding.
inline void run_passes(Engine& engine, Passes& result) {
  engine.set_audit_sink(&result.sink);
  const int vocab = engine.summary().vocab_size;
  const std::vector<int32_t> one = prompt_ids(21, vocab, 1), two = prompt_ids(6, vocab, 2);
  StepInput inputs[2];
  inputs[0].sequence = engine.create_sequence();
  inputs[1].sequence = engine.create_sequence();
  const uint64_t before = engine.readback_count();
  auto step = [&](size_t count) {
    const std::span<const StepOutput> outputs = engine.step(std::span(inputs).first(count));
    keep_rows(outputs, inputs[0].sequence, result.rows);
    for (const StepOutput& output : outputs) result.tokens.push_back(output.token);
    ++result.passes;
  };
  inputs[0].tokens = std::span(one).first(17);
  inputs[0].rows = StepInput::Rows::kAll;
  inputs[0].next_token = one[17];
  inputs[1].tokens = two;
  step(2);
  inputs[0].tokens = std::span(one).subspan(17);
  inputs[0].rows = StepInput::Rows::kLast;
  inputs[0].next_token = -1;
  step(1);
  for (int i = 0; i < 3; ++i) {
    const int32_t next = result.tokens.back();
    inputs[0].tokens = inputs[1].tokens = {&next, 1};
    step(2);
  }
  result.readbacks = engine.readback_count() - before;
  engine.set_audit_sink(nullptr);
}

}  // namespace vitrine::testing

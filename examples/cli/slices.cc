// SPDX-License-Identifier: Apache-2.0
#include "slices.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>

namespace cli {

SliceRunner::SliceRunner(vitrine::Stepper& engine, std::vector<int32_t> prefix, int64_t context)
    : engine_(engine),
      prefix_(std::move(prefix)),
      context_(context),
      sequence_(engine.create_sequence()),
      next_(prefix_.back()) {
  // All but the last id of the prefix: each run begins by feeding that one.
  const size_t chunk = static_cast<size_t>(engine.options().max_step_tokens);
  std::span<const int32_t> rest = std::span<const int32_t>(prefix_).first(prefix_.size() - 1);
  while (!rest.empty()) {
    vitrine::StepInput input;
    input.sequence = sequence_;
    input.tokens = rest.first(std::min(chunk, rest.size()));
    input.rows = vitrine::StepInput::Rows::kNone;
    engine_.step({&input, 1});
    rest = rest.subspan(input.tokens.size());
  }
}

SliceRunner::~SliceRunner() { engine_.release(sequence_); }

void SliceRunner::rewind() {
  engine_.truncate(sequence_, static_cast<int64_t>(prefix_.size()) - 1);
  next_ = prefix_.back();
}

void SliceRunner::step(vitrine::SamplerPipeline* sampler, bool goes_on) {
  vitrine::StepInput input;
  input.sequence = sequence_;
  input.tokens = {&next_, 1};
  input.sampler = sampler;
  input.goes_on = goes_on;
  if (sampler != nullptr) input.seed = ++seed_;
  next_ = engine_.step({&input, 1}).front().token;
}

double SliceRunner::run(vitrine::AuditMode mode, int tokens) {
  engine_.set_audit_mode(mode);
  if (engine_.length(sequence_) + 1 + tokens > context_) rewind();
  step(&sampler_);  // what the other mode left in the caches is not this one's cost
  if (settle_time_.count() > 0) std::this_thread::sleep_for(settle_time_);
  const auto start = std::chrono::steady_clock::now();
  for (int count = 0; count < tokens; ++count) {
    if (engine_.length(sequence_) == context_) rewind();
    step(nullptr, count + 1 < tokens && engine_.length(sequence_) + 1 < context_);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void SliceRunner::run_pairs(vitrine::AuditMode mode, int tokens, std::vector<double>& overheads) {
  const double none_first = run(vitrine::AuditMode::kNone, tokens);
  const double audited_first = run(mode, tokens);
  const double audited_second = run(mode, tokens);
  const double none_second = run(vitrine::AuditMode::kNone, tokens);
  // (speed without - speed with) / speed without, for the same number of tokens.
  overheads.push_back(1 - none_first / audited_first);
  overheads.push_back(1 - none_second / audited_second);
}

}  // namespace cli

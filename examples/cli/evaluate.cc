// SPDX-License-Identifier: Apache-2.0
#include "evaluate.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "common.h"

namespace cli {

namespace {

struct Sums {
  int64_t tokens = 0;
  double source_nll = 0, result_nll = 0, kl = 0;
};

/// Turns logits into log-probabilities, in double.
void log_softmax(std::span<const float> logits, std::vector<double>& logprobs) {
  logprobs.resize(logits.size());
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  for (size_t id = 0; id < logits.size(); ++id) {
    logprobs[id] = static_cast<double>(logits[id]) - log_sum;
  }
}

void add_window(vitrine::Engine& source, vitrine::Engine& result, std::span<const int32_t> ids,
                Sums& sums) {
  std::vector<double> source_logprobs, result_logprobs;
  const vitrine::SequenceId source_sequence = source.create_sequence();
  const vitrine::SequenceId result_sequence = result.create_sequence();
  // The window's last id predicts nothing.
  for (size_t first = 0; first + 1 < ids.size(); first += kEvaluationRows) {
    if (interrupt_signal() != 0) {
      throw vitrine::Error(vitrine::ErrorKind::kCancelled, "evaluation: cancelled before the end");
    }
    vitrine::StepInput input;
    input.tokens = ids.subspan(first, std::min<size_t>(kEvaluationRows, ids.size() - 1 - first));
    input.rows = vitrine::StepInput::Rows::kAll;
    input.sequence = source_sequence;
    const auto source_outputs = source.step({&input, 1});
    input.sequence = result_sequence;
    const auto result_outputs = result.step({&input, 1});
    for (size_t row = 0; row < source_outputs.size(); ++row) {
      const size_t next = static_cast<size_t>(ids[first + row + 1]);
      log_softmax(source_outputs[row].logits, source_logprobs);
      log_softmax(result_outputs[row].logits, result_logprobs);
      ++sums.tokens;
      sums.source_nll -= source_logprobs[next];
      sums.result_nll -= result_logprobs[next];
      for (size_t id = 0; id < source_logprobs.size(); ++id) {
        sums.kl += std::exp(source_logprobs[id]) * (source_logprobs[id] - result_logprobs[id]);
      }
    }
  }
  source.release(source_sequence);
  result.release(result_sequence);
}

}  // namespace

vitrine::EngineOptions evaluation_options(int64_t window) {
  vitrine::EngineOptions options;
  options.max_context = static_cast<int>(window);
  options.max_step_tokens = kEvaluationRows;
  options.max_logit_rows = kEvaluationRows;
  options.audit_mode = vitrine::AuditMode::kNone;
  options.keep_logits = true;
  options.kv_dtype = vitrine::DType::kF32;  // of the two models, weights alone differ
  return options;
}

Comparison compare_models(vitrine::Engine& source, vitrine::Engine& result,
                          const std::vector<int32_t>& ids, int64_t window) {
  Sums sums;
  const std::span<const int32_t> all(ids);
  for (size_t first = 0; first + 1 < ids.size(); first += static_cast<size_t>(window)) {
    add_window(source, result,
               all.subspan(first, std::min(static_cast<size_t>(window), ids.size() - first)), sums);
  }
  const double count = static_cast<double>(sums.tokens);
  return {sums.tokens, std::exp(sums.source_nll / count), std::exp(sums.result_nll / count),
          sums.kl / count};
}

}  // namespace cli

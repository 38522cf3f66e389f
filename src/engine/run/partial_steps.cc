// SPDX-License-Identifier: Apache-2.0
#include "engine/run/partial_steps.h"

namespace vitrine::engine {

std::span<const StepOutput> PartialSteps::step(std::span<const StepInput> inputs, LayerRange layers,
                                               std::span<const float> residual) {
  require_plain(inputs);
  runner_.leads().clear();
  return runner_.step_part(inputs, {whole(layers), residual});
}

std::span<const float> PartialSteps::residual_rows() const {
  const RunningStep& step = runner_.last_step();
  if (step.pass.residual == nullptr) return {};
  return {step.pass.residual,
          step.batch.token_ids.size() * static_cast<size_t>(model_.config.hidden_size)};
}

void PartialSteps::prepare_guesses(size_t pass_tokens) {
  const size_t record_bytes = model_.layout.pass_words(0, 1) * sizeof(int32_t);
  runner_.leads().reserve(static_cast<size_t>(model_.options.max_step_tokens),
                          static_cast<size_t>(model_.config.hidden_size), record_bytes);
  guess_record_.resize(model_.layout.pass_words(pass_tokens, pass_tokens) * sizeof(int32_t));
}

std::span<const StepOutput> PartialSteps::guess(std::span<const StepInput> inputs,
                                                LayerRange layers,
                                                std::span<const float> residual) {
  struct Unrecorded {
    StepRecorder& recorder;
    explicit Unrecorded(StepRecorder& of) : recorder(of) { recorder.pause(true); }
    ~Unrecorded() { recorder.pause(false); }
  };
  const bool has_words = runner_.recorder().records() && runner_.takes_leads();
  const Unrecorded unrecorded(runner_.recorder());
  const PausedTaps paused(model_.taps);
  const std::span<const StepOutput> outputs = runner_.step_part(
      inputs, {whole(layers), residual, has_words ? guess_record_.data() : nullptr});
  guessed_words_ = {};
  if (has_words) {
    const RunningStep& step = runner_.last_step();
    const size_t before = model_.layout.pass_words(step.rows.size(), 0) * sizeof(int32_t);
    const size_t count = model_.layout.pass_words(0, step.batch.token_ids.size()) * sizeof(int32_t);
    guessed_words_ = std::span(guess_record_).subspan(before, count);
  }
  return outputs;
}

}  // namespace vitrine::engine

// SPDX-License-Identifier: Apache-2.0
// Writes what compressed models do beside their source, window by window, as JSON:
//
//     build/bench/compression_windows WINDOWS.vcal SOURCE CANDIDATE…
//
// Each text of the file of `vitrine calibrate` is a window. For each candidate and window: the
// mean over its tokens of KL(source || candidate) in nats, the share of tokens whose most probable
// next one is the same, and the share of (token, sparse layer) that other experts were chosen for.
// Keys and values are float32.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "vitrine/calibration.h"
#include "vitrine/engine.h"

namespace {

using Json = nlohmann::ordered_json;
using vitrine::Engine;

/// A model's rows of one window.
struct Window {
  std::vector<double> logprobs;  // [tokens, vocabulary]
  std::vector<size_t> best;
  std::vector<std::multiset<int32_t>> experts;  // by sparse layer and token
};

class Model final : public vitrine::TapReader {
 public:
  Model(const std::string& path, const Engine* source, size_t longest) {
    vitrine::EngineOptions options;
    options.kv_codecs = {"f32"};
    options.keep_logits = true;
    options.max_context = static_cast<int64_t>(longest);
    options.max_step_tokens = static_cast<int>(longest);
    options.max_logit_rows = static_cast<int>(longest);
    options.max_sequences = 1;
    // Plans say which layers are sparse.
    const std::unique_ptr<Engine> plain = source == nullptr ? Engine::load(path, options) : nullptr;
    const Engine& told = source == nullptr ? *plain : *source;
    for (const vitrine::PlanEntry& entry : told.plan()) {
      if (entry.op != "experts") continue;
      vitrine::Tap tap;
      tap.layer = entry.layer;
      tap.op = "experts";
      tap.value = "expert_slots";
      tap.side = vitrine::Tap::Side::kOutput;
      options.taps.push_back(tap);
    }
    engine_ = Engine::load(path, options);
    engine_->set_tap_reader(this);
  }

  const Engine& engine() const { return *engine_; }

  Window read(const std::vector<int32_t>& ids) {
    window_ = {};
    const vitrine::SequenceId sequence = engine_->create_sequence();
    vitrine::StepInput input;
    input.sequence = sequence;
    input.tokens = ids;
    input.rows = vitrine::StepInput::Rows::kAll;
    for (const vitrine::StepOutput& output : engine_->step({&input, 1})) add(output.scores);
    engine_->release(sequence);
    return std::move(window_);
  }

  void read(const vitrine::TapRows& rows) override {
    const size_t top_k = rows.experts.size() / rows.token_ids.size();
    for (size_t token = 0; token < rows.token_ids.size(); ++token) {
      const auto chosen = rows.experts.subspan(token * top_k, top_k);
      window_.experts.emplace_back(chosen.begin(), chosen.end());
    }
  }

 private:
  void add(std::span<const float> scores) {
    size_t best = 0;
    for (size_t i = 1; i < scores.size(); ++i) {
      if (scores[i] > scores[best]) best = i;
    }
    double sum = 0;
    for (const float score : scores) sum += std::exp(static_cast<double>(score) - scores[best]);
    const double log_sum = scores[best] + std::log(sum);
    for (const float score : scores) window_.logprobs.push_back(score - log_sum);
    window_.best.push_back(best);
  }

  std::unique_ptr<Engine> engine_;
  Window window_;
};

/// Mean KL and shares of equal choices and of other experts.
Json compare(const Window& source, const Window& candidate) {
  double divergence = 0;
  size_t same = 0, flips = 0;
  for (size_t i = 0; i < source.logprobs.size(); ++i) {
    const double log_p = source.logprobs[i];
    divergence += std::exp(log_p) * (log_p - candidate.logprobs[i]);
  }
  for (size_t i = 0; i < source.best.size(); ++i) same += source.best[i] == candidate.best[i];
  for (size_t i = 0; i < source.experts.size(); ++i) {
    flips += source.experts[i] != candidate.experts[i];
  }
  const auto tokens = static_cast<double>(source.best.size());
  const auto places = static_cast<double>(std::max<size_t>(1, source.experts.size()));
  return {{"kl", divergence / tokens},
          {"top1", static_cast<double>(same) / tokens},
          {"flips", static_cast<double>(flips) / places}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("use: compression_windows WINDOWS.vcal SOURCE CANDIDATE…\n", stderr);
    return 2;
  }
  try {
    const auto texts = vitrine::read_calibration(argv[1]).texts;
    size_t longest = 1;
    for (const auto& text : texts) longest = std::max(longest, text.size());
    Model source(argv[2], nullptr, longest);
    std::vector<std::unique_ptr<Model>> candidates;
    Json found = Json::object();
    for (int i = 3; i < argc; ++i) {
      candidates.push_back(std::make_unique<Model>(argv[i], &source.engine(), longest));
      found[argv[i]] = Json::array();
    }
    for (const auto& text : texts) {
      const Window expected = source.read(text);
      for (int i = 3; i < argc; ++i) {
        found[argv[i]].push_back(
            compare(expected, candidates[static_cast<size_t>(i - 3)]->read(text)));
      }
    }
    std::cout << found.dump(1) << "\n";
  } catch (const vitrine::Error& error) {
    std::fprintf(stderr, "compression_windows: %s\n", error.what());
    return 1;
  }
  return 0;
}

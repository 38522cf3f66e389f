// SPDX-License-Identifier: Apache-2.0
#include "layer_run.h"

#include <algorithm>

namespace vitrine::compress {

EngineOptions text_options(std::span<const std::vector<int32_t>> texts, int threads,
                           bool is_lenient) {
  size_t longest = 1;
  for (const std::vector<int32_t>& text : texts) longest = std::max(longest, text.size());
  EngineOptions options;
  options.threads = threads;
  options.lenient_weights = is_lenient;
  options.kv_codecs = {"f32"};
  options.max_context = static_cast<int64_t>(longest);
  options.max_step_tokens = static_cast<int>(longest);
  options.max_sequences = 1;
  return options;
}

void run_text(Engine& engine, std::span<const int32_t> ids) {
  StepInput input;
  input.sequence = engine.create_sequence();
  input.tokens = ids;
  input.rows = StepInput::Rows::kNone;
  engine.step({&input, 1});
  engine.release(input.sequence);
}

/// Keeps the rows of one layer's places.
class LayerRun::Reader final : public TapReader {
 public:
  /// `tokens`: how many the texts have together.
  Reader(Engine& engine, size_t first, size_t count, size_t tokens)
      : engine_(engine), first_(first), tokens_(tokens), sites_(count) {
    engine_.set_tap_reader(this);
  }
  ~Reader() override { engine_.set_tap_reader(nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read(const TapRows& rows) override {
    if (rows.tap < first_ || rows.tap >= first_ + sites_.size()) return;
    SiteRows& site = sites_[rows.tap - first_];
    site.rows.width = rows.width;
    site.rows_per_token = rows.rows_per_token;
    site.top_k = static_cast<int32_t>(rows.experts.size() / rows.token_ids.size());
    const size_t texts_tokens = tokens_, step_tokens = rows.token_ids.size();
    const auto append = [&](auto& to, const auto& from) {
      to.reserve(from.size() / step_tokens * texts_tokens);
      to.insert(to.end(), from.begin(), from.end());
    };
    append(site.rows.values, rows.rows);
    append(site.experts, rows.experts);
  }
  std::vector<SiteRows> take() { return std::move(sites_); }

 private:
  Engine& engine_;
  size_t first_, tokens_;
  std::vector<SiteRows> sites_;
};

LayerRun::LayerRun(const std::string& model, std::span<const std::vector<int32_t>> texts,
                   std::span<const LayerSites> layers, bool keeps_state, int threads,
                   bool is_lenient)
    : runs_whole_(keeps_state) {
  EngineOptions options = text_options(texts, threads, is_lenient);
  options.mmap_weights = !runs_whole_;
  if (!runs_whole_) options.max_sequences = static_cast<int>(texts.size() + 1);
  for (const LayerSites& layer : layers) {
    first_tap_.push_back(options.taps.size());
    options.taps.insert(options.taps.end(), layer.sites.begin(), layer.sites.end());
    options.taps.push_back(layer.result);
  }
  first_tap_.push_back(options.taps.size());
  engine_ = Engine::load(model, options);
  for (const std::vector<int32_t>& text : texts) {
    texts_.emplace_back();
    texts_.back().ids = text;
    if (runs_whole_) continue;
    texts_.back().passing = engine_->create_sequence();
  }
}

std::vector<float> LayerRun::step(const Text& text, SequenceId sequence) {
  StepInput input;
  input.sequence = sequence;
  input.tokens = text.ids;
  input.rows = StepInput::Rows::kNone;
  engine_->step_layers({&input, 1}, {layer_, layer_ + 1}, text.residual);
  const std::span<const float> rows = engine_->residual_rows();
  return {rows.begin(), rows.end()};
}

std::vector<SiteRows> LayerRun::read_texts(size_t first_tap, size_t count,
                                           std::span<const Text> texts) {
  size_t tokens = 0;
  for (const Text& text : texts) tokens += text.ids.size();
  Reader reader(*engine_, first_tap, count, tokens);
  for (const Text& text : texts) {
    if (runs_whole_) {
      run_text(*engine_, text.ids);
      continue;
    }
    const SequenceId looking = engine_->fork(text.passing);
    step(text, looking);
    engine_->release(looking);
  }
  return reader.take();
}

std::vector<SiteRows> LayerRun::look() {
  const size_t first = first_tap_[static_cast<size_t>(layer_)];
  return read_texts(first, first_tap_[static_cast<size_t>(layer_) + 1] - first, texts_);
}

std::vector<float> LayerRun::probe(int64_t tokens) {
  size_t count = 0;
  for (int64_t seen = 0; count < texts_.size() && seen < tokens; ++count) {
    seen += std::ssize(texts_[count].ids);
  }
  const size_t result = first_tap_[static_cast<size_t>(layer_) + 1] - 1;
  return read_texts(result, 1, std::span(texts_).first(count)).front().rows.values;
}

void LayerRun::pass() {
  const bool is_last = layer_ + 1 == engine_->summary().num_layers;
  for (Text& text : texts_) {
    if (!is_last && !runs_whole_) text.residual = step(text, text.passing);
  }
  if (!runs_whole_) leave_layer();
  ++layer_;
}

void LayerRun::replace_matrix(const std::string& module, std::span<const float> values) {
  engine_->replace_matrix(module, values);
  replaced_.insert(module);
}

void LayerRun::restore_matrix(const std::string& module) {
  engine_->restore_matrix(module);
  replaced_.erase(module);
}

void LayerRun::leave_layer() {
  for (const std::string& module : replaced_) engine_->restore_matrix(module);
  replaced_.clear();
  // The layer that was passed has to be one that the texts were seen by.
  if (layer_ > 0) engine_->forget_layer(layer_ - 1);
}

}  // namespace vitrine::compress

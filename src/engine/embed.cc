// SPDX-License-Identifier: Apache-2.0
#include "vitrine/embed.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <deque>
#include <string>
#include <utility>

#include "engine/generate/generation_sequence.h"
#include "vitrine/engine.h"

namespace vitrine {

namespace {

constexpr std::array<std::pair<Pooling, std::string_view>, 4> kPoolings = {
    {{Pooling::kNone, "none"},
     {Pooling::kMean, "mean"},
     {Pooling::kLast, "last"},
     {Pooling::kCls, "cls"}}};

[[noreturn]] void refuse_embedding(const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, what);
}

void check_texts(const Stepper& model, std::span<const std::vector<int32_t>> texts) {
  const ModelSummary& summary = model.summary();
  if (model.traits().num_specialists > 0) {
    refuse_embedding("'" + summary.path +
                     "' is a federation, whose specialists have hidden states of their own; "
                     "expected one model");
  }
  if (!model.options().keep_hidden_state) {
    refuse_embedding("'" + summary.path +
                     "' was loaded without engine option 'keep_hidden_state'; expected the options "
                     "that embedding_options() returns");
  }
  const auto context = static_cast<size_t>(model.options().max_context);
  for (size_t text = 0; text < texts.size(); ++text) {
    const std::vector<int32_t>& ids = texts[text];
    const std::string name = "text " + std::to_string(text);
    if (ids.empty()) refuse_embedding(name + " has no token; expected at least one");
    if (ids.size() > context) {
      refuse_embedding(name + " has " + std::to_string(ids.size()) +
                       " tokens, and a context holds " + std::to_string(context) +
                       " (engine option 'max_context'); expected at most that");
    }
    const auto is_none = [&](int32_t id) { return id < 0 || id >= summary.vocab_size; };
    const auto found = std::ranges::find_if(ids, is_none);
    if (found == ids.end()) continue;
    refuse_embedding(name + " has id " + std::to_string(*found) + "; expected 0 to " +
                     std::to_string(summary.vocab_size - 1));
  }
}

// One text that is being read.
class PooledText {
 public:
  PooledText(Stepper& model, size_t number, std::span<const int32_t> ids,
             const EmbedOptions& options)
      : options_(options),
        number_(number),
        // A token that looks back has what it has without those behind it.
        ids_(options.pooling == Pooling::kCls ? ids.first(1) : ids),
        width_(static_cast<size_t>(model.summary().hidden_size)),
        sequence_(model, 0, options.adapter) {
    if (options.pooling == Pooling::kNone) vectors_.reserve(ids_.size() * width_);
    if (options.pooling == Pooling::kMean) sums_.resize(width_);
  }
  PooledText(const PooledText&) = delete;
  PooledText& operator=(const PooledText&) = delete;

  size_t number() const { return number_; }
  size_t left() const { return ids_.size() - done_; }
  bool needs_all_rows() const {
    return options_.pooling == Pooling::kNone || options_.pooling == Pooling::kMean;
  }

  /// What it brings to a step: its next `count` tokens.
  StepInput take(size_t count) {
    StepInput input;
    input.sequence = sequence_.id();
    input.tokens = ids_.subspan(done_, count);
    done_ += count;
    input.rows = needs_all_rows() ? StepInput::Rows::kAll
                 : left() == 0    ? StepInput::Rows::kLast
                                  : StepInput::Rows::kNone;
    rows_ = needs_all_rows() ? count : left() == 0 ? 1 : 0;
    return input;
  }
  /// Takes its outputs of the step off the front.
  void read(std::span<const StepOutput>& outputs) {
    for (const StepOutput& output : outputs.first(rows_)) add(output.hidden_state);
    outputs = outputs.subspan(rows_);
  }
  std::span<const float> finish() {
    if (options_.pooling == Pooling::kMean) {
      for (const double sum : sums_) {
        vectors_.push_back(static_cast<float>(sum / static_cast<double>(ids_.size())));
      }
    }
    if (options_.normalize) {
      for (size_t at = 0; at < vectors_.size(); at += width_) scale_to_one(&vectors_[at]);
    }
    return vectors_;
  }

 private:
  void add(std::span<const float> state) {
    for (const float value : state) {
      if (std::isfinite(value)) continue;
      throw Error(ErrorKind::kBadFile,
                  "text " + std::to_string(number_) +
                      ": a hidden state is not finite: the weights or the kernels are broken");
    }
    if (options_.pooling == Pooling::kMean) {
      for (size_t i = 0; i < width_; ++i) sums_[i] += double{state[i]};
    } else {
      vectors_.insert(vectors_.end(), state.begin(), state.end());
    }
  }
  void scale_to_one(float* vector) const {
    double squares = 0;
    for (size_t i = 0; i < width_; ++i) squares += double{vector[i]} * double{vector[i]};
    if (squares == 0) return;
    const double length = std::sqrt(squares);
    for (size_t i = 0; i < width_; ++i) {
      vector[i] = static_cast<float>(double{vector[i]} / length);
    }
  }

  const EmbedOptions& options_;
  size_t number_;
  std::span<const int32_t> ids_;
  size_t width_;
  engine::GenerationSequence sequence_;
  size_t done_ = 0;  // tokens
  size_t rows_ = 0;  // of the step under way
  std::vector<double> sums_;
  std::vector<float> vectors_;
};

}  // namespace

std::string_view pooling_name(Pooling pooling) {
  return std::ranges::find(kPoolings, pooling, &std::pair<Pooling, std::string_view>::first)
      ->second;
}

std::optional<Pooling> find_pooling(std::string_view name) {
  const auto* found =
      std::ranges::find(kPoolings, name, &std::pair<Pooling, std::string_view>::second);
  if (found == kPoolings.end()) return std::nullopt;
  return found->first;
}

EngineOptions embedding_options(int64_t context, EngineOptions options, int sequences) {
  if (context < 1 || context > INT_MAX) {
    refuse_embedding("a context is " + std::to_string(context) + "; expected 1 to " +
                     std::to_string(INT_MAX));
  }
  if (sequences < 1) {
    refuse_embedding("the number of sequences is " + std::to_string(sequences) +
                     "; expected 1 or more");
  }
  options.max_context = static_cast<int>(context);
  options.max_sequences = sequences;
  options.max_step_tokens =
      static_cast<int>(std::min<int64_t>(options.max_step_tokens, context * int64_t{sequences}));
  options.max_logit_rows = options.max_step_tokens;
  options.audit_mode = AuditMode::kNone;
  options.keep_logits = options.attribution = false;
  options.hidden_states_only = options.keep_hidden_state = true;
  return options;
}

void embed(Stepper& model, std::span<const std::vector<int32_t>> texts, const EmbedOptions& options,
           const std::function<void(size_t, std::span<const float>)>& on_text) {
  check_texts(model, texts);
  const auto max_tokens = static_cast<size_t>(model.options().max_step_tokens);
  const auto max_rows = static_cast<size_t>(model.options().max_logit_rows);
  const auto max_sequences = static_cast<size_t>(model.options().max_sequences);
  std::deque<PooledText> reading;  // in order: those in front get a step's room first
  std::vector<StepInput> inputs;
  for (size_t next = 0; next < texts.size() || !reading.empty();) {
    inputs.clear();
    size_t tokens = max_tokens, rows = max_rows;
    for (size_t i = 0; tokens > 0 && rows > 0; ++i) {
      if (i == reading.size()) {
        if (next == texts.size() || i == max_sequences) break;
        reading.emplace_back(model, next, texts[next], options);
        ++next;
      }
      PooledText& text = reading[i];
      const size_t room = text.needs_all_rows() ? std::min(tokens, rows) : tokens;
      inputs.push_back(text.take(std::min(text.left(), room)));
      tokens -= inputs.back().tokens.size();
      rows -= text.needs_all_rows() ? inputs.back().tokens.size() : 1;
    }
    if (options.before_step) options.before_step();
    std::span<const StepOutput> outputs = model.step(inputs);
    if (!model.failures().empty()) std::rethrow_exception(model.failures().front().error);
    for (size_t i = 0; i < inputs.size(); ++i) reading[i].read(outputs);
    while (!reading.empty() && reading.front().left() == 0) {
      on_text(reading.front().number(), reading.front().finish());
      reading.pop_front();
    }
  }
}

std::vector<std::vector<float>> embed(Stepper& model, std::span<const std::vector<int32_t>> texts,
                                      const EmbedOptions& options) {
  std::vector<std::vector<float>> all;
  embed(model, texts, options, [&](size_t, std::span<const float> vectors) {
    all.emplace_back(vectors.begin(), vectors.end());
  });
  return all;
}

}  // namespace vitrine

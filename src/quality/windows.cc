// SPDX-License-Identifier: Apache-2.0
#include "quality/windows.h"

#include <cmath>
#include <string>

namespace vitrine {

void quality::check_windows(const Reader& reader, std::span<const int32_t> ids,
                            const WindowOptions& options) {
  const auto require = [](bool is_so, const std::string& what) {
    if (!is_so) throw Error(ErrorKind::kInvalidArgument, what);
  };
  require(ids.size() > 1, "a text has " + std::to_string(ids.size()) +
                              " ids; expected at least 2: the first one is "
                              "not predicted");
  require(options.window > 1,
          "a window of " + std::to_string(options.window) + " ids; expected at least 2");
  require(options.every > 0, "one window in 0 is asked for; expected one in 1 or more");
  reader.check_positions(std::min(options.window, std::ssize(ids)));
  reader.check_ids(ids);
}

size_t predict_windows(Stepper& model, std::span<const int32_t> ids, const WindowOptions& options,
                       const std::function<void(const PredictedToken&)>& on_token) {
  quality::Reader reader(model);
  quality::check_windows(reader, ids, options);
  return quality::walk_windows(ids, options, reader.step_tokens(),
                               [&](const quality::WindowStep& step) {
                                 if (step.first == 0) reader.begin();
                                 const auto outputs = reader.step(step.tokens, step.next);
                                 for (size_t i = 0; i < outputs.size(); ++i) {
                                   PredictedToken token;
                                   token.window = step.window;
                                   token.position = static_cast<int64_t>(step.first + i + 1);
                                   token.token = step.behind(i);
                                   token.logprob = reader.logprob(outputs[i], token.token);
                                   token.log_total = reader.log_total(outputs[i]);
                                   token.logits = outputs[i].scores;
                                   token.hidden_state = outputs[i].hidden_state;
                                   token.shares = reader.shares(i);
                                   on_token(token);
                                 }
                               });
}

void TextScore::add(const PredictedToken& token) {
  if (num_tokens_ == 0) specialists_.resize(token.shares.size());
  if (specialists_.size() != token.shares.size()) {
    throw Error(ErrorKind::kInvalidArgument, "a token of " + std::to_string(token.shares.size()) +
                                                 " specialists is added to a score of " +
                                                 std::to_string(specialists_.size()) +
                                                 "; expected tokens of one model");
  }
  ++num_tokens_;
  logprob_ += token.logprob;
  for (size_t i = 0; i < specialists_.size(); ++i) {
    specialists_[i].logprob += token.shares[i].logprob;
    specialists_[i].share += token.shares[i].share;
  }
}

double TextScore::logprob() const { return logprob_ / static_cast<double>(num_tokens_); }
double TextScore::perplexity() const { return std::exp(-logprob()); }
double TextScore::perplexity(size_t specialist) const {
  return std::exp(-specialists_.at(specialist).logprob / static_cast<double>(num_tokens_));
}
double TextScore::share(size_t specialist) const {
  return specialists_.at(specialist).share / static_cast<double>(num_tokens_);
}

TextScore score_text(Stepper& model, std::span<const int32_t> ids, const WindowOptions& options) {
  TextScore score;
  predict_windows(model, ids, options, [&](const PredictedToken& token) { score.add(token); });
  return score;
}

}  // namespace vitrine

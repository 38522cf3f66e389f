// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include "quality/reader.h"
#include "vitrine/perplexity.h"

namespace vitrine {

namespace {

constexpr int64_t kLeastContext = 4;  // of which one id is scored

void require(bool is_so, const std::string& what) {
  if (!is_so) throw Error(ErrorKind::kInvalidArgument, what);
}

}  // namespace

size_t first_scored(const ChunkOptions& options) {
  return options.scores_all ? 1 : static_cast<size_t>(options.context / 2 + 1);
}

size_t count_chunks(size_t num_ids, const ChunkOptions& options) {
  require(options.context >= kLeastContext, "a chunk of " + std::to_string(options.context) +
                                                " ids; expected at least " +
                                                std::to_string(kLeastContext));
  require(options.most_chunks >= 0,
          std::to_string(options.most_chunks) + " chunks are asked for; expected 0 or more");
  const size_t whole = num_ids / static_cast<size_t>(options.context);
  require(whole > 0, "a text of " + std::to_string(num_ids) + " ids; expected at least " +
                         std::to_string(options.context) + ", which is a chunk");
  const auto most = static_cast<size_t>(options.most_chunks);
  return most == 0 ? whole : std::min(most, whole);
}

void score_chunks(Stepper& model, std::span<const int32_t> ids, const ChunkOptions& options,
                  const std::function<void(const ChunkToken&)>& on_token) {
  const size_t chunks = count_chunks(ids.size(), options);
  const auto width = static_cast<size_t>(options.context);
  quality::Reader reader(model);
  reader.check_positions(options.context);
  reader.check_ids(ids.first(chunks * width));
  if (options.begin_token >= 0) reader.check_ids({&options.begin_token, 1});
  // The id before the first scored one is the first whose logits are needed; the last is not fed.
  const size_t context = first_scored(options) - 1;
  std::vector<int32_t> chunk(width);
  for (size_t number = 0; number < chunks; ++number) {
    std::ranges::copy(ids.subspan(number * width, width), chunk.begin());
    if (options.begin_token >= 0) chunk.front() = options.begin_token;
    reader.begin();
    for (size_t at = 0, end = 0; at + 1 < width; at = end) {
      const bool is_context = at < context;
      end = std::min(at + reader.step_tokens(), is_context ? context : width - 1);
      if (options.before_step) options.before_step();
      const auto outputs =
          reader.step(std::span<const int32_t>(chunk).subspan(at, end - at), chunk[end],
                      is_context ? StepInput::Rows::kNone : StepInput::Rows::kAll);
      for (size_t i = 0; i < outputs.size(); ++i) {
        ChunkToken token;
        token.chunk = number;
        token.position = static_cast<int64_t>(at + i + 1);
        token.token = chunk[at + i + 1];
        token.logprob = reader.logprob(outputs[i], token.token);
        token.logits = outputs[i].scores;
        on_token(token);
      }
    }
  }
}

void TokenLosses::add(double logprob) {
  ++num_tokens_;
  sum_ -= logprob;
  squares_ += logprob * logprob;
}

Estimate TokenLosses::perplexity() const {
  const auto count = static_cast<double>(num_tokens_);
  const double mean = sum_ / count, variance = squares_ / count - mean * mean;
  const double perplexity = std::exp(mean);
  const double error = num_tokens_ > 1 ? std::sqrt(std::max(0.0, variance) / (count - 1))
                                       : std::numeric_limits<double>::quiet_NaN();
  return {perplexity, perplexity * error};
}

}  // namespace vitrine

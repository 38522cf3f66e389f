// SPDX-License-Identifier: Apache-2.0
// Greedy answers of llama.cpp with its n-gram modes of speculation and without, through its own
// drafters (common/speculative.h) with their default settings: compare_speculation.py runs it.
//
//     llama_speculation MODEL TOKENS THREADS MODE[,MODE...] < IDS
//
// IDS are the prompt's. For each mode, in this order, one line with a JSON object: the answer's
// tokens, the seconds that decoding took behind its first token, and what was guessed. "plain" is
// the mode without guesses.
#include <llama.h>
#include <speculative.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostGuesses = 64;  // of a pass, in any of the modes
constexpr int kWarmUpTokens = 8;

struct Answer {
  llama_tokens tokens;
  double seconds = 0;
  int passes = 0, drafted = 0, accepted = 0;
};

class Decoder {
 public:
  Decoder(llama_model* model, const llama_tokens& prompt, int tokens, int threads)
      : vocabulary_(llama_model_get_vocab(model)),
        vocab_size_(llama_vocab_n_tokens(vocabulary_)),
        prompt_(prompt) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(static_cast<int>(prompt.size()) + tokens + kMostGuesses);
    params.n_batch = params.n_ctx;
    params.n_threads = params.n_threads_batch = threads;
    context_ = llama_init_from_model(model, params);
    if (context_ == nullptr) throw std::runtime_error("no context could be made");
    batch_ = llama_batch_init(static_cast<int32_t>(params.n_batch), 0, 1);
  }
  ~Decoder() {
    llama_batch_free(batch_);
    llama_free(context_);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Answer answer(const std::string& mode, int max_tokens) {
    // Each answer has a drafter of its own, as in their example.
    common_params_speculative params;
    common_speculative_ptr drafter;
    if (mode != "plain") {
      params.types = common_speculative_types_from_names({mode});
      drafter.reset(common_speculative_init(params, 1));
      if (!drafter) throw std::runtime_error("'" + mode + "' is no mode that needs no other model");
    }
    llama_memory_clear(llama_get_memory(context_), false);
    begin_batch(0);
    for (const llama_token token : prompt_) add(token, 0);
    batch_.logits[batch_.n_tokens - 1] = 1;
    decode();
    Answer answer;
    llama_tokens text = prompt_;  // all but the newest token
    llama_tokens draft;
    answer.tokens.push_back(best(batch_.n_tokens - 1));
    common_speculative_begin(drafter.get(), 0, text);
    const Clock::time_point start = Clock::now();
    while (goes_on(answer, max_tokens)) {
      draft.clear();
      const int room = max_tokens - static_cast<int>(answer.tokens.size()) - 1;
      if (drafter && room > 0) {
        common_speculative_draft_params& request =
            common_speculative_get_draft_params(drafter.get(), 0);
        request.drafting = true;
        request.n_max = std::min(room, kMostGuesses);
        request.pos0 = static_cast<llama_pos>(text.size());
        request.id_last = answer.tokens.back();
        request.prompt = &text;
        request.result = &draft;
        common_speculative_draft(drafter.get());
      }
      pass(answer, text, draft, max_tokens);
      if (!draft.empty()) {
        common_speculative_accept(drafter.get(), 0, static_cast<uint16_t>(accepted_));
      }
    }
    answer.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return answer;
  }

 private:
  bool goes_on(const Answer& answer, int max_tokens) const {
    return static_cast<int>(answer.tokens.size()) < max_tokens &&
           !llama_vocab_is_eog(vocabulary_, answer.tokens.back());
  }

  // The newest token and the guesses behind it, of which those stay that are the best token of the
  // row before.
  void pass(Answer& answer, llama_tokens& text, const llama_tokens& draft, int max_tokens) {
    begin_batch(static_cast<llama_pos>(text.size()));
    add(answer.tokens.back(), 1);
    for (const llama_token token : draft) add(token, 1);
    decode();
    accepted_ = 0;
    for (int row = 0; row <= static_cast<int>(draft.size()); ++row) {
      text.push_back(answer.tokens.back());
      answer.tokens.push_back(best(row));
      const auto next = static_cast<size_t>(row);
      if (next == draft.size() || answer.tokens.back() != draft[next]) break;
      ++accepted_;
      if (!goes_on(answer, max_tokens)) break;
    }
    ++answer.passes;
    answer.drafted += static_cast<int>(draft.size());
    answer.accepted += accepted_;
    llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(text.size()), -1);
  }

  void begin_batch(llama_pos first) {
    batch_.n_tokens = 0;
    batch_first_ = first;
  }

  void add(llama_token token, int8_t has_logits) {
    const int32_t at = batch_.n_tokens++;
    batch_.token[at] = token;
    batch_.pos[at] = batch_first_ + at;
    batch_.n_seq_id[at] = 1;
    batch_.seq_id[at][0] = 0;
    batch_.logits[at] = has_logits;
  }

  void decode() {
    if (llama_decode(context_, batch_) != 0) throw std::runtime_error("llama_decode failed");
  }

  llama_token best(int32_t row) {
    const float* logits = llama_get_logits_ith(context_, row);
    if (logits == nullptr) throw std::runtime_error("there are no logits");
    return static_cast<llama_token>(std::max_element(logits, logits + vocab_size_) - logits);
  }

  const llama_vocab* vocabulary_;
  int vocab_size_;
  const llama_tokens& prompt_;
  llama_context* context_ = nullptr;
  llama_batch batch_{};
  llama_pos batch_first_ = 0;
  int accepted_ = 0;  // guesses of the last pass
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin != std::string::npos;) {
    const size_t comma = text.find(',', begin);
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma == std::string::npos ? comma : comma + 1;
  }
  return parts;
}

void print(const std::string& mode, const Answer& answer) {
  std::printf(
      "{\"mode\": \"%s\", \"seconds\": %.9f, \"passes\": %d, \"drafted\": %d, \"accepted\": %d, "
      "\"tokens\": [",
      mode.c_str(), answer.seconds, answer.passes, answer.drafted, answer.accepted);
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    std::printf("%s%d", i == 0 ? "" : ", ", answer.tokens[i]);
  }
  std::printf("]}\n");
}

void run(const char* path, int tokens, int threads, const std::vector<std::string>& modes) {
  if (tokens < 1 || threads < 1) throw std::runtime_error("expected TOKENS and THREADS above 0");
  llama_tokens prompt;
  for (llama_token id = 0; std::cin >> id;) prompt.push_back(id);
  if (prompt.empty()) throw std::runtime_error("no ids on standard input");
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (model == nullptr) throw std::runtime_error(std::string(path) + " could not be loaded");
  {
    Decoder decoder(model, prompt, tokens, threads);
    decoder.answer("plain", std::min(tokens, kWarmUpTokens));
    for (const std::string& mode : modes) print(mode, decoder.answer(mode, tokens));
  }
  llama_model_free(model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("llama_speculation: expected MODEL TOKENS THREADS MODES and ids on standard input\n",
               stderr);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  try {
    run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), split(argv[4]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_speculation: %s\n", error.what());
    return 1;
  }
}

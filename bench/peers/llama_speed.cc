// SPDX-License-Identifier: Apache-2.0
// Speed of llama.cpp on a model, through its C API, as `vitrine bench generate` measures its own:
// the same token ids, one load, nothing timed but the calls. One JSON object on standard output.
//
//     llama_speed MODEL -p PROMPT -n TOKENS -d DEPTH -t THREADS -r REPEAT -ub UBATCH[,UBATCH...]
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model;
  int prompt = 256, tokens = 64, depth = 0, threads = 1, repeat = 3;
  std::vector<int> ubatches = {512};
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int parse_int(const char* text, int lowest) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < lowest || value > 1 << 24) {
    throw std::runtime_error(std::string("'") + text + "' is no number from " +
                             std::to_string(lowest) + " on");
  }
  return static_cast<int>(value);
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> values;
  for (size_t begin = 0; begin != text.npos;) {
    const size_t comma = text.find(',', begin);
    values.push_back(parse_int(text.substr(begin, comma - begin).c_str(), 1));
    begin = comma == text.npos ? comma : comma + 1;
  }
  return values;
}

Arguments parse(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) {
    throw std::runtime_error(
        "expected MODEL [-p PROMPT] [-n TOKENS] [-d DEPTH] [-t THREADS] [-r REPEAT] "
        "[-ub UBATCH,...]");
  }
  Arguments arguments;
  arguments.model = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "-p") {
      arguments.prompt = parse_int(argv[i + 1], 1);
    } else if (name == "-n") {
      arguments.tokens = parse_int(argv[i + 1], 1);
    } else if (name == "-d") {
      arguments.depth = parse_int(argv[i + 1], 0);
    } else if (name == "-t") {
      arguments.threads = parse_int(argv[i + 1], 1);
    } else if (name == "-r") {
      arguments.repeat = parse_int(argv[i + 1], 1);
    } else if (name == "-ub") {
      arguments.ubatches = parse_list(argv[i + 1]);
    } else {
      throw std::runtime_error("'" + name + "' is unknown");
    }
  }
  return arguments;
}

class Bench {
 public:
  Bench(const Arguments& arguments, llama_model* model, int ubatch)
      : arguments_(arguments), vocab_size_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
    llama_context_params params = llama_context_default_params();
    const int longest = std::max(arguments.prompt, arguments.tokens);
    params.n_ctx = static_cast<uint32_t>(arguments.depth + longest);
    params.n_batch = static_cast<uint32_t>(std::max(arguments.depth, arguments.prompt));
    params.n_ubatch = static_cast<uint32_t>(ubatch);
    params.n_threads = arguments.threads;
    params.n_threads_batch = arguments.threads;
    context_ = llama_init_from_model(model, params);
    if (context_ == nullptr) throw std::runtime_error("no context could be made");
  }
  ~Bench() { llama_free(context_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Seconds for ids [first, first + count) at the positions of the same number.
  double prefill(int first, int count) {
    const Clock::time_point start = Clock::now();
    std::vector<llama_token> ids;
    for (int i = 0; i < count; ++i) ids.push_back(id(first + i));
    decode(ids.data(), count);
    return seconds_since(start);
  }

  /// Decodes `count` tokens one by one; returns the seconds.
  double generate(int first, int count) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < count; ++i) {
      llama_token token = id(first + i);
      decode(&token, 1);
    }
    return seconds_since(start);
  }

  /// Forgets everything from `position` on.
  void rewind(int position) {
    if (!llama_memory_seq_rm(llama_get_memory(context_), 0, position, -1)) {
      llama_memory_clear(llama_get_memory(context_), false);
      if (position > 0) prefill(0, position);
    }
  }

  /// The best token after the last one.
  int best() const {
    const float* logits = llama_get_logits_ith(context_, -1);
    if (logits == nullptr) throw std::runtime_error("there are no logits");
    return static_cast<int>(std::max_element(logits, logits + vocab_size_) - logits);
  }

 private:
  // The ids that `vitrine bench generate` takes: spread over the vocabulary.
  llama_token id(int index) const {
    return static_cast<llama_token>((1 + int64_t{index} * 7919) % vocab_size_);
  }

  void decode(llama_token* ids, int count) {
    if (llama_decode(context_, llama_batch_get_one(ids, count)) != 0) {
      throw std::runtime_error("llama_decode failed");
    }
    llama_synchronize(context_);
  }

  const Arguments& arguments_;
  int vocab_size_;
  llama_context* context_ = nullptr;
};

/// VmHWM of this process, in bytes; 0 where the system does not tell.
uint64_t peak_rss() {
  uint64_t kilobytes = 0;
  if (std::FILE* file = std::fopen("/proc/self/status", "r")) {
    char line[256];
    unsigned long long value = 0;
    while (std::fgets(line, sizeof(line), file) != nullptr) {
      if (std::sscanf(line, "VmHWM: %llu", &value) == 1) kilobytes = value;
    }
    std::fclose(file);
  }
  return kilobytes * 1024;
}

void print_list(const char* key, const std::vector<double>& values) {
  std::printf("\"%s\": [", key);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.6g", i == 0 ? "" : ", ", values[i]);
  std::printf("]");
}

void log_problems(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

void run(const Arguments& arguments) {
  llama_log_set(log_problems, nullptr);
  llama_backend_init();
  const Clock::time_point start = Clock::now();
  llama_model* model =
      llama_model_load_from_file(arguments.model.c_str(), llama_model_default_params());
  if (model == nullptr) throw std::runtime_error(arguments.model + " could not be loaded");
  double load_seconds = 0, first_token_seconds = 0;
  int first_token = 0;
  std::vector<double> decode;
  std::printf("{\"prefill\": {");
  for (size_t i = 0; i < arguments.ubatches.size(); ++i) {
    Bench bench(arguments, model, arguments.ubatches[i]);
    if (i == 0) {
      load_seconds = seconds_since(start);
      bench.prefill(0, 1);
      first_token = bench.best();
      first_token_seconds = seconds_since(start);
    }
    bench.rewind(0);
    if (arguments.depth > 0) bench.prefill(0, arguments.depth);
    std::vector<double> prefill;
    for (int round = 0; round <= arguments.repeat; ++round) {
      bench.rewind(arguments.depth);
      const double prefill_seconds = bench.prefill(arguments.depth, arguments.prompt);
      double decode_seconds = 0;
      if (i == 0) {
        bench.rewind(arguments.depth);
        decode_seconds = bench.generate(arguments.depth, arguments.tokens);
      }
      if (round == 0) continue;  // the first touches memory
      prefill.push_back(arguments.prompt / prefill_seconds);
      if (i == 0) decode.push_back(arguments.tokens / decode_seconds);
    }
    if (i > 0) std::printf(", ");
    print_list(std::to_string(arguments.ubatches[i]).c_str(), prefill);
  }
  std::printf("}, ");
  print_list("decode", decode);
  std::printf(", \"load_seconds\": %.6g, \"first_token_seconds\": %.6g, \"first_token\": %d, ",
              load_seconds, first_token_seconds, first_token);
  std::printf("\"peak_rss\": %llu, \"system_info\": \"%s\"}\n",
              static_cast<unsigned long long>(peak_rss()), llama_print_system_info());
  llama_model_free(model);
  llama_backend_free();
}

}  // namespace

int main(int argc, char** argv) try {
  run(parse(argc, argv));
} catch (const std::exception& error) {
  std::fprintf(stderr, "llama_speed: %s\n", error.what());
  return 2;
}

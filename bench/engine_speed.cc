// Prefill and decode speed of a model on the fused path: medians over repeats, recorder on.
//
//     build/bench/engine_speed MODEL [--threads T] [--repeat R] [--prompt P] [--tokens N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "vitrine/engine.h"

namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void print(const char* name, const std::vector<double>& speeds) {
  std::printf("%-8s %9.0f tokens/s  (median of %zu; best %.0f, worst %.0f)\n", name, median(speeds),
              speeds.size(), *std::max_element(speeds.begin(), speeds.end()),
              *std::min_element(speeds.begin(), speeds.end()));
}

int option(int argc, char** argv, const std::string& name, int fallback) {
  for (int i = 2; i + 1 < argc; ++i) {
    if (name == argv[i]) return std::atoi(argv[i + 1]);
  }
  return fallback;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: engine_speed MODEL [--threads T] [--repeat R] [--prompt P] "
                 "[--tokens N]\n");
    return 2;
  }
  const int repeat = std::max(1, option(argc, argv, "--repeat", 15));
  const int prompt = std::max(1, option(argc, argv, "--prompt", 512));
  const int tokens = std::max(1, option(argc, argv, "--tokens", 200));
  vitrine::EngineOptions options;
  options.threads = option(argc, argv, "--threads", 0);
  const auto engine = vitrine::Engine::load(argv[1], options);
  vitrine::SlabRing ring(size_t{4} << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  engine->set_audit_sink(&ring);

  std::vector<int32_t> ids;
  for (int i = 0; i < prompt; ++i) {
    ids.push_back((i * 7919 + 13) % engine->summary().vocab_size);
  }
  vitrine::GenerateOptions generate_options;
  generate_options.max_new_tokens = tokens;
  generate_options.ignore_end_of_text = true;
  generate_options.sampler.temperature = 0;
  std::vector<double> prefill, decode;
  for (int i = 0; i <= repeat; ++i) {
    const vitrine::GenerateResult long_prompt =
        vitrine::generate(*engine, ids, {.max_new_tokens = 1, .sampler = {.temperature = 0}});
    const vitrine::GenerateResult result = vitrine::generate(
        *engine, std::span(ids).first(std::min<size_t>(8, ids.size())), generate_options);
    if (i == 0) continue;  // the first touches memory
    prefill.push_back(static_cast<double>(prompt) / long_prompt.prefill_seconds);
    decode.push_back(static_cast<double>(result.tokens.size() - 1) / result.decode_seconds);
  }
  std::printf("%s, %s kernels (%s), %d threads, prompt %d, %d tokens\n", argv[1],
              engine->summary().kernels.c_str(), engine->summary().isa.c_str(),
              engine->summary().threads, prompt, tokens);
  print("prefill", prefill);
  print("decode", decode);
} catch (const vitrine::Error& error) {
  std::fprintf(stderr, "engine_speed: %s\n", error.what());
  return error.is_user_error() ? 2 : 1;
}

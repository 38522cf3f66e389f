#include "sampling_options.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

namespace cli {

namespace {

/// CLI11 itself would wrap -1 and cut off what is too large.
CLI::Validator check_seed() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t seed = 0;
        const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
        const bool whole = status == std::errc() && end == text.data() + text.size();
        return whole ? std::string()
                     : "'" + text + "' is no seed; expected a whole number from 0 to 2^64 - 1";
      },
      "");
}

}  // namespace

void SamplingOptions::add_to(CLI::App& command, const char* seed_help) {
  command.add_option("--temperature", sampler.temperature, "0: greedy")->capture_default_str();
  command.add_option("--top-k", sampler.top_k, "0: off")->capture_default_str();
  command.add_option("--top-p", sampler.top_p, "1: off")->capture_default_str();
  command.add_option("--min-p", sampler.min_p, "0: off")->capture_default_str();
  command.add_option("-s,--seed", seed, seed_help)->check(check_seed());
}

void SamplingOptions::resolve() {
  sampler.seed = seed.value_or(uint64_t{std::random_device()()} << 32 | std::random_device()());
  vitrine::SamplerPipeline::from_options(sampler);
}

vitrine::LogHeader log_header(const std::string& model_path, const SamplingOptions& sampling,
                              const DeviceOptions& device, const vitrine::ModelSummary& model,
                              const vitrine::Checkpoint& checkpoint) {
  const vitrine::SamplerOptions& sampler = sampling.sampler;
  vitrine::LogHeader header;
  header.model_path = model_path;
  header.architecture = model.architecture;
  header.device = model.device;
  header.kernels = model.kernels;
  header.isa = model.isa;
  header.threads = model.threads;
  header.num_layers = model.num_layers;
  header.vocab_size = model.vocab_size;
  header.seed = sampler.seed;
  header.sampler = {{"temperature", fmt::format("{}", sampler.temperature)},
                    {"top_k", fmt::format("{}", sampler.top_k)},
                    {"top_p", fmt::format("{}", sampler.top_p)},
                    {"min_p", fmt::format("{}", sampler.min_p)}};
  header.engine = {{"rope_frequencies", device.rope_frequencies}, {"kv_type", device.kv_type}};
  header.hashes = file_hashes(checkpoint);
  return header;
}

}  // namespace cli

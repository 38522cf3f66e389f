// SPDX-License-Identifier: Apache-2.0
// vitrine bench constraint: MaskBench's figures over a folder of schemas.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench.h"
#include "common.h"
#include "constraint_options.h"
#include "mask_bench.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kBenchConstraintMaxFileBytes = size_t{256} << 20;

struct BenchConstraintArguments {
  std::string tokenizer, folder, out;
  double time_limit = 60;
  int64_t token_limit = -1;
  size_t max_alternatives = vitrine::SchemaOptions{}.max_alternatives;
  std::string key_order = "any";
  bool annotate = false, lenient = false, no_sharing = false;
};

vitrine::Tokenizer read_bench_tokenizer(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error) && path.ends_with(".gguf")) {
    return open_tokenizer(vitrine::Checkpoint::open(path));
  }
  const bool is_folder = std::filesystem::is_directory(path, error);
  return vitrine::Tokenizer::from_file(is_folder ? path + "/tokenizer.json" : path);
}

int run_bench_constraint(const BenchConstraintArguments& arguments) {
  const vitrine::Tokenizer tokenizer = read_bench_tokenizer(arguments.tokenizer);
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(arguments.folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (error || files.empty()) {
    refuse(
        fmt::format("folder '{}' has no .json file; expected MaskBench's, one schema with its "
                    "tests each",
                    arguments.folder));
  }
  std::sort(files.begin(), files.end());
  require_output_folder("--out", arguments.out);
  MaskBenchOptions options;
  options.time_limit = arguments.time_limit;
  options.token_limit = arguments.token_limit;
  options.schema.max_alternatives = arguments.max_alternatives;
  if (arguments.annotate) options.schema.format = vitrine::JsonFormat::kAnnotate;
  options.schema.lenient = arguments.lenient;
  options.schema.key_order = key_order_of(arguments.key_order);
  options.shares_masks = !arguments.no_sharing;
  MaskBench bench(tokenizer, options);
  catch_interrupts();
  for (const auto& path : files) {
    stop_if_interrupted("bench constraint: cancelled before the last schema");
    const std::string text = read_text_file(path.string(), kBenchConstraintMaxFileBytes);
    try {
      bench.run(path.filename().string(), text);
    } catch (const nlohmann::json::exception&) {
      refuse(
          fmt::format("{} is not a file of MaskBench; expected {{\"schema\": …, \"tests\": "
                      "[{{\"valid\": …, \"data\": …}}]}}",
                      path.string()));
    }
  }
  const nlohmann::ordered_json report = bench.report();
  vitrine::write_file_atomically(arguments.out, report.dump(2) + "\n");
  write_out(report["summary"].dump(2) + "\n");
  return 0;
}

}  // namespace

void add_bench_constraint(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchConstraintArguments>();
  CLI::App* constraint = bench.add_subcommand(
      "constraint", "Masks of JSON Schemas over a folder of MaskBench's files: right, how fast");
  constraint
      ->add_option("tokenizer", arguments->tokenizer,
                   "folder with tokenizer.json, that file, or a .gguf file")
      ->required();
  constraint->add_option("schemas", arguments->folder, "folder of schemas with their tests")
      ->required();
  constraint->add_option("--out", arguments->out, "JSON file for the result")
      ->required()
      ->check(not_empty());
  constraint->add_option("--time-limit", arguments->time_limit, "seconds for one schema")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  constraint
      ->add_option("--token-limit", arguments->token_limit,
                   "tokens that an answer may have: also times what the limit takes of each mask "
                   "(limit_us)")
      ->check(CLI::Range(0, 1 << 20));
  constraint
      ->add_option("--max-alternatives", arguments->max_alternatives,
                   "alternatives that one value may leave open")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  constraint->add_flag("--annotate", arguments->annotate, "`format` only annotates");
  constraint->add_flag("--lenient", arguments->lenient,
                       "weaken a schema that is refused, and count it as weakened");
  add_key_order(*constraint, arguments->key_order);
  constraint->add_flag("--no-sharing", arguments->no_sharing,
                       "each schema makes all its masks itself");
  constraint->callback([arguments, &command] {
    command = [arguments] { return run_bench_constraint(*arguments); };
  });
}

}  // namespace cli

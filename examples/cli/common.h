// SPDX-License-Identifier: Apache-2.0
// What the commands share: options of the engine, input, output, Ctrl-C.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interrupts.h"
#include "vitrine/audit.h"
#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"
#include "vitrine/model.h"
#include "vitrine/tokenizer.h"

namespace cli {

/// What main() runs once the command line has been read; returns the exit code.
using Command = std::function<int()>;

// Each adds one command to the application; chosen, it puts itself in `command`.
void add_generate(CLI::App& app, Command& command);
void add_score(CLI::App& app, Command& command);
void add_chat(CLI::App& app, Command& command);
void add_embed(CLI::App& app, Command& command);
void add_batch(CLI::App& app, Command& command);
void add_serve(CLI::App& app, Command& command);
void add_eval(CLI::App& app, Command& command);
void add_compare(CLI::App& app, Command& command);
void add_gate(CLI::App& app, Command& command);
void add_manifest(CLI::App& app, Command& command);
void add_perplexity(CLI::App& app, Command& command);
void add_samples(CLI::App& app, Command& command);
void add_tokenize(CLI::App& app, Command& command);
void add_inspect(CLI::App& app, Command& command);
void add_calibrate(CLI::App& app, Command& command);
void add_quantize(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_audit(CLI::App& app, Command& command);
void add_constrain(CLI::App& app, Command& command);
void add_ledger(CLI::App& app, Command& command);
void add_federate(CLI::App& app, Command& command);
void add_model_signature(CLI::App& app, Command& command);

/// Throws an Error of kind kInvalidArgument: exit code 2.
[[noreturn]] void refuse(const std::string& message);

/// --device, --kernels, --threads, --kv-type, --kv-bytes, --activation-type, --expert-cache,
/// --rope-frequencies, --strict and --lenient-weights.
struct DeviceOptions {
  std::string device = "cpu";
  std::string kernels;
  std::string rope_frequencies = "f32";
  std::string kv_type;  // empty: as the model and the device have it
  std::string activation_type = "int8";
  int threads = 0;
  bool strict = false;
  bool lenient_weights = false;
  uint64_t kv_bytes = 0, draft_kv_bytes = 0;
  uint64_t expert_cache = 0;
  bool expert_prefetch = false;
  bool mmap = false;
  std::vector<std::string> lora;  // of commands that take --lora (lora_options.h)

  void add_to(CLI::App& command);
  vitrine::EngineOptions engine_options() const;
};

/// The positional argument MODEL, which -m may name, too.
CLI::Option* add_model(CLI::App& command, std::string& model,
                       const char* help = "folder of the model, or a .gguf file");
/// How many positions a sequence may have: what was asked for, or where nothing was (0) the model's
/// own limit, then at most `most_by_default`. Throws kInvalidArgument where more than the model's
/// limit is asked for.
int64_t context_limit(int asked, const vitrine::ModelFacts& config, const std::string& model,
                      int64_t most_by_default = std::numeric_limits<int64_t>::max());

/// A model folder's or GGUF file's checkpoint (open_tokenizer of vitrine/model.h has its
/// tokenizer).
inline vitrine::Checkpoint open_model(const std::string& path) {
  return vitrine::Checkpoint::open(path);
}

/// The argument itself, or all of standard input for "-".
std::string read_text_argument(const std::string& argument);
/// A JSON array of ids, or an object that holds one under "ids" (as `tokenize --json` writes it),
/// each from 0 to below `vocab_size`.
std::vector<int32_t> read_ids(const std::string& path, int64_t vocab_size);

/// Standard output takes no more (full disk, closed pipe or terminal); kIo.
struct OutputError : vitrine::Error {
  using vitrine::Error::Error;
};
/// Writes to standard output at once. Throws OutputError.
void write_out(std::string_view text);
/// One JSON value and a newline; bytes that are not UTF-8 become U+FFFD.
void write_json(const nlohmann::ordered_json& json);
/// From here on not every whole number is one in readers that keep doubles: 2^53.
constexpr uint64_t kMostWholeNumber = uint64_t{1} << 53;
/// A seed for JSON: a number, or its digits as a text where readers might round it.
nlohmann::ordered_json seed_json(uint64_t seed);
/// Reads it back, in either form. False for anything else.
bool read_seed(const nlohmann::json& json, uint64_t& seed);
/// What a log says of a token's text; empty for an id that the tokenizer lacks.
vitrine::TokenPiece token_piece(const vitrine::Tokenizer& tokenizer, int32_t id);
/// `--lenient-weights`, of commands that load a model without the options of a device.
void add_lenient_weights(CLI::App& command, bool& is_lenient);
/// `--strict`, and what it does: refuses a secret key's file that others can read. An empty path
/// and a file that is not there are nothing to refuse.
void add_strict(CLI::App& command, bool& is_strict);
void require_private_key(const std::string& option, const std::string& path);
/// One line to standard error: "vitrine: …". Newlines within become spaces.
void write_note(const std::string& message);

/// Takes the numbers of standard streams that the caller closed; using them stays an error.
void open_standard_streams();
/// A check of CLI11 for an option that names a file.
CLI::Validator not_empty();
/// In front of CLI::AsSizeValue, which makes a huge size of a negative one.
CLI::Validator size_above_zero();
/// Fails before the work is done where a file of that name can't be written after it.
void require_output_folder(const std::string& option, const std::string& path);

/// A file's JSON (discarded where it is none); a bomb of brackets is refused, not followed.
nlohmann::json parse_shallow_json(const std::string& path, size_t max_bytes, int max_depth,
                                  const std::string& expected);
/// Whether a JSON text's brackets nest deeper than that, those of its strings not counted.
bool nests_deeper_than(std::string_view text, int max_depth);

/// Numbers from 0 with `separator` between them, as many as there are; empty where the text is
/// none.
std::vector<int64_t> parse_numbers(const std::string& text, char separator);

/// Seconds from `start` until now.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes as "21.3 MB" (powers of 1000).
std::string format_bytes(uint64_t bytes);

}  // namespace cli

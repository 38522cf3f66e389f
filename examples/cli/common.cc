// SPDX-License-Identifier: Apache-2.0
#include "common.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "closing_note.h"
#include "lora_options.h"
#include "option_section.h"
#include "text_file.h"
#include "vitrine/audit_log.h"

namespace cli {

using vitrine::Error;
using vitrine::ErrorKind;

namespace {
constexpr size_t kMaxInputBytes = size_t{64} << 20;
int output_errno = 0;  // of the write that failed
}  // namespace

CLI::Validator size_above_zero() {
  const auto check = [](std::string& size) {
    const bool is_above = size.find_first_of("123456789") != size.npos && size[0] != '-';
    return is_above ? std::string() : "'" + size + "'; expected a size above 0, as 8GiB";
  };
  return CLI::Validator(check, "");
}

void refuse(const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); }

void DeviceOptions::add_to(CLI::App& command) {
  const OptionSection section(command, "Device");
  command.add_option("--device", device, "cpu, cuda, cuda:N or mps")->capture_default_str();
  command.add_option("--kernels", kernels, "fused or reference (default: fused, on MPS reference)")
      ->check(CLI::IsMember({"fused", "reference"}));
  command.add_option("-t,--threads", threads, "threads of the CPU kernels (default: all cores)")
      ->check(CLI::Range(1, 256));
  command
      .add_option("--rope-frequencies", rope_frequencies,
                  "f32, or bf16 for a model whose rotary frequencies were cast with its weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      .add_option(
          "--kv-type", kv_type,
          "what keys and values are kept in: f32, or in half the memory f16, bf16 or, faster on "
          "a CPU, i16 (integers of 12 bits)" +
              std::string(device.empty() ? ""
                                         : "; of themselves i16 where quantized weights are on "
                                           "the CPU, else f32"))
      ->check(CLI::IsMember(vitrine::kv_codec_names()));
  command
      .add_option("--kv-bytes", kv_bytes,
                  "keep keys and values in so much memory (512MiB), in whole blocks (default: what "
                  "the context takes)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_above_zero());
  command
      .add_option("--draft-kv-bytes", draft_kv_bytes,
                  "so much of --kv-bytes is for keys and values of who guesses (default: as many "
                  "positions as the model has)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_above_zero());
  command
      .add_option(
          "--activation-type", activation_type,
          "what quantized weights are multiplied with: int8, or bf16 or, where they are fp8 "
          "themselves, fp8 (--device cuda)")
      ->check(CLI::IsMember({"int8", "bf16", "fp8"}))
      ->capture_default_str();
  command
      .add_option("--expert-cache", expert_cache,
                  "keep only the experts used last in so much memory (8GiB) and read others from "
                  "the file when a step needs them")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_above_zero());
  command
      .add_flag("--expert-prefetch", expert_prefetch,
                "have the system read the experts that the next layer is expected to need, too; "
                "it was slower wherever it was measured")
      ->needs("--expert-cache");
  command
      .add_flag("--mmap", mmap,
                "compute on the mapped file and pack nothing: loads at once, runs slower")
      ->excludes("--expert-cache");
  command.add_flag(
      "--strict", strict,
      "refuse weights that could only run as float32, and a secret key whose file others can "
      "read, in place of a warning");
  add_lenient_weights(command, lenient_weights);
}

void add_lenient_weights(CLI::App& command, bool& is_lenient) {
  command.add_flag("--lenient-weights", is_lenient,
                   "run a model although its files hold tensors that its config has no use for, "
                   "with a warning");
}

vitrine::EngineOptions DeviceOptions::engine_options() const {
  vitrine::EngineOptions options;
  options.device = vitrine::Device::parse(device);
  if (kernels == "fused") options.kernels = vitrine::KernelPath::kFused;
  if (kernels == "reference") options.kernels = vitrine::KernelPath::kReference;
  options.threads = threads;
  options.strict = strict;
  options.lenient_weights = lenient_weights;
  options.kv_bytes = kv_bytes;
  if (draft_kv_bytes > 0) options.draft_kv_bytes = draft_kv_bytes;
  options.expert_cache_bytes = expert_cache;
  options.expert_prefetch = expert_prefetch;
  options.mmap_weights = mmap;
  options.cancelled = &interrupt_flag();
  // A file that somebody truncates ends a command with a message.
  if (mmap) static const vitrine::MappedFileGuard guard;
  if (rope_frequencies == "bf16") options.rope_frequencies = vitrine::DType::kBF16;
  if (!kv_type.empty()) options.kv_codecs = {kv_type};
  options.lora = lora_parts(lora);
  if (activation_type == "bf16") options.activation_dtype = vitrine::DType::kBF16;
  if (activation_type == "fp8") options.activation_dtype = vitrine::DType::kF8E4M3;
  return options;
}

CLI::Option* add_model(CLI::App& command, std::string& model, const char* help) {
  return command.add_option("model,-m,--model", model, help)->required();
}

int64_t context_limit(int asked, const vitrine::ModelFacts& config, const std::string& model,
                      int64_t most_by_default) {
  const int64_t limit = config.max_position_embeddings;
  if (asked <= limit) return asked > 0 ? asked : std::min(limit, most_by_default);
  refuse(fmt::format(
      "-c {}: the context of {} holds {} (config, max_position_embeddings); expected at "
      "most that",
      asked, model, limit));
}

std::string read_text_argument(const std::string& argument) {
  return argument == "-" ? read_text_file(argument, kMaxInputBytes) : argument;
}

nlohmann::json parse_shallow_json(const std::string& path, size_t max_bytes, int max_depth,
                                  const std::string& expected) {
  const std::string text = read_text_file(path, max_bytes);
  if (nests_deeper_than(text, max_depth)) {
    refuse(path + ": JSON is nested too deep; expected " + expected);
  }
  return nlohmann::json::parse(text, nullptr, false);
}

// Nlohmann's callback could tell the depth, but it makes the parser look through all of a list
// behind each of its objects.
bool nests_deeper_than(std::string_view text, int max_depth) {
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') is_in_string = !is_in_string;
    if (is_in_string && c == '\\') ++i;
    if (is_in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > max_depth) return true;
  }
  return false;
}

std::vector<int32_t> read_ids(const std::string& path, int64_t vocab_size) {
  std::error_code error;
  const bool is_there = is_standard_input(path) || std::filesystem::exists(path, error);
  if (!is_there || std::filesystem::is_directory(path, error)) {
    refuse(fmt::format("ids file '{}' is {}; expected a file with a JSON array of ids", path,
                       is_there ? "not a file" : "not there"));
  }
  nlohmann::json json = parse_shallow_json(path, kMaxInputBytes, 4, "an array of ids");
  if (json.is_discarded())
    refuse(path + ": not valid JSON; expected an array of ids, as [1, 2, 3]");
  if (json.is_object() && json.contains("ids")) json = nlohmann::json(json["ids"]);
  if (!json.is_array()) {
    refuse(fmt::format("{}: found {}; expected an array of ids, as [1, 2, 3]", path,
                       json.is_object() ? "an object without \"ids\"" : json.type_name()));
  }
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (size_t index = 0; index < json.size(); ++index) {
    const nlohmann::json& element = json[index];
    // An unsigned number above int64's range reads as negative here and is refused as well.
    const int64_t id = element.is_number_integer() ? element.get<int64_t>() : -1;
    if (id < 0 || id >= vocab_size) {
      std::string found = element.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      if (found.size() > 40) found = found.substr(0, 40) + "...";
      refuse(fmt::format("{}: element {} is {}; expected an id from 0 to {}", path, index, found,
                         vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      output_errno = errno;
      throw OutputError(ErrorKind::kIo,
                        fmt::format("standard output: {}; expected to write {} more bytes",
                                    std::strerror(output_errno), text.size()));
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
}

bool is_output_closed() { return output_errno == EPIPE; }

void write_json(const nlohmann::ordered_json& json) {
  write_out(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

nlohmann::ordered_json seed_json(uint64_t seed) {
  if (seed < kMostWholeNumber) return seed;
  return std::to_string(seed);
}

bool read_seed(const nlohmann::json& json, uint64_t& seed) {
  if (json.is_number_unsigned()) {
    seed = json.get<uint64_t>();
    return true;
  }
  if (!json.is_string()) return false;
  const auto& text = json.get_ref<const std::string&>();
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
  return status == std::errc() && end == text.data() + text.size();
}

vitrine::TokenPiece token_piece(const vitrine::Tokenizer& tokenizer, int32_t id) {
  if (id < 0 || id >= tokenizer.vocab_size()) return {"", ""};
  return {tokenizer.token_text(id), tokenizer.token_bytes(id)};
}

void add_strict(CLI::App& command, bool& is_strict) {
  command.add_flag("--strict", is_strict,
                   "refuse a secret key whose file others can read, which is a warning otherwise");
}

void require_private_key(const std::string& option, const std::string& path) {
  if (path.empty() || !vitrine::is_open_to_others(path)) return;
  refuse(fmt::format(
      "{} {}: its permissions let others read it (--strict); take them away with chmod 600", option,
      path));
}

void write_note(const std::string& message) {
  std::string line = "vitrine: " + message;
  for (char& character : line) {
    if (character == '\n' || character == '\r') character = ' ';
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void open_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    // The next file that is opened would take its number, and be read as the prompt. Opened the
    // wrong way round, so that using it stays an error.
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) {
      if (::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY) < 0) return;
    }
  }
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("is empty; expected a file's name") : std::string();
      },
      "");
}

void require_output_folder(const std::string& option, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return;
  throw Error(ErrorKind::kIo, fmt::format("{} {}: there is no folder {}; make it first", option,
                                          path, folder.string()));
}

std::vector<int64_t> parse_numbers(const std::string& text, char separator) {
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t number = -1;
    const auto [next, status] = std::from_chars(at, end, number);
    if (status != std::errc() || number < 0) return {};
    numbers.push_back(number);
    if (next == end) return numbers;
    if (*next != separator) return {};
    at = next + 1;
  }
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
#include "command_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "common.h"

namespace cli {

namespace {

enum class Takes { kNothing, kValue, kSwitch };  // kSwitch: on, off or auto may follow

/// A flag that is another option's name.
struct OtherName {
  std::string_view name, option;
};
constexpr OtherName kOtherNames[] = {
    {"--temp", "--temperature"},
    {"--predict", "--max-new-tokens"},
    {"--n-predict", "--max-new-tokens"},
    {"--max-tokens", "--max-new-tokens"},
    {"--ctx-size", "--context"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"--repeat-last-n", "--penalty-window"},
    {"--typical", "--typical-p"},
    {"--top-nsigma", "--top-n-sigma"},
    {"--dynatemp-range", "--dynamic-temperature"},
    {"--dynatemp-exp", "--dynamic-temperature-exponent"},
    {"--mirostat-lr", "--mirostat-eta"},
    {"--mirostat-ent", "--mirostat-tau"},
    {"--ignore-eos", "--ignore-end-of-text"},
    {"-jf", "--json-schema"},
    {"--json-schema-file", "--json-schema"},
    {"--grammar-file", "--grammar"},
    {"--chat-template-file", "--chat-template"},
    {"--chat-template-kwargs", "--chat-variables"},
    {"-l", "--logit-bias"},
    {"-sysf", "--system-file"},
    {"--system-prompt-file", "--system-file"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"--lora-scaled", "--lora"},
    {"-ctk", "--kv-type"},
    {"-ctv", "--kv-type"},
    {"--cache-type-k", "--kv-type"},
    {"--cache-type-v", "--kv-type"},
    {"-b", "--step-tokens"},
    {"--batch-size", "--step-tokens"},
    {"-ub", "--step-tokens"},
    {"--ubatch-size", "--step-tokens"},
    {"-cnv", "--chat"},
    {"--conversation", "--chat"},
    {"-np", "--parallel"},
    {"-md", "--speculate"},
    {"--model-draft", "--speculate"},
    {"--spec-draft-model", "--speculate"},
    {"--draft", "--draft-max"},
    {"--draft-n", "--draft-max"},
    {"-r", "--repeat"},
    {"--repetitions", "--repeat"},
    {"-d", "--depth"},
    {"-pg", "--prompt-generation"},
    {"--n-depth", "--depth"},
    {"--log-disable", "--quiet"},
};

/// A flag that asks for what is done anyway.
constexpr std::string_view kDoneAnyway[] = {"--no-mmap",   "-no-cnv",       "--no-conversation",
                                            "-st",         "--single-turn", "--no-display-prompt",
                                            "--jinja",     "--no-warmup",   "--simple-io",
                                            "--no-escape", "--no-perf",     "--offline"};

/// A flag that changes nothing here, which a warning says; `of_gpu`: but where a GPU computes,
/// which does what it asks for.
struct WithoutEffect {
  std::string_view name;
  Takes takes;
  bool of_gpu;
  bool of_output = false;  ///< it says how things are shown
};
constexpr WithoutEffect kWithoutEffect[] = {
    {"-ngl", Takes::kValue, true},
    {"--gpu-layers", Takes::kValue, true},
    {"--n-gpu-layers", Takes::kValue, true},
    {"-fa", Takes::kSwitch, true},
    {"--flash-attn", Takes::kSwitch, true},
    {"--mlock", Takes::kNothing, false},
    {"-tb", Takes::kValue, false},
    {"--threads-batch", Takes::kValue, false},
    {"-sm", Takes::kValue, false},
    {"--split-mode", Takes::kValue, false},
    {"-mg", Takes::kValue, false},
    {"--main-gpu", Takes::kValue, false},
    {"--numa", Takes::kValue, false},
    {"-ncmoe", Takes::kValue, false},
    {"--n-cpu-moe", Takes::kValue, false},
    {"-cmoe", Takes::kNothing, false},
    {"--cpu-moe", Takes::kNothing, false},
    {"-ot", Takes::kValue, false},
    {"--override-tensor", Takes::kValue, false},
    {"-v", Takes::kNothing, false, true},
    {"--verbose", Takes::kNothing, false, true},
    {"-lv", Takes::kValue, false, true},
    {"--log-verbosity", Takes::kValue, false, true},
    {"--color", Takes::kSwitch, false, true},
    {"-co", Takes::kNothing, false, true},
    {"--perf", Takes::kNothing, false, true},
};

/// Flags whose meaning here is another way to go.
constexpr std::pair<std::string_view, std::string_view> kHints[] = {
    {"-i", "the command chat"},
    {"--interactive", "the command chat"},
    {"-r", "--stop, which leaves the text out"},
    {"--reverse-prompt", "--stop, which leaves the text out"},
    {"-hf", "-m with a file that is there"},
    {"--hf-repo", "-m with a file that is there"},
    {"-mu", "-m with a file that is there"},
    {"--model-url", "-m with a file that is there"},
    {"--sampling-seq", "--samplers with names"},
    {"--override-kv",
     "nothing: a GGUF file's metadata is taken as it is; change a copy of the file, with "
     "gguf-set-metadata or gguf-new-metadata of PyPI's gguf"},
    {"--rope-freq-base",
     "nothing: it is the model's own; change rope_theta in config.json of a copy, or a GGUF "
     "file's KEY.rope.freq_base with gguf-set-metadata of PyPI's gguf"},
    {"--rope-freq-scale",
     "nothing: it is the model's own; change rope_scaling in config.json of a copy"},
    {"--rope-scale",
     "nothing: it is the model's own; change rope_scaling in config.json of a copy"},
    {"--rope-scaling",
     "nothing: it is the model's own; change rope_scaling in config.json of a copy"},
    {"--draft-min", "--draft-threshold, by what guesses cost"},
    {"--draft-p-min", "--draft-threshold, by what guesses cost"},
    {"-np", "--parallel of generate"},
    {"--parallel", "--prompts FILE of generate, several at once"},
    {"-md", "--speculate draft=MODEL of generate"},
    {"--model-draft", "--speculate draft=MODEL of generate"},
};

constexpr int kMicroBatch = 512;
constexpr std::string_view kSwitches[] = {"on", "off", "auto", "0", "1", "true", "false"};

/// Reads the words of one command from the first behind its name on.
class Reader {
 public:
  explicit Reader(CommandWords& read) : read_(read), command_(*read.command) {}

  void run() {
    std::vector<std::string> words(read_.words.begin() + static_cast<std::ptrdiff_t>(read_.begin),
                                   read_.words.end());
    read_.words.resize(read_.begin);
    at_ = words.begin(), end_ = words.end();
    while (at_ != end_ && *at_ != "--") read_one();
    if (batch_ || micro_batch_) {
      // A step has no more tokens than a batch, nor than llama.cpp's own 512 without -ub.
      const int tokens = micro_batch_.value_or(kMicroBatch);
      add("--step-tokens", std::to_string(std::min(tokens, batch_.value_or(tokens))));
    }
    if (!kv_type_.empty()) add("--kv-type", kv_type_);
    read_.words.insert(read_.words.end(), at_, end_);
  }

 private:
  CLI::Option* option(const std::string& name) const { return command_.get_option_no_throw(name); }

  void add(const std::string& name, const std::string& value) {
    read_.given.insert(option(name));
    read_.words.push_back(name);
    read_.words.push_back(value);
  }

  void read_one() {
    const std::string word = *at_++;
    if (word.size() < 2 || word[0] != '-') return read_.words.push_back(word);
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    std::string name = word.substr(0, equals);
    std::optional<std::string> value;
    if (equals != word.npos) value = word.substr(equals + 1);
    // llama-bench's list of threads.
    if ((name == "-t" || name == "--threads") && option("--thread-counts") != nullptr) {
      const std::string& list = value ? *value : at_ != end_ ? *at_ : name;
      if (list.find(',') != list.npos) {
        add("--thread-counts", take_value(name, value));
        return;
      }
    }
    // An option of our own by that name comes first: `bench generate --batch 2`.
    if (const CLI::Option* own = option(name)) return keep(word, *own, value.has_value());
    if (is_other_name(name, value) || is_done_anyway(name) || is_without_effect(name, value))
      return;
    const bool is_short = !word.starts_with("--");
    // CLI11 would read -hf as -h and -f.
    if (const std::string hint = llama_flag_hint(word);
        is_short && word.size() > 2 && !hint.empty()) {
      refuse(fmt::format("'{}' is llama.cpp's, here it is {}", word, hint));
    }
    read_.words.push_back(word);
    if (is_short && note_short_options(word) && at_ != end_) read_.words.push_back(*at_++);
  }

  /// Keeps an option of ours, and the value behind it as it is.
  void keep(const std::string& word, const CLI::Option& own, bool has_value) {
    // llama.cpp's -1 is a random seed, as is none.
    const bool is_random = own.check_lname("seed") &&
                           (has_value ? word.ends_with("=-1") : at_ != end_ && *at_ == "-1");
    if (is_random) {
      if (!has_value) ++at_;
      read_.given.insert(&own);
      return;
    }
    read_.given.insert(&own);
    read_.words.push_back(word);
    if (!has_value && own.get_items_expected_min() > 0 && at_ != end_) {
      read_.words.push_back(*at_++);
    }
  }

  /// Notes the options of "-n5" and "-qn". True where the next word is a value.
  bool note_short_options(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const CLI::Option* own = option("-" + word.substr(i, 1));
      if (own == nullptr) return false;
      read_.given.insert(own);
      if (own->get_items_expected_min() > 0) return i + 1 == word.size();
    }
    return false;
  }

  std::string take_value(const std::string& name, std::optional<std::string>& value) {
    if (value) return *value;
    if (at_ == end_) refuse(name + " needs a value");
    return *at_++;
  }

  bool is_other_name(const std::string& name, std::optional<std::string>& value) {
    const auto* found = std::ranges::find(kOtherNames, name, &OtherName::name);
    if (found == std::end(kOtherNames)) return false;
    const std::string target(found->option);
    CLI::Option* own = option(target);
    if (target == "--chat") {
      // A conversation is what `chat` holds anyway.
      if (own == nullptr && option("--system") == nullptr) return false;
      add_flag(target);
      return true;
    }
    if (own == nullptr) return false;
    if (own->get_items_expected_min() == 0) {
      add_flag(target);
      return true;
    }
    const std::string text = take_value(name, value);
    if (target == "--step-tokens") {
      take_batch(name, text);
    } else if (target == "--kv-type") {
      take_kv_type(name, text);
    } else if (name == "--repeat-last-n") {
      take_window(text);
    } else if (target == "--speculate") {
      take_draft_model(name, text);
    } else {
      add(target, text);
    }
    // llama.cpp's message of the system makes a conversation of a prompt.
    if (target == "--system" || target == "--system-file") add_flag("--chat");
    return true;
  }

  void add_flag(const std::string& name) {
    CLI::Option* own = option(name);
    if (own == nullptr || !read_.given.insert(own).second) return;
    if (std::ranges::find(at_, end_, name) == end_) read_.words.push_back(name);
  }

  void take_batch(const std::string& name, const std::string& text) {
    int tokens = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), tokens);
    if (status != std::errc() || end != text.data() + text.size() || tokens < 1) {
      refuse(fmt::format("{} {}: expected how many prompt tokens are computed together, from 1",
                         name, text));
    }
    const bool is_batch = name == "-b" || name == "--batch-size";
    (is_batch ? batch_ : micro_batch_) = tokens;
  }

  void take_kv_type(const std::string& name, const std::string& type) {
    if (!kv_type_.empty() && kv_type_ != type) {
      refuse(
          fmt::format("{} {}: keys and values are kept in one type here, and {} was given "
                      "before; expected the same for both",
                      name, type, kv_type_));
    }
    kv_type_ = type;
  }

  /// llama.cpp's draft model is one of several that guess here.
  void take_draft_model(const std::string& name, const std::string& path) {
    if (read_.given.contains(option("--speculate"))) {
      refuse(fmt::format("{} {}: one guesses, and another was named before; expected one of them",
                         name, path));
    }
    add("--speculate", "draft=" + path);
  }

  /// llama.cpp counts from the end, has -1 for all tokens and 0 for none.
  void take_window(const std::string& text) {
    if (text == "0") {
      refuse(
          "--repeat-last-n 0 is llama.cpp's for no penalty; expected --repeat-penalty 1 for that");
    }
    add("--penalty-window", text == "-1" ? "0" : text);
  }

  bool runs_a_model() const { return option("--device") != nullptr; }

  bool is_done_anyway(const std::string& name) {
    if (!runs_a_model() || std::ranges::find(kDoneAnyway, name) == std::end(kDoneAnyway)) {
      return false;
    }
    const bool is_of_generate = name == "-no-cnv" || name == "--no-conversation" || name == "-st" ||
                                name == "--single-turn";
    if (is_of_generate && option("--prompt") == nullptr) return false;
    if (name == "--no-mmap") read_.given.insert(option("--mmap"));
    return true;
  }

  bool is_without_effect(const std::string& name, std::optional<std::string>& value) {
    const auto* found = std::ranges::find(kWithoutEffect, name, &WithoutEffect::name);
    if (!runs_a_model() || found == std::end(kWithoutEffect)) return false;
    std::string text;
    if (found->takes == Takes::kValue) text = take_value(name, value);
    const bool has_switch = found->takes == Takes::kSwitch && !value && at_ != end_ &&
                            std::ranges::find(kSwitches, *at_) != std::end(kSwitches);
    if (has_switch) text = *at_++;
    const bool is_no_layer = found->takes == Takes::kValue && found->of_gpu && text == "0";
    if (!is_no_layer) read_.without_effect.push_back(name);
    return true;
  }

  CommandWords& read_;
  CLI::App& command_;
  std::vector<std::string>::iterator at_, end_;
  std::optional<int> batch_, micro_batch_;
  std::string kv_type_;
};

}  // namespace

CommandWords read_words(CLI::App& app, std::vector<std::string> words) {
  CommandWords read;
  read.words = std::move(words);
  CLI::App* at = &app;
  for (const std::string& word : read.words) {
    const auto found = at->get_subcommands(
        [&word](const CLI::App* command) { return command->get_name() == word && !word.empty(); });
    if (found.empty()) break;
    at = found.front();
    ++read.begin;
  }
  if (at == &app) return read;
  read.command = at;
  Reader(read).run();
  return read;
}

std::string without_effect_note(const CommandWords& words, const std::string& device) {
  std::vector<std::string> names;
  for (const std::string& name : words.without_effect) {
    const auto* found = std::ranges::find(kWithoutEffect, name, &WithoutEffect::name);
    if (found->of_gpu && device.starts_with("cuda")) continue;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "";
  const bool is_of_output = std::ranges::all_of(names, [](const std::string& name) {
    return std::ranges::find(kWithoutEffect, name, &WithoutEffect::name)->of_output;
  });
  return fmt::format(
      "warning: {} {} nothing here: {}", fmt::join(names, ", "), names.size() == 1 ? "does" : "do",
      is_of_output ? "all that is said stands on standard error, a line each, without colours "
                     "(--quiet: mistakes alone; generate --summary: more)"
                   : "--device says where all layers run, attention is always fused, and -t counts "
                     "the threads");
}

std::vector<std::pair<std::string, std::string>> llama_flag_meanings() {
  std::vector<std::pair<std::string, std::string>> meanings;
  for (const auto& [name, option] : kOtherNames) meanings.emplace_back(name, option);
  for (const std::string_view name : kDoneAnyway) meanings.emplace_back(name, "done anyway");
  for (const WithoutEffect& one : kWithoutEffect) {
    meanings.emplace_back(one.name, one.of_gpu ? "accepted; a warning on a CPU"
                                               : "accepted with a warning: it does nothing");
  }
  return meanings;
}

std::string llama_flag_hint(const std::string& word) {
  const auto* hint =
      std::ranges::find(kHints, word, &std::pair<std::string_view, std::string_view>::first);
  if (hint != std::end(kHints)) return std::string(hint->second);
  const auto* other = std::ranges::find(kOtherNames, word, &OtherName::name);
  return other == std::end(kOtherNames) ? "" : std::string(other->option);
}

}  // namespace cli

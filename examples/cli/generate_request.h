// SPDX-License-Identifier: Apache-2.0
// What `generate` is asked for: its options, and all that can be refused before weights are read.
#pragma once

#include <future>
#include <optional>

#include "answer_parts.h"
#include "chat_prompt.h"
#include "constraint_options.h"
#include "federate.h"
#include "length_options.h"
#include "log_options.h"
#include "prompt_file.h"
#include "prompt_options.h"
#include "sampling_options.h"
#include "speculation_options.h"

namespace cli {

struct GenerateArguments {
  std::string model;
  PromptOptions prompt;
  PromptFileOptions prompt_file;  // in place of `prompt`
  LengthOptions lengths;  // without -c as many positions as the prompt and the new tokens need
  SamplingOptions sampling;
  ConstraintOptions constraint;
  SpeculationArguments speculation;
  LogOptions log;
  bool chat = false;
  ChatPromptOptions chat_prompt;
  bool attribution = false, expert_norms = false;
  int logprobs = 0;  // 0: none are printed
  int n_best = 1;
  bool json = false, json_lines = false, summary = false, prompt_logprobs = false,
       ignore_end_of_text = false;
  DeviceOptions device;

  /// `is_required`: MODEL and the prompt must be there (a command with subcommands asks itself).
  void add_to(CLI::App& command, const char* model_help, bool is_required);
  bool is_several() const { return n_best > 1; }
  bool has_prompt() const { return prompt.is_given() || prompt_file.is_given(); }
  /// The files that are read, for refuse_same_file; a federation's members are not among them.
  std::vector<NamedPath> inputs() const;
  /// Resolves what was left open, and refuses what does not go together and a log that would
  /// replace a file that is read. `members`: asked for a federation's.
  void check(const std::function<std::vector<NamedPath>()>& members);
  /// The options of the engine as far as they are known without the model.
  vitrine::EngineOptions engine_options() const;
};

/// A prompt, ready to be computed.
struct PreparedPrompt {
  std::string text;  ///< with the chat template around it
  std::vector<int32_t> ids;
  AnswerFormat format;
  nlohmann::ordered_json id;  ///< what its file calls it; null: nothing
};

/// Ready to load a model. It stays where it is: `generation` points into it.
class GenerateRequest {
 public:
  /// `spec`: the federation file that MODEL is, or none. Refuses what the model has no room for and
  /// what a constraint's grammar refuses.
  GenerateRequest(GenerateArguments& arguments, vitrine::EngineOptions options,
                  std::optional<vitrine::FederationSpec> spec);
  GenerateRequest(const GenerateRequest&) = delete;
  GenerateRequest& operator=(const GenerateRequest&) = delete;

  const std::optional<vitrine::FederationSpec> spec;
  const std::string model;  ///< of a federation its first specialist's
  const vitrine::Checkpoint checkpoint;
  const vitrine::ModelFacts config;
  const vitrine::Tokenizer tokenizer;
  std::vector<PreparedPrompt> prompts;         ///< one, but where is_batch
  bool is_batch = false;                       ///< a line of JSON for each prompt
  bool is_conversation = false;                ///< a template made the prompts
  int64_t context = 0;                         ///< positions that a sequence may have
  std::optional<vitrine::ToolCallTags> calls;  ///< what an answer is that may call tools
  std::optional<vitrine::Grammar> grammar;
  std::unique_ptr<vitrine::Constraint> constraint;
  std::unique_ptr<vitrine::Drafter> drafter;  ///< null: nobody guesses
  vitrine::GenerateOptions generation;
  vitrine::EngineOptions engine;

  /// The only prompt, where there is one.
  const PreparedPrompt& prompt() const { return prompts.front(); }
  /// Tokens of the longest prompt.
  int64_t prompt_tokens() const;

 private:
  void read_prompts(const GenerateArguments& arguments);
  void make_prompts(const GenerateArguments& arguments, const std::vector<GivenPrompt>& given);
  void prepare_calls(const GenerateArguments& arguments, const ToolCalling& calling,
                     const ChatPromptOptions& options, const GivenPrompt& given);
  int64_t check_prompt(const GenerateArguments& arguments, const PreparedPrompt& prompt,
                       const std::string& place) const;
  void compile_constraint(const GenerateArguments& arguments);
  void size_engine(const GenerateArguments& arguments);

  std::future<size_t> ahead_;  // masks that are made while the weights are read
};

}  // namespace cli

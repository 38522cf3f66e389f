// SPDX-License-Identifier: Apache-2.0
// The room `evaluation`: a suite of items put to a model, and what it answered, item by item.
//
//     const Suite suite = Suite::open("core");
//     auto target = make_model_target(Model::open(path, options));
//     evaluate(suite, *target, "base.eval");
//     const Evaluation base = read_evaluation("base.eval");
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/audit_log.h"
#include "vitrine/model.h"
#include "vitrine/serve.h"

namespace vitrine {

// ---- Suites ------------------------------------------------------------------------------------

/// What is asked of a model.
enum class TaskKind : uint8_t {
  kAnswer,  ///< an answer that it generates, which a scorer reads
  kChoice,  ///< which of several continuations is the most probable
  kText,    ///< how probable a given text is, token by token
};

/// A task of a suite: items of one kind, read in one way.
struct SuiteTask {
  std::string name = {};              ///< within its suite
  std::string domain = {};            ///< logic, schema, recall, safety or text
  TaskKind kind = TaskKind::kAnswer;  ///< what is asked
  std::string scorer = {};            ///< of kAnswer: who reads the answers
  double chance = 0;                  ///< the share that who knows nothing answers rightly, 0 to 1
  size_t num_items = 0;               ///< that are asked
  int64_t window = 0;                 ///< of kText: tokens that are read together; 0: not known
  std::string licence = {};           ///< of its items, an SPDX identifier
  std::string source = {};            ///< where its items are from
  std::string left_out = {};          ///< why it has no items here; empty: it has some
};

/// What of a suite is asked.
struct SuiteOptions {
  std::vector<std::string> tasks = {};  ///< by name or domain; empty: all
  /// Items of each task at most, the first by its seeded order; 0: as the suite says, -1: all.
  int64_t items = 0;
  /// The longest prompt of tasks that make theirs by length, in tokens; 0: as the suite says.
  int64_t longest = 0;
  /// Where items are that were fetched; empty: `$XDG_CACHE_HOME/vitrine/suites`, by default under
  /// ~/.cache.
  std::string folder = {};
};

namespace evaluation {
struct SuiteData;
}

/// Items and how they are asked and read: a TOML file, and JSON lines beside it
/// (docs/evaluation.md). Copies share what they hold. Thread-safe.
class VITRINE_API Suite {
 public:
  /// Opens the suite in the file `path`, or the built-in one of that name ("core"). Throws kIo,
  /// kBadFile (naming file, field, what was found and expected: items without an answer, ids that
  /// stand twice, another hash), kUnsupported for a scorer or maker that there is not, and
  /// kInvalidArgument for options that choose nothing.
  static Suite open(const std::string& path, const SuiteOptions& options = {});

  const std::string& name() const;           ///< Returns the suite's name.
  const std::string& version() const;        ///< Returns its version.
  std::span<const SuiteTask> tasks() const;  ///< Returns its tasks, those left out too.
  std::string digest() const;  ///< Returns the SHA-256 over all that is asked, in hexadecimal.
  const evaluation::SuiteData& data() const { return *data_; }  ///< For the library alone.

 private:
  explicit Suite(std::shared_ptr<const evaluation::SuiteData> data);
  std::shared_ptr<const evaluation::SuiteData> data_;
};

// ---- Who is asked ------------------------------------------------------------------------------

/// Continuations of one prompt whose probability is asked for.
struct ScoringRequest {
  std::vector<ChatMessage> messages = {};       ///< a conversation, or else:
  std::string text = {};                        ///< a prompt as it stands
  ChatOptions chat = {};                        ///< how the template is filled in
  std::vector<std::string> continuations = {};  ///< at least one
};

/// Holds the ids of a prompt and of its continuations.
struct DividedIds {
  std::vector<int32_t> context = {};                     ///< what all of them begin with
  std::vector<std::vector<int32_t>> continuations = {};  ///< what each has behind it
};
/// Divides texts as lm-eval does: a continuation has the blanks at the prompt's end, and the ids of
/// both together are cut behind as many as the prompt has alone; where a continuation changes how
/// the prompt's end is spelt, its last ids belong to all continuations. `encode` returns a text's
/// ids with those that begin one.
VITRINE_API DividedIds
divide_ids(const std::string& prompt, std::span<const std::string> continuations,
           const std::function<std::vector<int32_t>(const std::string& text)>& encode);

/// What a target says of ScoringRequest.
struct ScoredContinuations {
  std::vector<std::vector<double>> logprobs = {};  ///< [continuations][tokens] nats
  std::vector<uint8_t> is_greedy = {};  ///< [continuations] each token is the most probable one
  std::string prompt_sha256 = {};       ///< over the prompt's ids (little-endian int32)
  int64_t prompt_tokens = 0;            ///< how many these are
};

/// A position of a text, as a model predicted it.
struct TextPosition {
  int32_t token = 0;  ///< the id that stands there
  float logprob = 0;  ///< nats
  int64_t end = 0;    ///< bytes of the text up to the token's end; 0: not known
  /// Ids and nats of the most probable tokens, the most probable first, ties by lower id.
  std::vector<std::pair<int32_t, float>> best = {};
};

/// Who answers a suite's items: a model in this process, or a server elsewhere. Not thread-safe.
class VITRINE_API EvaluationTarget {
 public:
  virtual ~EvaluationTarget() = default;
  /// Returns what is evaluated, as a JSON object: who made the answers with which files, options
  /// and kernels. Two targets with equal facts give equal answers.
  virtual std::string facts_json() const = 0;
  /// Returns true where conversations are written by a chat template.
  virtual bool takes_messages() const = 0;
  /// Returns how many requests may be under way at once.
  virtual int num_parallel() const = 0;
  /// Scores continuations. Throws Error where it cannot.
  virtual ScoredContinuations score(const ScoringRequest& request) = 0;
  /// Predicts each token of a text but the first, in windows of `window` tokens that do not
  /// overlap, with so many of the most probable ones each. Throws kUnsupported where it cannot.
  virtual std::vector<TextPosition> predict(const std::string& text, int64_t window, int best) = 0;

  /// An answer that ended.
  struct Answer {
    std::string text = {};              ///< as it was generated, decoded
    ChatAnswer parts = {};              ///< of a conversation: content, reasoning, calls
    std::vector<int32_t> tokens = {};   ///< its ids; empty where a server does not tell
    std::vector<double> logprobs = {};  ///< [tokens] nats; empty where nobody tells
    std::string prompt_sha256 = {};     ///< over the prompt's ids; empty where nobody tells
    std::string stop = {};              ///< "stop", "length", "cancelled" or "error"
    std::string error = {};             ///< of "error": why
    std::string audit = {};             ///< the sealed log's file name, where there is one
    ServeCounts counts = {};            ///< how long it took
  };
  /// Begins an answer; `item` names it (for logs). Waits where num_parallel() are under way.
  virtual void submit(ServeRequest request, const std::string& item) = 0;
  /// Waits for an answer that ended and returns it with its item's name; nothing where none is
  /// under way.
  virtual std::optional<std::pair<std::string, Answer>> next_answer() = 0;
  /// Ends what is under way.
  virtual void cancel() = 0;
};

/// How a model in this process is asked.
struct ModelTargetOptions {
  int parallel = 8;  ///< answers at once
  /// A sealed log for each answer goes there, named after its item; empty: none. Needs
  /// EngineOptions::audit_mode.
  std::string audit_folder = {};
  LogHeader audit_header = {};  ///< of these: the model's facts
  VtrOptions audit_log = {};    ///< of these: key and recipients
  std::string drafter = {};     ///< ServerOptions::drafter
  /// Further facts, a JSON object, for facts_json(): the files, what the host set.
  std::string facts_json = {};
  /// Raised from any thread: what is under way ends, and later requests throw kCancelled (not
  /// owned; null: never).
  const std::atomic<bool>* cancelled = nullptr;
};

/// Gives a model's options what a target needs (prepare_for_serving, rows for texts).
VITRINE_API void prepare_for_evaluation(ModelOptions& options, int parallel);
/// Makes a target of a model that was opened with prepare_for_evaluation().
VITRINE_API std::unique_ptr<EvaluationTarget> make_model_target(
    Model model, const ModelTargetOptions& options = {});

// ---- What was answered -------------------------------------------------------------------------

/// An item's result. Equal digests mean equal answers to the last bit.
struct EvaluatedItem {
  std::string task = {};     ///< its task
  std::string id = {};       ///< within the task
  std::string group = {};    ///< items of one document or template hang together; empty: alone
  bool is_critical = false;  ///< a gate holds it apart
  std::string prompt_sha256 = {};     ///< over the ids that were fed; empty where nobody tells
  std::string answer = {};            ///< its text; of kChoice the chosen one; of kText nothing
  std::string expected = {};          ///< what would be right, for people
  std::string extracted = {};         ///< what the scorer read from it
  std::vector<int32_t> tokens = {};   ///< the answer's ids
  std::vector<double> logprobs = {};  ///< [tokens] nats
  double score = 0;                   ///< 0 (wrong) to 1 (right)
  bool is_right = false;              ///< the score counts as success
  bool is_parsed = true;              ///< the scorer could read it (a number, JSON, a call)
  bool is_loop = false;               ///< it ends in a repetition
  std::map<std::string, double> parts = {};  ///< further scores by name ("fields", "steps")
  std::vector<double> choice_logprobs = {};  ///< [choices] of kChoice: nats
  int32_t right_choice = -1;                 ///< of kChoice
  /// Log-probability of the reference answer, nats, and its tokens, where there is one.
  std::optional<double> reference_logprob = {};
  int64_t reference_tokens = 0;              ///< of reference_logprob
  std::vector<TextPosition> positions = {};  ///< of kText
  std::string stop = {};                     ///< as EvaluationTarget::Answer::stop
  std::string error = {};                    ///< why there is no answer
  std::string audit = {};                    ///< its sealed log's file name
  int64_t prompt_tokens = 0;                 ///< the prompt's length
  double first_token_seconds = 0;            ///< from its start
  double total_seconds = 0;                  ///< likewise
  std::string digest = {};  ///< SHA-256 over prompt, ids and the bits of each log-probability
};

/// All that became known of one target on one suite.
struct VITRINE_API Evaluation {
  std::string path = {};                  ///< its file
  std::string suite = {};                 ///< Suite::name
  std::string suite_version = {};         ///< Suite::version
  std::string suite_digest = {};          ///< Suite::digest
  std::string target_json = {};           ///< EvaluationTarget::facts_json
  std::string sha256 = {};                ///< of its file
  std::vector<SuiteTask> tasks = {};      ///< in the suite's order
  std::vector<EvaluatedItem> items = {};  ///< by task, then as the suite has them
  bool is_complete = false;               ///< every item has its result
  double seconds = 0;                     ///< that it took, all sittings together
  /// Returns an item, or null.
  const EvaluatedItem* find(std::string_view task, std::string_view id) const;
};

/// How far an evaluation has come.
struct EvaluationProgress {
  size_t done = 0;                      ///< items
  size_t total = 0;                     ///< of so many
  std::string task = {};                ///< of the last one
  const EvaluatedItem* item = nullptr;  ///< the last one; null: at the start
};

/// How a suite is run.
struct EvaluationOptions {
  bool overwrite = false;  ///< what the file holds is replaced, results of this very run too
  /// Called after each item on the calling thread; false ends the run, whose file can be gone on
  /// with.
  std::function<bool(const EvaluationProgress&)> on_progress = {};
  bool runs_code = false;  ///< answers that are programs are run (docs/evaluation.md says how)
};

/// Puts a suite to a target and writes its results into the file `path`, a line an item. Where the
/// file holds results of the same suite and target already, only what is missing is asked; a line
/// that was cut off is asked again. Returns true where every item has its result. Throws
/// kInvalidArgument where the file holds something else or another evaluation is writing it, kIo,
/// and what the target throws.
VITRINE_API bool evaluate(const Suite& suite, EvaluationTarget& target, const std::string& path,
                          const EvaluationOptions& options = {});

/// Reads what evaluate() wrote, a part of it too. Throws kIo and kBadFile (naming file, line,
/// field, what was found and expected).
VITRINE_API Evaluation read_evaluation(const std::string& path);

}  // namespace vitrine

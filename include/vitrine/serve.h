// SPDX-License-Identifier: Apache-2.0
// The room `serve`: many requests at once on one model, in the host's process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/chat_output.h"
#include "vitrine/chat_tools.h"
#include "vitrine/generate.h"
#include "vitrine/kv_events.h"
#include "vitrine/model.h"

namespace vitrine {

/// What a request's answer is held to. At most one of the kinds.
struct ServeConstraint {
  /// What `text` is.
  enum class Kind : uint8_t { kNone, kJson, kJsonSchema, kRegex, kChoices, kGrammar, kTags, kOwn };
  Kind kind = Kind::kNone;                ///< nothing, unless it says so
  std::string text = {};                  ///< the schema, pattern, grammar (GBNF or Lark) or tags
  std::vector<std::string> choices = {};  ///< of kChoices
  SchemaOptions schema = {};              ///< how a schema is read
  /// Makes a host's own constraint, of kOwn, on a thread that prepares requests.
  std::function<std::unique_ptr<Constraint>(const TokenTable&)> make = {};
};

struct ServeEvent;

/// One request. It has messages, a text or tokens, and exactly one of these.
struct ServeRequest {
  std::vector<ChatMessage> messages = {};  ///< a conversation, which the chat template writes
  std::string text = {};                   ///< a prompt as it stands
  std::vector<int32_t> tokens = {};        ///< a prompt's ids
  ChatOptions chat = {};                   ///< how the template is filled in; tools among it
  ToolChoice tool_choice = {};             ///< whether the answer calls a tool of `chat.tools_json`
  bool parallel_calls = true;              ///< it may call several
  /// What the assistant has said of the answer: it goes on behind this. Of a conversation.
  std::string answer_start = {};
  SamplerOptions sampler = {};         ///< how each token is chosen
  uint32_t branch = 0;                 ///< SampleContext::branch: several answers to one prompt
  int max_new_tokens = 256;            ///< at most
  std::vector<std::string> stop = {};  ///< texts that end the answer and are left out of it
  std::vector<int32_t> stop_token_ids = {};  ///< ids that end it as the model's own do
  bool ignore_end_of_text = false;           ///< an end-of-text token does not end it
  /// Each token is told with its log-probability and those of so many others; -1: without. Needs
  /// EngineOptions::keep_logits.
  int logprobs = -1;
  /// The prompt's tokens are told with their log-probabilities and those of so many others, in an
  /// event of their own; -1: without. The prompt is computed, whatever the cache has. Needs
  /// EngineOptions::keep_logits.
  int prompt_logprobs = -1;
  bool tells_prompt = false;        ///< the prompt's ids are told, in that event
  ServeConstraint constraint = {};  ///< what the answer is held to
  int priority = 0;                 ///< by the policy "priority" the lowest goes first
  /// Names whose request this is: for fair shares, and to keep prefixes of tenants apart.
  std::string tenant = {};
  /// A model of the server by its name, or one of a model's EngineOptions::adapters by its folder's
  /// name; empty: the first model.
  std::string model = {};
  /// Receives this request's records, which nobody else gets then (not owned; it stays until the
  /// request has ended). Its account holds the whole prompt: where the engine records
  /// (EngineOptions::audit_mode) what was recorded of cached tokens is copied into it, marked as
  /// replayed; else the prompt is computed.
  AuditSink* audit = nullptr;
  bool use_cache = true;     ///< the prompt may begin with what was computed before
  bool pins_prompt = false;  ///< its prompt stays in the cache until Server::clear_cache()
  /// Called when a further event can be read, on a thread of the server's: it returns soon, throws
  /// nothing and calls nothing of the request. For hosts that wait for many requests at once.
  std::function<void()> on_event = {};
  /// Called with the last event, once nothing of the server uses `audit` any more, under the same
  /// rules.
  std::function<void(const ServeEvent&)> on_end = {};
};

/// Where a prompt stopped to be the one that another request of its tenant had computed, though it
/// goes on alike behind: a time, a counter, a list in another order. What stands behind it is
/// computed again each time.
struct PromptBreak {
  int64_t position = 0;        ///< of the first token that is another one
  int64_t changed_tokens = 0;  ///< until it goes on alike
  int64_t lost_tokens = 0;     ///< behind these, alike and computed again
  std::string section = {};    ///< of a conversation: "messages[0] (system)"; else "prompt"
  std::string before = {};     ///< the other prompt's text there
  std::string after = {};      ///< this one's
};

/// What is moved within a tenant's prompts so that they begin alike (ServerOptions::stable_roots).
struct StableRoot {
  std::string tenant = {};         ///< whose prompts
  std::string role = "system";     ///< the messages in whose text lines are moved
  std::vector<std::string> lines;  ///< patterns of fnmatch(3); lines that match go to the end
};

/// How long a request took, in seconds, and what it took.
struct ServeCounts {
  int64_t prompt_tokens = 0;       ///< the prompt's length
  int64_t cached_tokens = 0;       ///< of these, that an earlier request had computed
  int64_t new_tokens = 0;          ///< that were generated
  int64_t preemptions = 0;         ///< how often its keys and values were given up for others
  double prepare_seconds = 0;      ///< that its prompt and its constraint took to make
  double queue_seconds = 0;        ///< that it waited, ready, for a place
  double first_token_seconds = 0;  ///< from submit() to the first token
  double total_seconds = 0;        ///< from submit() to the end
  double longest_gap_seconds = 0;  ///< between two of its tokens
};

/// What became known of an answer.
struct ServeEvent {
  /// What it is.
  enum class Kind : uint8_t {
    kToken,    ///< a token, and the text that became certain with it
    kRestart,  ///< the answer begins anew (GenerateOptions' retries): all before is void
    kPrompt,  ///< the prompt was computed: of ServeRequest::prompt_logprobs, before the first token
    kFinish,  ///< the answer's end, the last event
  };
  Kind kind = Kind::kToken;                    ///< what it is
  int32_t token = -1;                          ///< its id
  double seconds = 0;                          ///< from submit() until it was known here
  std::string text = {};                       ///< that became certain; of kFinish, the rest
  std::vector<ChatDelta> deltas = {};          ///< the same by its parts, of a conversation
  std::optional<TokenLogprobs> logprobs = {};  ///< the token's, where they were asked for
  std::vector<int32_t> prompt = {};            ///< of kPrompt: its ids
  /// [prompt - 1] of kPrompt: each token but the first.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  StopReason reason = StopReason::kLength;  ///< of kFinish
  bool is_stop_string = false;              ///< of kFinish: a text of ServeRequest::stop did it
  std::string stop = {};                    ///< of kFinish: that text
  std::optional<Error> error = {};          ///< of kFinish: why it failed
  ServeCounts counts = {};  ///< of kToken and kFinish: so far; its seconds are whole with kFinish
  std::optional<PromptBreak> prompt_break = {};  ///< of kFinish, where there was one
  /// [prompt tokens] of kFinish, where ServerOptions::stable_roots moved lines: the ids that the
  /// prompt was computed with.
  std::vector<int32_t> stable_prompt = {};
  /// Ids that the prompt would have had without that.
  std::vector<int32_t> given_prompt = {};
  std::shared_ptr<const ChatAnswer> answer = {};  ///< of kFinish: the parts of a conversation's
};

namespace serve {
class ServerLoop;
struct RequestState;
}  // namespace serve

/// A request that was submitted. Copies are the same request; the last one that goes cancels it.
/// Thread-safe, but events are for one reader.
class VITRINE_API ServedRequest {
 public:
  /// Waits for the next event; nothing behind the last one.
  std::optional<ServeEvent> next();
  /// Does the same, and gives up at `deadline`: nothing then, too.
  std::optional<ServeEvent> next_until(std::chrono::steady_clock::time_point deadline);
  /// Ends the answer soon, with StopReason::kCancelled.
  void cancel();
  /// Whether the last event has been read.
  bool is_finished() const;
  /// Names the request within its server.
  uint64_t id() const;

  /// Reads events one after another.
  class Iterator {
   public:
    using value_type = ServeEvent;                      ///< what it reads
    using difference_type = std::ptrdiff_t;             ///< as iterators have it
    using iterator_category = std::input_iterator_tag;  ///< each event is read once
    /// Stands behind the last event.
    Iterator() = default;
    /// Waits for the first event.
    explicit Iterator(ServedRequest& request) : request_(&request) { ++*this; }
    /// Returns the event.
    const ServeEvent& operator*() const { return *event_; }
    /// Returns the event's address.
    const ServeEvent* operator->() const { return &*event_; }
    /// Waits for the next event.
    Iterator& operator++() {
      event_ = request_->next();
      return *this;
    }
    /// Waits for the next event.
    void operator++(int) { ++*this; }
    /// Whether both stand behind the last event, or neither does.
    bool operator==(const Iterator& other) const {
      return event_.has_value() == other.event_.has_value();
    }

   private:
    ServedRequest* request_ = nullptr;
    std::optional<ServeEvent> event_;
  };
  /// Waits for the first event.
  Iterator begin() { return Iterator(*this); }
  /// Stands behind the last event.
  Iterator end() { return {}; }

 private:
  friend class Server;
  explicit ServedRequest(std::shared_ptr<serve::RequestState> state);
  struct Handle;
  std::shared_ptr<Handle> handle_;
};

/// Where prefixes outlive the server.
struct PrefixStoreOptions {
  /// The folder of their files, which is made where it is not there; empty: they end with the
  /// server. Of several models, each that has a name has a folder of its own within it.
  std::string folder = {};
  /// Bytes of all files in it together; those that were used least recently give way.
  uint64_t max_bytes = uint64_t{4} << 30;
  /// Returns the key of a tenant's files, 32 bytes that nobody can guess; empty: they are not
  /// encrypted. Where tenants share prefixes the tenant is empty. Called on a thread of the
  /// store's, once for each tenant and adapter. Where it throws, nothing of that tenant is stored.
  std::function<std::string(const std::string& tenant)> key = {};
};

/// How a server decides.
struct ServerOptions {
  /// Who goes next of those that wait: "hrrn" (highest response ratio: a wait in relation to the
  /// tokens that have to be computed), "fcfs" (first come, first served), "priority", "fair" (the
  /// tenant that had least). See serve_policy_names().
  std::string policy = "hrrn";
  /// Who has waited so long goes before all that came later, whatever the policy says, so nobody
  /// waits longer than this beyond what "fcfs" would make them wait. Seconds, above 0.
  double max_wait_seconds = 30;
  /// The gap between two tokens of anybody's answer that prompts of others may cause, in seconds:
  /// their chunks shrink until a step takes no longer. At least a step without prompts. 0: twice
  /// that, or 20 ms where that is more.
  double step_seconds = 0;
  /// Requests that wait at most; more are refused (kOutOfMemory).
  int max_waiting = 1024;
  /// Requests that are answered at once, those left out whose readers are behind; 0:
  /// EngineOptions::max_sequences.
  int max_running = 0;
  /// Events of a request that nobody has read: with so many it is left out of the steps until half
  /// of them are read. Others may have its place and its memory meanwhile.
  int max_unread_events = 4096;
  bool cache_prefixes = true;  ///< computed beginnings stay for later requests
  /// Prefixes of different tenants are shared: who measures time can learn what others asked.
  bool share_between_tenants = false;
  /// Compiled grammars that are kept, in bytes, all tenants together.
  size_t grammar_bytes = size_t{256} << 20;
  /// Guesses text ahead for each answer ("ngram", "suffix"; empty: nobody), where the step has room
  /// for more tokens at little cost.
  std::string drafter = {};
  /// Lines of messages that go behind the others of their message, which a tenant has asked for: it
  /// changes what the model reads.
  std::vector<StableRoot> stable_roots = {};
  /// Where prefixes are kept beyond the server's end. It works on the CPU's fused kernels.
  PrefixStoreOptions prefix_store = {};
  /// Hears which blocks prompts can begin with (not owned, and it stays as long as the server;
  /// null: nobody). It learns ids of all tenants.
  KvBlockListener* block_listener = nullptr;
  /// Where records of requests without a sink of their own go (not owned; null: nowhere).
  AuditSink* audit = nullptr;
};

/// The names of policies, ascending.
VITRINE_API std::vector<std::string> serve_policy_names();

/// Numbers of one kind: how many, their sum and largest, and how many were below which limit.
struct ServeHistogram {
  /// Upper ends of the ranges, in seconds; above the last one there is a further range.
  static constexpr double kLimits[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                       0.5,   1,      2.5,   5,    10,    30,   60};
  uint64_t counts[std::size(kLimits) + 1] = {};  ///< by range
  uint64_t count = 0;                            ///< of all
  double sum = 0;                                ///< of all
  double largest = 0;                            ///< of all
  /// Counts one more.
  VITRINE_API void add(double value);
  /// Adds those of another one.
  VITRINE_API ServeHistogram& operator+=(const ServeHistogram& other);
};

/// What a server has done so far, and how it stands.
struct ServerTelemetry {
  uint64_t submitted = 0;               ///< requests
  uint64_t finished = 0;                ///< of these, with an answer
  uint64_t failed = 0;                  ///< of these, with an error
  uint64_t cancelled = 0;               ///< of these, given up by their host
  uint64_t refused = 0;                 ///< that were not taken in
  int64_t waiting = 0;                  ///< now
  int64_t running = 0;                  ///< now
  int64_t paused = 0;                   ///< now; whose place others had (max_unread_events)
  ServeHistogram first_token_seconds;   ///< from submit()
  ServeHistogram gap_seconds;           ///< between two tokens of an answer
  ServeHistogram queue_seconds;         ///< ready, without a place
  ServeHistogram step_seconds;          ///< of a step
  uint64_t steps = 0;                   ///< that were run
  uint64_t prompt_tokens = 0;           ///< of requests that began
  uint64_t cached_tokens = 0;           ///< of these, found in the cache
  uint64_t computed_prompt_tokens = 0;  ///< that steps computed of prompts
  uint64_t new_tokens = 0;              ///< generated
  uint64_t preemptions = 0;             ///< answers whose keys and values were given up
  uint64_t paused_readers = 0;          ///< times that an answer waited for its reader
  uint64_t evicted_prefixes = 0;        ///< that gave way to others
  uint64_t evicted_tokens = 0;          ///< of these
  double evicted_age_seconds = 0;       ///< since they were last used, all together
  int64_t kept_prefixes = 0;            ///< now
  int64_t record_bytes = 0;             ///< what the recorder said of these, now
  uint64_t store_written = 0;           ///< prefixes that became files of the prefix store
  uint64_t store_read = 0;              ///< prefixes that came from its files
  uint64_t store_read_tokens = 0;       ///< of these
  uint64_t store_refused = 0;           ///< files that were left out (Server::store_notes)
  uint64_t store_removed = 0;           ///< files that gave way to others
  uint64_t store_bytes = 0;             ///< of all its files, now
  int64_t free_blocks = 0;              ///< of keys and values, now
  int64_t num_blocks = 0;               ///< of them all
  uint64_t prompt_breaks = 0;           ///< requests with a PromptBreak
  uint64_t broken_tokens = 0;           ///< PromptBreak::lost_tokens of them all
  ConstraintCounts constraint = {};     ///< of all answers that have ended
  SpeculationCounts speculation = {};   ///< the same
  double scheduler_seconds = 0;         ///< processor time within scheduler and prefix tree
  double engine_seconds = 0;            ///< within steps
};

/// A model, and what requests call it.
struct NamedModel {
  std::string name;  ///< empty: requests that name none get the first model
  Model model;       ///< opened for serving (prepare_for_serving)
};

/// Gives a model's options what serving needs: room for so many answers at once, and a row of
/// logits for each. What is set already stays.
VITRINE_API void prepare_for_serving(ModelOptions& options, int max_running);

/// Answers many requests at once: continuous batching with chunked prompts, prefixes
/// that are computed once, and preemption. None of it changes a bit of anybody's answer on the
/// fused path (ModelSummary::invariant).
///
///     ModelOptions model;
///     prepare_for_serving(model, 16);
///     Server server(Model::open(path, model));
///     ServedRequest request = server.submit({.messages = {{"user", "What is an expert?"}}});
///     for (const ServeEvent& event : request) std::fputs(event.text.c_str(), stdout);
///
/// A thread of its own steps, another one renders prompts and compiles constraints. Thread-safe.
class VITRINE_API Server {
 public:
  /// Throws kInvalidArgument for options out of range, kUnsupported for a prefix store where keys
  /// and values cannot be read out, and what AuditSink::open throws.
  explicit Server(Model model, const ServerOptions& options = {});
  /// Several models, which step by turns. Throws kInvalidArgument besides where there is none, or
  /// two have one name.
  explicit Server(std::vector<NamedModel> models, const ServerOptions& options = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// Cancels what is not finished, waits for the step under way, and stores prefixes.
  ~Server();

  /// Takes a request in; what is wrong with it its last event tells. Throws kInvalidArgument where
  /// it has no prompt or more than one, kOutOfMemory where max_waiting wait already.
  ServedRequest submit(ServeRequest request);
  /// The first model, or the one that a request of this name gets, for what only reads (Model's
  /// docstring says what that is). Throws kInvalidArgument for a name that there is not.
  const Model& model(std::string_view name = {}) const;
  /// How many models there are, each with its adapters.
  size_t num_models() const;
  /// What requests may call models by: the models' names, the first one's first (empty where it has
  /// none), then those of their adapters.
  std::vector<std::string> model_names() const;
  /// Calls `work` with a model between two steps, on the thread that steps, and waits for it:
  /// answers stand still meanwhile. `work` releases the sequences that it creates, and calls
  /// nothing of the server; kept prefixes hold blocks that it may miss (clear_cache). Throws what
  /// `work` throws, and kInvalidArgument for a name that there is not.
  void use_model(const std::function<void(Model&)>& work, std::string_view name = {});
  /// The options, with what stands for defaults.
  const ServerOptions& options() const;
  /// Returns the ids that a request's prompt is computed with. Throws kInvalidArgument as submit()
  /// does, and what its last event would tell of the prompt.
  std::vector<int32_t> encode(const ServeRequest& request) const;
  /// What it has done so far.
  ServerTelemetry telemetry() const;
  /// What it has done so far with the model that a request of this name gets. Throws
  /// kInvalidArgument for a name that there is not.
  ServerTelemetry telemetry(std::string_view model) const;
  /// Gives up all prefixes that no answer uses. The store's files stay.
  void clear_cache();
  /// Waits until prefixes that were computed so far are in the store's files, as the server's end
  /// does. Returns at once where there is no store.
  void store_prefixes();
  /// Returns the last lines about files that the store left out and about what it could not write,
  /// each with the file, what was found and what was expected.
  std::vector<std::string> store_notes() const;

 private:
  std::unique_ptr<serve::ServerLoop> loop_;
};

}  // namespace vitrine

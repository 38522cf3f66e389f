// SPDX-License-Identifier: Apache-2.0
// The room `core`: errors, dtypes, devices, non-owning tensor views, logging.
//
// Everything else in Vitrine may include this header; it includes nothing of Vitrine's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if __cplusplus < 202002L
#error "Vitrine's headers need C++20: compile with -std=c++20 or later."
#endif

/// Marks what the shared library exports; everything else is hidden.
#define VITRINE_API __attribute__((visibility("default")))

/// All of the library.
namespace vitrine {

/// What went wrong, coarse enough to branch on.
enum class ErrorKind {
  kInvalidArgument,  ///< the caller passed something impossible, or a path where nothing is (a
                     ///< user's mistake)
  kBadFile,          ///< a file's content is not what its format promises (a user's mistake)
  kUnsupported,      ///< valid, but not something this build or device can do (a user's mistake)
  kUnavailable,      ///< a device or library that is not here (a user's mistake)
  kIo,               ///< the operating system refused: disk full, permission, short read
  kOutOfMemory,      ///< an allocation of a stated size failed
  kCancelled,        ///< the host asked to stop
  kInternal,         ///< a bug in Vitrine
};

/// The stable, lower-case name of a kind ("bad file", …).
VITRINE_API std::string_view error_kind_name(ErrorKind kind);

/// The only exception type that leaves the library.
///
/// `what()` is one line without a newline that names the file, the field, what was found and what
/// was expected, and so tells a user what to do next.
class VITRINE_API Error : public std::runtime_error {
 public:
  /// Replaces line breaks of `message`, which stays one line.
  Error(ErrorKind kind, const std::string& message);
  /// Returns what went wrong.
  ErrorKind kind() const noexcept { return kind_; }
  /// True where the caller's input is at fault (the command line tool then exits with 2, else 1).
  bool is_user_error() const noexcept;

 private:
  ErrorKind kind_;
};

/// Element types of tensors in files and in memory.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kU8, kI16, kI32, kI64, kBool, kF64, kF8E4M3 };

/// Bytes of one element.
VITRINE_API size_t dtype_size(DType dtype);
/// The safetensors spelling: "F32", "BF16", "I32", …
VITRINE_API std::string_view dtype_name(DType dtype);

/// Where tensors live and kernels run.
enum class DeviceKind : uint8_t { kCpu, kCuda, kMps };

/// One device.
struct VITRINE_API Device {
  DeviceKind kind = DeviceKind::kCpu;  ///< what it is
  int index = 0;                       ///< among those of its kind

  /// Parses "cpu", "cuda", "cuda:1", "mps". Throws kInvalidArgument.
  static Device parse(std::string_view text);
  /// "cpu", "cuda:0", "mps".
  std::string name() const;
  bool operator==(const Device&) const = default;
};

/// A non-owning view of a dense, row-major tensor (DLPack-compatible: data, shape, dtype, device).
struct TensorView {
  const void* data = nullptr;  ///< not owned
  DType dtype = DType::kF32;   ///< of each element
  std::vector<int64_t> shape;  ///< extents, outermost first
  Device device;               ///< where `data` lies

  /// Product of the extents (1 for a scalar).
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
  /// Returns the elements' bytes.
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * dtype_size(dtype); }
};

/// How much a message matters.
enum class LogLevel { kDebug, kInfo, kWarning };

/// Receives the library's messages; called from any thread. The library itself prints nothing.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// Installs the process-wide log callback (empty: silence, the default). Thread-safe.
VITRINE_API void set_log_callback(LogCallback callback);
/// Sends one line to the callback, if there is one. Thread-safe.
VITRINE_API void log_message(LogLevel level, std::string_view message);

// ---- Interfaces of the pluggable stages -------------------------------------------------------

/// Where in a sequence a sampler stage stands; everything that its random numbers may depend on.
struct SampleContext {
  uint64_t seed = 0;                      ///< of the request
  int64_t position = 0;                   ///< absolute position that the sampled token will take
  uint32_t branch = 0;                    ///< which fork of the sequence
  std::span<const int32_t> history = {};  ///< all tokens of the sequence so far
  /// A constraint's mask: bit (id % 32) of word (id / 32) is set where that token may come, ids
  /// beyond the mask may not. Empty: anything may come.
  std::span<const uint32_t> allowed_tokens = {};
  bool is_forced =
      false;  ///< the constraint leaves no choice here: penalties leave the logits alone
  /// Ascending: positions in the history whose token a constraint forced; penalties count none.
  std::span<const int64_t> forced_positions = {};
};

/// The tokens that are still in play. Starts dense (every token of the vocabulary, `ids` empty,
/// logits indexed by id); the first stage that narrows the choice makes it sparse.
struct Candidates {
  std::span<float> logits;                       ///< [count] natural-log scores, unnormalised
  std::span<int32_t> ids;                        ///< [count], or empty while dense
  std::vector<float>* logits_storage = nullptr;  ///< capacity: the vocabulary; never reallocated
  std::vector<int32_t>* ids_storage = nullptr;   ///< capacity: the vocabulary; never reallocated
  bool sorted = false;                           ///< descending logits, ties by lower id
  int32_t selected = -1;                         ///< the chosen id, once a stage has selected
  /// Its probability among the candidates, from the stage that selected it; NaN: it didn't say.
  float selected_probability = std::numeric_limits<float>::quiet_NaN();
};

/// How a sampler came to its token.
struct SampleDecision {
  int32_t candidates = 0;  ///< tokens of nonzero probability that were left to choose from
  float probability = 0;   ///< of the chosen one among them; NaN where the stage didn't say
};

/// What a constraint did to one choice.
struct ConstraintDecision {
  int32_t allowed = 0;          ///< tokens that it allowed; 0: no mask was at work
  float removed = 0;            ///< probability, before any sampler stage, of those it ruled out
  float mask_microseconds = 0;  ///< that it took to say which
  /// The token limit ruled out a token that the constraint allows and that an end is known behind.
  /// What leads to no known end is ruled out at any limit, and is not counted.
  bool is_limited = false;
  bool first_ruled_out = false;  ///< the model's first choice was not among them
  int32_t attempt = 0;           ///< above 0: which attempt without a mask, after a deadlock
  /// Returns true where no choice was left.
  bool is_forced() const { return allowed == 1; }
  /// Returns true where a constraint took part.
  bool is_given() const { return allowed > 0 || attempt > 0; }
};

/// One step of the sampler pipeline. A host adds its own by deriving from this class.
class VITRINE_API SamplerStage {
 public:
  virtual ~SamplerStage() = default;
  /// Name as the command line and the log know it ("top_p").
  virtual std::string_view name() const = 0;
  /// Stable number that keys this stage's random numbers; never reused for another stage. Numbers
  /// from 1000 are for hosts.
  virtual uint32_t stage_id() const = 0;
  /// Host form: edits the candidates. Must not allocate for a vocabulary seen before.
  virtual void apply(Candidates& candidates, const SampleContext& context) = 0;
  /// True where the output head's epilogue can stand in for the whole pipeline ending here (the
  /// greedy stage): then no logits row is read back.
  virtual bool is_device_greedy() const { return false; }
  /// A stage with the same parameters and state, for a fork of the sequence; null: it has none.
  virtual std::unique_ptr<SamplerStage> fork() const { return nullptr; }
  /// Its parameters as --explain prints them ("p = 0.95"); empty where it has none.
  virtual std::string parameters() const { return {}; }
};

/// Where a constraint stands, in words. Of the answer's own text it holds keys that the schema
/// names, and no other; what may follow tells what came before where that rules something out
/// (uniqueItems, keys that are there already).
struct ConstraintState {
  int64_t num_bytes = 0;  ///< of the answer so far
  /// The readings of the answer so far that are open, the first eight: the place in the schema or
  /// in the grammar, and what is left there.
  std::vector<std::string> readings;
  int64_t num_readings = 0;  ///< also those that `readings` leaves out
  std::string next_bytes;    ///< that may follow, as "'a'-'z' '\"'"
  /// A text that finishes the answer from here: its first 256 bytes, what is no printable ASCII as
  /// \\xNN. Empty where none is known or the answer is whole.
  std::string completion;
};

/// An answer that could not be had under a constraint, or could not stand.
struct ConstraintFailure {
  /// What went wrong.
  enum class Kind : uint8_t {
    kDeadlock,    ///< no token was left to choose from
    kRefused,     ///< an attempt without a mask came to `token`, which the constraint refuses
    kUnfinished,  ///< the answer ended before it was whole: by the limit, or the context
    kRejected,    ///< the host's validator refused a whole answer
    kError,       ///< the constraint threw `message`: it needs too much work or memory, say
  };
  Kind kind = Kind::kDeadlock;  ///< what went wrong
  int32_t attempt = 0;          ///< as ConstraintDecision::attempt
  uint64_t sequence = 0;        ///< the engine's id of it
  int64_t position = 0;         ///< of the token that was refused, or that would have come next
  int32_t token = -1;           ///< kRefused
  int32_t allowed = 0;          ///< kDeadlock: tokens that the constraint allowed
  int32_t in_time = 0;  ///< kDeadlock: of these, those within the token limit; all of them banned
  std::string message = {};    ///< kError: what was thrown
  ConstraintState state = {};  ///< where the constraint stood
};
/// "deadlock", "refused", "unfinished", "rejected", "error".
VITRINE_API std::string_view constraint_failure_name(ConstraintFailure::Kind kind);

/// Says which token may come next: a grammar, a schema, a host's own rule.
///
/// A constraint follows one sequence. accept() moves it one token on, rollback() any number of
/// tokens back. Not thread-safe; fork() gives another thread its own.
class VITRINE_API Constraint {
 public:
  /// Says that no bound is known.
  static constexpr uint32_t kNoTokenBound = std::numeric_limits<uint32_t>::max();
  virtual ~Constraint() = default;
  /// Number of ids that a mask covers; one 32-bit word covers 32.
  virtual int32_t vocab_size() const = 0;
  /// Sets bit (id % 32) of word (id / 32) for each token that may come next and clears all others.
  /// `mask`: [ceil(vocab_size / 32)] words, else kInvalidArgument. Ids that end the sequence are
  /// allowed exactly where is_complete(). False where no token is allowed: a deadlock.
  virtual bool allowed_tokens(std::span<uint32_t> mask) = 0;
  /// Moves on by one token. False, and nothing has changed, where that token is not allowed.
  virtual bool accept(int32_t token) = 0;
  /// Takes back the last `count` accepted tokens. Throws kInvalidArgument where there are fewer.
  virtual void rollback(int32_t count) = 0;
  /// True where the text so far is a whole answer.
  virtual bool is_complete() const = 0;
  /// The bytes that must come next whatever the model prefers; empty where there is a choice or the
  /// answer could end here.
  virtual std::string forced_bytes() = 0;
  /// The same, where a character of a JSON string that could be spelt as an escape, too, counts as
  /// forced by itself: what jump-forward writes (GenerateOptions::jump_forward).
  virtual std::string forced_text() { return forced_bytes(); }
  /// Returns a bound: at most so many tokens finish the answer from here (the one that ends the
  /// sequence does not count): as many as some completion has that is known. kNoTokenBound where
  /// none is known.
  virtual uint32_t tokens_to_finish() { return kNoTokenBound; }
  /// True of a constraint that looks for such a completion, in tokens that it allows: where it
  /// knows none and tokens are banned, a request is refused before it starts.
  virtual bool looks_for_an_end() const { return false; }
  /// Takes out of a mask that allowed_tokens() has filled at this place every token behind which
  /// the answer is not known to be finished within `limit` tokens, the token itself counted.
  /// Returns false where none is left. As it stands here it tries each token.
  virtual bool keep_within(std::span<uint32_t> mask, uint32_t limit);
  /// Returns where it stands, for people to read: of failures and of refused texts (vitrine
  /// constrain check). Not for the hot path. What it throws is taken for nothing known.
  virtual ConstraintState state() { return {}; }
  /// An independent copy that stands at the same place and can be rolled back as far.
  virtual std::unique_ptr<Constraint> fork() const = 0;
};

/// What a specialist's share of a token is.
enum class ShareKind : uint8_t {
  kResponsibility,  ///< weight * p / joint: the posterior; they sum to one
  kTerm,            ///< weight * log p; they and minus the log-normaliser sum to the joint's log
};

/// One specialist's prediction of the next token: log p(t) = logits[t] - log_sum_exp.
struct SpecialistRow {
  std::span<const float> logits;  ///< [vocabulary]
  double log_sum_exp = 0;         ///< of all its logits
};

/// What a combiner sees of one position.
struct CombinerInput {
  std::span<const SpecialistRow> specialists;  ///< in the federation's order
  std::span<const float> hidden_state;         ///< the base's, where the combiner needs it
};

/// One specialist's part in one token.
struct SpecialistShare {
  double logprob = 0;  ///< nats: the specialist's own log-probability of the token
  double weight = 0;   ///< that the combiner gave it at this position
  double share = 0;    ///< see ShareKind
  bool operator==(const SpecialistShare&) const = default;
};

/// The joint's log-probability of a token.
struct JointScore {
  double logprob = 0;         ///< nats
  double log_normaliser = 0;  ///< log Z over the vocabulary; 0 where nothing is normalised
};

/// Makes one distribution of several specialists'. A host adds its own by deriving from this class
/// (docs/federation.md). Not thread-safe.
class VITRINE_API Combiner {
 public:
  virtual ~Combiner() = default;
  /// Returns its name in the log and the plan ("mixture").
  virtual std::string_view name() const = 0;
  /// Returns what the shares of explain() mean.
  virtual ShareKind shares() const { return ShareKind::kResponsibility; }
  /// True where CombinerInput::hidden_state must be there.
  virtual bool needs_hidden_state() const { return false; }
  /// Writes the joint's log-probability of every token, normalised. Must not allocate for sizes
  /// seen before.
  virtual void combine(const CombinerInput& input, std::span<float> joint) = 0;
  /// The account of one token, after combine() on the same input. `shares`: [specialists].
  virtual JointScore explain(const CombinerInput& input, int32_t token,
                             std::span<SpecialistShare> shares) = 0;
};

/// One slot of a token's routing in one layer, given in place of what the router chooses.
struct ForcedRoute {
  /// The weight that the router gives this expert among those that are forced with it, normalised
  /// as the architecture does it.
  static constexpr float kRouterWeight = -1;
  int32_t token = 0;             ///< index among the tokens that its sequence brings to the step
  int32_t layer = 0;             ///< of the model
  int32_t expert = 0;            ///< in that layer
  float weight = kRouterWeight;  ///< else a gate weight to use as it is; 0 takes the expert out
};

/// How an engine records: not at all, by extra reads in the middle of a pass (for comparison), or
/// into the arena, which is read once behind the pass.
enum class AuditMode : uint8_t { kNone, kNaive, kDeferred };
/// How much is recorded: kFull adds the routers' distributions and what else is asked for.
enum class AuditLevel : uint8_t { kStandard, kFull };

/// Words of AuditLayout::constraint.
inline constexpr int kAuditConstraintWords = 4;

/// The best tokens that the output head reports with each row of logits.
inline constexpr int kAuditTopTokens = 10;

/// Where each audit value of a pass lies. All values are 4 bytes: float32 or int32; a digest has
/// two.
///
/// A pass's bytes are: [rows] chosen ids (int32, at the head), then [rows] row records of
/// `row_words` words, then [tokens] token records of `token_words` words.
struct AuditLayout {
  /// Where the values of one layer lie.
  struct Layer {
    int32_t layer = 0;            ///< counts from 0
    int32_t residual_norm = -1;   ///< word offset in a token record: float, L2 norm of the residual
                                  ///< stream that enters this layer
    int32_t expert_ids = -1;      ///< word offset: int32[top_k]; -1 for a dense layer
    int32_t expert_weights = -1;  ///< word offset: float[top_k], slot order
    int32_t router_probs = -1;    ///< word offset: float[num_experts]; level full only, else -1
    int32_t top_k = 0;            ///< routes of a token
    int32_t num_experts = 0;      ///< of the layer
    bool reads_embedding = false;  ///< the stream that enters it is the token's embedding, whose
                                   ///< norm tells the token
  };
  /// A term of a token's logit: what one part of the model added to it.
  struct Term {
    /// Which part of the model it is.
    enum class Kind : uint8_t { kEmbedding, kAttention, kDense, kExpert, kShared };
    Kind kind;           ///< which part of the model it is
    int32_t layer = -1;  ///< -1: the embedding
    int32_t slot = -1;   ///< kExpert: the route's slot
    bool operator==(const Term&) const = default;
  };
  /// The residual stream between layers.
  struct HiddenState {
    int32_t layer = 0;    ///< the layer it enters; the number of layers: it leaves the last one
    int32_t values = -1;  ///< word offset in a token record: float[hidden_size]
    bool operator==(const HiddenState&) const = default;
  };
  AuditMode mode = AuditMode::kNone;         ///< how values are recorded
  AuditLevel level = AuditLevel::kStandard;  ///< how much is recorded
  std::vector<Layer> layers;                 ///< ascending
  std::vector<Term> terms;                   ///< empty where nothing is attributed; of a federation
                                             ///< those of each specialist in turn
  std::vector<HiddenState> hidden_states;    ///< level full only; ascending layers
  int32_t hidden_size = 0;                   ///< valid where there are hidden states
  int32_t token_words = 0;                   ///< words of a token record
  int32_t row_words = 0;                     ///< words of a row record
  // Word offsets in a row record (valid where row_words > 0).
  int32_t chosen_logit = 0;         ///< float
  int32_t log_sum_exp = 0;          ///< float, nats: log-probability = logit - log_sum_exp
  int32_t entropy = 0;              ///< float, nats
  int32_t top_ids = 0;              ///< int32[kAuditTopTokens], -1 past the vocabulary
  int32_t top_logits = 0;           ///< float[kAuditTopTokens], descending
  int32_t logits_digest = 0;        ///< 64 bits, low word first: of the bits of the row's logits
  int32_t sampler_candidates = 0;   ///< int32; of a row that chose a token (SampleDecision)
  int32_t sampler_probability = 0;  ///< float; the same
  /// The ConstraintDecision of a row that chose a token under a constraint: int32 allowed, float
  /// removed, float mask_microseconds, int32 flags (1 is_limited, 2 first_ruled_out, attempt * 4).
  /// -1: not recorded.
  int32_t constraint = -1;
  /// What several specialists add to each row where a federation made it.
  struct Federation {
    std::vector<std::string> specialists;           ///< names; empty: a single model
    std::string combiner;                           ///< Combiner::name()
    ShareKind shares = ShareKind::kResponsibility;  ///< what a share means
    /// Word offset in a row record. Numbers are float64 in two words, low word first: for each
    /// specialist log-probability, weight and share; then the joint's log-probability, the
    /// log-normaliser and the residual: the joint less what its parts give.
    int32_t values = -1;
    /// [specialists] how many of AuditLayout::terms are each one's; empty: nothing is attributed.
    std::vector<int32_t> num_terms = {};
    /// Returns how many words a row has for it.
    int32_t num_words() const {
      return specialists.empty() ? 0 : 2 * (3 * static_cast<int32_t>(specialists.size()) + 3);
    }
    bool operator==(const Federation&) const = default;
  };
  Federation federation;  ///< no specialists: a single model
  /// float[terms] of the chosen token, then float[terms] of the runner-up: the best token that was
  /// not chosen. In a federation's record so for each specialist, and its own logits of the two
  /// tokens, float[2], before them; runner-up is then the joint's.
  int32_t attribution = 0;

  /// Returns the words of one pass.
  size_t pass_words(size_t rows, size_t tokens) const {
    return rows * (1 + static_cast<size_t>(row_words)) + tokens * static_cast<size_t>(token_words);
  }
};

/// One input token of a pass, known to the host before the pass runs.
struct AuditToken {
  uint64_t sequence = 0;  ///< the engine's id of it
  int32_t position = 0;   ///< in the sequence, from 0
  int32_t token = 0;      ///< its id
  int32_t row = -1;       ///< which row of logits this token's output made; -1: none
  int32_t generated = 0;  ///< 1 where that row chose the sequence's next token, 0 where it only
                          ///< scores the prompt
};

/// A pass's record in a slab: this header, then AuditToken[num_tokens], then the pass's words.
struct AuditPassHeader {
  uint64_t pass = 0;        ///< counts from 0
  uint32_t num_tokens = 0;  ///< of the pass
  uint32_t num_rows = 0;    ///< of logits
  uint64_t num_bytes = 0;   ///< of the whole record, header included; a multiple of 8
  uint64_t step_ns = 0;     ///< that the step took by the host's clock, its sampling included
};

/// What happened to a sequence between passes. Whoever accounts for positions needs it: a fork has
/// positions that no pass made, a truncation takes back some that one did.
struct AuditEvent {
  /// What happened.
  enum class Kind : uint8_t { kCreated, kForked, kTruncated, kReleased };
  Kind kind = Kind::kCreated;  ///< what happened
  uint64_t sequence = 0;       ///< the engine's id of it
  uint64_t source = 0;         ///< kForked: the sequence whose past it shares
  int64_t length = 0;          ///< positions that the sequence has after the event; kReleased: had
  int64_t before = 0;          ///< kTruncated: positions that it had
};

/// Receives one slab a pass. The engine calls it from the step's thread only; it may not read
/// anything back from the device, block for longer than its policy says, or change anything.
class VITRINE_API AuditSink {
 public:
  virtual ~AuditSink() = default;
  /// Once, before the first pass: the layout of all later passes and the largest record.
  virtual void open(const AuditLayout& layout, size_t max_record_bytes) = 0;
  /// Memory (8-byte aligned) for one pass's record of `num_bytes`; the engine fills it whole.
  virtual std::byte* reserve(size_t num_bytes) = 0;
  /// The record reserved last is complete.
  virtual void commit() = 0;
  /// A sequence was created, forked, truncated or released. Between passes, after open(); also
  /// while the recorder is off. Must not throw.
  virtual void on_event(const AuditEvent& event) { (void)event; }
  /// generate() had to give up an answer, or an attempt at one. As on_event().
  virtual void on_failure(const ConstraintFailure& failure) { (void)failure; }
};

}  // namespace vitrine

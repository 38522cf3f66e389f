// SPDX-License-Identifier: Apache-2.0
// The room `engine`: loads a model, steps over ragged batches, generates.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/core.h"
#include "vitrine/sample.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

namespace engine {
class WorkerPool;
struct DeviceJointResult;
struct DeviceRows;
struct DeviceJointSpec;
struct DeviceJointStep;
}  // namespace engine

/// Which kernels run a model.
enum class KernelPath : uint8_t {
  kFused,      ///< Vitrine's own kernels, bitwise invariant (CPU; CUDA, not yet run on a GPU)
  kReference,  ///< plain ATen, any device, exempt from invariance
};

/// How a model is loaded.
struct EngineOptions {
  Device device = {};  ///< where it runs
  /// Set: load() throws kUnsupported where these cannot run. Not set: fused on the CPU, the
  /// reference elsewhere; Engine::options has what it is.
  std::optional<KernelPath> kernels = {};
  int threads = 0;            ///< 0: the number of cores this process may use
  int max_context = 0;        ///< positions a sequence may have; 0: the model's own limit
  int max_sequences = 1;      ///< sequences that may live at once, forks among them
  int max_step_tokens = 512;  ///< new tokens in one step, all sequences together
  int max_logit_rows = 0;     ///< rows of logits in one step; 0: max_sequences
  int kv_block_size = 64;     ///< positions in one KV block: a multiple of 16 up to 256
  /// Bytes of the pool of keys and values, of which whole blocks are used. A sequence holds the
  /// blocks that its tokens need, and one that finds none free has to wait (Engine::fits) or fails
  /// (kOutOfMemory). At least a block; max_context becomes what the pool holds where that is less.
  /// 0: so many that each of max_sequences can reach max_context. Of a federation of checkpoints
  /// all engines' together. Engine::options has what it is.
  uint64_t kv_bytes = 0;
  /// What keys and values are kept in: kF32, or kF16 or kBF16, to which they are rounded as they
  /// are written (nearest, ties to even), or kI16 (not CUDA's fused kernels), integers of 12 bits
  /// and a sign with a scale for each position and head, which attention multiplies as they are
  /// (docs/numerics.md): half the memory, another result, and as invariant. The reference path
  /// rounds to kI16 and keeps float32. Not set: kI16 on the CPU for a model with quantized weights
  /// (of a federation, where every specialist has), kF32 elsewhere; Engine::options has what it is.
  std::optional<DType> kv_dtype = {};
  /// What quantized weights are multiplied with: kI8, rows quantized by group (docs/numerics.md),
  /// as every path has it, with the CPU's bits; or kBF16 (CUDA's fused kernels alone), rows rounded
  /// to it, bf16 weights on tensor cores too, and attention where kv_dtype is 16 bits wide and its
  /// heads allow: another result, as invariant where keys and values are finite. kF8E4M3 (the same
  /// kernels, a GPU of compute capability 8.9 or above): as kBF16, but rows that meet E4M3 weights
  /// are rounded to E4M3, with a scale for each 128 columns.
  DType activation_dtype = DType::kI8;
  /// Bytes of a cache; above 0, routed experts are read from the file when a step needs them, and
  /// the ones used last stay in so many bytes. At least what one layer of a step may need. Fused
  /// path. The result is the same to the bit.
  uint64_t expert_cache_bytes = 0;
  /// Matrices are read where they stand, in the mapped file, and nothing is packed: loading is
  /// instant, memory is the system's page cache, a step is slower (docs/performance.md). Fused
  /// path. The result is the same to the bit. The files must not be
  /// truncated meanwhile: a step checks their sizes before and after (kIo), but a read in between
  /// ends the process, unless the host has a MappedFileGuard (checkpoint.h).
  bool mmap_weights = false;
  AuditMode audit_mode = AuditMode::kDeferred;     ///< how records are made
  AuditLevel audit_level = AuditLevel::kStandard;  ///< how much is recorded
  /// Each generated token's logit is recorded as a sum of terms (docs/attribution.md).
  bool attribution = false;
  /// False: records say nothing of rows of logits (AuditLayout::row_words is 0), and nothing is
  /// computed for them: a federation records its joint's rows instead. Not with attribution.
  bool record_rows = true;
  /// Layers whose residual stream is recorded as it enters them, for every token, as float32; the
  /// number of layers stands for what leaves the last one, before the final norm. Needs audit_level
  /// full. Costs 4 bytes x hidden size a layer and token in the arena and in each slab.
  std::vector<int> hidden_state_layers = {};
  /// Precision of the rotary frequencies: kF32 as transformers has it, or kBF16 for a model that
  /// was trained or measured with its frequencies cast together with its weights.
  DType rope_frequencies = DType::kF32;
  /// A weight stored in a type that no fused kernel reads without loss is an error, not a warning
  /// (it is run as float32).
  bool strict = false;
  /// True makes a sampler's choice on `device`, so that ids come back and no logits
  /// (SamplerPipeline::has_device_form; not in naive mode): by tensor operations on the reference
  /// path, by a kernel of the step's graph on CUDA's fused path. False leaves out the memory that
  /// this path gives to it when it is loaded (about 70 KB a sequence with 152,000 tokens). Not set:
  /// everywhere but on the CPU, whose fused path has its logits on the host.
  std::optional<bool> sample_on_device = {};
  bool keep_logits = false;  ///< StepOutput::logits is filled whatever the sampler
  /// StepOutput::hidden_state is filled.
  bool keep_hidden_state = false;
  /// Folders of low-rank adapters in PEFT's layout, applied beside the weights
  /// (docs/federation.md). A sequence uses one of them or none; those of all sequences share a
  /// step.
  std::vector<std::string> adapters = {};
};

/// Names a sequence of one engine; none is 0.
using SequenceId = uint64_t;

/// Names a prefix that an engine keeps; none is 0, and none is a sequence's name.
using PrefixId = uint64_t;

/// The beginning of a sequence that an engine keeps.
struct KvPrefix {
  std::span<const int32_t> tokens;  ///< of its positions; valid until it is released
  int adapter = -1;                 ///< which its keys and values were made with, -1: none
  int64_t blocks = 0;               ///< that it holds, shared or not
};

/// What one sequence brings to a step.
struct StepInput {
  SequenceId sequence = 0;          ///< it is created already
  std::span<const int32_t> tokens;  ///< at least one
  /// Which tokens get logits.
  enum class Rows : uint8_t { kNone, kLast, kAll };
  Rows rows = Rows::kLast;  ///< which tokens get logits
  int32_t next_token = -1;  ///< the id known to follow the last token (a prompt is being scored);
                            ///< -1: it is chosen
  SamplerPipeline* sampler = nullptr;  ///< for the last row; null: greedy
  /// Which tokens may be chosen, by bit (Constraint::allowed_tokens); empty: any. The host chooses
  /// then, greedy too.
  std::span<const uint32_t> allowed_tokens = {};
  /// How many of the last ones behind the first of `tokens` (`next_token` counts where it is known)
  /// had no alternative under a constraint: what predicted them is recorded as a choice of one
  /// token, where it has a row.
  int32_t num_forced = 0;
  /// Recorded with the choice. The engine adds `allowed`, `removed` and `first_ruled_out`.
  ConstraintDecision constraint = {};
  uint64_t seed = 0;    ///< of this choice
  uint32_t branch = 0;  ///< SampleContext::branch of this choice
  /// Routes that run instead of the router's, by token, then layer. A token and layer that is named
  /// needs all its top-k slots, in slot order; others route freely. A weight given for one slot
  /// leaves the others as they are. What is recorded is what ran.
  std::span<const ForcedRoute> routes = {};
  /// The token that is chosen will most likely be the sequence's only one in the next step, in
  /// which the same inputs stand in the same order. Where all inputs of a step say so, a device may
  /// start that step before this one's results are on the host. It changes no result: where another
  /// step comes, that one is run, and what was computed in vain is recorded nowhere.
  bool goes_on = false;
};

/// One row of logits. Spans are valid until the next step.
struct StepOutput {
  SequenceId sequence = 0;  ///< the input's
  int64_t position = 0;     ///< of the token whose output this is; `token` would stand one later
  /// The sampler's choice on a sequence's last row, the argmax without one, or
  /// StepInput::next_token where that was given; on the rows before it the input token that comes
  /// next, which they score.
  int32_t token = -1;
  std::span<const float> logits;  ///< [vocabulary] where they were read back, else empty
  ConstraintDecision constraint;  ///< of a choice with a mask; `removed` where it was recorded
  /// [hidden_size] what the output head reads, after the final norm; where it was asked for
  std::span<const float> hidden_state;
};

/// What a step would take of an engine, and what there is.
struct StepFit {
  int64_t tokens = 0;            ///< that its inputs bring
  int64_t max_tokens = 0;        ///< EngineOptions::max_step_tokens
  int64_t rows = 0;              ///< of logits that they ask for
  int64_t max_rows = 0;          ///< EngineOptions::max_logit_rows
  int64_t blocks = 0;            ///< that it takes from the pool, copies of shared ones among them
  int64_t free_blocks = 0;       ///< of the pool
  SequenceId full_sequence = 0;  ///< the first one that would outgrow max_context; 0: none

  /// Whether there is room for all of it.
  bool fits() const {
    return tokens > 0 && tokens <= max_tokens && rows <= max_rows && blocks <= free_blocks &&
           full_sequence == 0;
  }
};

/// One op of a plan.
struct PlanEntry {
  int layer = -1;             ///< -1: outside the layers
  std::string op;             ///< "router"
  std::string kernel;         ///< "cpu.avx512.linear_int4g32", "aten"
  uint64_t weight_bytes = 0;  ///< read for one decoded token
};

/// Facts about a loaded model.
struct ModelSummary {
  std::string path;                    ///< as it was given
  std::string architecture;            ///< "qwen3_moe"
  std::string device;                  ///< "cpu", "cuda:0"
  std::string kernels;                 ///< "fused", "reference"
  std::string isa;                     ///< the instruction set: "avx512"
  int num_layers = 0;                  ///< decoder blocks
  int hidden_size = 0;                 ///< of the residual stream
  int vocab_size = 0;                  ///< ids that the embedding has
  int max_position_embeddings = 0;     ///< that the model was made for
  int num_attention_heads = 0;         ///< of queries
  int num_key_value_heads = 0;         ///< of keys and values
  int head_dim = 0;                    ///< of one head
  int num_experts = 0;                 ///< of a sparse layer; 0: a dense model
  int num_experts_per_token = 0;       ///< that a token goes through in a sparse layer
  std::vector<int32_t> eos_token_ids;  ///< as the checkpoint names them
  int64_t num_parameters = 0;          ///< of all tensors
  uint64_t weight_bytes = 0;           ///< packed weights in memory
  uint64_t mapped_bytes = 0;           ///< weights that stay in the mapped file
  uint64_t kv_bytes = 0;               ///< KV pool
  DType kv_dtype = DType::kF32;        ///< EngineOptions::kv_dtype, whoever chose it
  uint64_t arena_bytes = 0;            ///< intermediates of the plan
  uint64_t bytes_per_token = 0;        ///< weight bytes read for one decoded token
  bool invariant = false;              ///< "one token, one result" holds
  int threads = 1;                     ///< that steps use
};

/// What Engine::load makes of a model.
struct ModelPlan {
  ModelSummary summary;         ///< as Engine::summary has it
  std::vector<PlanEntry> plan;  ///< as Engine::plan has it
  EngineOptions options;        ///< with what stands for defaults
};

/// What a cache of experts holds and did since the model was loaded.
struct ExpertCacheStats {
  int64_t slots = 0;        ///< experts that it holds at once; 0: there is no cache
  int64_t experts = 0;      ///< of all layers
  uint64_t slot_bytes = 0;  ///< packed
  uint64_t hits = 0;        ///< experts that were there
  uint64_t misses = 0;      ///< experts that had to be read
  uint64_t bytes_read = 0;  ///< from the file
};

/// A loaded model and its sequences. One thread at a time: a call while another thread's runs
/// throws kInvalidArgument, but release(), release_prefix() and what only reads (length(),
/// tokens(), prefix(), kv_blocks(), fits()) wait for it.
///
///     auto engine = Engine::load("models/fractalmoe-30m-int4", {});
///     SequenceId sequence = engine->create_sequence();
///     auto outputs = engine->step({{StepInput{sequence, prompt_ids}}});
class VITRINE_API Engine {
 public:
  /// Loads a Hugging Face folder or a GGUF file.
  static std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options);
  /// Throws what load() throws for a model that cannot run (architecture, a missing tensor, a shape
  /// that contradicts the config) without reading its weights. Thread-safe.
  static void check(const std::string& path);
  /// What load() would make, and throw, of a model. On the fused path of the CPU, without an expert
  /// cache, in the time that its header takes: nothing is read but adapters and, with mmap_weights,
  /// what is kept beside the map (zero points, scales of FP8), so a wrong number elsewhere is not
  /// found. On other paths the model is loaded. Thread-safe.
  static ModelPlan describe(const std::string& path, const EngineOptions& options);
  ~Engine();

  /// Returns the facts about the model.
  const ModelSummary& summary() const;
  /// Returns what runs, op by op.
  const std::vector<PlanEntry>& plan() const;
  /// Returns the options, with what stands for defaults.
  const EngineOptions& options() const;
  /// Returns the counts so far; all 0 without a cache.
  ExpertCacheStats expert_cache() const;

  /// `adapter`: which of EngineOptions::adapters its tokens go through, -1: none. Throws
  /// kInvalidArgument for one that the engine was not loaded with, kOutOfMemory where max_sequences
  /// are live.
  SequenceId create_sequence(int adapter = -1);
  /// A new sequence with the same past. Full blocks are shared and counted; a partial one is
  /// copied. Throws kOutOfMemory where no block is free for that, or max_sequences are live.
  SequenceId fork(SequenceId sequence);
  /// Forgets everything from position `length` on.
  void truncate(SequenceId sequence, int64_t length);
  /// Of the tokens that the last step which the sequence was in brought it, the first `count` stay
  /// (a draft's that were accepted); the others are forgotten as by truncate(). Throws
  /// kInvalidArgument for more than it brought and still has.
  void keep(SequenceId sequence, int64_t count);

  /// Keeps the first `length` positions of a sequence, whatever becomes of that: it goes on, is
  /// truncated or released. Their blocks stay where they are, counted once more; whoever writes
  /// behind them into the last one copies it. Takes no memory of the pool itself. Throws
  /// kInvalidArgument for more positions than there are. In an audit log the prefix is a fork of
  /// the sequence which no step touches.
  PrefixId retain(SequenceId sequence, int64_t length);
  /// A new sequence that begins with the first `length` positions of a prefix, under its adapter.
  /// What follows has the bits that it has behind the same tokens without reuse. Throws as
  /// create_sequence() does, and kInvalidArgument for more positions than there are. In an audit
  /// log it is a fork of the prefix.
  SequenceId attach(PrefixId prefix, int64_t length);
  /// The same with all of it.
  SequenceId attach(PrefixId prefix);
  /// Returns what a prefix is. Throws kInvalidArgument for an unknown one.
  KvPrefix prefix(PrefixId prefix) const;
  /// Forgets a prefix; sequences that began with it stay.
  void release_prefix(PrefixId prefix);
  /// Forgets a sequence; its id is not used again.
  void release(SequenceId sequence);
  /// Returns the tokens that the sequence holds.
  int64_t length(SequenceId sequence) const;
  /// All tokens of the sequence, [length]. Valid until the sequence changes.
  std::span<const int32_t> tokens(SequenceId sequence) const;
  /// Blocks free, and in total.
  std::pair<int64_t, int64_t> kv_blocks() const;
  /// What a step of these inputs would take, as step() itself finds it, and what there is. Nothing
  /// changes. Throws kInvalidArgument for an unknown sequence, or one that stands twice.
  StepFit fits(std::span<const StepInput> inputs) const;

  /// Runs one pass over all inputs. Allocates nothing, reads back once. Throws kInvalidArgument for
  /// an id out of range, an unknown sequence, too many tokens, a context that is full, or forced
  /// routes that do not fit the model; kOutOfMemory where the KV pool has no block left (forks
  /// share theirs until they part); then nothing has changed. The span is valid until the next
  /// step.
  std::span<const StepOutput> step(std::span<const StepInput> inputs);

  /// Says where records go (not owned; null: nowhere). Takes effect with the next step; calls
  /// open().
  void set_audit_sink(AuditSink* sink);
  /// Returns what set_audit_sink() was given, or null.
  AuditSink* audit_sink() const;
  /// Returns where values lie in the records of this engine.
  const AuditLayout& audit_layout() const;
  /// Switches the recorder between steps, so that modes can be compared on one engine, whichever it
  /// was loaded with. Throws kUnsupported for kNaive where CUDA's fused kernels run, which record
  /// in the step's graph alone.
  void set_audit_mode(AuditMode mode);

  /// Device-to-host readbacks so far: exactly one a pass unless naive, and two of a pass on CUDA in
  /// whose middle the host chooses (attribution of a token that the device cannot).
  uint64_t readback_count() const;

  /// Bytes a second at which this engine's threads can read its packed matrices, all of them and
  /// nothing but read, by the widest loads of its instruction set: the fastest of the passes that
  /// begin within `seconds`, at least two. It bounds decode where the matrices are larger than the
  /// caches (docs/performance.md). On CUDA's fused path a device's memory, far more of it than its
  /// caches hold. None on the reference path, or where the device has no room for that.
  std::optional<double> measure_read_bandwidth(double seconds);

 private:
  friend class Federation;  // its joint is made by the same threads
  struct Impl;
  engine::WorkerPool* workers();  // null: a path without threads of its own
  // A step that stops behind the head, so that the federation's choice is known to what follows;
  // fused path only. The outputs have logits and hidden states. Then the rest: [rows] each row's
  // token and the runner-up, or -1 where the head's own stand. (No outputs' logits where a joint of
  // no rows leaves them on the device.)
  // A joint: as of step_joint.
  std::span<const StepOutput> begin_step(std::span<const StepInput> inputs,
                                         const engine::DeviceJointStep* joint = nullptr);
  void finish_step(std::span<const int32_t> chosen, std::span<const int32_t> runners_up);
  // An engine's steps may, on CUDA's fused path, be of a federation's joint, made and chosen on the
  // device: the outputs of such a step have no tokens and no logits. A joint of no rows: the step's
  // rows stay where they are. Null: an engine, a step as others are.
  static std::unique_ptr<Engine> load_joint(const std::string& path, const EngineOptions& options,
                                            const engine::DeviceJointSpec* joint);
  std::span<const StepOutput> step_joint(std::span<const StepInput> inputs,
                                         const engine::DeviceJointStep* joint);
  const engine::DeviceJointResult& joint_result() const;  // of the last one, until the next step
  const engine::DeviceRows& rows_on_device() const;
  // Executor::take_steps.
  bool take_steps(std::span<const DeviceSamplerSteps*> row_steps) const;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The instruction set of the kernels that a CPU engine takes on this machine: "avx512_amx",
/// "avx512", "avx2_vnni", "avx2" or "portable"; VITRINE_CPU_ISA chooses another. Throws
/// kInvalidArgument or kUnavailable for one that there is not.
VITRINE_API std::string_view cpu_instruction_set();

/// Why a text ended.
enum class StopReason : uint8_t {
  kLength,
  kEndOfText,
  kContextFull,
  kCancelled,
  kComplete,  ///< the constraint is met and nothing can follow
  kDeadlock,  ///< no token leads on under the constraint, and no attempt without it was valid
  kRejected,  ///< GenerateOptions::validator accepted no attempt
  /// A constraint's answer is whole and ended by itself (it was kComplete or kEndOfText), but the
  /// limit of tokens took away, before at least one of its tokens, what could have come otherwise.
  kLengthConstrained,
};
/// "length", "end of text", "context full", "cancelled", "complete", "deadlock", "rejected",
/// "length_constrained".
VITRINE_API std::string_view stop_reason_name(StopReason reason);

/// What is generated, and how.
struct GenerateOptions {
  int max_new_tokens = 128;         ///< at most
  SamplerOptions sampler = {};      ///< how each token is chosen
  bool ignore_end_of_text = false;  ///< go on behind an end-of-text token
  bool prompt_logprobs = false;     ///< record log-probabilities of prompt tokens too
  /// Ids that end the text as the model's own end-of-text ids do (chat.h, end_of_turn_ids).
  std::vector<int32_t> stop_token_ids = {};
  /// GenerateResult::logprobs is filled, with so many alternatives a token; -1: it is not. Needs
  /// EngineOptions::keep_logits.
  int logprobs = -1;
  uint32_t branch = 0;  ///< SampleContext::branch: candidates of one prompt draw different numbers
  /// Which tokens may come (not owned): it stands at the start of an answer and follows what is
  /// generated. An answer that ends, by the limit too, is whole: near the limit only tokens are
  /// allowed that leave room to finish (Constraint::tokens_to_finish). Null: any token.
  Constraint* constraint = nullptr;
  /// The tokenizer of the model, and of the constraint's ids: where the constraint forces text
  /// (Constraint::forced_text), it is spelt as this tokenizer does and fed in one step, in place of
  /// a step a token. What later tokens see is the same to the bit as if those had been chosen one
  /// by one. Must stay while generate() runs. Null: every token is chosen.
  const Tokenizer* jump_forward = nullptr;
  /// Attempts after a place where no token leads on: so many follow without a mask, each with
  /// random numbers of its own, until the constraint accepts one.
  int deadlock_retries = 0;
  /// Valid is not true: asked about each whole answer, an end-of-text token included, before
  /// generate() returns. Where it says false, the answer is made again under the constraint with
  /// other random numbers, `validator_retries` times at most. At temperature 0 that is the same
  /// answer again. Runs on the calling thread; what it throws, generate() throws. Needs a
  /// constraint.
  std::function<bool(std::span<const int32_t> tokens)> validator = {};
  int validator_retries = 0;  ///< answers that are made again at most
};

/// A generated token in the model's own softmax: before any sampler stage.
struct TokenLogprobs {
  int32_t token = 0;                             ///< its id
  double logprob = 0;                            ///< nats
  std::vector<std::pair<int32_t, double>> best;  ///< id, nats: the most probable, ties by lower id
};

/// A generated token, as it is made.
struct TokenEvent {
  int32_t token = 0;        ///< its id
  int64_t position = 0;     ///< in the sequence, from 0
  int32_t attempt = 0;      ///< of GenerateOptions' retries: when it grows, the text begins anew
  bool is_complete = true;  ///< false: a constraint accepts no answer that ends here, so that no
                            ///< stop of the host's should act
  /// Those of the attempt's tokens, from the first on, where they were asked for: up to this one,
  /// or fewer where a constraint forces tokens before their logits are computed. Valid in the
  /// callback.
  std::span<const TokenLogprobs> logprobs = {};
};

/// What a constraint did in one run.
struct ConstraintCounts {
  int64_t masks = 0;       ///< tokens that were chosen under one
  int64_t forced = 0;      ///< of these, with one token allowed
  int64_t jumped = 0;      ///< further tokens, forced ones that jump-forward fed without a choice
  int64_t rejections = 0;  ///< of these, where the model's first choice was ruled out
  int64_t limited = 0;     ///< of these, where ConstraintDecision::is_limited
  int64_t deadlocks = 0;   ///< places where no token was left
  int64_t retries = 0;     ///< attempts that followed these
  int64_t rejected_answers = 0;  ///< by GenerateOptions::validator
  double mask_seconds = 0;       ///< that masks took
  /// Adds the counts of another run.
  ConstraintCounts& operator+=(const ConstraintCounts& other) {
    masks += other.masks, forced += other.forced, jumped += other.jumped;
    rejections += other.rejections, limited += other.limited;
    deadlocks += other.deadlocks, retries += other.retries;
    rejected_answers += other.rejected_answers;
    mask_seconds += other.mask_seconds;
    return *this;
  }
};

/// What generate() made.
struct GenerateResult {
  std::vector<int32_t> tokens;              ///< the generated ones, an end-of-text token included
  StopReason reason = StopReason::kLength;  ///< why it ended
  ConstraintCounts constraint;              ///< all 0 without a constraint
  bool is_complete = true;  ///< false: a constraint accepts no answer that ends here
  /// Where the constraint stood when an answer or an attempt at one was given up, in that order;
  /// the first 64.
  std::vector<ConstraintFailure> failures;
  int64_t prompt_tokens = 0;            ///< the prompt's length
  double prefill_seconds = 0;           ///< that the prompt took
  double decode_seconds = 0;            ///< that what was generated took
  std::vector<TokenLogprobs> logprobs;  ///< one a token, where they were asked for
};

/// Generates from a prompt in a sequence of its own (released at the end). The callback runs on the
/// calling thread after each token; returning false cancels. Throws kInvalidArgument for an empty
/// prompt, an id out of range, a prompt longer than the context, a constraint over another number
/// of ids, or one that no answer within max_new_tokens is known to meet.
VITRINE_API GenerateResult generate(Engine& engine, std::span<const int32_t> prompt,
                                    const GenerateOptions& options,
                                    const std::function<bool(const TokenEvent&)>& on_token = {});

/// The same in a sequence that stays, behind what it holds: a prompt whose beginning is there
/// already (Engine::length, Engine::truncate) is not computed twice. Afterwards the sequence holds
/// the prompt and every generated token but the last, however it ended.
VITRINE_API GenerateResult generate(Engine& engine, SequenceId sequence,
                                    std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const std::function<bool(const TokenEvent&)>& on_token = {});

}  // namespace vitrine

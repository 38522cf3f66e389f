// SPDX-License-Identifier: Apache-2.0
// The room `engine`: loads a model, steps over ragged batches, generates.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/constraint.h"
#include "vitrine/core.h"
#include "vitrine/generate.h"
#include "vitrine/step.h"
#include "vitrine/tap.h"
#include "vitrine/tensor_use.h"

namespace vitrine {

class Checkpoint;

namespace engine {
struct EngineAccess;
struct EngineThreads;
}  // namespace engine

/// Which kernels run a model.
enum class KernelPath : uint8_t {
  kFused,      ///< Vitrine's own kernels, bitwise invariant (CPU and CUDA)
  kReference,  ///< plain ATen (libvitrine_torch.so), any device, exempt from invariance
};

/// How a model is loaded.
struct EngineOptions {
  Device device = {};  ///< where it runs
  /// The kernels to run with; load() throws kUnsupported where these cannot run. Not set: the fused
  /// ones on the CPU and CUDA, the reference path elsewhere; Engine::options tells which.
  std::optional<KernelPath> kernels = {};
  int threads = 0;  ///< 0: the number of cores this process may use
  /// Threads that another engine has already (Engine::threads()), to use in place of new ones. This
  /// serves models that run by turns, as a draft model and its target do, whose threads would else
  /// be awake beside each other. The two are then used by one thread at a time, as one engine is.
  /// It works on the CPU's fused kernels; a federation's engines share theirs without being asked.
  /// Null: the engine has threads of its own.
  std::shared_ptr<engine::EngineThreads> shared_threads = nullptr;
  int max_context = 0;        ///< positions a sequence may have; 0: the model's own limit
  int max_sequences = 1;      ///< that may live at once, but for those that gave up (preempt)
  int max_step_tokens = 512;  ///< new tokens in one step, all sequences together
  int max_logit_rows = 0;     ///< rows of logits in one step; 0: max_sequences
  /// How many states of sequences are kept at once, for a model that has states (DeltaNet, short
  /// convolutions). Live sequences have one each; the others are earlier states, of prefixes and of
  /// where turns ended, which are computed again where they had to go. At least max_sequences; 0:
  /// twice as many and two more. States count among kv_bytes.
  int max_states = 0;
  /// Positions in one block of keys and values; 0: as their codec has it (64). Deprecated: another
  /// multiple of 16 up to 256 changes no result, and a codec may refuse it.
  int kv_block_size = 0;
  /// Bytes of the pool of keys and values, of which whole blocks are used. A sequence holds the
  /// blocks that its tokens need, and one that finds none free has to wait (Engine::fits) or fails
  /// (kOutOfMemory). At least a block; max_context becomes what the pool holds where that is less.
  /// 0: so many that each of max_sequences can reach max_context. In a federation of checkpoints it
  /// is for all engines together. Engine::options tells the number in use.
  uint64_t kv_bytes = 0;
  /// The part of kv_bytes that drafters have for keys and values of their own (a draft model, MTP
  /// layers, heads); the pool has the rest. Unset: none where kv_bytes is given, and as much as
  /// they need beside it where it is not. With kv_bytes 0 it is added to what the model needs.
  /// Engine::options has what it is.
  std::optional<uint64_t> draft_kv_bytes = {};
  /// How keys and values are kept, by name (kv_codec_names()): "f32"; "f16" or "bf16", to which
  /// they are rounded as they are written (nearest, ties to even); "i16" (not CUDA's fused
  /// kernels), integers of 12 bits and a sign with a scale for each position and head, which
  /// attention multiplies as they are (docs/numerics.md): half the memory, another result, and as
  /// invariant; or a host's own (kv_codec.h). The reference path rounds to i16 and keeps float32.
  /// One name for all layers, or one for each (not on CUDA). Empty: i16 on the CPU for a model with
  /// quantized weights (for a federation where every specialist has), f32 elsewhere;
  /// Engine::options tells which.
  std::vector<std::string> kv_codecs = {};
  /// What quantized weights are multiplied with. kI8: rows that are quantized by group
  /// (docs/numerics.md), which every path has, with the CPU's bits. kBF16 (CUDA's fused kernels
  /// alone): rows that are rounded to bf16; tensor cores then multiply bf16 weights, too, and
  /// compute attention where kv_codecs names floats of 16 bits and the heads allow it. That gives
  /// another result, as invariant where keys and values are finite. kF8E4M3 (the same kernels, a
  /// GPU of compute capability 8.9 or above): as kBF16, but rows that meet E4M3 weights are rounded
  /// to E4M3, with a scale for each 128 columns.
  DType activation_dtype = DType::kI8;
  /// Bytes of a cache of routed experts, for the fused path. Above 0, an expert is read from the
  /// file when a step needs it, and the ones used last stay in the cache; it must hold what one
  /// layer of a step may need. The result is the same to the bit. 0: all experts are loaded.
  uint64_t expert_cache_bytes = 0;
  /// Tells the system, with such a cache, to read the experts that the next layer's router chooses
  /// of this layer's input, while this layer is computed. It changes no result. Half of what is
  /// read so is not used: it can only help where a disk has nothing else to do, and was slower
  /// wherever it was measured (docs/lab/loading.md).
  bool expert_prefetch = false;
  /// Matrices are read where they stand, in the mapped file, and nothing is packed: loading is
  /// instant, memory is the system's page cache, and a step is slower (docs/performance.md). It is
  /// for the fused path, and the result is the same to the bit. The files must not be truncated
  /// meanwhile: a step checks their sizes before and after (kIo), but a read in between ends the
  /// process, unless the host has a MappedFileGuard (checkpoint.h).
  bool mmap_weights = false;
  AuditMode audit_mode = AuditMode::kDeferred;     ///< how records are made
  AuditLevel audit_level = AuditLevel::kStandard;  ///< how much is recorded
  /// Each generated token's logit is recorded as a sum of terms (docs/attribution.md).
  bool attribution = false;
  /// The norm of what each routed expert gave to a token, before its weight, is recorded: two bytes
  /// a slot in a log of level standard, four at full. Pruning goes by it (REAP, arXiv 2510.13999).
  /// It works on the CPU's fused kernels.
  bool expert_norms = false;
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
  /// A tensor that nothing in the config asks for is a warning, not an error (TensorUse): the model
  /// runs without it, which may be another model than its publisher's.
  bool lenient_weights = false;
  /// True makes a sampler's choice on `device`, so that ids come back and no logits
  /// (SamplerPipeline::has_device_form; not in naive mode): by tensor operations on the reference
  /// path, by a kernel of the step's graph on CUDA's fused path. False leaves out the memory that
  /// this path gives to it when loaded (70 KB for each of max_sequences + 64 rows, at 152,000 ids).
  /// Unset: everywhere but on the CPU, whose fused path has its logits on the host.
  std::optional<bool> sample_on_device = {};
  bool keep_logits = false;  ///< StepOutput::scores is filled whatever the sampler
  /// StepOutput::hidden_state is filled.
  bool keep_hidden_state = false;
  /// The output head does not run (on CUDA and the reference path it does, for nothing), and no
  /// memory is set aside for logits: rows of a step have a hidden state, and neither logits nor a
  /// token (-1). This serves embeddings (embed.h). Nothing is chosen, so inputs bring no sampler,
  /// mask or draft, and nothing is recorded. It does not go with keep_logits or attribution.
  bool hidden_states_only = false;
  /// Folders of low-rank adapters in PEFT's layout, applied beside the weights
  /// (docs/federation.md). A sequence uses one of them or none; those of all sequences share a
  /// step.
  std::vector<std::string> adapters = {};
  /// Low-rank adapters for every sequence that names none of `adapters`: their parts are added up,
  /// each times its scale. An entry is a PEFT folder, or its adapter_model.safetensors, and the
  /// scale. A federation and MTP layers take none.
  std::vector<std::pair<std::string, float>> lora = {};
  /// Layers, ascending, for which features() gives, after each step, the residual stream that
  /// entered them; the number of layers stands for what leaves the last one. Drafters read it. It
  /// works on the CPU and on the reference path.
  std::vector<int> feature_layers = {};
  /// Places at which a host reads along or adds up (tap.h), on the CPU and on the reference path.
  std::vector<Tap> taps = {};
  /// A flag of the host's (not owned; null: none), which any thread may raise at any time and must
  /// outlive the engine. While it is raised load() and every step throw kCancelled, as
  /// StepInput::cancelled has it. This one is for a process that ends, that one for a request.
  const std::atomic<bool>* cancelled = nullptr;
};

/// Part of a model's depth.
struct LayerRange {
  int first = 0;  ///< layer
  int end = -1;   ///< behind the last one; -1: all from `first` on
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
  std::string path;                 ///< as it was given
  std::string architecture;         ///< "qwen3_moe"
  std::string device;               ///< "cpu", "cuda:0"
  std::string kernels;              ///< "fused", "reference"
  std::string isa;                  ///< the instruction set: "avx512"
  int num_layers = 0;               ///< decoder blocks
  int hidden_size = 0;              ///< of the residual stream
  int vocab_size = 0;               ///< ids that the embedding has
  int max_position_embeddings = 0;  ///< that the model was made for
  int num_attention_heads = 0;      ///< of queries
  int num_key_value_heads = 0;      ///< of keys and values
  int head_dim = 0;                 ///< elements of one head
  int latent_size = 0;              ///< elements of the one key of all heads (MLA); 0: no latent
  int num_experts = 0;              ///< of a sparse layer; 0: a dense model
  int num_experts_per_token = 0;    ///< that a token goes through in a sparse layer
  int moe_intermediate_size = 0;    ///< width of an expert; 0: a dense model
  int shared_expert_intermediate_size = 0;  ///< width of a shared expert; 0: there is none
  std::vector<int32_t> eos_token_ids;       ///< as the checkpoint names them
  int64_t num_parameters = 0;               ///< of all tensors
  uint64_t weight_bytes = 0;                ///< packed weights in memory
  uint64_t mapped_bytes = 0;                ///< weights that stay in the mapped file
  uint64_t kv_bytes = 0;                    ///< KV pool
  std::string kv_codec;                     ///< EngineOptions::kv_codecs, whoever chose it: "i16"
  uint64_t arena_bytes = 0;                 ///< intermediates of the plan
  uint64_t table_bytes = 0;      ///< what stands for each position: angles, block tables and
                                 ///< tokens, as large as they get
  uint64_t bytes_per_token = 0;  ///< weight bytes read for one decoded token
  bool invariant = false;        ///< "one token, one result" holds
  int threads = 1;               ///< that steps use
};

/// What Engine::load makes of a model.
struct ModelPlan {
  ModelSummary summary;         ///< as Engine::summary has it
  std::vector<PlanEntry> plan;  ///< as Engine::plan has it
  EngineOptions options;        ///< with what stands for defaults
  TensorUse tensors;            ///< what the model does with those of its files
};

/// What a cache of experts holds and did since the model was loaded.
struct ExpertCacheStats {
  int64_t slots = 0;             ///< experts that it holds at once; 0: there is no cache
  int64_t experts = 0;           ///< of all layers
  uint64_t slot_bytes = 0;       ///< packed
  uint64_t hits = 0;             ///< experts that were there
  uint64_t misses = 0;           ///< experts that had to be read
  uint64_t bytes_read = 0;       ///< from the file, also of those read ahead
  uint64_t guesses = 0;          ///< experts that the next layer was expected to need
  uint64_t right_guesses = 0;    ///< of these, those that it needed
  uint64_t read_ahead = 0;       ///< of the guesses, those that the system was told of
  uint64_t read_ahead_used = 0;  ///< of these, those that were needed and read
};

/// A loaded model and its sequences. It is used by one thread at a time: a call while another
/// thread's runs throws kInvalidArgument, but release(), release_prefix() and what only reads
/// (length(), tokens(), prefix(), kv_blocks(), fits()) wait for it.
///
///     auto engine = Engine::load("models/fractalmoe-30m-int4", {});
///     SequenceId sequence = engine->create_sequence();
///     auto outputs = engine->step({{StepInput{sequence, prompt_ids}}});
class VITRINE_API Engine final : public Stepper {
 public:
  /// Loads a Hugging Face folder or a GGUF file.
  static std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options);
  /// Throws what load() throws for a model that cannot run (architecture, a missing tensor, a shape
  /// that contradicts the config, one without a use) without reading its weights. Thread-safe.
  static void check(const std::string& path, bool lenient_weights = false);
  /// Returns what load() would make of a model, and throws what load() would throw. On the CPU's
  /// fused path, without an expert cache, it takes the time of reading the header: it reads nothing
  /// else but adapters and, with mmap_weights, what is kept beside the map (zero points, scales of
  /// FP8), so a wrong number elsewhere is not found. On other paths it loads the weights. CUDA's
  /// fused path allocates nothing that grows with the context, though, and max_context may be above
  /// the model's own limit there, where load() refuses it. Thread-safe.
  static ModelPlan describe(const std::string& path, const EngineOptions& options);
  ~Engine() override;

  const ModelSummary& summary() const override;
  /// Returns what runs, op by op.
  const std::vector<PlanEntry>& plan() const;
  const EngineOptions& options() const override;
  /// Returns the counts so far; all 0 without a cache.
  ExpertCacheStats expert_cache() const;
  /// Returns its threads, for EngineOptions::shared_threads.
  std::shared_ptr<engine::EngineThreads> threads() const;

  using Stepper::create_sequence;
  SequenceId create_sequence(int adapter) override;
  SequenceId fork(SequenceId sequence) override;
  void truncate(SequenceId sequence, int64_t length) override;
  void release(SequenceId sequence) override;
  int64_t length(SequenceId sequence) const override;
  std::span<const int32_t> tokens(SequenceId sequence) const override;

  void keep(SequenceId sequence, int64_t count) override;
  using Stepper::attach;
  PrefixId retain(SequenceId sequence, int64_t length) override;
  SequenceId attach(PrefixId prefix, int64_t length) override;
  KvPrefix prefix(PrefixId prefix) const override;
  int64_t resumed_length(PrefixId prefix, int64_t length) const override;
  void release_prefix(PrefixId prefix) override;
  void preempt(SequenceId sequence) override;
  std::pair<int64_t, int64_t> kv_blocks() const override;
  StepFit fits(std::span<const StepInput> inputs) const override;
  StepperTraits traits() const override;
  ThreadLender* thread_lender() override;
  Engine* engine() override { return this; }

  std::span<const StepOutput> step(std::span<const StepInput> inputs) override;
  std::span<const StepFailure> failures() const override;
  std::span<const float> features(SequenceId sequence) const override;

  /// Runs a step of some layers: for early exit, for checks in the middle of the depth, for
  /// calibration layer by layer. A step from layer 0 brings new tokens, as step() does. A step from
  /// another layer goes on with the next tokens that the layer below has seen and this one has not;
  /// `residual` [tokens, hidden_size] is then what left the layer below (residual_rows() of that
  /// step). Layers that run a token later give it the bits that step() gives. Where the step does
  /// not reach the model's last layer, the head makes the rows that are asked for of what leaves
  /// the step's last layer. step() takes a sequence again when all layers have seen its tokens, or
  /// when it is truncated to those that all have seen. Throws what step() throws; kInvalidArgument
  /// for layers that have not all seen the same tokens, for other tokens than the next ones, drafts
  /// and forced routes; kUnsupported on CUDA's fused kernels and while a recorder listens.
  std::span<const StepOutput> step_layers(std::span<const StepInput> inputs, LayerRange layers,
                                          std::span<const float> residual = {});
  /// Returns [tokens, hidden_size], what left the last step's last layer where that was not the
  /// model's last; else empty. Valid until the next step.
  std::span<const float> residual_rows() const;

  /// Replaces a matrix between two steps by that of another checkpoint, which has it in the same
  /// shape and format. So a calibration goes on, layer by layer, with what it has quantized.
  /// `module` is the matrix's name in the model's files, without ".weight"
  /// ("model.layers.3.mlp.up_proj"). What sequences and prefixes hold already stays as it was
  /// computed. Throws kInvalidArgument for a module that no op multiplies with, for another format,
  /// and for integers that ask for another scale of activations (W8A8), what reading throws (kIo,
  /// kBadFile), kUnsupported but on the CPU's fused kernels, and for a cached matrix, or one in
  /// blocks or integers that stands in a mapped file; then nothing has changed. Floats that stand
  /// in for those of a mapped file take memory of their own.
  void replace_matrix(const std::string& module, const Checkpoint& from);
  /// Replaces a matrix in F32, F16 or BF16 by floats [rows, columns], which are rounded to its type
  /// (nearest, ties to even). Throws as the function above.
  void replace_matrix(const std::string& module, std::span<const float> values);
  /// Gives a matrix the numbers of the engine's own checkpoint again. Where it stands in a mapped
  /// file, what replaced it goes, and the file's pages leave this process until a step reads them.
  /// Throws as replace_matrix.
  void restore_matrix(const std::string& module);
  /// Gives back what a layer's keys and values take, of a model that is run layer by layer
  /// (step_layers()): no sequence has been seen by this layer then, so that step() refuses those
  /// that have tokens until they are truncated to none. Does nothing where other layers read these
  /// keys and values, where the layer keeps none, and on the reference path. Throws
  /// kInvalidArgument for a layer that there is not and while prefixes are held, where nothing has
  /// changed; kUnsupported where step_layers() is.
  void forget_layer(int layer);

  /// Says who is shown the rows of EngineOptions::taps (not owned; null: nobody).
  void set_tap_reader(TapReader* reader);
  /// Returns what a tap has added up since the engine was loaded or the sums were cleared; where
  /// the tap keeps sums by expert, those of `expert`. Throws kInvalidArgument for a tap or an
  /// expert that there is not.
  TapSums tap_sums(size_t tap, int expert = 0) const;
  /// Sets all sums to zero.
  void clear_tap_sums();

  void set_audit_sink(AuditSink* sink) override;
  AuditSink* audit_sink() const override;
  const AuditLayout& audit_layout() const override;
  void set_audit_mode(AuditMode mode) override;

  /// Returns the device-to-host readbacks so far: exactly one a pass unless naive, and two in a
  /// pass on CUDA in whose middle the host chooses (attribution of a token that the device cannot
  /// choose).
  uint64_t readback_count() const;

  /// Returns at how many bytes a second this engine's threads read all of its packed matrices when
  /// they do nothing else, by the widest loads of its instruction set. The fastest pass counts
  /// among those that begin within `seconds`, at least two. The number bounds decode where the
  /// matrices are larger than the caches (docs/performance.md). On CUDA's fused path it is that of
  /// reading the device's memory, far more of it than the device's caches hold. Returns nothing on
  /// the reference path, or where there is no room for that. May throw kCancelled.
  std::optional<double> measure_read_bandwidth(double seconds);

 private:
  friend struct engine::EngineAccess;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the names that EngineOptions::kv_codecs knows, a host's own among them, ascending.
VITRINE_API std::vector<std::string> kv_codec_names();

/// Returns the instruction set of the kernels that a CPU engine takes on this machine:
/// "avx512_amx", "avx512", "avx2_vnni", "avx2" or "portable"; VITRINE_CPU_ISA chooses another.
/// Throws kInvalidArgument or kUnavailable for one that there is not.
VITRINE_API std::string_view cpu_instruction_set();

/// Returns what this machine's processor has and no kernel uses, in one clause ("AVX-512 without
/// VNNI is not used"); empty where there is nothing to say. Throws nothing.
VITRINE_API std::string cpu_unused_features();

/// What layers of one kind have of EngineOptions::kv_bytes, or drafters.
struct KvMemory {
  int layers = 0;      ///< layers that keep keys and values, or states, of their own; 0: drafters'
  int64_t window = 0;  ///< positions that a token sees there at most; 0: all
  /// Positions for whose keys and values there is room; 0: the layers keep states.
  int64_t positions = 0;
  int64_t states = 0;  ///< states of sequences for which there is room, earlier ones among them
  uint64_t bytes = 0;  ///< of all these layers
};

/// Returns the kinds of layers that a model has, those that see all positions first, then states,
/// and last what drafters have where EngineOptions::draft_kv_bytes gives them any. Their bytes are
/// together what Engine::load makes of kv_bytes (on the reference path a block more). Layers within
/// a window are a kind of their own where they give back the blocks below it, which they do on the
/// CPU's fused kernels where the context is longer than what their sequences need at once. Throws
/// what Engine::describe() throws for a config or options that cannot run.
VITRINE_API std::vector<KvMemory> kv_memory(const Checkpoint& checkpoint,
                                            const EngineOptions& options);

/// Returns the longest max_context, up to the model's own limit, with which what grows with the
/// context (ModelSummary::kv_bytes and table_bytes) takes at most so many bytes on the CPU; the
/// other options are as given. 0: not one position does. Throws as kv_memory() does.
VITRINE_API int64_t longest_context(const Checkpoint& checkpoint, const EngineOptions& options,
                                    uint64_t bytes);

}  // namespace vitrine

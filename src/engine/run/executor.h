// SPDX-License-Identifier: Apache-2.0
// An executor runs a pass: the CPU's fused plan, a device's fused model, or the reference on any
// device. The engine above knows no other difference.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "core/cancel_watch.h"
#include "engine/run/device_joint.h"
#include "model/adapter.h"
#include "model/rope.h"
#include "ops/adapters.h"
#include "ops/graph.h"
#include "ops/readback.h"
#include "ops/taps.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

class BlockAccess;
class WorkerPool;
struct EngineThreads;

/// One sequence's part of a pass.
struct BatchSpan {
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int64_t past = 0;
  const int32_t* block_table = nullptr;
  int32_t next_block = -1;  // behind those of the table, where the span needs one more
  int32_t state = -1;       // slot of the sequence's state, where the model keeps one
  int32_t journal = -1;     // the first row of what its state takes in, where drafts may go again
};

/// Says when the tokens of a pass's rows are chosen that no one knows yet.
enum class ChoicePoint : uint8_t {
  kBehindPass,  // by the head and by the device in the pass, by the host when it is over
  kBehindHead,  // by the host, behind the head; the pass waits for that. Fused path only
};

/// What the host does while a device runs a pass.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  virtual void run_meanwhile() noexcept = 0;
};

/// A pass as the host prepared it. Vectors are preallocated for the largest step.
struct StepBatch {
  std::vector<int32_t> token_ids;            // [tokens]
  std::vector<int32_t> positions;            // [tokens]
  std::vector<const int32_t*> block_tables;  // [tokens]
  std::vector<int32_t> row_tokens;           // [rows]
  std::vector<int32_t> row_targets;          // [rows]
  std::vector<BatchSpan> spans;
  // [tokens]: their forced routes, by layer; empty where no token has any
  std::vector<std::span<const ForcedRoute>> forced_routes;
  std::vector<int32_t> span_adapters;       // [spans] -1: none
  std::vector<ops::KvCopy> kv_copies;       // ascending tokens; of trees of drafts
  AuditMode audit_mode = AuditMode::kNone;  // kNone where nobody listens
  ChoicePoint choice_point = ChoicePoint::kBehindPass;
  Meanwhile* meanwhile = nullptr;  // called once where a device runs the pass, while it does
  // Looked at all along the pass, which may throw kCancelled; what it has written by then is
  // nobody's. A device's is looked at before it is started. Null: nobody ends it.
  core::CancelWatch* watch = nullptr;
  // [rows] or empty: what the host chose behind the head, and the runner-up; -1: the head's stands
  std::vector<int32_t> chosen, runners_up;
  // [rows]: how the device chooses; null: the head's choice stands. Empty: it does in all. Only
  // what keep_choosable() left
  std::vector<const DeviceSamplerSteps*> row_steps;
  bool read_logits = false;         // the one readback carries the logits rows too
  bool read_hidden_states = false;  // and what the head read
  bool runs_head = true;            // false: an executor may leave the head out
  // What will most likely be asked for next, or null. An id of -1 - i in it is choice i of this
  // batch: of its rows, or of a joint's. An executor may start it before this batch's results are
  // on the host; it must see for itself that what is asked for then is the same.
  const StepBatch* next = nullptr;
  // Which layers run: from the residual rows that are given where the first is not 0. A pass that
  // does not reach the last one runs the head for the rows that it has, if any.
  int first_layer = 0;
  int end_layer = -1;               // -1: behind the last one
  const float* residual = nullptr;  // [tokens, hidden]
  bool reads_residual = false;      // what leaves the last layer of the pass is read
  // What a device makes of the rows, or null; then ids and facts are the joint's
  // (PassOutput::joint), and no row of logits comes back. Only where it was loaded for that.
  const DeviceJointStep* joint = nullptr;

  void clear();
  void reserve(size_t tokens, size_t rows, size_t sequences);
};

/// In place of a token that a device chose: logits that are no numbers, and none left to choose.
inline constexpr int32_t kBrokenLogits = -1, kNothingLeft = -2;
/// What a device says of a choice: candidates left, the probability of the chosen one among them,
/// the probability that the mask took away, 1 where it ruled out the first choice.
inline constexpr size_t kChoiceFacts = 4;

/// Says where a pass's values land.
struct PassOutput {
  std::byte* words = nullptr;  // [rows] chosen ids, then with audit on the row and token records
  // Set by the executor where they were asked for:
  const float* logits = nullptr;         // [rows, vocabulary]
  const float* hidden_states = nullptr;  // [rows, hidden]
  const float* residual = nullptr;       // [tokens, hidden] behind the pass's last layer
  const float* choice_facts = nullptr;   // [rows, kChoiceFacts], where a row has steps
  DeviceRows rows_on_device = {};        // of a device's pass
  DeviceJointResult joint = {};          // of StepBatch::joint; the ids in `words` are none then
};

/// Numbers of a graph's nodes.
struct NodeRange {
  size_t begin = 0, end = 0;
};
/// Returns those of the layers that a pass runs (ops::layer_begins).
inline NodeRange nodes_of(const StepBatch& batch, std::span<const size_t> layer_begins) {
  const size_t last = layer_begins.size() - 1;
  return {layer_begins[static_cast<size_t>(batch.first_layer)],
          layer_begins[batch.end_layer < 0 ? last : static_cast<size_t>(batch.end_layer)]};
}

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs a pass up to its head. The fused path's logits and hidden states are in the output then,
  /// for whoever chooses before the pass goes on. On the reference path nothing happens yet, and on
  /// a device only where the batch's choice point is kBehindHead.
  virtual void run_to_choice(const StepBatch& batch, PassOutput& output) = 0;
  /// Runs the rest of it and its one readback (more in naive mode). The batch is as it was but for
  /// `chosen` and `runners_up`.
  virtual void run_from_choice(const StepBatch& batch, PassOutput& output) = 0;
  /// Sets those of StepBatch::row_steps to null by which a pass cannot choose itself. Returns
  /// whether it can by all.
  virtual bool keep_choosable(std::span<const DeviceSamplerSteps*> /*row_steps*/) const {
    return true;
  }
  /// Returns whether it runs a part of the layers.
  virtual bool runs_layers() const { return false; }
  /// Returns whether it writes StepBatch::kv_copies, so that drafts may be a tree.
  virtual bool runs_trees() const { return false; }
  /// Returns whether it looks at StepBatch::next.
  virtual bool runs_ahead() const { return false; }
  /// Throws kUnsupported for a mode in which it cannot record.
  virtual void check_audit_mode(AuditMode /*mode*/) const {}
  /// Reads a matrix of the model anew (Engine::replace_matrix).
  virtual void replace_matrix(const std::string& module, const Checkpoint& /*from*/) {
    refuse_replacement(module);
  }
  virtual void replace_matrix(const std::string& module, std::span<const float> /*values*/) {
    refuse_replacement(module);
  }
  /// Puts a matrix's own numbers back (Engine::restore_matrix).
  virtual void restore_matrix(const std::string& module) { refuse_replacement(module); }
  /// Returns whether a layer has keys and values that it alone reads, and that can be forgotten.
  virtual bool keeps_own(int /*layer*/) const { return false; }
  /// Gives back the memory of the keys and values of such a layer.
  virtual void forget_layer(int /*layer*/) {}
  /// Copies one KV block in every layer that sees all positions, or within a window.
  virtual void copy_block(int32_t from, int32_t to) = 0;
  virtual void copy_window_block(int32_t /*from*/, int32_t /*to*/) {}
  /// Copies one slot's state in every layer; from -1: makes it the empty one.
  virtual void copy_state(int32_t /*from*/, int32_t /*to*/) {}
  /// Returns how many rows a pass keeps of what its tokens bring to the state, so that it can be
  /// made again without them; 0 where no pass keeps any.
  virtual int64_t journal_rows() const { return 0; }
  /// Takes so many rows of the last pass's journal into a state that has not taken them in, with
  /// the bits that the pass would have left there.
  virtual void replay_state(int32_t /*slot*/, int64_t /*first_row*/, int64_t /*count*/) {}
  /// Returns its blocks and states as bytes; null where the host cannot reach them.
  virtual BlockAccess* block_access() { return nullptr; }
  virtual const std::vector<PlanEntry>& plan() const = 0;
  /// Fills in what the executor knows: isa, threads, bytes, parameters, invariance.
  virtual void describe(ModelSummary& summary) const = 0;
  virtual const ops::Readback& readback() const = 0;
  /// Returns the threads that run its passes, for work between two of them; null where it has none.
  virtual WorkerPool* workers() { return nullptr; }
  virtual ExpertCacheStats expert_cache() const { return {}; }
  /// Returns the bytes a second at which its threads read its weights, none where it cannot tell.
  virtual std::optional<double> measure_read_bandwidth(double /*seconds*/) { return std::nullopt; }

 private:
  // All of the class stands here: backends in libraries of their own derive from it.
  [[noreturn]] static void refuse_replacement(const std::string& module) {
    throw Error(ErrorKind::kUnsupported,
                "matrix '" + module +
                    "' cannot be replaced here; expected an engine on the CPU's fused kernels");
  }
};

/// Everything that both executors are made from.
struct ExecutorInputs {
  const Checkpoint& checkpoint;
  const ModelConfig& config;
  const ops::Graph& graph;
  const AuditLayout& layout;
  const EngineOptions& options;  // sizes resolved: no zeros
  int64_t num_blocks = 0;
  const model::LoraAdapters* adapters = nullptr;  // null where there are none
  bool weights_read = true;  // false: their names, types and shapes are checked, a plan is made
  // False: nobody will run it, and what grows with the context is counted, not made. A device's
  // makes it all the same.
  bool makes_context = true;
  const DeviceJointSpec* joint = nullptr;  // what a device shall make of a step's rows
  ops::TapBook* taps = nullptr;            // of the graph's taps; outlives the executor
  int64_t num_states = 0;                  // slots for states of sequences
  int64_t num_window_blocks = 0;           // of layers within a window
  std::vector<bool> is_windowed = {};      // [layers]; empty: all layers have `num_blocks`
  int64_t table_stride = 0;                // to the second table of a sequence, that of these
  // The threads of the CPU's fused kernels, which outlive the executor. Null: it makes its own.
  EngineThreads* threads = nullptr;
};

std::unique_ptr<Executor> make_fused_executor(const ExecutorInputs& inputs);
std::unique_ptr<Executor> make_reference_executor(const ExecutorInputs& inputs);

/// Fills in cos and sin of every position, [max_context, rotary_width / 2] each, in the arithmetic
/// of transformers: float32 frequencies (rounded to bfloat16 where the options say so) and angles.
/// `kind` says of which layers. They are left empty where the model has no such layers.
void fill_rope_tables(const ModelConfig& config, const EngineOptions& options,
                      std::vector<float>& cos, std::vector<float>& sin,
                      model::RopeKind kind = model::RopeKind::kOwn);
/// Returns the bytes of these tables, of all kinds.
uint64_t rope_table_bytes(const ModelConfig& config, const EngineOptions& options);

}  // namespace vitrine::engine

// SPDX-License-Identifier: Apache-2.0
// The fused path: ops that were planned once and run without allocating, over raw pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "ops/adapters.h"
#include "ops/graph.h"
#include "ops/products.h"
#include "vitrine/audit_sink.h"

namespace vitrine::ops {

/// One sequence's part of a step, and where its state is.
struct StateSpan {
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t slot = -1;
  int32_t journal = -1;  // row of the journal for its first token; -1: none is kept
};

/// The key and the value of a token stand in another table, too, at the same position: that of a
/// branch of drafts which sees the token.
struct KvCopy {
  int32_t token = 0;
  const int32_t* block_table = nullptr;
};

/// What changes from step to step. All arrays are owned by the engine and preallocated.
struct StepState {
  int32_t tokens = 0;
  int32_t rows = 0;
  const int32_t* token_ids = nullptr;            // [tokens]
  const int32_t* positions = nullptr;            // [tokens]
  const int32_t* const* block_tables = nullptr;  // [tokens]
  const int32_t* row_tokens = nullptr;           // [rows] index of the token whose output it is
  const int32_t* row_targets = nullptr;          // [rows] id whose logit is recorded; -1: the best
  std::span<const KvCopy> kv_copies = {};        // ascending tokens
  bool one_token_each = false;                   // no token of this step attends to another new one
  bool audit = false;                            // records are written
  std::byte* token_records = nullptr;            // [tokens] of layout token_words
  std::byte* row_records = nullptr;              // [rows] of layout row_words
  int32_t* chosen_ids = nullptr;                 // [rows]
  const int32_t* runners_up = nullptr;           // [rows] -1: the head's; null: in all
  // [tokens]: each token's forced routes, by layer; null where no token of the step has any
  const std::span<const ForcedRoute>* forced_routes = nullptr;
  const AdapterRows* adapters = nullptr;  // [num_adapters] that tokens of the step use
  int32_t num_adapters = 0;
  const StateSpan* state_spans = nullptr;  // [num_state_spans] ascending; of a graph with a state
  int32_t num_state_spans = 0;
};

/// int8 rows of a value for one group size, made by the value's producer.
struct QuantizedRows {
  int32_t group_size = 0;
  int64_t cols = 0;
  int8_t* values = nullptr;           // [rows, stride()]
  float* scales = nullptr;            // [rows, groups()]
  kernels::GroupSum* sums = nullptr;  // [rows, groups()]
  int64_t groups() const { return kernels::group_count(cols, group_size); }
  int64_t stride() const { return kernels::padded_cols(cols); }
};

/// Where a value lives, and the quantized forms that its consumers asked for while planning.
struct RowBuffer {
  float* data = nullptr;  // [capacity, width]
  int64_t width = 0;
  int64_t capacity = 0;
  std::vector<std::unique_ptr<QuantizedRows>> quantized;

  float* row(int64_t index) const { return data + index * width; }
  /// Quantizes columns [begin, end) of a row into every form (begin and end on group borders).
  void quantize(const kernels::CpuKernels& kernel, int64_t index, int64_t begin, int64_t end) const;
  void quantize(const kernels::CpuKernels& kernel, int64_t index) const {
    quantize(kernel, index, 0, width);
  }
  /// The largest group size asked for; 0 where none was.
  int32_t largest_group() const;
};

/// Where the routed experts of a layer are written.
struct RouteBuffer {
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int32_t* ids = nullptr;           // [capacity, top_k]
  float* weights = nullptr;         // [capacity, top_k]
  float* probs = nullptr;           // [capacity, num_experts]
  float* shared_weights = nullptr;  // [capacity], where there is a shared expert
  // Where experts are read when they are needed: each one's number in the cache, and what this
  // layer's router chooses of a row of an earlier layer's experts' input, [top_k].
  std::vector<int32_t> cached;
  std::function<const int32_t*(const RowBuffer& input, int32_t row)> predict;
};

/// Work of an op that any threads do piece by piece, in any order. Which thread takes a piece
/// changes no result.
struct Phase {
  std::string_view name;  // "down": what it makes
  /// How many pieces there are in this step; 0: the phase is skipped, barrier and all.
  std::function<int64_t(const StepState&)> pieces;
  std::function<void(const StepState&, int64_t piece)> run;
  /// By one thread, before the pieces are counted; may be null, may throw vitrine::Error.
  std::function<void(const StepState&)> prepare = nullptr;
};

/// A phase that two functions of an op make, which stays at its address.
template <typename Op>
Phase make_phase(const Op* op, std::string_view name, int64_t (Op::*pieces)(const StepState&) const,
                 void (Op::*run)(const StepState&, int64_t piece) const) {
  return {name, [op, pieces](const StepState& step) { return (op->*pieces)(step); },
          [op, run](const StepState& step, int64_t piece) { (op->*run)(step, piece); }};
}

/// One op of a plan. A step goes through its phases in order, with a barrier between them.
class PlannedOp {
 public:
  PlannedOp() = default;
  PlannedOp(const PlannedOp&) = delete;  // its phases hold its address
  PlannedOp& operator=(const PlannedOp&) = delete;
  virtual ~PlannedOp() = default;
  /// Stays as the op was made.
  std::span<const Phase> phases() const { return phases_; }
  /// Once, before the first step: the matrices hold what they hold (they are read when the plan
  /// stands, PackedWeights::matrix), so that what is derived from them can be made.
  virtual void use_loaded_weights() {}
  /// Called for an op behind the head when the head is done: what it will read may be fetched,
  /// since the host may take a while to choose tokens.
  virtual void fetch_ahead(const StepState&) {}
  /// Takes `num_tokens` rows of the op's journal into the slot, where the op keeps a state.
  virtual void replay(const StateSpan&) const {}
  /// When the weights are loaded, those of an op whose work for one token one thread does: for that
  /// one to fetch, or their beginning, while it waits for the others.
  virtual std::span<const std::byte> leader_weights() const { return {}; }
  /// The kernel that runs the op, as the plan prints it, and the weight bytes that one decoded
  /// token reads.
  virtual std::string kernel_name() const = 0;
  virtual uint64_t weight_bytes() const { return 0; }

 protected:
  /// While it is made.
  void add_phase(Phase phase) { phases_.push_back(std::move(phase)); }
  template <typename Op>
  void add_phase(std::string_view name, int64_t (Op::*pieces)(const StepState&) const,
                 void (Op::*run)(const StepState&, int64_t piece) const) {
    add_phase(make_phase(static_cast<const Op*>(this), name, pieces, run));
  }

 private:
  std::vector<Phase> phases_;
};

/// How an input becomes int8 for a matrix. Forms of a matrix's own are made by the op that
/// multiplies it (ops/formed_input.h), others by the input's producer.
struct InputForm {
  static constexpr float kByGroup = -1.0f;
  const int32_t* order = nullptr;  // column i is multiplied with element order[i]; null: with i
  /// The scale of all groups of a row; 0: that of the row's largest; kByGroup: each has its own.
  float row_scale = kByGroup;
  bool is_own() const { return order != nullptr || row_scale != kByGroup; }
};

/// A matrix, and what it is multiplied with. An order and a scale of the row never meet.
struct FormedMatrix {
  const kernels::Weight* weight = nullptr;
  InputForm form = {};
};

/// The modules of one routed expert: gate and up [intermediate, hidden], down [hidden,
/// intermediate].
struct ExpertModules {
  std::string gate, up, down;
  int64_t hidden = 0, intermediate = 0;
};
struct ExpertMatrices {
  kernels::Weight gate, up, down;
  InputForm form = {};       // of what gate and up multiply
  InputForm down_form = {};  // of what down does
};

/// Routed experts that a step reads when it needs them. The leader of a step calls select and
/// prefetch, any threads ask and wait, then the leader finish.
class ExpertCache {
 public:
  virtual ~ExpertCache() = default;
  /// While planning: an expert's number. Throws vitrine::Error as PackedWeights does.
  virtual int32_t add(const ExpertModules& modules) = 0;
  /// Valid, at its address, as long as the plan; its pointers are good once the expert was selected
  /// and waited for, until the next select.
  virtual const ExpertMatrices& matrices(int32_t expert) const = 0;
  /// Makes room for those of a layer that are not here; returns how many.
  virtual int32_t select(const int32_t* experts, int32_t count) = 0;
  /// How many there are to ask for: those that select found missing, where they are several, then
  /// what prefetch named that is not here.
  virtual int32_t num_asked() const = 0;
  /// Has the system begin to read number `index` of them. Making room for what is read is work for
  /// a thread, so all threads take part, each with other numbers.
  virtual void ask(int32_t index) const noexcept = 0;
  /// Whether a selected one needs no wait.
  virtual bool is_here(int32_t expert) const = 0;
  /// Reads a selected one that nobody has begun to, or waits for who did.
  virtual void wait(int32_t expert) noexcept = 0;
  /// Throws what reading a selected one failed with.
  virtual void finish() = 0;
  /// Whether prefetch has an effect.
  virtual bool reads_ahead() const = 0;
  /// Names experts that the next layer with such may need: those that are not here are asked for.
  virtual void prefetch(const int32_t* experts, int32_t count) = 0;
};

/// The two halves of a LatentModule as absorbed attention multiplies with them.
struct LatentWeights {
  kernels::Weight keys;    // [heads * latent, key_rows]: each head's, transposed
  kernels::Weight values;  // [heads * value_rows, latent]
};

/// Packed weights by module name. Throws vitrine::Error for a missing tensor or another shape.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  /// The handle stays valid and at its address as long as the plan lives.
  virtual const kernels::Weight& matrix(const std::string& module, int64_t rows, int64_t cols) = 0;
  /// Rows [begin, end) of such a matrix alone: a matrix of its own, whose products are those rows
  /// of the whole one's, with the same bits. Both ends are multiples of kernels::kTileRows, the
  /// last one unless it is `rows`; of an output head `begin` is one of kernels::kHeadBlock, where
  /// the statistics of parts are to be merged (CpuKernels::head_merge).
  virtual const kernels::Weight& matrix_rows(const std::string& module, int64_t rows, int64_t cols,
                                             int64_t begin, int64_t end) = 0;
  /// Such a matrix in as few bits as its columns' own order allows, and its input's form. Row i is
  /// row `row_order`[i] of it, where that is not null; it stays as it is as long as the plan.
  virtual FormedMatrix formed_matrix(const std::string& module, int64_t rows, int64_t cols,
                                     const int32_t* row_order = nullptr);
  /// Whether formed_matrix puts the rows of this one in another order.
  virtual bool orders_rows(const std::string&) { return false; }
  virtual const float* vector(const std::string& tensor, int64_t length) = 0;
  /// The matrix's numbers exactly: halves that a file has apart in blocks as they are; else in BF16
  /// or F16 where it has those, or in F32. Stays at its address as long as the plan lives.
  virtual const LatentWeights& latent(const LatentModule& module) = 0;
  /// False where only their presence and shapes are checked, and `vector` points at nothing.
  virtual bool holds_numbers() const = 0;
  /// Null where routed experts are matrices as all others are.
  virtual ExpertCache* experts() { return nullptr; }
};

/// Gives memory for intermediates while the plan is made.
class PlanMemory {
 public:
  virtual ~PlanMemory() = default;
  /// Zeroed, 64-byte aligned, valid as long as the plan.
  virtual void* allocate(size_t bytes) = 0;
};

/// A layer's query, key and value by key-value head: a thread that has made those of one goes on
/// with its attention, and waits for nobody.
class HeadProjections {
 public:
  virtual ~HeadProjections() = default;
  /// While planning: run_head is called for every head where go_by_head. Their own op has no work
  /// then.
  virtual void hand_over() = 0;
  virtual bool go_by_head(const StepState& step) const = 0;
  virtual void run_head(int64_t kv_head) const = 0;
};

class TapBook;

/// Where a layer keeps keys and values, and what writes and reads them.
struct KvLayer {
  kernels::KvView view;
  kernels::KvKernels kernels;
  std::string codec;         // "i16"
  int64_t table_offset = 0;  // from where a step's block tables begin
  int64_t open_offset = 0;   // the same of blocks' open forms, where the codec gives tiles
  bool closes_blocks = false;

  /// Whether the key and value at `position` are the last of a block that becomes closed.
  bool ends_block(int32_t position) const {
    return closes_blocks && (position + 1) % view.block_size == 0;
  }
};

/// Where a layer keeps the states of sequences.
struct StateLayer {
  float* data = nullptr;  // of the first slot
  int64_t stride = 0;     // floats from slot to slot

  float* of(int32_t slot) const { return data + slot * stride; }
};

/// How much a step may hold, and who runs it.
struct PlanShape {
  int threads = 1;
  int64_t max_tokens = 0;
  int64_t max_rows = 0;
  int64_t max_context = 0;
  int64_t max_logits = 0;  // of the rows, those that become logits
};

/// Tables of the rotary embedding: [max_context, half].
struct RopeTables {
  int64_t half = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

/// The plan's intermediates: values of the graph, routes of layers, and scratch that the ops of all
/// layers share, since layers run one after the other. Everything stays at its address as long as
/// the plan.
class PlanScratch {
 public:
  /// Allocates the graph's values and the logits.
  PlanScratch(PlanMemory& memory, const Graph& graph, const PlanShape& shape);

  RowBuffer& value(ValueId id) { return values_[static_cast<size_t>(id)]; }
  /// [max_logits, vocab_size]
  float* logits() { return logits_; }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>(memory_.allocate(static_cast<size_t>(count) * sizeof(T)));
  }
  /// Scratch of that name and size, the same one for every layer that asks.
  RowBuffer& shared_rows(const std::string& name, int64_t capacity, int64_t width);
  template <typename T>
  T* shared_array(const std::string& name, int64_t count) {
    void*& memory_of = shared_arrays_[name + "/" + std::to_string(count)];
    if (memory_of == nullptr) memory_of = array<T>(count);
    return static_cast<T*>(memory_of);
  }
  /// Asks the producer of `rows` for its quantized form where `weight` needs one.
  void need(RowBuffer& rows, const kernels::Weight& weight);

  std::vector<std::unique_ptr<RouteBuffer>> routes;       // by layer
  std::map<int, HeadProjections*> head_projections = {};  // by layer

 private:
  PlanMemory& memory_;
  std::vector<RowBuffer> values_;  // by ValueId
  std::map<std::string, std::unique_ptr<RowBuffer>> shared_buffers_;
  std::map<std::string, void*> shared_arrays_;
  float* logits_ = nullptr;
};

/// What an op may ask for while it is planned.
struct PlanContext {
  const Graph& graph;
  const AuditLayout& audit;
  const kernels::CpuKernels& kernel;
  const Products& products;
  PackedWeights& weights;
  const AdapterWeights* adapters;         // null where the engine has none
  const std::vector<KvLayer>& kv;         // by layer
  const std::vector<StateLayer>& states;  // by layer; empty where the graph has none
  TapBook* taps;                          // null where nothing is tapped
  RopeTables rope;
  RopeTables sliding_rope;  // of layers of that kind, where they have their own
  PlanScratch& scratch;
  PlanShape shape;
};

/// The input of a linear op with this weight: rows of `buffer`, quantized where the weight is.
kernels::Activations activations(const RowBuffer& buffer, const kernels::Weight& weight);
bool is_quantized(const kernels::Weight& weight);
/// Bytes of a matrix as packed, scales included, or as its file has it where it is read there.
uint64_t weight_bytes(const kernels::Weight& weight);
/// "linear_int4g32", "linear_bf16", …
std::string weight_kernel_name(const kernels::Weight& weight);
/// Rows in one piece of a linear op: a multiple of `multiple` such that each thread gets several.
int64_t rows_per_piece(int64_t rows, int threads, int64_t multiple);
/// True for weights so few that the barrier between two phases shows: what each thread made in the
/// first should be all that it needs in the second.
inline bool barrier_shows(uint64_t bytes, int threads) {
  constexpr uint64_t kBytes = 512 << 10;  // of a thread: some 17 µs of a step
  return bytes <= kBytes * static_cast<uint64_t>(threads);
}

inline int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

/// The table that VITRINE_CPU_ISA names, else the best one of this machine. Throws kUnavailable for
/// one that the machine lacks, kInvalidArgument for an unknown name.
const kernels::CpuKernels& select_cpu_kernels();

}  // namespace vitrine::ops

// SPDX-License-Identifier: Apache-2.0
// The fused path on the CPU: a plan made once, run without allocating.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "engine/read_bandwidth.h"
#include "engine/run/adapter_groups.h"
#include "engine/run/block_access.h"
#include "engine/run/engine_threads.h"
#include "engine/run/executor.h"
#include "engine/run/kv_layers.h"
#include "engine/run/plan_arena.h"
#include "kernels/cpu/cpu_features.h"
#include "model/weights.h"
#include "ops/draft_input.h"
#include "ops/naive_audit.h"
#include "ops/op.h"

namespace vitrine::engine {

namespace {

class FusedExecutor final : public Executor, private BlockAccess {
 public:
  explicit FusedExecutor(const ExecutorInputs& inputs)
      : kernel_(ops::select_cpu_kernels()),
        graph_(inputs.graph),
        layout_(inputs.layout),
        layer_begins_(ops::layer_begins(graph_)),
        products_(kernel_),
        weights_(kernel_, inputs.checkpoint, inputs.weights_read, inputs.options.expert_cache_bytes,
                 inputs.options.mmap_weights, inputs.options.expert_prefetch),
        is_mapped_(inputs.options.mmap_weights),
        reads_files_(is_mapped_ || inputs.options.expert_cache_bytes > 0),
        cancelled_(inputs.options.cancelled),
        kv_(inputs, kernel_),
        own_threads_(inputs.threads != nullptr
                         ? nullptr
                         : std::make_unique<EngineThreads>(inputs.options.threads)),
        pool_((own_threads_ != nullptr ? *own_threads_ : *inputs.threads).pool) {
    if (inputs.adapters != nullptr) {
      adapter_groups_.reserve(static_cast<size_t>(inputs.adapters->size()),
                              static_cast<size_t>(inputs.options.max_step_tokens));
      adapter_bytes_ = inputs.adapters->num_bytes();
      adapter_parameters_ = inputs.adapters->num_parameters();
    }
    plan_states(inputs);
    rope_bytes_ = rope_table_bytes(inputs.config, inputs.options);
    if (inputs.makes_context) {
      kv_.allocate();
      make_states();
      constexpr auto kSliding = model::RopeKind::kSliding;
      fill_rope_tables(inputs.config, inputs.options, rope_cos_, rope_sin_);
      fill_rope_tables(inputs.config, inputs.options, sliding_cos_, sliding_sin_, kSliding);
    }
    make_plan(inputs);
    products_.allocate(arena_, pool_.threads(), weights_.strip_bytes());
    weights_.load(
        pool_.threads(),
        std::min<int64_t>(inputs.config.num_experts,
                          inputs.options.max_step_tokens * inputs.config.num_experts_per_token),
        inputs.options.cancelled);
    if (inputs.weights_read) {
      for (const auto& op : ops_) op->use_loaded_weights();
      find_next_weights();
    }
    const auto rows = static_cast<size_t>(inputs.options.max_logit_rows);
    const auto tokens = static_cast<size_t>(inputs.options.max_step_tokens);
    audit_arena_ = static_cast<std::byte*>(
        arena_.allocate(layout_.pass_words(rows, tokens) * sizeof(int32_t)));
  }

  void run_to_choice(const StepBatch& batch, PassOutput& output) override {
    if (reads_files_) weights_.check_files();
    const bool audit = batch.audit_mode != AuditMode::kNone;
    const size_t rows = batch.row_tokens.size();
    ops::StepState& step = step_;
    step = {};
    step.tokens = static_cast<int32_t>(batch.token_ids.size());
    step.rows = static_cast<int32_t>(rows);
    step.token_ids = batch.token_ids.data();
    step.positions = batch.positions.data();
    step.block_tables = batch.block_tables.data();
    step.row_tokens = batch.row_tokens.data();
    step.row_targets = batch.row_targets.data();
    state_spans_.clear();
    if (graph_.has_state()) {
      for (const BatchSpan& span : batch.spans) {
        state_spans_.push_back({span.first_token, span.num_tokens, span.state, span.journal});
      }
    }
    step.state_spans = state_spans_.data();
    step.num_state_spans = static_cast<int32_t>(state_spans_.size());
    step.kv_copies = batch.kv_copies;
    step.one_token_each = batch.spans.size() == batch.token_ids.size() && batch.kv_copies.empty();
    step.audit = audit;
    step.forced_routes = batch.forced_routes.empty() ? nullptr : batch.forced_routes.data();
    const std::span<const ops::AdapterRows> adapters = adapter_groups_.gather(batch);
    step.adapters = adapters.data();
    step.num_adapters = static_cast<int32_t>(adapters.size());
    step.chosen_ids = reinterpret_cast<int32_t*>(audit_arena_);
    step.row_records = audit_arena_ + rows * sizeof(int32_t);
    step.token_records =
        step.row_records + rows * static_cast<size_t>(layout_.row_words) * sizeof(int32_t);
    if (batch.audit_mode == AuditMode::kNaive && naive_ == nullptr) {
      naive_ = std::make_unique<ops::NaivePlanAudit>(graph_, layout_, max_tokens_);
    }
    run_layers(batch);
    if (batch.reads_residual) output.residual = residual().data;
    for (size_t i = first_after_head_; i < ops_.size(); ++i) ops_[i]->fetch_ahead(step_);
    output.logits = batch.read_logits ? logits_ : nullptr;
    output.hidden_states = batch.read_hidden_states ? head_input_->data : nullptr;
  }

  void run_from_choice(const StepBatch& batch, PassOutput& output) override {
    if (!batch.chosen.empty()) take_choices(batch);
    if (!batch.runners_up.empty()) step_.runners_up = batch.runners_up.data();
    run_ops(first_after_head_, ops_.size(), batch);
    read_back(step_, batch.audit_mode == AuditMode::kNaive, output);
    if (is_mapped_) check_products();
  }

  bool runs_layers() const override { return kv_.runs_partial_depth(); }
  bool runs_trees() const override { return !graph_.has_state() && kv_.runs_trees(); }

  void copy_block(int32_t from, int32_t to) override {
    kv_.copy_blocks(/*windowed=*/false, from, to);
  }
  void copy_window_block(int32_t from, int32_t to) override {
    kv_.copy_blocks(/*windowed=*/true, from, to);
  }

  void replace_matrix(const std::string& module, const Checkpoint& from) override {
    weights_.replace(module, from);
    use_new_weights();
  }
  void replace_matrix(const std::string& module, std::span<const float> values) override {
    weights_.replace(module, values);
    use_new_weights();
  }
  void restore_matrix(const std::string& module) override {
    weights_.restore(module);
    use_new_weights();
  }
  bool keeps_own(int layer) const override { return kv_.keeps_own(layer); }
  void forget_layer(int layer) override { kv_.forget_layer(layer); }

  void copy_state(int32_t from, int32_t to) override {
    const size_t bytes = state_floats_ * sizeof(float);
    if (from < 0) {
      std::memset(state(to), 0, bytes);
    } else {
      std::memcpy(state(to), state(from), bytes);
    }
  }

  BlockAccess* block_access() override { return this; }

  int64_t journal_rows() const override { return graph_.has_state() ? max_rows_ : 0; }
  void replay_state(int32_t slot, int64_t first_row, int64_t count) override {
    struct Replay final : PieceWork {
      void run_piece(int64_t piece) override { (*ops)[static_cast<size_t>(piece)]->replay(span); }
      const std::vector<std::unique_ptr<ops::PlannedOp>>* ops = nullptr;
      ops::StateSpan span;
    } replay;
    replay.ops = &ops_;
    replay.span = {0, static_cast<int32_t>(count), slot, static_cast<int32_t>(first_row)};
    pool_.run(replay, std::ssize(ops_));
  }

  const std::vector<PlanEntry>& plan() const override { return plan_; }
  const ops::Readback& readback() const override { return readback_; }
  WorkerPool* workers() override { return &pool_; }
  ExpertCacheStats expert_cache() const override {
    const model::CacheCounts counts = weights_.expert_cache();
    return {counts.slots,      counts.experts,        counts.slot_bytes, counts.hits,
            counts.misses,     counts.bytes_read,     counts.guesses,    counts.right_guesses,
            counts.read_ahead, counts.read_ahead_used};
  }
  std::optional<double> measure_read_bandwidth(double seconds) override {
    return engine::measure_read_bandwidth(kernel_, pool_, weights_.memory(), seconds, cancelled_);
  }

  void describe(ModelSummary& summary) const override {
    summary.kernels = "fused";
    summary.isa = kernel_.isa;
    summary.invariant = kv_.is_invariant();
    summary.threads = pool_.threads();
    summary.weight_bytes = weights_.num_bytes() + adapter_bytes_;
    summary.mapped_bytes = weights_.num_mapped_bytes();
    summary.num_parameters = weights_.num_parameters() + adapter_parameters_;
    summary.kv_bytes = kv_.num_bytes() + num_states_ * state_floats_ * sizeof(float);
    summary.arena_bytes = arena_.num_bytes();
    summary.table_bytes += rope_bytes_;
    for (const PlanEntry& entry : plan_) summary.bytes_per_token += entry.weight_bytes;
  }

 private:
  std::byte* state(int32_t slot) const {
    return state_memory_->data() + static_cast<size_t>(slot) * state_floats_ * sizeof(float);
  }

  size_t num_bytes(Kind kind) const override {
    if (kind == Kind::kState) return state_floats_ * sizeof(float);
    return kv_.block_bytes(kind == Kind::kWindowed);
  }
  void read(Kind kind, int32_t index, std::span<std::byte> to) const override {
    if (kind == Kind::kState) {
      std::memcpy(to.data(), state(index), to.size());
    } else {
      kv_.read_block(kind == Kind::kWindowed, index, to.data());
    }
  }
  void write(Kind kind, int32_t index, std::span<const std::byte> from) override {
    if (kind == Kind::kState) {
      std::memcpy(state(index), from.data(), from.size());
    } else {
      kv_.write_block(kind == Kind::kWindowed, index, from.data());
    }
  }

  void clear(Kind kind, int32_t index) override { kv_.clear_block(kind == Kind::kWindowed, index); }

  void use_new_weights() {
    for (const auto& op : ops_) op->use_loaded_weights();
  }

  // What the leader reads in the next two ops, where that is its work; see leader_weights.
  using NextWeights = std::array<std::span<const std::byte>, 2>;

  // Hands one phase of one op to the pool; in one line, since other threads have to fetch it.
  class alignas(64) PhaseWork final : public PieceWork {
   public:
    PhaseWork(const ops::Phase& phase, const ops::StepState& step, const NextWeights& next,
              core::CancelWatch* watch)
        : phase_(phase), step_(step), next_(next), watch_(watch) {}
    // A step that is cancelled leaves pieces out, and no phase follows.
    void run_piece(int64_t piece) override {
      if (watch_ == nullptr || !watch_->is_cancelled()) phase_.run(step_, piece);
    }
    void fetch_next() override {
      for (const std::span<const std::byte> weights : next_) {
        for (size_t line = 0; line < weights.size(); line += 64) {
          __builtin_prefetch(weights.data() + line);
        }
      }
    }

   private:
    const ops::Phase& phase_;
    const ops::StepState& step_;
    const NextWeights& next_;
    core::CancelWatch* const watch_;
  };

  // Up to the head.
  void run_layers(const StepBatch& batch) {
    const NodeRange layers = nodes_of(batch, layer_begins_);
    if (graph_.layers_read_tokens) run_ops(0, layer_begins_[0], batch);
    if (batch.first_layer > 0) {
      const size_t count = batch.token_ids.size() * static_cast<size_t>(residual().width);
      std::copy_n(batch.residual, count, residual().data);
      for (int32_t token = 0; token < step_.tokens; ++token) residual().quantize(kernel_, token);
    } else if (!graph_.layers_read_tokens) {
      if (ops::takes_rows(graph_)) {
        const ops::RowBuffer& given = scratch_->value(graph_.nodes[0].inputs[0]);
        std::copy_n(batch.residual, batch.token_ids.size() * static_cast<size_t>(given.width),
                    given.data);
      }
      run_ops(0, layer_begins_[0], batch);
    }
    run_ops(layers.begin, layers.end, batch);
    const bool is_last = layers.end == layer_begins_.back();
    const size_t end = first_after_head_ - (batch.runs_head ? 0 : 1);
    if (is_last || step_.rows > 0) run_ops(layer_begins_.back(), end, batch);
  }
  const ops::RowBuffer& residual() { return scratch_->value(graph_.stream()); }

  void run_ops(size_t first, size_t end, const StepBatch& batch) {
    for (size_t i = first; i < end; ++i) {
      run_op(*ops_[i], step_, next_weights_[i], batch.watch);
      if (batch.audit_mode == AuditMode::kNaive) {
        naive_->after_op(i, step_, readback_);
      }
    }
  }

  void run_op(const ops::PlannedOp& op, const ops::StepState& step, const NextWeights& next,
              core::CancelWatch* watch) {
    for (const ops::Phase& phase : op.phases()) {
      if (phase.prepare) phase.prepare(step);
      const int64_t pieces = phase.pieces(step);
      if (pieces == 0) continue;
      PhaseWork work(phase, step, next, watch);
      pool_.run(work, pieces);
      if (watch != nullptr) watch->check();
    }
  }

  void find_next_weights() {
    constexpr size_t kMax = 8192;  // more would take longer than most waits
    next_weights_.resize(ops_.size());
    for (size_t i = 0; i < ops_.size(); ++i) {
      for (size_t j = 0; j < 2 && i + 1 + j < ops_.size(); ++j) {
        const std::span<const std::byte> weights = ops_[i + 1 + j]->leader_weights();
        next_weights_[i][j] = weights.first(std::min(weights.size(), kMax));
      }
    }
  }

  void check_products() {
    weights_.check_files();
    if (const kernels::Weight* matrix = products_.take_bad_matrix()) {
      throw weights_.bad_number_error(*matrix);
    }
  }

  // The host's choices, in place of the head's.
  void take_choices(const StepBatch& batch) {
    for (size_t row = 0; row < batch.chosen.size(); ++row) {
      const int32_t id = batch.chosen[row];
      if (id < 0) continue;
      step_.chosen_ids[row] = id;
      auto* record = reinterpret_cast<float*>(step_.row_records +
                                              row * static_cast<size_t>(layout_.row_words) * 4);
      record[layout_.chosen_logit] =
          logits_[row * static_cast<size_t>(graph_.vocab_size) + static_cast<size_t>(id)];
    }
  }

  void read_back(const ops::StepState& step, bool naive, PassOutput& output) {
    const auto rows = static_cast<size_t>(step.rows);
    if (!step.audit) {
      readback_.copy(output.words, audit_arena_, rows * sizeof(int32_t));
      return;
    }
    const size_t all = layout_.pass_words(rows, static_cast<size_t>(step.tokens)) * sizeof(int32_t);
    const size_t row_part = layout_.pass_words(rows, 0) * sizeof(int32_t);
    readback_.copy(output.words, audit_arena_, naive ? row_part : all);
    if (naive) std::memcpy(output.words + row_part, naive_->token_records(), all - row_part);
  }

  // All layers of a slot lie together.
  void plan_states(const ExecutorInputs& inputs) {
    if (!graph_.has_state()) return;
    num_states_ = static_cast<size_t>(inputs.num_states);
    for (const int64_t floats : graph_.state_floats) state_floats_ += static_cast<size_t>(floats);
    states_.resize(graph_.state_floats.size(), {nullptr, static_cast<int64_t>(state_floats_)});
    state_spans_.reserve(static_cast<size_t>(inputs.options.max_step_tokens));
  }

  void make_states() {
    if (!graph_.has_state()) return;
    state_memory_.emplace(num_states_ * state_floats_ * sizeof(float), "the states of sequences");
    auto* next = reinterpret_cast<float*>(state_memory_->data());
    for (size_t layer = 0; layer < states_.size(); ++layer) {
      states_[layer].data = next;
      next += graph_.state_floats[layer];
    }
  }

  void make_plan(const ExecutorInputs& inputs) {
    constexpr auto kSliding = model::RopeKind::kSliding;
    max_tokens_ = inputs.options.max_step_tokens;
    max_rows_ = inputs.options.max_logit_rows;
    ops::PlanShape shape{pool_.threads(), max_tokens_, max_rows_, inputs.options.max_context};
    shape.max_logits = inputs.options.hidden_states_only ? 0 : max_rows_;
    scratch_.emplace(arena_, graph_, shape);
    logits_ = scratch_->logits();
    ops::PlanContext context{.graph = graph_,
                             .audit = layout_,
                             .kernel = kernel_,
                             .products = products_,
                             .weights = weights_,
                             .adapters = inputs.adapters,
                             .kv = kv_.layers(),
                             .states = states_,
                             .taps = inputs.taps,
                             .rope = {model::rope_half(inputs.config, model::RopeKind::kOwn),
                                      rope_cos_.data(), rope_sin_.data()},
                             .sliding_rope = {model::rope_half(inputs.config, kSliding),
                                              sliding_cos_.data(), sliding_sin_.data()},
                             .scratch = *scratch_,
                             .shape = shape};
    for (const ops::OpNode& node : graph_.nodes) {
      ops_.push_back(ops::find_op(node.type).plan(context, node));
      if (!graph_.is_head(node)) continue;
      first_after_head_ = ops_.size();
      head_input_ = &scratch_->value(node.inputs[0]);
    }
    // Names depend on what later ops asked of earlier ones, so they are taken at the end.
    for (size_t i = 0; i < ops_.size(); ++i) {
      plan_.push_back({graph_.nodes[i].layer, graph_.nodes[i].type, ops_[i]->kernel_name(),
                       ops_[i]->weight_bytes()});
    }
  }

  const kernels::CpuKernels& kernel_;
  ops::Graph graph_;
  AuditLayout layout_;
  std::vector<size_t> layer_begins_;
  ops::Products products_;
  model::CheckpointWeights weights_;
  bool is_mapped_, reads_files_;              // while steps run
  const std::atomic<bool>* const cancelled_;  // ends all that the engine does
  PlanArena arena_;
  KvLayers kv_;
  std::optional<kv::MappedMemory> state_memory_;
  uint64_t rope_bytes_ = 0;
  size_t num_states_ = 0, state_floats_ = 0;  // slots; of one, all layers
  std::vector<ops::StateLayer> states_;       // by layer
  std::vector<ops::StateSpan> state_spans_;
  std::vector<float> rope_cos_, rope_sin_, sliding_cos_, sliding_sin_;
  std::optional<ops::PlanScratch> scratch_;
  std::vector<std::unique_ptr<ops::PlannedOp>> ops_;
  std::vector<NextWeights> next_weights_;  // [ops]
  std::vector<PlanEntry> plan_;
  std::unique_ptr<ops::NaivePlanAudit> naive_;
  ops::Readback readback_;
  std::byte* audit_arena_ = nullptr;
  float* logits_ = nullptr;
  const ops::RowBuffer* head_input_ = nullptr;
  AdapterGroups adapter_groups_;
  uint64_t adapter_bytes_ = 0;
  int64_t adapter_parameters_ = 0;
  int64_t max_tokens_ = 0, max_rows_ = 0;
  size_t first_after_head_ = 0;
  ops::StepState step_;                         // of the pass under way
  std::unique_ptr<EngineThreads> own_threads_;  // where nobody gave any
  WorkerPool& pool_;                            // whose threads are idle when this goes
};

}  // namespace

std::unique_ptr<Executor> make_fused_executor(const ExecutorInputs& inputs) {
  return std::make_unique<FusedExecutor>(inputs);
}

}  // namespace vitrine::engine

namespace vitrine {

std::string_view cpu_instruction_set() { return ops::select_cpu_kernels().isa; }

std::string cpu_unused_features() { return kernels::unused_features(kernels::cpu_features()); }

}  // namespace vitrine

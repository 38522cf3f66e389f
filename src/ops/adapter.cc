// adapter: the low-rank additions to the projections of one op, for each adapter on its own tokens.
// Two float products by the kernels of every float matrix, so the same promise of bits holds.
#include <algorithm>
#include <array>

#include "ops/adapters.h"
#include "ops/op.h"
#include "ops/reference.h"

namespace vitrine::ops {
namespace {

constexpr const char* kType = "adapter";
constexpr std::array<const char*, 3> kQkvRoles = {"q", "k", "v"};

class PlannedAdapter final : public PlannedOp {
 public:
  PlannedAdapter(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel), in_(context.value(node.inputs[0])) {
    const AdapterWeights& adapters = *context.adapters;
    const auto multiplier = static_cast<float>(node.attribute("multiplier", 1.0));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      Part part;
      part.out = &context.value(node.outputs[i]);
      const std::string& module = node.weight(kQkvRoles[i]);
      int64_t rank = 0;
      for (int32_t adapter = 0; adapter < adapters.size(); ++adapter) {
        const LowRankMatrix* matrix = adapters.find(adapter, module);
        part.matrices.push_back(matrix);
        part.scales.push_back(matrix == nullptr ? 0.0F : matrix->scale * multiplier);
        if (matrix == nullptr) continue;
        rank = std::max(rank, matrix->a.rows);
        weight_bytes_ = ops::weight_bytes(matrix->a) + ops::weight_bytes(matrix->b) + weight_bytes_;
      }
      if (rank == 0) continue;
      part.hidden = &context.shared_rows("adapter_" + std::to_string(i), context.max_tokens, rank);
      const std::array<int64_t, 2> rows = {rank, part.out->width};
      for (size_t phase = 0; phase < 2; ++phase) {
        part.piece_rows[phase] = std::max<int64_t>(
            kMinPieceRows, rows_per_piece(rows[phase], context.threads, kernels::kTileRows));
        part.first_piece[phase] = pieces_[phase];
        pieces_[phase] += divide_up(rows[phase], part.piece_rows[phase]);
      }
      parts_.push_back(std::move(part));
    }
  }

  // 0: a x. 1: scale * b of that, added. Pieces: adapter by adapter, part by part.
  int phases() const override { return 2; }
  int64_t pieces(const StepState& step, int phase) const override {
    return step.num_adapters * pieces_[static_cast<size_t>(phase)];
  }
  void run(const StepState& step, int phase, int64_t piece) override {
    const auto p = static_cast<size_t>(phase);
    const AdapterRows& of = step.adapters[piece / pieces_[p]];
    piece %= pieces_[p];
    size_t at = parts_.size() - 1;
    while (parts_[at].first_piece[p] > piece) --at;
    const Part& part = parts_[at];
    const LowRankMatrix* matrix = part.matrices[static_cast<size_t>(of.adapter)];
    if (matrix == nullptr) return;
    const kernels::Weight& weight = phase == 0 ? matrix->a : matrix->b;
    const int64_t begin = (piece - part.first_piece[p]) * part.piece_rows[p];
    const int64_t end = std::min(weight.rows, begin + part.piece_rows[p]);
    if (begin >= end) return;  // of a lower rank than another adapter
    const kernels::RowMap rows{of.rows, of.rows, of.count};
    const RowBuffer& from = phase == 0 ? in_ : *part.hidden;
    RowBuffer& to = phase == 0 ? *part.hidden : *part.out;
    kernel_.linear(weight, begin, end, activations(from, weight), rows, nullptr,
                   phase == 0 ? nullptr : &part.scales[static_cast<size_t>(of.adapter)], to.data,
                   to.width);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".low_rank";
  }
  uint64_t weight_bytes() const override { return weight_bytes_; }

 private:
  static constexpr int64_t kMinPieceRows = 32;
  struct Part {
    RowBuffer* out = nullptr;
    RowBuffer* hidden = nullptr;                 // [tokens, largest rank]
    std::vector<const LowRankMatrix*> matrices;  // by adapter
    std::vector<float> scales;                   // by adapter
    std::array<int64_t, 2> piece_rows{}, first_piece{};
  };
  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  std::vector<Part> parts_;
  std::array<int64_t, 2> pieces_{};
  uint64_t weight_bytes_ = 0;
};

std::unique_ptr<PlannedOp> plan(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedAdapter>(context, node);
}

void reference(ReferenceStep& step, const OpNode& node) {
  for (const ReferenceAdapterRows& of : step.adapter_rows) {
    const at::Tensor x = at::index_select(step.input(node, 0), 0, of.rows);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ReferenceLowRank* matrix = step.adapters->find(of.adapter, node.weight(kQkvRoles[i]));
      if (matrix == nullptr) continue;
      const at::Tensor delta = x.matmul(matrix->a.t()).matmul(matrix->b.t());
      at::Tensor& out = step.value(node.outputs[i]);
      out = out.index_add(0, of.rows, delta, matrix->scale * node.attribute("multiplier", 1.0));
    }
  }
}

VITRINE_REGISTER_OP((OpDefinition{kType, plan, reference}));

/// The node that stands behind `node`; without outputs where there is none.
OpNode adapter_of(const OpNode& node) {
  OpNode adapter{.type = kType, .layer = node.layer};
  if (node.type != "qkv" && node.type != "project") return adapter;
  adapter.inputs = {node.inputs.at(0)};
  adapter.outputs = node.outputs;
  if (node.type == "qkv") {
    for (const char* role : kQkvRoles) adapter.weights[role] = node.weight(role);
  } else {
    adapter.weights[kQkvRoles[0]] = node.weight("weight");
    adapter.attributes["multiplier"] = node.attribute("multiplier", 1.0);
  }
  return adapter;
}

}  // namespace

std::vector<AdapterTarget> adapter_targets(const Graph& graph) {
  const auto width = [&](ValueId id) { return graph.values[static_cast<size_t>(id)].width; };
  std::vector<AdapterTarget> targets;
  for (const OpNode& node : graph.nodes) {
    const OpNode adapter = adapter_of(node);
    for (size_t i = 0; i < adapter.outputs.size(); ++i) {
      targets.push_back(
          {adapter.weight(kQkvRoles[i]), width(adapter.outputs[i]), width(adapter.inputs[0])});
    }
  }
  return targets;
}

void add_adapters(Graph& graph) {
  std::vector<OpNode> nodes;
  for (OpNode& node : graph.nodes) {
    OpNode adapter = adapter_of(node);
    nodes.push_back(std::move(node));
    if (!adapter.outputs.empty()) nodes.push_back(std::move(adapter));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace vitrine::ops

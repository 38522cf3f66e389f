// adapter: the low-rank additions to the projections of one op, which stand behind it. What adds
// to a value in the middle of an op (a dense block's hidden layer, a router's logits) runs in it.
#include <array>

#include "ops/adapters.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

constexpr const char* kType = "adapter";
constexpr std::array<const char*, 3> kQkvRoles = {"q", "k", "v"};

std::vector<LowRankProducts::Product> products_of(PlanContext& context, const OpNode& node) {
  std::vector<LowRankProducts::Product> products;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    products.push_back({&context.value(node.outputs[i]), node.weight(kQkvRoles[i])});
  }
  return products;
}

class PlannedAdapter final : public PlannedOp {
 public:
  PlannedAdapter(PlanContext& context, const OpNode& node)
      : isa_(context.kernel.isa),
        low_rank_(context, context.value(node.inputs[0]), products_of(context, node),
                  node.attribute("multiplier", 1.0)) {}

  int phases() const override { return LowRankProducts::kPhases; }
  int64_t pieces(const StepState& step, int phase) const override {
    return low_rank_.pieces(step, phase);
  }
  void run(const StepState& step, int phase, int64_t piece) override {
    low_rank_.run(step, phase, piece);
  }
  std::string kernel_name() const override { return std::string("cpu.") + isa_ + ".low_rank"; }
  uint64_t weight_bytes() const override { return low_rank_.weight_bytes(); }

 private:
  const char* isa_;
  LowRankProducts low_rank_;
};

std::unique_ptr<PlannedOp> plan(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedAdapter>(context, node);
}

void reference(ReferenceStep& step, const OpNode& node) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    add_low_rank(step, step.input(node, 0), node.weight(kQkvRoles[i]),
                 node.attribute("multiplier", 1.0), step.value(node.outputs[i]));
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
    if (node.type == "dense_ffn") {
      const int64_t in = width(node.inputs[0]), hidden = node.integer("intermediate");
      targets.push_back({node.weight("gate"), hidden, in});
      targets.push_back({node.weight("up"), hidden, in});
      targets.push_back({node.weight("down"), width(node.outputs[0]), hidden});
    } else if (node.type == "router") {
      targets.push_back({node.weight("weight"), node.integer("experts"), width(node.inputs[0])});
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

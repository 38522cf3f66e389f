// SPDX-License-Identifier: Apache-2.0
// A model as a list of ops over named values: what an architecture file builds, what a plan or the
// reference runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "vitrine/audit_sink.h"
#include "vitrine/core.h"

namespace vitrine::ops {

using ValueId = int;

/// An intermediate: one row of `width` float32 per token of the step (or per row of logits).
struct Value {
  std::string name;
  int64_t width = 0;
  bool per_row = false;  // one row per requested row of logits, not per token
};

struct Graph;
struct OpNode;

/// A matrix that an op multiplies with.
struct OpMatrix {
  std::string module;
  int64_t rows = 0, cols = 0;
};

/// The matrix (kv_b) that makes each head's key and value of a position's latent: [heads *
/// (key_rows + value_rows), latent], head by head those of the key first.
struct LatentModule {
  std::string module;
  int64_t heads = 0, key_rows = 0, value_rows = 0, latent = 0;
};

/// How an op changes the residual stream, for whoever takes a logit apart.
struct ResidualPart {
  AuditLayout::Term::Kind kind = AuditLayout::Term::Kind::kEmbedding;
  int64_t top_k = 0;        // kExpert: vectors in its first input, each before its weight
  bool has_shared = false;  // kExpert: its last input is a shared expert's
  double multiplier = 1;    // kExpert: of the block's sum
};

/// A norm that experts' outputs pass before they reach the residual stream.
struct PassedNorm {
  std::string weight;
  int32_t mean_square = 0;  // which of post_norm_mean_squares it divides by
};

/// One part that an op adds to the residual stream.
struct AddedPart {
  ResidualPart part;
  const OpNode* source = nullptr;  // the op whose inputs hold the experts' outputs
  std::vector<PassedNorm> norms;   // that experts pass
  double eps = 0;                  // of these norms
  std::string scalar;  // [1] the stream is multiplied with it behind the sum; empty: it is not
};

/// How an op looks at keys and values of other positions.
struct KvReads {
  int64_t window = 0;  // positions that a token sees, its own the last; 0: all
  bool has_sinks = false;
};

/// What an op keeps of a sequence in place of keys and values, as the reference path does.
struct StateShapes {
  std::vector<int64_t> rule;    // what a rule keeps; empty: inputs alone
  std::vector<int64_t> inputs;  // that came last; empty: the op keeps no state
};

/// A norm's weight, as model::find_named_vector has it (empty: none), and its epsilon.
struct NormWeight {
  std::string weight;
  double eps = 0;
};

/// The matrix that makes logits of rows.
struct LogitMatrix {
  std::string module;
  double multiplier = 1;
  double soft_cap = 0;  // before it: logits become cap * tanh(logit / cap); 0: they do not
};

/// What a router chooses from.
struct RouterShape {
  int64_t experts = 0;
  int64_t top_k = 0;
};

/// How a routed op's outputs stand: for each token top_k rows, in slot order.
struct RoutedOp {
  int64_t experts = 0;  // 0: it is none
  int64_t top_k = 0;
};

/// Rows that an op makes on its way, by their name.
struct OwnRows {
  std::string name;
  int64_t width = 0;
  int64_t per_token = 1;
};

/// Words of a token's record that an op writes.
struct RecordedWords {
  int32_t first = 0;
  int32_t count = 0;
};

/// A weight that an op reads, and what it is to the model.
struct NamedWeight {
  std::string name;          // a matrix's module, or a vector as model::find_named_vector has it
  std::string_view purpose;  // "router", "norm": a literal
};

/// Changes a name in place.
using Rename = std::function<void(std::string& name)>;

/// All weights that an op reads, by what it does with them.
struct WeightNames {
  std::vector<std::string> products;        // it multiplies rows with them, in any format
  std::vector<NamedWeight> float_products;  // the same, but quantizing leaves them as they are
  std::vector<NamedWeight> tables;          // it looks up their rows
  std::vector<NamedWeight> vectors;

  // Empty names are left out.
  void add_products(std::initializer_list<std::string> modules) {
    for (const std::string& module : modules) {
      if (!module.empty()) products.push_back(module);
    }
  }
  void add_float_products(std::string_view purpose, std::initializer_list<std::string> modules) {
    add(purpose, modules, float_products);
  }
  void add_tables(std::string_view purpose, std::initializer_list<std::string> modules) {
    add(purpose, modules, tables);
  }
  void add_vectors(std::string_view purpose, std::initializer_list<std::string> names) {
    add(purpose, names, vectors);
  }

 private:
  static void add(std::string_view purpose, std::initializer_list<std::string> names,
                  std::vector<NamedWeight>& to) {
    for (const std::string& name : names) {
      if (!name.empty()) to.push_back({name, purpose});
    }
  }
};

/// What an op is made with, and what it says of itself to those who do not know it. An op has a
/// struct of its own, an OpParametersOf, which its forms for the backends read (OpNode::as).
struct OpParameters {
  virtual ~OpParameters() = default;
  /// Names the struct; empty for an op that needs none. Names are compared by value: the library
  /// and its backends each compile this room, and a C++ runtime that compares types by address (as
  /// libc++ does) finds no type in one of them that another has made.
  virtual std::string_view kind() const { return {}; }
  /// All that it reads of the checkpoint.
  virtual void append_weights(WeightNames&) const {}
  /// Returns a copy that reads the weights that `rename` names, which gets all names in turn (of
  /// experts their prefix), empty ones too.
  virtual std::shared_ptr<const OpParameters> renamed(const Rename&) const {
    return std::make_shared<OpParameters>();
  }
  /// Those that an adapter may change.
  virtual void append_matrices(const Graph&, const OpNode&, std::vector<OpMatrix>&) const {}
  /// Returns what its output is made of, whether it is added to the residual stream or handed to
  /// another op that adds it; nothing for an op whose output is neither.
  virtual std::optional<ResidualPart> made_part(const Graph&, const OpNode&) const {
    return std::nullopt;
  }
  /// Returns the parts that it adds to the residual stream, in the order of their terms.
  virtual std::vector<AddedPart> added_parts(const Graph&, const OpNode&) const { return {}; }
  /// Its first input is the residual stream as it enters its layer, or as it leaves the last one.
  virtual bool reads_stream_between_layers() const { return false; }
  /// A step begins with rows that it gives this op, beside token ids.
  virtual bool takes_rows() const { return false; }
  /// Returns nothing for an op that reads no keys and values of other positions.
  virtual std::optional<KvReads> kv_reads() const { return std::nullopt; }
  virtual StateShapes state(const Graph&, const OpNode&) const { return {}; }
  /// Says what layers with it have or do that few have ("has latent attention"), for backends
  /// without a form of it. Empty for an op that every backend needs.
  virtual std::string_view speciality() const { return {}; }
  /// Returns nothing for an op that is no norm.
  virtual std::optional<NormWeight> norm_weight() const { return std::nullopt; }
  /// Returns nothing for an op that makes no logits.
  virtual std::optional<LogitMatrix> logits() const { return std::nullopt; }
  /// Null of an op that routes nothing.
  virtual const RouterShape* router() const { return nullptr; }
  virtual RouterKind router_kind() const { return RouterKind::kPlain; }
  virtual RoutedOp routed(const Graph&, const OpNode&) const { return {}; }
  virtual std::vector<OwnRows> own_rows(const Graph&, const OpNode&) const { return {}; }
  virtual std::vector<RecordedWords> recorded(const AuditLayout&, const OpNode&) const {
    return {};
  }
};

/// The base of an op's own parameters, which are final and have a kKind that no others have.
template <typename Parameters>
struct OpParametersOf : OpParameters {
  std::string_view kind() const final { return Parameters::kKind; }
  std::shared_ptr<const OpParameters> renamed(const Rename& rename) const final {
    auto copy = std::make_shared<Parameters>(static_cast<const Parameters&>(*this));
    copy->rename_weights(rename);
    return copy;
  }
  /// An op that reads weights has one of its own.
  void rename_weights(const Rename&) {}
};

/// One op. Its type is the name under which each backend finds its form.
struct OpNode {
  std::string type;
  int layer = -1;  // -1: outside the layers
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  std::shared_ptr<const OpParameters> parameters = std::make_shared<const OpParameters>();

  /// Returns null for an op that was made with others.
  template <typename Parameters>
  const Parameters* find() const {
    static_assert(std::is_base_of_v<OpParametersOf<Parameters>, Parameters>);
    static_assert(std::is_final_v<Parameters>);
    if (parameters->kind() != Parameters::kKind) return nullptr;
    return static_cast<const Parameters*>(parameters.get());
  }
  /// Throws kInternal for an op that was made with others.
  template <typename Parameters>
  const Parameters& as() const {
    if (const auto* found = find<Parameters>()) return *found;
    refuse_parameters(Parameters::kKind);
  }
  [[noreturn]] void refuse_parameters(std::string_view expected) const;
};

/// Rows that become logits: whose tokens can be chosen.
struct GraphHead {
  size_t node = 0;        // of the graph
  ValueId input = -1;     // rows behind the final norm
  size_t final_norm = 0;  // the node that makes them
};

/// A layer's keys and values, where layers differ.
struct KvShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int source = 0;  // the layer that keeps them: this one, or one before it
};

struct Graph {
  std::vector<Value> values;
  std::vector<OpNode> nodes;
  std::vector<GraphHead> heads;  // the first one's rows are a step's logits
  int num_layers = 0;
  int64_t vocab_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;            // of a stored key
  int64_t value_dim = 0;           // latent attention: elements of a key that are its value; else 0
  std::vector<KvShape> kv_shapes;  // by layer; empty: num_kv_heads of head_dim, each its own
  bool layers_read_tokens = false;  // what stands before the layers makes more than the stream
  // [layers] numbers of a sequence's state that a layer keeps in place of keys and values; 0: it
  // keeps these. Empty: all do.
  std::vector<int64_t> state_floats = {};

  bool has_state() const { return !state_floats.empty(); }
  bool keeps_state(int layer) const {
    return has_state() && state_floats[static_cast<size_t>(layer)] > 0;
  }

  KvShape kv_shape(int layer) const {
    return kv_shapes.empty() ? KvShape{num_kv_heads, head_dim, layer}
                             : kv_shapes[static_cast<size_t>(layer)];
  }
  ValueId add_value(std::string name, int64_t width, bool per_row = false) {
    values.push_back({std::move(name), width, per_row});
    return static_cast<ValueId>(values.size()) - 1;
  }
  int64_t width(ValueId id) const { return values[static_cast<size_t>(id)].width; }
  /// Returns the residual stream: what the last norm reads. Ops that add to it write it in place,
  /// so that it is one value from the first layer to the last.
  ValueId stream() const { return nodes[heads.at(0).final_norm].inputs.at(0); }
  /// Whether a node of this graph makes a step's logits.
  bool is_head(const OpNode& node) const { return &node == &nodes[heads.at(0).node]; }
  /// Returns the node's number.
  template <typename Parameters>
  size_t add(std::string type, int layer, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
             Parameters parameters) {
    static_assert(std::is_base_of_v<OpParametersOf<Parameters>, Parameters>);
    nodes.push_back({std::move(type), layer, std::move(inputs), std::move(outputs),
                     std::make_shared<const Parameters>(std::move(parameters))});
    return nodes.size() - 1;
  }
};

/// [layers + 1] the number of each layer's first node; then that of the first one behind all
/// layers.
std::vector<size_t> layer_begins(const Graph& graph);

/// Puts other nodes beside those of a graph: `before(node)` and `behind(node)` return them. The
/// heads' numbers follow.
template <typename Before, typename Behind>
void insert_nodes(Graph& graph, const Before& before, const Behind& behind) {
  std::vector<OpNode> all;
  std::vector<size_t> numbers;
  for (const OpNode& node : graph.nodes) {
    for (OpNode& other : before(node)) all.push_back(std::move(other));
    numbers.push_back(all.size());
    all.push_back(node);
    for (OpNode& other : behind(node)) all.push_back(std::move(other));
  }
  for (GraphHead& head : graph.heads) {
    head.node = numbers[head.node];
    head.final_norm = numbers[head.final_norm];
  }
  graph.nodes = std::move(all);
}

}  // namespace vitrine::ops

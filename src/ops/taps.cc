// SPDX-License-Identifier: Apache-2.0
#include "ops/taps.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>

namespace vitrine::ops {

namespace {

constexpr int64_t kColumns = 64;  // of a tile of sums by column
constexpr int64_t kRows = 16;     // of a tile of products

const char* side_name(Tap::Side side) { return side == Tap::Side::kInput ? "input" : "output"; }

// What an op offers on one side.
std::vector<TapParameters> places(const Graph& graph, const OpNode& node, Tap::Side side) {
  std::vector<TapParameters> all;
  const RoutedOp routed = node.parameters->routed(graph, node);
  const bool is_output = side == Tap::Side::kOutput;
  for (const ValueId id : is_output ? node.outputs : node.inputs) {
    const Value& value = graph.values[static_cast<size_t>(id)];
    TapParameters place;
    place.rows = value.name;
    place.value = id;
    place.per_token = is_output && routed.top_k > 0 ? routed.top_k : 1;
    place.width = value.width / place.per_token;
    place.experts = routed.experts;
    place.top_k = routed.top_k;
    if (!value.per_row) all.push_back(place);
  }
  if (!is_output) return all;
  for (const OwnRows& own : node.parameters->own_rows(graph, node)) {
    TapParameters place;
    place.rows = own.name;
    place.width = own.width;
    place.per_token = own.per_token;
    place.experts = routed.experts;
    place.top_k = routed.top_k;
    all.push_back(place);
  }
  return all;
}

[[noreturn]] void refuse(size_t index, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument,
              "engine option 'taps', number " + std::to_string(index) + ": " + what);
}

TapParameters find_place(const Graph& graph, const OpNode& node, const Tap& tap, size_t index) {
  std::string names;
  for (TapParameters& place : places(graph, node, tap.side)) {
    if (place.rows == tap.value) {
      if (tap.by_expert && place.experts == 0) {
        refuse(index, "op '" + tap.op + "' has no experts; expected by_expert to be off");
      }
      place.tap = index;
      return place;
    }
    names += (names.empty() ? "'" : "', '") + place.rows;
  }
  refuse(index, "op '" + tap.op + "' has no " + side_name(tap.side) + " '" + tap.value +
                    "'; expected " + (names.empty() ? "another op" : names + "'"));
}

size_t find_node(const Graph& graph, const Tap& tap, size_t index) {
  std::string names;
  for (size_t node = 0; node < graph.nodes.size(); ++node) {
    if (graph.nodes[node].layer != tap.layer) continue;
    // Where two ops have the name, the one is meant that has what is asked for.
    if (graph.nodes[node].type == tap.op) {
      const auto all = places(graph, graph.nodes[node], tap.side);
      const bool has = std::ranges::any_of(
          all, [&](const TapParameters& place) { return place.rows == tap.value; });
      const bool is_last = std::none_of(
          graph.nodes.begin() + static_cast<ptrdiff_t>(node) + 1, graph.nodes.end(),
          [&](const OpNode& other) { return other.layer == tap.layer && other.type == tap.op; });
      if (has || is_last) return node;
    }
    names += (names.empty() ? "'" : "', '") + graph.nodes[node].type;
  }
  refuse(index, "layer " + std::to_string(tap.layer) + " has no op '" + tap.op + "'; expected " +
                    (names.empty() ? "layers from -1 to " + std::to_string(graph.num_layers - 1)
                                   : names + "'"));
}

}  // namespace

void add_taps(Graph& graph, std::span<const Tap> taps) {
  if (taps.empty()) return;
  std::vector<std::vector<OpNode>> before(graph.nodes.size()), behind(graph.nodes.size());
  for (size_t i = 0; i < taps.size(); ++i) {
    const size_t at = find_node(graph, taps[i], i);
    const OpNode& node = graph.nodes[at];
    TapParameters place = find_place(graph, node, taps[i], i);
    std::vector<ValueId> inputs;
    if (place.value >= 0) inputs.push_back(place.value);
    OpNode tap{"tap",
               node.layer,
               std::move(inputs),
               {},
               std::make_shared<const TapParameters>(std::move(place))};
    (taps[i].side == Tap::Side::kInput ? before : behind)[at].push_back(std::move(tap));
  }
  const auto number = [&](const OpNode& node) {
    return static_cast<size_t>(&node - graph.nodes.data());
  };
  insert_nodes(
      graph, [&](const OpNode& node) { return before[number(node)]; },
      [&](const OpNode& node) { return behind[number(node)]; });
}

TapBook::TapBook(const Graph& graph, std::span<const Tap> taps) : sums_(taps.size()) {
  for (const OpNode& node : graph.nodes) {
    const auto* place = node.find<TapParameters>();
    if (place == nullptr) continue;
    const Tap& tap = taps[place->tap];
    Sums& sums = sums_[place->tap];
    sums.has_maximum = tap.maximum;
    sums.has_squares = tap.squares;
    sums.has_products = tap.products;
    sums.width = place->width;
    sums.groups = tap.by_expert ? place->experts : 1;
    const auto columns = static_cast<size_t>(sums.groups * sums.width);
    try {
      sums.counts.resize(static_cast<size_t>(sums.groups));
      sums.maximum.resize(tap.maximum ? columns : 0);
      sums.squares.resize(tap.squares ? columns : 0);
      sums.products.resize(tap.products ? columns * static_cast<size_t>(sums.width) : 0);
    } catch (const std::bad_alloc&) {
      throw Error(
          ErrorKind::kOutOfMemory,
          "the sums of tap " + std::to_string(place->tap) +
              " need more memory than there "
              "is (products take 4 bytes x width² for each group); tap fewer layers at once");
    }
  }
}

// Rows in the order of tokens, then of slots, each with its group of sums.
template <typename Visit>
void TapBook::for_each_row(const TapParameters& tap, const Sums& sums, const TapPass& pass,
                           const Visit& visit) {
  if (sums.groups == 1) {
    for (int64_t row = 0; row < pass.tokens * tap.per_token; ++row) {
      visit(pass.rows + row * tap.width, int64_t{0});
    }
    return;
  }
  for (int64_t slot = 0; slot < pass.tokens * tap.top_k; ++slot) {
    const int64_t row = tap.per_token == 1 ? slot / tap.top_k : slot;
    visit(pass.rows + row * tap.width, int64_t{pass.experts[slot]});
  }
}

void TapBook::begin(const TapParameters& tap, const TapPass& pass) {
  if (is_paused) return;
  if (reader != nullptr) {
    const auto tokens = static_cast<size_t>(pass.tokens);
    TapRows rows;
    rows.tap = tap.tap;
    rows.rows = {pass.rows, static_cast<size_t>(pass.tokens * tap.per_token * tap.width)};
    rows.width = tap.width;
    rows.rows_per_token = static_cast<int32_t>(tap.per_token);
    rows.token_ids = {pass.token_ids, tokens};
    rows.positions = {pass.positions, tokens};
    if (pass.experts != nullptr) {
      rows.experts = {pass.experts, static_cast<size_t>(pass.tokens * tap.top_k)};
      rows.weights = {pass.weights, rows.experts.size()};
    }
    reader->read(rows);
  }
  Sums& sums = sums_[tap.tap];
  for_each_row(tap, sums, pass,
               [&](const float*, int64_t group) { ++sums.counts[static_cast<size_t>(group)]; });
}

int64_t TapBook::column_tiles(const Sums& sums) {
  return sums.has_maximum || sums.has_squares ? (sums.width + kColumns - 1) / kColumns : 0;
}

int64_t TapBook::num_tiles(const TapParameters& tap) const {
  if (is_paused) return 0;
  const Sums& sums = sums_[tap.tap];
  return column_tiles(sums) + (sums.has_products ? (sums.width + kRows - 1) / kRows : 0);
}

void TapBook::add(const TapParameters& tap, const TapPass& pass, int64_t tile) {
  Sums& sums = sums_[tap.tap];
  const int64_t width = sums.width, columns = column_tiles(sums);
  if (tile < columns) {
    const int64_t first = tile * kColumns, end = std::min(width, first + kColumns);
    for_each_row(tap, sums, pass, [&](const float* row, int64_t group) {
      for (int64_t i = first; sums.has_maximum && i < end; ++i) {
        float& maximum = sums.maximum[static_cast<size_t>(group * width + i)];
        maximum = std::max(maximum, std::fabs(row[i]));
      }
      for (int64_t i = first; sums.has_squares && i < end; ++i) {
        const double value = row[i];
        sums.squares[static_cast<size_t>(group * width + i)] += value * value;
      }
    });
    return;
  }
  const int64_t first = (tile - columns) * kRows, end = std::min(width, first + kRows);
  for_each_row(tap, sums, pass, [&](const float* row, int64_t group) {
    float* products = sums.products.data() + group * width * width;
    for (int64_t i = first; i < end; ++i) {
      float* out = products + i * width;
      const float value = row[i];
      for (int64_t j = 0; j < width; ++j) out[j] += value * row[j];
    }
  });
}

TapSums TapBook::sums(size_t tap, int expert) const {
  const auto refuse_number = [](const std::string& what, int64_t found, int64_t count) {
    throw Error(ErrorKind::kInvalidArgument,
                what + " " + std::to_string(found) + " is not there; expected " +
                    (count == 0 ? "none" : "0 to " + std::to_string(count - 1)));
  };
  if (tap >= sums_.size()) {
    refuse_number("tap", static_cast<int64_t>(tap), static_cast<int64_t>(sums_.size()));
  }
  const Sums& of = sums_[tap];
  if (expert < 0 || expert >= of.groups) refuse_number("expert", expert, of.groups);
  const auto width = static_cast<size_t>(of.width), group = static_cast<size_t>(expert);
  TapSums sums;
  sums.count = of.counts[group];
  if (of.has_maximum) sums.maximum = std::span(of.maximum).subspan(group * width, width);
  if (of.has_squares) sums.squares = std::span(of.squares).subspan(group * width, width);
  if (of.has_products) {
    sums.products = std::span(of.products).subspan(group * width * width, width * width);
  }
  return sums;
}

void TapBook::clear() {
  for (Sums& sums : sums_) {
    std::ranges::fill(sums.counts, 0);
    std::ranges::fill(sums.maximum, 0.0F);
    std::ranges::fill(sums.squares, 0.0);
    std::ranges::fill(sums.products, 0.0F);
  }
}

}  // namespace vitrine::ops

// SPDX-License-Identifier: Apache-2.0
// Private to the room: where the inputs of each layer's matrices can be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "vitrine/tap.h"

namespace vitrine::compress {

/// A matrix of a layer, and the place that shows what it is multiplied with.
struct SiteMatrix {
  std::string module;
  size_t site = 0;      ///< its number among the layer's
  int64_t expert = -1;  ///< it meets the rows of this expert's tokens alone; -1: all
  /// Names the matrices whose silu(gate . x) * (up . x), of the rows at `outer`, are the inputs of
  /// an expert's down. Empty: they are made otherwise.
  std::string gate = {}, up = {};
  size_t outer = 0;
  bool makes_scores = false;  ///< it makes queries or keys
};

/// A norm, and all that reads what it makes: its channels may be divided where these readers'
/// columns are multiplied.
struct NormPlace {
  std::string norm;                        ///< the vector's name in the graph
  size_t site = 0;                         ///< where its readers' inputs are seen
  std::vector<std::string> readers;        ///< modules that may be quantized
  std::vector<std::string> float_readers;  ///< modules that stay: routers, a shared expert's gate
};

/// The matrix that makes an attention's values, and the one that reads what they are averaged to:
/// rows of the first may be divided where columns of the second are multiplied.
struct ValuePlace {
  std::string values;     ///< the module that makes them
  std::string bias;       ///< the vector that is added to them; empty: none
  std::string output;     ///< the module that reads them
  size_t site = 0;        ///< where its inputs are seen
  int64_t sharing = 1;    ///< heads of the output's columns that read the same head of values
  int64_t head_size = 0;  ///< columns of a head
};

/// The places of one layer at which rows are read, in the order of its ops.
struct LayerSites {
  std::vector<Tap> sites;
  std::vector<SiteMatrix> matrices;
  std::vector<NormPlace> norms;      ///< of those whose readers are all known
  std::optional<ValuePlace> values;  ///< of attention whose values no other layer reads
  Tap result;                        ///< what leaves the layer
};

/// Finds those of each layer. Matrices that an op multiplies as floats are among them, those
/// outside of the layers are not.
std::vector<LayerSites> find_layer_sites(const ops::Graph& graph);

}  // namespace vitrine::compress

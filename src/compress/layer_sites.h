// SPDX-License-Identifier: Apache-2.0
// Private to the room: where the inputs of each layer's matrices can be read.
#pragma once

#include <cstdint>
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
};

/// The places of one layer at which rows are read, in the order of its ops.
struct LayerSites {
  std::vector<Tap> sites;
  std::vector<SiteMatrix> matrices;
};

/// Finds those of each layer. Matrices that an op multiplies as floats are among them, those
/// outside of the layers are not.
std::vector<LayerSites> find_layer_sites(const ops::Graph& graph);

}  // namespace vitrine::compress

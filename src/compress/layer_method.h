// SPDX-License-Identifier: Apache-2.0
// Private to the room: ways to choose the numbers of a layer's matrices by what a text makes of
// them. To add one, write a class and end its file with a LayerMethodRegistration.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "folds.h"
#include "layer_run.h"
#include "plan.h"
#include "progress.h"

namespace vitrine::compress {

/// What a calibration says of a matrix.
struct CalibrationFacts {
  int64_t rows_seen = 0;  ///< rows that it was multiplied with
  double shrinkage = 0;   ///< the share of all tokens in the products of an expert's rows
  double loss = 0;        ///< GptqResult::loss
  double damping = 0;     ///< that was taken
  float input_range = 0;  ///< the magnitude that the folder's scale of inputs reaches
};

/// A matrix that was quantized by its inputs.
struct CalibratedMatrix {
  const PlannedTensor* planned = nullptr;
  QuantizedMatrix matrix;
  CalibrationFacts facts;
  QuantError error;  ///< beside the source's weights, folded
};

/// What stays the same from layer to layer.
struct CalibrationContext {
  const Checkpoint& checkpoint;
  const QuantizeOptions& options;
  const std::unordered_map<std::string, const PlannedTensor*>& planned;  ///< by module
  Folds& folds;
  int threads;
  ProgressTeller& progress;
  const std::function<void(const CalibratedMatrix&)>& on_matrix;
};

/// Rows of a site that a matrix meets, in their order.
std::vector<int32_t> rows_of(const SiteRows& site, int64_t expert);

/// The layer that is being quantized: what a calibration shows of it, and its matrices in the
/// running engine, which always computes with channels as the source has them.
class LayerWork {
 public:
  LayerWork(const CalibrationContext& context, const LayerSites& layer,
            std::span<const SiteRows> sites, LayerRun& run)
      : context_(context), layer_(layer), sites_(sites), run_(run) {}

  const LayerSites& layer() const { return layer_; }
  const SiteRows& site(size_t number) const { return sites_[number]; }
  std::span<const SiteRows> sites() const { return sites_; }
  /// Returns what left the layer while it was as the source has it: the beginning is comparable
  /// with LayerRun::probe().
  std::span<const float> result() const { return sites_.back().rows.values; }
  const QuantizeOptions& options() const { return context_.options; }
  const Checkpoint& checkpoint() const { return context_.checkpoint; }
  Folds& folds() const { return context_.folds; }
  int threads() const { return context_.threads; }

  /// Returns null for a module that is not quantized.
  const PlannedTensor* find(const std::string& module) const;
  /// Returns a matrix of the source as it is folded, exact in its dtype.
  std::vector<float> weights(const PlannedTensor& planned) const;
  /// Returns a matrix of the source as the engine multiplies with it.
  std::vector<float> plain_weights(const PlannedTensor& planned) const;
  /// Rounds each weight to the nearest number of the matrix's scheme; the rows by all threads.
  QuantizedMatrix round(const PlannedTensor& planned, std::span<const float> weights) const;
  /// Puts a quantized matrix, of weights with these folds, into the engine; nothing is written.
  void try_out(const PlannedTensor& planned, const QuantizedMatrix& matrix);
  /// Puts a matrix with a fold that is not decided on into the engine; null: none.
  void try_out(const PlannedTensor& planned, const QuantizedMatrix& matrix, const Fold* fold);
  /// Puts the source's matrix back.
  void restore(const PlannedTensor& planned);
  /// Hands over a matrix that is done, of weights with its folds, and leaves it in the engine.
  void finish(const PlannedTensor& planned, std::span<const float> weights, QuantizedMatrix matrix,
              CalibrationFacts facts);
  /// Hands over a matrix that an earlier run has done, likewise.
  void finish(const CalibratedMatrix& kept);
  /// Returns what LayerRun::probe() does. Throws what the host's progress throws.
  std::vector<float> probe(int64_t tokens);

 private:
  const CalibrationContext& context_;
  const LayerSites& layer_;
  std::span<const SiteRows> sites_;
  LayerRun& run_;
};

/// A method. Immutable, thread-safe; objects live as long as the program.
class LayerMethod {
 public:
  LayerMethod() = default;
  LayerMethod(const LayerMethod&) = delete;
  LayerMethod& operator=(const LayerMethod&) = delete;
  virtual ~LayerMethod() = default;

  /// Says what a scheme must be that it cannot make numbers for ("integers"); empty: it can.
  virtual std::string_view obstacle(const QuantMethod& scheme) const = 0;
  /// Whether there is nothing to do without a calibration.
  virtual bool needs_texts(const QuantMethod&) const { return true; }
  /// Quantizes the matrices of a layer that tokens reach; those that none did it leaves out.
  virtual void quantize(LayerWork& work) const = 0;
};

/// Returns the method of that name. Throws kInvalidArgument naming the ones there are.
const LayerMethod& find_layer_method(std::string_view name);

/// A static object of this type makes a method known by its name.
struct LayerMethodRegistration {
  LayerMethodRegistration(std::string_view name, const LayerMethod& method);
};

}  // namespace vitrine::compress

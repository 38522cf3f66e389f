// SPDX-License-Identifier: Apache-2.0
// Options of `calibrate` that run the model: they tell which experts starve, which channels stand
// out, and which windows make up for it.
#pragma once

#include <string>
#include <vector>

#include "common.h"
#include "vitrine/calibration.h"

namespace cli {

class CalibrateExperts {
 public:
  void add_to(CLI::App& command);
  /// Refuses options that do not go together.
  void check() const;
  /// Lets the request choose by cover, where it is asked for. `model` must stay.
  void prepare(const std::string& model, vitrine::CalibrationRequest& request) const;
  /// Measures statistics, unless they are not wanted.
  void measure(const std::string& model, vitrine::CalibrationTexts& calibration) const;

  bool is_lenient() const { return is_lenient_; }

 private:
  bool has_cover_ = false, has_no_statistics_ = false, is_lenient_ = false;
  int64_t pool_ = 0, starved_below_ = 0;
  double outlier_ratio_ = 10;
  std::vector<std::string> audits_;
  std::string key_, decrypt_;
};

/// The lines on how windows were chosen, on experts that starve and on channels that stand out.
std::string describe_experts(const vitrine::CalibrationTexts& calibration);

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
#include "calibration_texts.h"

#include <fmt/format.h>

#include "common.h"
#include "vitrine/calibration.h"

namespace cli {

std::vector<std::vector<int32_t>> read_calibration_texts(const std::string& path,
                                                         const vitrine::Checkpoint& checkpoint) {
  vitrine::CalibrationTexts calibration = vitrine::read_calibration(path);
  const std::string tokenizer = checkpoint.tokenizer_json();
  const std::string& made_with = calibration.tokenizer_sha256;
  if (!tokenizer.empty() && !made_with.empty() && vitrine::sha256_of_text(tokenizer) != made_with) {
    refuse(
        fmt::format("{}: its ids are those of the tokenizer {}…, and {} has another; expected a "
                    "calibration of this model, or of one with its tokenizer",
                    path, made_with.substr(0, 16), checkpoint.path()));
  }
  return std::move(calibration.texts);
}

}  // namespace cli

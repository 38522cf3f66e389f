// SPDX-License-Identifier: Apache-2.0
#include "fold_file.h"

#include "core/json_text.h"
#include "plan.h"

namespace vitrine::compress {
namespace {

/// Says whether adapters meet the tensor: norms are vectors, and have none.
bool is_matrix(const Checkpoint& source, const std::string& tensor) {
  const TensorInfo* info = source.find(tensor);
  return info != nullptr && info->shape.size() == 2;
}

}  // namespace

std::string write_folds(const Checkpoint& source, const model::AdapterFolds& earlier,
                        const Folds& folds, const std::string& folder) {
  Folds all;
  for (const auto& [module, fold] : earlier.all()) {
    const std::string tensor = module + std::string(kWeight);
    const Fold own = {.rows = fold.rows, .columns = fold.columns};
    if (!fits_tensor(own, source.find(tensor))) {
      throw Error(ErrorKind::kBadFile,
                  source.path() + "/" + model::kFoldsName + ": " + quote_text(tensor) +
                      " has factors of other sizes than the model's matrix, which may be missing; "
                      "expected one for each of its rows and columns");
    }
    all.set(tensor, own);
  }
  for (const std::string& tensor : folds.names()) {
    if (!is_matrix(source, tensor)) continue;
    const Fold& fold = *folds.find(tensor);
    if (!fold.rows.empty()) all.multiply_rows(tensor, fold.rows);
    if (!fold.columns.empty()) all.multiply_columns(tensor, fold.columns);
  }
  if (all.names().empty()) return "";
  SafetensorsWriter writer(folder + "/" + model::kFoldsName);
  const auto for_each = [&](const auto& visit) {
    for (const std::string& tensor : all.names()) {
      const Fold& fold = *all.find(tensor);
      if (!fold.rows.empty()) visit(tensor + std::string(model::kFoldedRows), fold.rows);
      if (!fold.columns.empty()) visit(tensor + std::string(model::kFoldedColumns), fold.columns);
    }
  };
  for_each([&](const std::string& name, const std::vector<float>& factors) {
    writer.declare(name, DType::kF32, {std::ssize(factors)});
  });
  writer.begin();
  for_each([&](const std::string& name, const std::vector<float>& factors) {
    writer.write(name, std::as_bytes(std::span(factors)));
  });
  writer.finish();
  return model::kFoldsName;
}

}  // namespace vitrine::compress

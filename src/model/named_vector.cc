// SPDX-License-Identifier: Apache-2.0
#include "model/named_vector.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace vitrine::model {
namespace {

constexpr std::string_view kOnePlus = "1 + ", kMinusExp = "-exp of ";

}  // namespace

std::string one_plus(const std::string& tensor) { return std::string(kOnePlus) + tensor; }

std::string minus_exp(const std::string& tensor) { return std::string(kMinusExp) + tensor; }

std::string stored_name(const std::string& name) {
  for (const std::string_view prefix : {kOnePlus, kMinusExp}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

NamedVector find_named_vector(const Checkpoint& checkpoint, const std::string& name,
                              int64_t length) {
  NamedVector found;
  found.adds_one = name.starts_with(kOnePlus);
  found.is_minus_exp = name.starts_with(kMinusExp);
  const std::string tensor = stored_name(name);
  const TensorInfo* info = checkpoint.find(tensor);
  const bool is_convolution = info != nullptr && info->shape.size() == 3 && info->shape[1] == 1 &&
                              info->shape[2] > 0 && length % info->shape[2] == 0 &&
                              info->shape[0] == length / info->shape[2];
  found.info = is_convolution ? info : &checkpoint.require_vector(tensor, length);
  checkpoint.require_floats(*found.info);
  return found;
}

std::vector<float> read_named_vector(const Checkpoint& checkpoint, const NamedVector& vector) {
  std::vector<float> values = checkpoint.read_f32(*vector.info);
  if (vector.adds_one) {
    for (float& value : values) value = 1.0F + value;
  } else if (vector.is_minus_exp) {
    std::ranges::transform(values, values.begin(),
                           [](double value) { return static_cast<float>(-std::exp(value)); });
  }
  return values;
}

}  // namespace vitrine::model

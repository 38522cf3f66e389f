// SPDX-License-Identifier: Apache-2.0
// What the torch wheel's native_functions.yaml says of each ATen op: tags and backends.
#pragma once

#include <map>
#include <set>
#include <string>

namespace vitrine::testing_support {

struct NativeFunction {
  std::set<std::string> dispatch;  // "CPU", "MPS", "CompositeExplicitAutograd", …; empty: composite
  std::set<std::string> tags;      // "data_dependent_output", …
  std::string structured_delegate;  // the op whose kernels this one uses
};

/// A reader of the part of YAML that this file is written in.
class NativeFunctions {
 public:
  /// Throws std::runtime_error where the file can't be read or a line is not understood.
  static NativeFunctions read(const std::string& path);
  /// The file of the torch that this build uses; VITRINE_NATIVE_FUNCTIONS names another.
  static const NativeFunctions& of_torch();

  size_t size() const { return functions_.size(); }
  /// By name with overload ("add.Tensor"), or null.
  const NativeFunction* find(const std::string& name) const;
  bool is_tagged(const std::string& name, const std::string& tag) const;
  /// True where MPS has a kernel of its own for it.
  bool has_mps_kernel(const std::string& name) const;
  /// True where MPS runs the same composition of other ops as the CPU does.
  bool is_composite_everywhere(const std::string& name) const;

 private:
  const NativeFunction* with_kernels(const std::string& name) const;
  std::map<std::string, NativeFunction> functions_;
};

}  // namespace vitrine::testing_support

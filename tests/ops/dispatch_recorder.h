// SPDX-License-Identifier: Apache-2.0
// Sees every op that goes through ATen's dispatcher on this thread, with who called it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

namespace vitrine::testing_support {

struct DispatchedOp {
  std::string name;      // as native_functions.yaml spells it: "add.Tensor"
  int caller = -1;       // index of the op whose kernel called this one; -1: not a kernel
  bool float64 = false;  // an output is a float64 tensor (a number wrapped for one call is none)
  bool to_host = false;  // an output is on the CPU, though an input is not
  bool to_device = false;
};

/// Records between its construction and its end. One at a time per thread.
class DispatchRecorder {
 public:
  DispatchRecorder();
  ~DispatchRecorder();
  DispatchRecorder(const DispatchRecorder&) = delete;
  DispatchRecorder& operator=(const DispatchRecorder&) = delete;

  /// In the order of the calls.
  const std::vector<DispatchedOp>& ops() const { return ops_; }
  /// Calls that no kernel made: those of our own code.
  size_t num_own_calls() const;

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);

  std::vector<DispatchedOp> ops_;
  int current_ = -1;
  at::CallbackHandle handle_;
};

}  // namespace vitrine::testing_support

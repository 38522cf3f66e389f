// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/dispatch_recorder.h"

#include <memory>

namespace vitrine::testing_support {

namespace {

thread_local DispatchRecorder* recorder = nullptr;

struct CallContext : at::ObserverContext {
  int op = -1;
  bool from_device = false;  // the inputs can be read at the start only
  bool from_host = false;
};

template <typename Values, typename Visit>
void for_each_tensor(const Values& values, Visit visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  }
}

}  // namespace

DispatchRecorder::DispatchRecorder()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {
  recorder = this;
}

DispatchRecorder::~DispatchRecorder() {
  at::removeCallback(handle_);
  recorder = nullptr;
}

size_t DispatchRecorder::num_own_calls() const {
  size_t count = 0;
  for (const DispatchedOp& op : ops_) count += op.caller < 0 ? 1 : 0;
  return count;
}

std::unique_ptr<at::ObserverContext> DispatchRecorder::on_start(
    const at::RecordFunction& function) {
  auto context = std::make_unique<CallContext>();
  DispatchedOp op;
  op.name = function.name();
  if (const auto name = function.operator_name()) {
    op.name = name->name + (name->overload_name.empty() ? "" : "." + name->overload_name);
  }
  if (op.name.starts_with("aten::")) op.name = op.name.substr(6);
  op.caller = recorder->current_;
  context->op = static_cast<int>(recorder->ops_.size());
  for_each_tensor(function.inputs(), [&](const at::Tensor& tensor) {
    (tensor.is_cpu() ? context->from_host : context->from_device) = true;
  });
  recorder->ops_.push_back(std::move(op));
  recorder->current_ = context->op;
  return context;
}

void DispatchRecorder::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  const CallContext& call = *static_cast<CallContext*>(context);
  DispatchedOp& op = recorder->ops_[static_cast<size_t>(call.op)];
  recorder->current_ = op.caller;
  for_each_tensor(function.outputs(), [&](const at::Tensor& tensor) {
    op.float64 |=
        tensor.scalar_type() == at::kDouble && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    op.to_host |= call.from_device && tensor.is_cpu();
    op.to_device |= call.from_host && !call.from_device && !tensor.is_cpu();
  });
}

}  // namespace vitrine::testing_support

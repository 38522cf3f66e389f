// SPDX-License-Identifier: Apache-2.0
// Tensors between Vitrine and libtorch: the only public header that includes ATen. A host that
// includes it links `vitrine::torch`, of find_package(vitrine COMPONENTS torch).
//
//     at::Tensor ids = vitrine::to_torch(view);          // shares the memory
//     vitrine::TensorView again = vitrine::from_torch(ids);
//
// Nothing is copied and nothing is owned: who made the memory keeps it alive and unchanged in place
// for as long as the other side uses it. All functions are thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "vitrine/core.h"

namespace vitrine {

/// libtorch's name of an element type.
inline at::ScalarType to_torch(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    case DType::kI8: return at::kChar;
    case DType::kU8: return at::kByte;
    case DType::kI16: return at::kShort;
    case DType::kI32: return at::kInt;
    case DType::kI64: return at::kLong;
    case DType::kBool: return at::kBool;
    case DType::kF64: return at::kDouble;
    case DType::kF8E4M3: return at::kFloat8_e4m3fn;
  }
  throw Error(ErrorKind::kInvalidArgument, "DType " + std::to_string(static_cast<int>(dtype)) +
                                               " is none that vitrine/core.h names");
}

/// Vitrine's name of an element type. Throws kUnsupported for one that it has none for.
inline DType from_torch(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kF32;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kChar: return DType::kI8;
    case at::kByte: return DType::kU8;
    case at::kShort: return DType::kI16;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    case at::kBool: return DType::kBool;
    case at::kDouble: return DType::kF64;
    default:
      throw Error(ErrorKind::kUnsupported, std::string("a tensor of type ") + at::toString(type) +
                                               " has no vitrine::DType; convert it first");
  }
}

/// libtorch's name of a device.
inline at::Device to_torch(const Device& device) {
  const auto index = static_cast<at::DeviceIndex>(device.index);
  switch (device.kind) {
    case DeviceKind::kCuda: return {at::kCUDA, index};
    case DeviceKind::kMps: return {at::kMPS, index};
    case DeviceKind::kCpu: break;
  }
  return {at::kCPU};
}

/// Throws kUnsupported for a device that is neither cpu, cuda nor mps.
inline Device from_torch(const at::Device& device) {
  const int index = device.has_index() ? device.index() : 0;
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {DeviceKind::kCuda, index};
  if (device.is_mps()) return {DeviceKind::kMps, index};
  throw Error(ErrorKind::kUnsupported,
              "device '" + device.str() + "' is unknown here; expected cpu, cuda or mps");
}

/// A tensor over the view's memory, row-major. It must not be written to: a view is read-only.
/// Throws kInvalidArgument for a negative extent, or no memory where there are elements.
inline at::Tensor to_torch(const TensorView& view) {
  int64_t count = 1;
  for (const int64_t extent : view.shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "a TensorView's shape has the extent " + std::to_string(extent) +
                      "; expected extents from 0 whose product is a 64-bit number");
    }
  }
  if (view.data == nullptr && count > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "a TensorView of " + std::to_string(count) + " elements has no data");
  }
  const auto options =
      at::TensorOptions().dtype(to_torch(view.dtype)).device(to_torch(view.device));
  if (count == 0) return at::empty(view.shape, options);
  return at::for_blob(const_cast<void*>(view.data), view.shape)
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

/// A view of the tensor's memory. Throws kInvalidArgument for an undefined tensor or one that is
/// not dense and row-major (call `.contiguous()` first, and keep the result).
inline TensorView from_torch(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_contiguous() ||
      tensor.is_conj() || tensor.is_neg()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the tensor is not dense and row-major; pass the result of .contiguous()");
  }
  TensorView view;
  view.data = tensor.const_data_ptr();
  view.dtype = from_torch(tensor.scalar_type());
  view.shape = tensor.sizes().vec();
  view.device = from_torch(tensor.device());
  return view;
}

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "file_io.h"
#include "safetensors_header.h"
#include "text.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

struct SafetensorsWriter::Impl {
  struct Entry {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    uint64_t num_bytes = 0;
    uint64_t file_offset = 0;
    uint64_t written = 0;
  };

  explicit Impl(std::string path) : path(std::move(path)) {}

  std::string path;
  std::map<std::string, Entry> entries;
  std::unique_ptr<checkpoint::ReplacementFile> file;  ///< from begin() to finish()
  bool is_finished = false;
};

namespace {

[[noreturn]] void throw_misuse(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, path + ": " + what);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path)
    : impl_(std::make_unique<Impl>(std::move(path))) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::declare(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  if (impl_->file || impl_->is_finished) {
    throw_misuse(impl_->path,
                 "tensor " + quote_text(name) + " is declared after begin(); expected before");
  }
  const std::optional<uint64_t> bytes = checkpoint::tensor_bytes(dtype, shape);
  if (!bytes) {
    throw_misuse(impl_->path, "shape " + checkpoint::shape_text(shape) + " of tensor " +
                                  quote_text(name) +
                                  " is impossible; expected a product below 2^63");
  }
  Impl::Entry entry{dtype, std::move(shape), *bytes, 0, 0};
  if (name == "__metadata__" || !impl_->entries.emplace(name, std::move(entry)).second) {
    throw_misuse(impl_->path,
                 "tensor name " + quote_text(name) + " is taken; expected each name once");
  }
}

void SafetensorsWriter::begin(const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (impl_->file || impl_->is_finished) {
    throw_misuse(impl_->path, "begin() is called twice; expected once");
  }
  // Large elements first, as the reference implementation orders them: every tensor is aligned.
  std::vector<std::pair<const std::string, Impl::Entry>*> order;
  for (auto& entry : impl_->entries) order.push_back(&entry);
  std::ranges::stable_sort(order, std::greater<>(),
                           [](const auto* entry) { return dtype_size(entry->second.dtype); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  uint64_t offset = 0;
  for (auto* entry : order) {
    Impl::Entry& tensor = entry->second;
    tensor.file_offset = offset;
    offset += tensor.num_bytes;
    header[entry->first] = {{"dtype", dtype_name(tensor.dtype)},
                            {"shape", tensor.shape},
                            {"data_offsets", {tensor.file_offset, offset}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  prefix += text;
  for (auto* entry : order) entry->second.file_offset += prefix.size();
  impl_->file = std::make_unique<checkpoint::ReplacementFile>(impl_->path);
  impl_->file->write(0, std::as_bytes(std::span(prefix)));
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  if (!impl_->file) throw_misuse(impl_->path, "write() outside of begin() and finish()");
  const auto found = impl_->entries.find(name);
  if (found == impl_->entries.end()) {
    throw_misuse(impl_->path,
                 "tensor " + quote_text(name) + " is unknown; expected a declared one");
  }
  Impl::Entry& tensor = found->second;
  if (bytes.size() > tensor.num_bytes - tensor.written) {
    throw_misuse(impl_->path, "tensor " + quote_text(name) + " gets " +
                                  std::to_string(tensor.written + bytes.size()) +
                                  " bytes; expected " + std::to_string(tensor.num_bytes));
  }
  impl_->file->write(tensor.file_offset + tensor.written, bytes);
  tensor.written += bytes.size();
}

void SafetensorsWriter::finish() {
  if (!impl_->file) throw_misuse(impl_->path, "finish() without begin(); expected it before");
  for (const auto& [name, tensor] : impl_->entries) {
    if (tensor.written != tensor.num_bytes) {
      throw_misuse(impl_->path, "tensor " + quote_text(name) + " got " +
                                    std::to_string(tensor.written) + " bytes; expected " +
                                    std::to_string(tensor.num_bytes));
    }
  }
  impl_->file->commit();
  impl_->file.reset();
  impl_->is_finished = true;
}

}  // namespace vitrine

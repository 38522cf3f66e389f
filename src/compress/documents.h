// SPDX-License-Identifier: Apache-2.0
// Private to the room: the JSON files of a quantized folder.
#pragma once

#include <string>
#include <vector>

#include "plan.h"

namespace vitrine::compress {

/// The source's config.json with `quantization_config` as compressed-tensors writes it.
std::string quantized_config_json(const Checkpoint& checkpoint, const QuantizePlan& plan);

/// Returns the last part of a path, of "a/b/" too "b".
std::string last_part(const std::string& path);

/// A file that took part, for the manifest.
struct FileRecord {
  std::string name;
  uint64_t num_bytes = 0;
  std::string sha256;
};

/// Size and SHA-256 of `folder/name`. Throws kIo.
FileRecord record_file(const std::string& folder, const std::string& name);

/// Digest of a calibration's ids, each text's as a line.
std::string calibration_ids_sha256(const std::vector<std::vector<int32_t>>& texts);

/// `facts`: the text of a JSON object, whose members come last. Throws kInvalidArgument where it is
/// none, and for a member that the manifest has.
std::string manifest_json(const QuantizePlan& plan, const QuantizeOptions& options,
                          const QuantizeReport& report, const std::string& source_name,
                          const std::vector<FileRecord>& source_files,
                          const std::vector<FileRecord>& result_files, const std::string& facts);

}  // namespace vitrine::compress

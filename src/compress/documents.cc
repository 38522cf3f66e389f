// SPDX-License-Identifier: Apache-2.0
#include "documents.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "expert_record.h"
#include "mixed_bits.h"
#include "stored_form.h"

namespace vitrine::compress {
namespace {

using Json = nlohmann::ordered_json;

/// What the folder asks to be done with rows before they are multiplied.
Json activation_terms(const QuantMethod& method, const StoredForm& form) {
  if (method.activations == ActivationUse::kFloat) return nullptr;
  const bool is_dynamic = method.activations == ActivationUse::kDynamic;
  return {{"num_bits", 8},
          {"type", form.type()},
          {"symmetric", true},
          {"group_size", nullptr},
          {"strategy", is_dynamic ? "token" : "tensor"},
          {"dynamic", is_dynamic}};
}

Json config_group(const std::vector<std::string>& targets, const PlannedTensor& planned) {
  const QuantMethod& method = *planned.method;
  const StoredForm& form = stored_form(method);
  Json weights = {
      {"num_bits", method.bits},
      {"type", form.type()},
      {"symmetric", method.symmetric},
      {"group_size", planned.group_size == 0 ? Json(nullptr) : Json(planned.group_size)},
      {"strategy", form.strategy(planned)},
      {"dynamic", false}};
  if (!form.scale_dtype().empty()) weights["scale_dtype"] = form.scale_dtype();
  return {{"targets", targets},
          {"weights", weights},
          {"input_activations", activation_terms(method, form)},
          {"output_activations", nullptr},
          {"format", method.layout}};
}

/// The groups of what modules are quantized alike, the largest as all linear ones. An exact name
/// goes before the class, for compressed-tensors and vLLM alike.
Json config_groups(const QuantizePlan& plan) {
  struct Group {
    const PlannedTensor* first = nullptr;
    std::vector<std::string> modules;
  };
  std::map<std::pair<std::string, int>, Group> by_kind;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr) continue;
    Group& group = by_kind[{planned.method->name, planned.group_size}];
    if (group.first == nullptr) group.first = &planned;
    group.modules.push_back(planned.module);
  }
  std::vector<Group*> groups;
  for (auto& [kind, group] : by_kind) groups.push_back(&group);
  std::ranges::stable_sort(groups, std::greater<>(),
                           [](const Group* group) { return group->modules.size(); });
  Json json = Json::object();
  for (size_t i = 0; i < groups.size(); ++i) {
    json["group_" + std::to_string(i)] = config_group(
        i == 0 ? std::vector<std::string>{"Linear"} : groups[i]->modules, *groups[i]->first);
  }
  return json;
}

/// compressed-tensors' name of the folder's layout.
std::string_view folder_format(const QuantizePlan& plan) {
  std::string_view format;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr) continue;
    if (!format.empty() && format != planned.method->layout) return "mixed-precision";
    format = planned.method->layout;
  }
  return format;
}

Json file_records(const std::vector<FileRecord>& files) {
  Json records = Json::array();
  for (const FileRecord& file : files) {
    records.push_back({{"name", file.name}, {"bytes", file.num_bytes}, {"sha256", file.sha256}});
  }
  return records;
}

/// Returns what the manifest says of texts: how many ids, and their digest.
Json calibration_record(const std::vector<std::vector<int32_t>>& texts) {
  size_t tokens = 0;
  for (const std::vector<int32_t>& text : texts) tokens += text.size();
  return {
      {"texts", texts.size()}, {"tokens", tokens}, {"ids_sha256", calibration_ids_sha256(texts)}};
}

/// Adds a member whose name is new: operator[] would look through all that are there.
void append(Json& object, const std::string& name, Json value) {
  static_cast<std::vector<Json::object_t::value_type>&>(object.get_ref<Json::object_t&>())
      .emplace_back(name, std::move(value));
}

void add_facts(Json& manifest, const std::string& text) {
  const Json facts = Json::parse(text, nullptr, false);
  if (!facts.is_object()) {
    throw Error(ErrorKind::kInvalidArgument, "the facts are no JSON; expected an object");
  }
  for (const auto& [name, value] : facts.items()) {
    if (manifest.contains(name)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the fact '" + name + "' is the manifest's own; expected another name");
    }
    manifest[name] = value;
  }
}

/// A file name that isn't UTF-8 is written with replacement characters rather than refused.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string quantized_config_json(const Checkpoint& checkpoint, const QuantizePlan& plan) {
  Json config = Json::parse(checkpoint.config_json());
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"}, {"format", folder_format(plan)},
      {"quantization_status", "compressed"},  {"config_groups", config_groups(plan)},
      {"ignore", plan.ignored_modules},       {"kv_cache_scheme", nullptr},
      {"global_compression_ratio", nullptr},  {"sparsity_config", Json::object()},
      {"transform_config", Json::object()}};
  if (plan.unties_head) config["tie_word_embeddings"] = false;
  return dump(config);
}

std::string last_part(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return name.filename().string();
}

FileRecord record_file(const std::string& folder, const std::string& name) {
  const std::string path = (std::filesystem::path(folder) / name).string();
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (error) throw Error(ErrorKind::kIo, path + ": can't be read: " + error.message());
  return {name, num_bytes, sha256_of_file(path)};
}

std::string calibration_ids_sha256(const std::vector<std::vector<int32_t>>& texts) {
  std::string lines;
  for (const std::vector<int32_t>& text : texts) {
    for (const int32_t id : text) lines += std::to_string(id) + " ";
    lines += "\n";
  }
  return sha256_of_text(lines);
}

std::string manifest_json(const QuantizePlan& plan, const QuantizeOptions& options,
                          const QuantizeReport& report, const std::string& source_name,
                          const std::vector<FileRecord>& source_files,
                          const std::vector<FileRecord>& result_files, const std::string& facts) {
  const QuantMethod& method = find_quant_method(base_scheme(options.scheme));
  const std::optional<double> mixed = mixed_bits(options.scheme);
  Json manifest;
  manifest["schema"] = "vitrine-manifest";
  manifest["schema_version"] = 1;
  manifest["tool"] = {{"name", "vitrine"}, {"version", options.tool_version}};
  manifest["instruction_set"] = options.instruction_set;
  manifest["threads"] = thread_count(options.threads);
  manifest["seed"] = nullptr;  // no method draws a random number
  manifest["source"] = {{"name", source_name}, {"files", file_records(source_files)}};
  manifest["result"] = {{"files", file_records(result_files)}};
  manifest["scheme"] = {
      {"name", options.scheme},
      {"bits", mixed ? *mixed : method.bits},
      {"group_size",
       method.fixed_group == 0 ? options.group_size : std::max(0, method.fixed_group)},
      {"symmetric", method.symmetric},
      {"rounding", options.method == "rtn" ? "nearest" : options.method},
      {"head_bits", plan.head_method != nullptr ? Json(plan.head_method->bits) : Json(nullptr)}};
  if (plan.recipes) {
    const bool by_expert = plan.recipes->by_expert < plan.recipes->by_layer;
    manifest["widths"] = {{"by", by_expert ? "expert" : "layer"},
                          {"mean_kl_by_layer", plan.recipes->by_layer},
                          {"mean_kl_by_expert", plan.recipes->by_expert}};
  }
  if (!options.calibration.empty()) {
    manifest["calibration"] = calibration_record(options.calibration);
  }
  manifest["experts"] = experts_record(report);
  manifest["fallbacks"] = fallbacks_record(report, options.method);
  manifest["tensor_bytes"] = {{"source", report.source_bytes}, {"result", report.result_bytes}};
  Json& quantized = manifest["quantized"] = Json::object();
  for (const QuantizedTensorReport& tensor : report.quantized) {
    Json record = {{"bits", tensor.bits},
                   {"group_size", tensor.group_size},
                   {"mean_absolute_error", tensor.mean_absolute_error},
                   {"worst_absolute_error", tensor.worst_absolute_error}};
    // A method that works without products measures neither.
    const auto measured = [&](double value) {
      return tensor.damping > 0 ? Json(value) : Json(nullptr);
    };
    if (!options.calibration.empty()) {
      record["calibration"] = tensor.calibration_rows == 0
                                  ? Json(nullptr)
                                  : Json{{"rows", tensor.calibration_rows},
                                         {"shrinkage", tensor.shrinkage},
                                         {"damping", measured(tensor.damping)},
                                         {"loss", measured(tensor.loss)}};
    }
    append(quantized, tensor.name, std::move(record));
  }
  if (!plan.folded.empty()) manifest["folded"] = plan.folded;
  Json& unquantized = manifest["unquantized"] = Json::object();
  for (const UnquantizedTensorReport& tensor : report.unquantized) {
    append(unquantized, tensor.name, tensor.reason);
  }
  manifest["evaluation"] = nullptr;
  if (report.evaluation) {
    const QuantizeEvaluation& evaluation = *report.evaluation;
    manifest["evaluation"] = {
        {"text", {{"name", evaluation.text_name}, {"sha256", evaluation.text_sha256}}},
        {"num_tokens", evaluation.num_tokens},
        {"source_perplexity", evaluation.source_perplexity},
        {"result_perplexity", evaluation.result_perplexity},
        {"mean_kl", evaluation.mean_kl}};
  }
  add_facts(manifest, facts);
  return dump(manifest);
}

}  // namespace vitrine::compress

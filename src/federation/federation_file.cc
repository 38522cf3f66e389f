// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "checkpoint/fields.h"
#include "core/json_text.h"
#include "federation/spec_limits.h"
#include "vitrine/checkpoint.h"
#include "vitrine/federation.h"

namespace vitrine {

namespace {

using checkpoint::Fields;
using federation::kLargestExponent, federation::kMaxSpecialists, federation::kMinSpecialists,
    federation::kSumTolerance;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;
constexpr size_t kMaxValues = size_t{4} << 20;
constexpr int64_t kMaxHidden = 65536;

[[noreturn]] void bad(const std::string& place, const std::string& what) {
  throw Error(ErrorKind::kBadFile, place + ": " + what);
}

// A path without its "..", where that is the same place: behind a symbolic link it need not be.
std::string tidy(const fs::path& path) {
  const fs::path shorter = path.lexically_normal();
  std::error_code error, other_error;
  const bool is_same =
      fs::weakly_canonical(path, error) == fs::weakly_canonical(shorter, other_error);
  return (is_same && !error && !other_error ? shorter : path).string();
}

std::string resolved(const std::string& file, const std::string& name) {
  const fs::path path(name);
  if (path.is_absolute()) return name;
  return tidy(fs::path(file).parent_path() / path);
}

// The path that, from the folder of `file`, leads to `target`.
std::string relative(const std::string& file, const std::string& target) {
  const fs::path folder = fs::absolute(fs::path(file)).parent_path();
  const fs::path absolute = fs::absolute(fs::path(target));
  const fs::path path = absolute.lexically_normal().lexically_relative(folder.lexically_normal());
  std::error_code error;
  if (!fs::exists(absolute, error) || fs::equivalent(folder / path, absolute, error)) {
    return path.string();
  }
  const fs::path target_itself = fs::weakly_canonical(absolute, error);
  const fs::path folder_itself = error ? fs::path() : fs::weakly_canonical(folder, error);
  return (error ? path : target_itself.lexically_relative(folder_itself)).string();
}

std::string required_string(const Fields& fields, const char* name) {
  const auto text = fields.string(name);
  if (!text || text->empty()) fields.bad(name, "a text that is not empty");
  return *text;
}

void refuse_unknown(const Fields& fields, const nlohmann::json& object,
                    std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    bad(fields.place(), "field " + quote_text(key) + " is unknown; expected it not to be there");
  }
}

SpecialistSpec read_specialist(const FederationSpec& spec, const nlohmann::json& json, size_t i) {
  const std::string place = spec.path + ": specialists[" + std::to_string(i) + "]";
  if (!json.is_object()) bad(place, "is " + found_text(json) + "; expected an object");
  const Fields fields(json, place);
  refuse_unknown(fields, json, {"name", "model", "adapter"});
  SpecialistSpec specialist;
  specialist.name = required_string(fields, "name");
  for (const char* path : {"model", "adapter"}) {
    if (fields.string(path)) required_string(fields, path);
  }
  if (specialist.name.size() > 64) fields.bad("name", "at most 64 bytes");
  for (const SpecialistSpec& other : spec.specialists) {
    if (other.name == specialist.name) fields.bad("name", "a name that no other specialist has");
  }
  if (spec.base.empty()) {
    if (fields.string("adapter")) {
      fields.bad("adapter", "no adapter where the file names no \"base\"");
    }
    specialist.model = resolved(spec.path, required_string(fields, "model"));
  } else {
    if (fields.string("model")) {
      fields.bad("model", "an \"adapter\", or neither: the file's \"base\" is the model");
    }
    specialist.model = spec.base;
    if (const auto adapter = fields.string("adapter")) {
      specialist.adapter = resolved(spec.path, *adapter);
    }
  }
  return specialist;
}

void read_gate(const Fields& fields, size_t count, CombinerSpec& combiner) {
  combiner.hidden_size = fields.required_integer("hidden_size", 1, kMaxHidden);
  constexpr double kMax = federation::kLargestGateWeight;
  for (const double value :
       fields.numbers("weights", -kMax, kMax, count * static_cast<size_t>(combiner.hidden_size))) {
    combiner.gate.push_back(static_cast<float>(value));
  }
  for (const double value : fields.numbers("bias", -kMax, kMax, count)) {
    combiner.bias.push_back(static_cast<float>(value));
  }
  combiner.members = fields.strings("members");
  if (combiner.members.size() != count) {
    fields.bad("members", "the SHA-256 of each of the " + std::to_string(count) +
                              " specialists, as a fit writes them");
  }
}

CombinerSpec read_combiner(const FederationSpec& spec, const Fields& fields,
                           const nlohmann::json& json) {
  const size_t count = spec.specialists.size();
  CombinerSpec combiner;
  const std::string kind = required_string(fields, "kind");
  if (kind == combiner_kind_name(CombinerSpec::Kind::kGate)) {
    refuse_unknown(fields, json, {"kind", "hidden_size", "weights", "bias", "members"});
    combiner.kind = CombinerSpec::Kind::kGate;
    read_gate(fields, count, combiner);
    return combiner;
  }
  refuse_unknown(fields, json, {"kind", "weights"});
  if (kind == combiner_kind_name(CombinerSpec::Kind::kProduct)) {
    combiner.kind = CombinerSpec::Kind::kProduct;
    combiner.weights = fields.numbers("weights", -kLargestExponent, kLargestExponent, count);
    return combiner;
  }
  if (kind != combiner_kind_name(CombinerSpec::Kind::kMixture)) {
    fields.bad("kind", "\"mixture\", \"gate\" or \"product\"");
  }
  combiner.weights = fields.numbers("weights", 0.0, 1.0, count);
  const double sum = std::accumulate(combiner.weights.begin(), combiner.weights.end(), 0.0);
  if (std::abs(sum - 1.0) > kSumTolerance) {
    bad(fields.place(), "the weights of a mixture sum to " + std::to_string(sum) + "; expected 1");
  }
  for (double& weight : combiner.weights) weight /= sum;
  return combiner;
}

}  // namespace

FederationSpec FederationSpec::load(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) {
    throw Error(ErrorKind::kInvalidArgument,
                "federation '" + path + "' is not there; expected a federation file (JSON)");
  }
  if (fs::is_directory(path, error)) bad(path, "is a folder; expected a federation file (JSON)");
  const nlohmann::json json =
      parse_json_object(read_text_file(path, kMaxFileBytes), path, kMaxValues);
  const Fields fields(json, path);
  if (fields.find("federation") == nullptr) {
    bad(path,
        "has no field 'federation', so it is no federation file; expected one, or a model's folder "
        "or .gguf file");
  }
  refuse_unknown(fields, json, {"federation", "base", "specialists", "combiner", "fit"});
  fields.required_integer("federation", 1, 1);
  FederationSpec spec;
  spec.path = path;
  if (fields.string("base")) spec.base = resolved(path, required_string(fields, "base"));
  const nlohmann::json* list = fields.find("specialists");
  if (list == nullptr || !list->is_array() || list->size() < kMinSpecialists ||
      list->size() > kMaxSpecialists) {
    fields.bad("specialists", "a list of 2 to 64 specialists");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    spec.specialists.push_back(read_specialist(spec, (*list)[i], i));
  }
  const auto combiner = fields.object("combiner");
  if (!combiner) fields.bad("combiner", "an object with a \"kind\"");
  spec.combiner = read_combiner(spec, *combiner, *fields.find("combiner"));
  if (const nlohmann::json* fit = fields.find("fit")) {
    if (!fit->is_object()) fields.bad("fit", "an object, what a fit says of itself");
    spec.fit_json = fit->dump();
  }
  return spec;
}

std::string FederationSpec::to_json() const {
  Json json;
  json["federation"] = 1;
  if (!base.empty()) json["base"] = relative(path, base);
  for (const SpecialistSpec& specialist : specialists) {
    Json entry = {{"name", specialist.name}};
    if (base.empty()) entry["model"] = relative(path, specialist.model);
    if (!specialist.adapter.empty()) entry["adapter"] = relative(path, specialist.adapter);
    json["specialists"].push_back(std::move(entry));
  }
  Json& to = json["combiner"];
  to["kind"] = combiner_kind_name(combiner.kind);
  if (combiner.kind == CombinerSpec::Kind::kGate) {
    to["hidden_size"] = combiner.hidden_size;
    to["bias"] = combiner.bias;
    to["members"] = combiner.members;
    to["weights"] = combiner.gate;
  } else {
    to["weights"] = combiner.weights;
  }
  if (!fit_json.empty()) json["fit"] = Json::parse(fit_json);
  return json.dump(combiner.kind == CombinerSpec::Kind::kGate ? -1 : 2) + "\n";
}

}  // namespace vitrine

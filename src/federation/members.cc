// SPDX-License-Identifier: Apache-2.0
// What makes the specialists of a federation themselves: their files and hashes.
#include <filesystem>
#include <map>

#include "core/json_text.h"
#include "vitrine/checkpoint.h"
#include "vitrine/federation.h"

namespace vitrine {

namespace {

namespace fs = std::filesystem;
using Files = std::vector<MemberFile>;

/// The first file of weights first.
Files model_files(const std::string& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  Files files;
  for (const std::string& path : checkpoint.weight_files()) {
    files.push_back({fs::path(path).filename().string(), path});
  }
  if (!checkpoint.is_gguf()) {  // all of it is in the weight files
    files.push_back({"config.json", (fs::path(checkpoint.path()) / "config.json").string()});
  }
  return files;
}

Files adapter_files(const std::string& folder) {
  Files files;
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"}) {
    files.push_back({name, (fs::path(folder) / name).string()});
  }
  return files;
}

/// One hash over those of files, in their order.
std::string hash_of_hashes(const std::vector<std::string>& hashes) {
  std::string lines;
  for (const std::string& one : hashes) lines += one + "\n";
  return sha256_of_text(lines);
}

}  // namespace

std::vector<Files> member_files(const FederationSpec& spec) {
  std::vector<Files> members;
  for (const SpecialistSpec& specialist : spec.specialists) {
    members.push_back(specialist.adapter.empty() ? model_files(specialist.model)
                                                 : adapter_files(specialist.adapter));
  }
  return members;
}

std::vector<std::string> member_hashes(const FederationSpec& spec, bool with_base) {
  if (!spec.hash_file) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "a federation's spec has no hash_file; expected sha256_of_file, or another function");
  }
  std::map<std::string, std::string> known;  // a base is read once for all of its adapters
  const auto add = [&](const Files& files, std::vector<std::string>& hashes) {
    for (const MemberFile& file : files) {
      std::string& hash = known[file.path];
      if (hash.empty()) hash = spec.hash_file(file.path);
      hashes.push_back(hash);
    }
  };
  const std::vector<Files> members = member_files(spec);
  std::vector<std::string> all;
  for (size_t i = 0; i < members.size(); ++i) {
    std::vector<std::string> hashes;
    add(members[i], hashes);
    if (with_base && !spec.specialists[i].adapter.empty()) add(model_files(spec.base), hashes);
    all.push_back(hash_of_hashes(hashes));
  }
  return all;
}

void FederationSpec::check_members() const {
  const auto bad = [&](const std::string& what) {
    throw Error(ErrorKind::kBadFile, path + ": " + what);
  };
  const auto require = [&](const std::string& who, const std::string& part) {
    std::error_code error;
    if (part.empty() || fs::exists(part, error)) return;
    bad(who + quote_text(part) +
        ", which is not there; expected a model's folder or .gguf file, or an adapter's folder");
  };
  require("the base is ", base);
  for (const SpecialistSpec& specialist : specialists) {
    for (const std::string& part : {specialist.model, specialist.adapter}) {
      require("specialist " + quote_text(specialist.name) + " needs ", part);
    }
  }
  if (combiner.members.empty()) return;
  const std::vector<std::string> found = member_hashes(*this);
  for (size_t i = 0; i < found.size(); ++i) {
    if (combiner.members[i] == found[i]) continue;
    const std::string name = "specialist " + quote_text(specialists[i].name);
    // Earlier versions took the first file of weights alone.
    if (combiner.members[i] == hash_file(member_files(*this)[i].front().path)) {
      bad("the gate was fitted by an earlier version, whose 'members' left out all but the first "
          "weights of " +
          name + "; expected one that is fitted anew (vitrine federate fit)");
    }
    bad("the gate was fitted for other members: " + name + " has the SHA-256 " + found[i] +
        "; expected the members of the fit, or fit it again (vitrine federate fit)");
  }
}

}  // namespace vitrine

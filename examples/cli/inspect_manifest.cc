// SPDX-License-Identifier: Apache-2.0
#include "inspect_manifest.h"

#include <fmt/format.h>

#include "audit_run.h"
#include "common.h"
#include "vitrine/compression_manifest.h"

namespace cli {

namespace {

using ManifestJson = nlohmann::ordered_json;

/// A value as a reader wants it: texts without quotes, control characters escaped.
std::string shown(const ManifestJson& value) {
  if (value.is_null()) return "not told";
  if (value.is_string()) return plain(value.get<std::string>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return plain(value.dump(-1, ' ', false, ManifestJson::error_handler_t::replace));
}

/// A member of an object; null where it is none or has no such member.
ManifestJson member(const ManifestJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? ManifestJson(nullptr) : *found;
}

/// "a 1, b 2" of an object, "a, b" of a list.
std::string listed(const ManifestJson& values) {
  std::string text;
  for (const auto& [name, value] : values.items()) {
    if (!text.empty()) text += ", ";
    text += values.is_array() ? shown(value) : fmt::format("{} {}", plain(name), shown(value));
  }
  return text.empty() ? "none" : text;
}

class AccountText {
 public:
  explicit AccountText(const ManifestJson& account) : account_(account) {}

  std::string text() {
    line("folder", shown(account_["folder"]));
    line("made of", shown(account_["source_name"]));
    line("method", shown(account_["method"]));
    line("scheme", listed(account_["scheme"]));
    line("by",
         fmt::format("{} {} on {}, {} threads, seed {}", shown(member(account_["tool"], "name")),
                     shown(member(account_["tool"], "version")), shown(account_["instruction_set"]),
                     shown(account_["threads"]),
                     account_["seed"].is_null() ? "none" : shown(account_["seed"])));
    if (account_["bytes"].is_object()) line("bytes", listed(account_["bytes"]));
    line("expires", shown(account_["expires"]));
    files();
    matrices();
    for (const auto& [reason, count] : account_["left"].items()) {
      line("left", fmt::format("{:>5} tensors: {}", shown(count), plain(reason)));
    }
    experts();
    fallbacks();
    if (account_["calibration"].is_object()) line("calibration", listed(account_["calibration"]));
    corpus();
    if (account_["evaluation"].is_object()) line("evaluation", listed(account_["evaluation"]));
    gate();
    for (const ManifestJson& adapter : account_["adapters"]) line("adapter", listed(adapter));
    line("signed",
         account_["is_signed"] == true ? "there is a seal; `manifest verify` checks it" : "no");
    line("missing", listed(account_["missing"]));
    return std::move(text_);
  }

 private:
  void line(const char* name, const std::string& value) {
    text_ += fmt::format("{:<16}{}\n", name, value);
  }

  void files() {
    for (const ManifestJson& file : account_["files"]) {
      line(file["of"] == "source" ? "source file" : "file",
           fmt::format("{:<12}{}  {} ({})", file["state"].get<std::string>(),
                       file["sha256"].get<std::string>().substr(0, 16), shown(file["name"]),
                       format_bytes(file["bytes"].get<uint64_t>())));
    }
    for (const ManifestJson& name : account_["unnamed"]) {
      line("file", fmt::format("{:<12}{:<18}{}", "not named", "", shown(name)));
    }
  }

  void matrices() {
    for (const ManifestJson& form : account_["matrices"]) {
      const double columns = form["group_size"].get<double>();
      const std::string group =
          columns == 0 ? "a scale a row" : fmt::format("groups of {:.0f}", columns);
      line("matrices",
           fmt::format("{:>5} of {:.0f} bits, {}; {} by the calibration, loss {:.4g}; worst error "
                       "{:.5f} in {}",
                       form["matrices"].get<int64_t>(), form["bits"].get<double>(), group,
                       form["calibrated"].get<int64_t>(), form["loss"].get<double>(),
                       form["worst_absolute_error"].get<double>(), shown(form["worst"])));
    }
  }

  void experts() {
    const ManifestJson& experts = account_["experts"];
    if (!experts.is_object()) return;
    line("experts",
         fmt::format("{} calibrated, {} shrunk, {} rounded, {} untouched; fewest tokens "
                     "of one: {}",
                     shown(member(experts, "calibrated")), shown(member(experts, "shrunk")),
                     shown(member(experts, "rounded")), shown(member(experts, "untouched")),
                     shown(member(experts, "fewest_tokens"))));
  }

  void fallbacks() {
    const ManifestJson& fallbacks = account_["fallbacks"];
    if (!fallbacks.is_object()) return;
    std::string all;
    for (const auto& [kind, names] : fallbacks.items()) {
      const size_t count = names.is_number_unsigned() ? names.get<size_t>() : names.size();
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", count, plain(kind));
    }
    line("fallbacks", all);
  }

  void corpus() {
    const ManifestJson manifest = member(account_["corpus"], "manifest");
    if (!manifest.is_object()) return;
    line("corpus", fmt::format("{}, {} tokens, root {}", shown(account_["corpus"]["file"]),
                               shown(member(manifest, "tokens")),
                               shown(member(member(manifest, "corpus"), "merkle_root"))));
    for (const ManifestJson& source : member(manifest, "sources")) {
      line("corpus source",
           fmt::format("{}: {} of {} tokens, SHA-256 {}", shown(member(source, "name")),
                       shown(member(source, "tokens_used")), shown(member(source, "tokens")),
                       shown(member(source, "sha256"))));
    }
    for (const char* name : {"licence", "purpose", "retention", "version"}) {
      if (const ManifestJson value = member(manifest, name); value.is_string() && value != "") {
        line(name, shown(value));
      }
    }
    const ManifestJson scrubbed = member(manifest, "scrubbed");
    line("replaced", scrubbed.is_object() ? listed(scrubbed) : "not looked for");
    if (const ManifestJson report = member(manifest, "scrubber_report"); report.is_object()) {
      line("scrubber", listed(report));
    }
    const ManifestJson separation = member(manifest, "separation");
    line("separation",
         separation.is_object()
             ? fmt::format("{} tokens shared with the evaluations, a share of {}, likeness {}",
                           shown(member(separation, "shared_tokens")),
                           shown(member(separation, "share")),
                           shown(member(separation, "largest_likeness")))
             : "not looked for");
    const ManifestJson missing = member(member(manifest, "coverage"), "missing");
    if (missing.is_array()) line("not in corpus", listed(missing));
  }

  void gate() {
    const ManifestJson verdict = member(account_["gate"], "verdict");
    if (!verdict.is_object()) return;
    line("gate",
         fmt::format("{}: {}", shown(member(verdict, "gate")), shown(member(verdict, "outcome"))));
  }

  ManifestJson account_;
  std::string text_;
};

}  // namespace

int inspect_manifest(const std::string& folder, const std::string& source, bool is_json) {
  const ManifestJson account = ManifestJson::parse(vitrine::compression_account(folder, source));
  if (is_json) {
    write_json(account);
  } else {
    write_out(AccountText(account).text());
  }
  std::string first;
  for (const ManifestJson& file : account["files"]) {
    const bool is_other = file["state"] == "changed" || file["state"] == "missing";
    if (is_other && first.empty()) first = shown(file["name"]) + " is " + shown(file["state"]);
  }
  if (first.empty() && !account["unnamed"].empty()) {
    first = shown(account["unnamed"][0]) + " is not named";
  }
  if (first.empty()) return 0;
  write_note(fmt::format("{}: {}; expected the files that the manifest names", folder, first));
  return 1;
}

}  // namespace cli

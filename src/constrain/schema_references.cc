// SPDX-License-Identifier: Apache-2.0
// References within a document: $ref, $dynamicRef, $recursiveRef, and what they lead to.
#include <algorithm>

#include "schema.h"
#include "schema_fields.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxScopes = 1000;

std::string unescape_fragment(std::string_view fragment) {
  std::string out;
  for (size_t i = 0; i < fragment.size(); ++i) {
    const auto hex = [](char c) {
      return c >= '0' && c <= '9'                 ? c - '0'
             : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                  : -1;
    };
    if (fragment[i] == '%' && i + 2 < fragment.size() && hex(fragment[i + 1]) >= 0 &&
        hex(fragment[i + 2]) >= 0) {
      out += static_cast<char>(hex(fragment[i + 1]) << 4 | hex(fragment[i + 2]));
      i += 2;
    } else {
      out += fragment[i];
    }
  }
  return out;
}

/// Where a JSON pointer leads; null where nowhere.
const JsonValue* follow(const JsonValue* at, std::string_view pointer) {
  while (at && !pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    std::string_view raw = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(raw.size());
    std::string token;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] == '~' && i + 1 < raw.size()) {
        token += raw[++i] == '1' ? '/' : '~';
      } else {
        token += raw[i];
      }
    }
    if (at->is_array()) {
      size_t index = 0;
      if (token.empty() || token.size() > 9 ||
          token.find_first_not_of("0123456789") != std::string::npos)
        return nullptr;
      index = std::stoul(token);
      at = index < at->items.size() ? &at->items[index] : nullptr;
    } else {
      at = at->find(token);
    }
  }
  return at;
}

}  // namespace

SchemaId SchemaSet::load_target(const Target& target, const Context& at) {
  return load(*target.json, target.pointer,
              {target.base, target.dialect, enter(at.scope, target.base, target.pointer)});
}

SchemaId SchemaSet::resolve(const std::string& reference, const Context& at,
                            const std::string& pointer) {
  const std::string& base = at.base;
  const std::string whole = resolve_uri(base, reference);
  const size_t hash = whole.find('#');
  const std::string document = whole.substr(0, hash);
  const std::string fragment =
      hash == std::string::npos ? "" : unescape_fragment(std::string_view(whole).substr(hash + 1));
  Target target{&document_, "", base, options_.dialect};
  if (const JsonValue* uri = document_.find("$schema"); uri && uri->is_string()) {
    for (const auto& [name, dialect] : {std::pair{"draft-04", SchemaDialect::kDraft4},
                                        {"draft-06", SchemaDialect::kDraft6},
                                        {"draft-07", SchemaDialect::kDraft7},
                                        {"2019-09", SchemaDialect::kDraft2019},
                                        {"2020-12", SchemaDialect::kDraft2020}}) {
      if (uri->text.find(name) != std::string::npos) target.dialect = dialect;
    }
  }
  if (const auto found = ids_.find(whole); found != ids_.end()) {
    return load_target(found->second, at);
  }
  const auto found = ids_.find(document);
  if (found != ids_.end()) {
    target = found->second;
  } else if (!(document == base || reference.starts_with('#'))) {
    unsupported(pointer, "a reference to another document ('" + reference + "')");
  }
  const JsonValue* json = follow(target.json, fragment);
  if (!json && reference.starts_with('#')) {  // a pointer from the whole document's root
    target.json = &document_;
    target.pointer.clear();
    json = follow(target.json, fragment);
  }
  if (!json) malformed(pointer, "the reference '" + reference + "' leads nowhere");
  return load_target({json, target.pointer + fragment, target.base, target.dialect}, at);
}

/// A reference to a dynamic anchor leads to the outermost resource on the way here that has one of
/// this name; any other leads where $ref would.
SchemaId SchemaSet::resolve_dynamic(const std::string& reference, const std::string& anchor,
                                    const Context& at, const std::string& pointer) {
  std::string base = resolve_uri(at.base, reference);
  base.resize(std::min(base.find('#'), base.size()));
  const auto resource = anchors_.find(base);
  if (resource == anchors_.end() || !resource->second.contains(anchor)) {
    return resolve(reference, at, pointer);
  }
  const uint32_t scope = enter(at.scope, base, pointer);
  const std::string& outermost = dynamic_scopes_[scope].at(anchor);
  Context from = at;
  from.scope = scope;
  return load_target(anchors_.at(outermost).at(anchor), from);
}

uint32_t SchemaSet::enter(uint32_t scope, const std::string& base, const std::string& pointer) {
  const auto resource = anchors_.find(base);
  if (resource == anchors_.end()) return scope;
  DynamicScope inner = dynamic_scopes_[scope];
  for (const auto& [name, target] : resource->second) inner.try_emplace(name, base);
  const auto [found, is_new] =
      scope_ids_.try_emplace(std::move(inner), static_cast<uint32_t>(dynamic_scopes_.size()));
  if (!is_new) return found->second;
  if (dynamic_scopes_.size() >= kMaxScopes) {
    unsupported(pointer, "dynamic references under more than 1000 combinations of anchors");
  }
  dynamic_scopes_.push_back(found->first);
  return found->second;
}

void SchemaSet::collect_ids(const JsonValue& json, const std::string& pointer,
                            const std::string& outer, SchemaDialect dialect) {
  std::string base = outer;
  if (json.is_object()) {
    const bool old = dialect < SchemaDialect::kDraft2019;
    const char* key = dialect == SchemaDialect::kDraft4 ? "id" : "$id";
    const JsonValue* id = json.find(key);
    if (id && id->is_string() && !(old && json.find("$ref"))) {
      std::string whole = resolve_uri(outer, id->text);
      if (old && id->text.starts_with('#')) {
        ids_.try_emplace(whole, Target{&json, pointer, outer, dialect});
      } else {
        if (whole.ends_with('#')) whole.pop_back();
        base = whole;
        ids_.try_emplace(base, Target{&json, pointer, base, dialect});
      }
    }
    const Target here{&json, pointer, base, dialect};
    for (const char* kind : {"$anchor", "$dynamicAnchor"}) {
      const JsonValue* anchor = old ? nullptr : json.find(kind);
      if (!anchor || !anchor->is_string()) continue;
      ids_.try_emplace(base + "#" + anchor->text, here);
      if (kind[1] == 'd') anchors_[base].try_emplace(anchor->text, here);
    }
    const JsonValue* recursive = json.find("$recursiveAnchor");
    if (recursive && recursive->type == JsonValue::kTrue && (pointer.empty() || base != outer)) {
      anchors_[base].try_emplace("", here);
    }
  }
  for (size_t i = 0; i < json.items.size(); ++i) {
    const bool is_data = json.is_object() && (json.keys[i] == "enum" || json.keys[i] == "const");
    if (is_data || (!json.items[i].is_object() && !json.items[i].is_array())) continue;
    collect_ids(json.items[i],
                pointer + "/" + (json.is_object() ? json.keys[i] : std::to_string(i)), base,
                dialect);
  }
}

SchemaId SchemaSet::any_of(std::vector<SchemaId> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids[0] == kTrueSchema) return kTrueSchema;
  if (ids.size() > 1) std::erase(ids, kFalseSchema);
  if (ids.size() == 1) return ids[0];
  const auto [found, is_new] = choices_.try_emplace(ids, static_cast<SchemaId>(schemas_.size()));
  if (!is_new) return found->second;
  Schema choice;
  choice.pointer = schemas_[ids[0]].pointer;
  choice.any_of = std::move(ids);
  choice.has_any_of = true;
  schemas_.push_back(std::move(choice));
  return found->second;
}

void SchemaSet::number_places() {
  std::vector<const JsonValue*> open = {&document_};
  while (!open.empty()) {
    const JsonValue* at = open.back();
    open.pop_back();
    positions_.emplace(at, static_cast<uint32_t>(positions_.size()));
    for (size_t i = at->items.size(); i-- > 0;) open.push_back(&at->items[i]);
  }
}

uint32_t SchemaSet::position(SchemaId id) const {
  const Schema& schema = schemas_[id];
  const auto found = positions_.find(schema.json ? schema.json : schema.members);
  return found == positions_.end() ? kUnbounded : found->second;
}

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const auto scheme_end = [](std::string_view uri) {
    const size_t colon = uri.find(':');
    return colon != std::string_view::npos && uri.find_first_of("/?#") > colon ? colon + 1 : 0;
  };
  if (scheme_end(reference) > 0) return std::string(reference);
  base = base.substr(0, base.find('#'));
  if (reference.empty() || reference[0] == '#') return std::string(base) + std::string(reference);
  const size_t scheme = scheme_end(base);
  size_t path = scheme;
  if (base.substr(scheme).starts_with("//")) {
    path = std::min(base.find('/', scheme + 2), base.size());
  }
  if (reference.starts_with("//"))
    return std::string(base.substr(0, scheme)) + std::string(reference);
  if (reference[0] == '/') return std::string(base.substr(0, path)) + std::string(reference);
  const size_t slash = base.rfind('/');
  if (slash == std::string_view::npos || slash < path) {
    const bool has_authority = path > scheme;
    return std::string(base.substr(0, path)) + (has_authority ? "/" : "") + std::string(reference);
  }
  std::string out = std::string(base.substr(0, slash + 1)) + std::string(reference);
  // "a/b/../c" is "a/c", and "a/./b" is "a/b".
  for (size_t at; (at = out.find("/./")) != std::string::npos;) out.erase(at, 2);
  for (size_t at; (at = out.find("/../")) != std::string::npos && at > path;) {
    const size_t before = out.rfind('/', at - 1);
    if (before == std::string::npos || before < path) break;
    out.erase(before, at + 3 - before);
  }
  return out;
}

}  // namespace vitrine::constrain

// SPDX-License-Identifier: Apache-2.0
#include "formats.h"

#include <string>

#include "regex_parse.h"

namespace vitrine::constrain {

namespace {

// RFC 3339, sections 5.6 and 5.7: months have their lengths, 29 February its years.
const std::string kDate =
    R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";

/// 23:59:60 in UTC, written at each offset of whole half hours.
std::string leap_seconds() {
  constexpr int kDay = 24 * 60;
  const auto clock = [](int minute) {
    const auto two = [](int value) {
      return std::string(value < 10 ? "0" : "") + std::to_string(value);
    };
    return two(minute / 60) + ":" + two(minute % 60);
  };
  std::string out;
  for (int hour = 0; hour < 24; ++hour) {
    out += (hour > 0 ? "|" : "") + clock(hour * 60).substr(0, 2) + ":(?:";
    for (int half = 29; half < 60; half += 30) {
      const int minute = 60 * hour + half, ahead = (minute + 1) % kDay;
      out += (half > 29 ? "|" : "") + std::to_string(half) + R"(:60(?:\.\d+)?(?:\+)" +
             clock(ahead) + "|-" + clock((kDay - ahead) % kDay) + (ahead == 0 ? "|[Zz])" : ")");
    }
    out += ")";
  }
  return out;
}

const std::string kTime =
    R"((?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+\-](?:[01]\d|2[0-3]):[0-5]\d)|)" +
    leap_seconds() + ")";
const std::string kByte = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
const std::string kIpv4 = "(?:" + kByte + R"((?:\.)" + kByte + "){3})";

/// RFC 4291, section 2.2.
std::string ipv6() {
  const std::string hex = "[0-9A-Fa-f]{1,4}";
  const std::string last = "(?:" + hex + ":" + hex + "|" + kIpv4 + ")";
  std::string out = "(?:(?:" + hex + ":){6}" + last;
  for (int before = 0; before <= 5; ++before) {  // groups before the "::", the last two behind it
    const std::string head =
        before == 0 ? "" : "(?:" + hex + "(?::" + hex + "){0," + std::to_string(before - 1) + "})";
    // "::" stands for at least one group: at most 7 in all.
    const int middle = 5 - before;
    const std::string groups =
        middle == 0 ? "" : "(?:" + hex + ":){0," + std::to_string(middle) + "}";
    out += "|" + (before == 0 ? "" : "(?:" + head + ")?") + "::" + groups + last;
  }
  out += "|(?:" + hex + "(?::" + hex + "){0,5})?::" + hex;
  out += "|(?:" + hex + "(?::" + hex + "){0,6})?::)";
  return out;
}

// RFC 3986, appendix A. `wide`: what RFC 3987 adds.
std::string uri(bool reference, bool wide) {
  const std::string extra =
      wide ? R"(\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}\u{10000}-\u{EFFFD})" : "";
  const std::string percent = "%[0-9A-Fa-f]{2}";
  const std::string plain = R"(A-Za-z0-9\-._~!$&'()*+,;=)" + extra;
  const std::string pchar = "(?:[" + plain + ":@]|" + percent + ")";
  const std::string own = wide ? R"(\u{E000}-\u{F8FF}\u{F0000}-\u{10FFFD})" : "";  // private use
  const std::string query = "(?:[" + plain + own + ":@/?" + "]|" + percent + ")*";
  const std::string host = R"((?:\[(?:)" + ipv6() +
                           R"(|[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+)\]|(?:[)" + plain +
                           "]|" + percent + ")*)";
  const std::string authority =
      "(?:(?:[" + plain + ":]|" + percent + ")*@)?" + host + R"((?::\d*)?)";
  const std::string abempty = "(?:/" + pchar + "*)*";
  const std::string absolute = "/(?:" + pchar + "+" + abempty + ")?";
  const std::string rootless = pchar + "+" + abempty;
  const std::string tail = R"((?:\?)" + query + ")?(?:#" + query + ")?";
  std::string out = R"([A-Za-z][A-Za-z0-9+\-.]*:(?://)" + authority + abempty + "|" + absolute +
                    "|" + rootless + "|)" + tail;
  if (reference) {
    const std::string segment = "(?:[" + plain + "@]|" + percent + ")+";
    out = "(?:" + out + "|(?://" + authority + abempty + "|" + absolute + "|" + segment + abempty +
          "|)" + tail + ")";
  }
  return out;
}

// RFC 5321, section 4.1.2; `wide`: RFC 6531.
std::string email(bool wide) {
  const std::string extra = wide ? R"(\u{80}-\u{10FFFF})" : "";
  const std::string atom = R"([A-Za-z0-9!#$%&'*+\-/=?^_`{|}~)" + extra + "]+";
  const std::string quoted = R"("(?:[ !#-\[\]-~)" + extra + R"(]|\\[ -~])*")";
  const std::string domain_label =
      "[A-Za-z0-9" + extra + R"(](?:[A-Za-z0-9\-)" + extra + "]*[A-Za-z0-9" + extra + "])?";
  return "(?:" + atom + R"((?:\.)" + atom + ")*|" + quoted + ")@(?:" + domain_label + R"((?:\.)" +
         domain_label + R"()*|\[(?:)" + kIpv4 + "|IPv6:" + ipv6() + R"()\]))";
}

std::string pattern_of(std::string_view name) {
  if (name == "date-time") return kDate + "[Tt]" + kTime;
  if (name == "date") return kDate;
  if (name == "time") return kTime;
  if (name == "duration") {  // RFC 3339, appendix A
    const std::string time = R"(T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))";
    const std::string date = R"((?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?))";
    return "P(?:" + date + "(?:" + time + ")?|" + time + R"(|\d+W))";
  }
  if (name == "email") return email(false);
  if (name == "idn-email") return email(true);
  if (name == "hostname" || name == "host-name") {
    // RFC 5891, section 4.2.3.1: hyphens in the third and fourth place mark an A-label ("xn--").
    const std::string c = "[A-Za-z0-9]", any = R"([A-Za-z0-9\-])", no_hyphen = "[A-Za-z0-9]";
    const std::string label = "(?:" + c + "|" + c + any + "?" + c + "|" + c + any +
                              "(?:" + no_hyphen + any + "{0,59}" + c + "|-" + no_hyphen +
                              "(?:" + any + "{0,58}" + c + ")?)|[Xx][Nn]--" + any + "{0,58}" + c +
                              ")";
    return "(?=.{1,253}$)" + label + R"((?:\.)" + label + ")*";
  }
  if (name == "ipv4" || name == "ip-address") return kIpv4;
  if (name == "ipv6") return ipv6();
  if (name == "uri") return uri(false, false);
  if (name == "uri-reference") return uri(true, false);
  if (name == "iri") return uri(false, true);
  if (name == "iri-reference") return uri(true, true);
  if (name == "uri-template") {  // RFC 6570, section 2
    return R"re((?:[!#-$&-;=?-\[\]_a-z~\u{A0}-\u{10FFFF}]|%[0-9A-Fa-f]{2}|\{[+#./;?&=,!@|]?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9]\d{0,3}|\*)?(?:,(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9]\d{0,3}|\*)?)*\})*)re";
  }
  if (name == "uuid") return "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}";
  if (name == "json-pointer") return "(?:/(?:[^~/]|~[01])*)*";
  if (name == "relative-json-pointer") return R"((?:0|[1-9]\d*)(?:#|(?:/(?:[^~/]|~[01])*)*))";
  return "";
}

}  // namespace

NodeId format_language(RegexPool& pool, std::string_view name) {
  const std::string pattern = pattern_of(name);
  return pattern.empty() ? kEmptyNode : compile_pattern(pool, pattern, PatternScope::kWhole);
}

}  // namespace vitrine::constrain

// SPDX-License-Identifier: Apache-2.0
// UTF-8 for the line editor, whatever the process's locale is.
#pragma once

#include <locale.h>

namespace cli {

/// While it lives, this thread's characters are UTF-8 (C.UTF-8, which every Debian system has).
class Utf8Locale {
 public:
  Utf8Locale() : locale_(::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {
    if (locale_ != nullptr) before_ = ::uselocale(locale_);
  }
  ~Utf8Locale() {
    if (locale_ == nullptr) return;
    ::uselocale(before_);
    ::freelocale(locale_);
  }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;
  bool is_there() const { return locale_ != nullptr; }

 private:
  locale_t locale_ = nullptr, before_ = nullptr;
};

}  // namespace cli

# SPDX-License-Identifier: Apache-2.0
# What copies, moves and compares member by member needs no words: doxygen does not see it.
s/^.* operator(==|<=>)\(const [A-Za-z]+&\) const = default;$//
s/^  [A-Za-z]+(& operator=)?\((const )?[A-Za-z]+&&?\)( noexcept)?( = default)?;$//

// The definition of a function behind the one this executable puts in front of it: the shared
// library's own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

template <class Function>
Function NextSymbol(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) {
    std::fprintf(stderr, "tsan shim: no %s; is the library another build than expected?\n", symbol);
    std::abort();
  }
  Function function;
  static_assert(sizeof(function) == sizeof(found));
  std::memcpy(&function, &found, sizeof(found));
  return function;
}

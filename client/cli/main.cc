// The `fulcrum` command. Everything it does is app.cc's and the subcommands'.
// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>

#include <exception>
#include <iostream>

#include "absl/synchronization/mutex.h"
#include "client/cli/app.h"

int main(int argc, char** argv) {
  // Freed message buffers stay mapped: with the presets every reply of half a megabyte would fault
  // its pages in again, which costs more than the call.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  // Debian builds Abseil with its search for lock cycles on; it costs every lock of gRPC and ours.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  try {
    return fulcrum::cli::RunApp({argv + 1, argv + argc}, std::cout, std::cerr);
  } catch (const std::exception& error) {  // before a command ran: no memory, or CLI11's own
    std::cerr << "fulcrum: " << error.what() << "\n";
    return 1;
  }
}

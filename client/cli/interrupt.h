// Ctrl-C as a request to end soon, for commands that leave a node as they found it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace fulcrum::cli {

// While it lives, the first SIGINT or SIGTERM only sets asked(); the second ends the process as
// usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool asked() const;

 private:
  struct sigaction int_ {};
  struct sigaction term_ {};
};

}  // namespace fulcrum::cli

// See interrupt.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/interrupt.h"

#include <atomic>

namespace fulcrum::cli {
namespace {

// All that a handler may touch: any thread may be the one it interrupts.
std::atomic<bool> g_asked = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void Note(int) { g_asked = true; }

}  // namespace

Interrupt::Interrupt() {
  g_asked = false;
  struct sigaction once {};
  once.sa_handler = &Note;
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &once, &int_);
  ::sigaction(SIGTERM, &once, &term_);
  ::sigaction(SIGHUP, nullptr, &hup_);
  if (hup_.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &once, nullptr);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &int_, nullptr);
  ::sigaction(SIGTERM, &term_, nullptr);
  ::sigaction(SIGHUP, &hup_, nullptr);
}

bool Interrupt::asked() const { return g_asked; }

}  // namespace fulcrum::cli

// Shows ThreadSanitizer the ordering made by absl::Mutex and absl::CondVar, which live in a shared
// library it cannot see into. Each definition here wins over the library's, calls it, and marks the
// mutex as acquired or released. The names are those of Debian's build of Abseil (debian3).
// gRPC's completions are grpc_completion.cc's.
// SPDX-License-Identifier: Apache-2.0

#include "absl/synchronization/mutex.h"
#include "tests/tsan/next_symbol.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace absl {
ABSL_NAMESPACE_BEGIN

#define FULCRUM_MUTEX "_ZN4absl7debian35Mutex"

void Mutex::Lock() {
  static const auto next = NextSymbol<void (*)(Mutex*)>(FULCRUM_MUTEX "4LockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto next = NextSymbol<void (*)(Mutex*)>(FULCRUM_MUTEX "6UnlockEv");
  __tsan_release(this);
  next(this);
}

bool Mutex::TryLock() {
  static const auto next = NextSymbol<bool (*)(Mutex*)>(FULCRUM_MUTEX "7TryLockEv");
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto next = NextSymbol<void (*)(Mutex*)>(FULCRUM_MUTEX "10ReaderLockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto next = NextSymbol<void (*)(Mutex*)>(FULCRUM_MUTEX "12ReaderUnlockEv");
  __tsan_release(this);
  next(this);
}

bool Mutex::ReaderTryLock() {
  static const auto next = NextSymbol<bool (*)(Mutex*)>(FULCRUM_MUTEX "13ReaderTryLockEv");
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto next =
      NextSymbol<void (*)(Mutex*, const Condition&)>(FULCRUM_MUTEX "8LockWhenERKNS0_9ConditionE");
  next(this, condition);
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto next = NextSymbol<bool (*)(Mutex*, const Condition&, Duration)>(
      FULCRUM_MUTEX "19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  const bool held = next(this, condition, timeout);
  __tsan_acquire(this);
  return held;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = NextSymbol<bool (*)(Mutex*, const Condition&, Time)>(
      FULCRUM_MUTEX "20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const bool held = next(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  static const auto next = NextSymbol<void (*)(Mutex*, const Condition&)>(
      FULCRUM_MUTEX "14ReaderLockWhenERKNS0_9ConditionE");
  next(this, condition);
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto next =
      NextSymbol<void (*)(Mutex*, const Condition&)>(FULCRUM_MUTEX "5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  next(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto next = NextSymbol<bool (*)(Mutex*, const Condition&, Duration)>(
      FULCRUM_MUTEX "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool held = next(this, condition, timeout);
  __tsan_acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = NextSymbol<bool (*)(Mutex*, const Condition&, Time)>(
      FULCRUM_MUTEX "17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool held = next(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

#define FULCRUM_CONDVAR "_ZN4absl7debian37CondVar"

void CondVar::Wait(Mutex* mutex) {
  static const auto next =
      NextSymbol<void (*)(CondVar*, Mutex*)>(FULCRUM_CONDVAR "4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  next(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto next = NextSymbol<bool (*)(CondVar*, Mutex*, Duration)>(
      FULCRUM_CONDVAR "15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = next(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto next = NextSymbol<bool (*)(CondVar*, Mutex*, Time)>(
      FULCRUM_CONDVAR "16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = next(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

#undef FULCRUM_MUTEX
#undef FULCRUM_CONDVAR

ABSL_NAMESPACE_END
}  // namespace absl

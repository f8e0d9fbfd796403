// Shows ThreadSanitizer the ordering of gRPC's completions: what happened before an operation was
// started is visible to whoever is told that it ended. Both ways of being told are covered, a
// completion queue and a callback; and what was done for calls is visible to whoever has destroyed
// their server, which waits for them. Locks are abseil_mutex.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <grpc/grpc.h>
#include <grpcpp/support/callback_common.h>

#include "tests/tsan/next_symbol.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace {

using RunFunction = void (*)(grpc_completion_queue_functor*, int);

// The functions gRPC's two callback tags run are private and static. An explicit instantiation may
// name them, and hands them out through a friend.
template <class Tag, RunFunction kRun>
struct Expose {
  friend RunFunction RunFunctionOf(Tag*) { return kRun; }
};
RunFunction RunFunctionOf(grpc::internal::CallbackWithStatusTag*);
RunFunction RunFunctionOf(grpc::internal::CallbackWithSuccessTag*);
template struct Expose<grpc::internal::CallbackWithStatusTag,
                       &grpc::internal::CallbackWithStatusTag::StaticRun>;
template struct Expose<grpc::internal::CallbackWithSuccessTag,
                       &grpc::internal::CallbackWithSuccessTag::StaticRun>;

template <class Tag>
RunFunction RunFunctionOf() {
  return RunFunctionOf(static_cast<Tag*>(nullptr));
}

template <class Tag>
void AcquireThenRun(grpc_completion_queue_functor* functor, int ok) {
  __tsan_acquire(functor);
  RunFunctionOf<Tag>()(functor, ok);
}

// A tag's first word is its run function, for a callback, or a vtable, for a queue. Exchanging the
// function is the only place to be called just before a callback.
template <class Tag>
void Wrap(grpc_completion_queue_functor* functor) {
  if (functor->functor_run == RunFunctionOf<Tag>()) functor->functor_run = &AcquireThenRun<Tag>;
}

void ReleaseInto(void* tag) {
  if (tag == nullptr) return;
  auto* functor = static_cast<grpc_completion_queue_functor*>(tag);
  Wrap<grpc::internal::CallbackWithStatusTag>(functor);
  Wrap<grpc::internal::CallbackWithSuccessTag>(functor);
  __tsan_release(tag);
}

grpc_event AcquireFrom(grpc_event event) {
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

char g_calls;  // stands for all that was done for calls before they were let go of

}  // namespace

extern "C" {

void grpc_call_unref(grpc_call* call) {
  static const auto next = NextSymbol<decltype(&grpc_call_unref)>("grpc_call_unref");
  __tsan_release(&g_calls);
  next(call);
}

void grpc_server_destroy(grpc_server* server) {
  static const auto next = NextSymbol<decltype(&grpc_server_destroy)>("grpc_server_destroy");
  next(server);
  __tsan_acquire(&g_calls);
}

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* operations, size_t count,
                                      void* tag, void* reserved) {
  static const auto next = NextSymbol<decltype(&grpc_call_start_batch)>("grpc_call_start_batch");
  ReleaseInto(tag);
  return next(call, operations, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  static const auto next =
      NextSymbol<decltype(&grpc_completion_queue_next)>("grpc_completion_queue_next");
  return AcquireFrom(next(queue, deadline, reserved));
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  static const auto next =
      NextSymbol<decltype(&grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  return AcquireFrom(next(queue, tag, deadline, reserved));
}

}  // extern "C"

// The program's operator new: malloc, unless the thread's count has come.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/failing_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace fulcrum::test {
namespace {

constexpr int64_t kNever = -1;
thread_local int64_t left = kNever;  // allocations until the one that fails
thread_local bool failed = false;
std::atomic<int64_t> failures{0};

void* Allocate(std::size_t size, std::size_t alignment) {
  if (left != kNever && left-- == 0) {
    left = kNever;
    failed = true;
    ++failures;
    throw std::bad_alloc();
  }
  if (size == 0) size = 1;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void FailingMemory::Arm(int64_t nth) {
  failed = false;
  left = nth;
}
void FailingMemory::Disarm() { left = kNever; }
bool FailingMemory::Failed() { return failed; }
int64_t FailingMemory::Failures() { return failures; }

FailingMemory::FailingMemory(int64_t nth) { Arm(nth); }
FailingMemory::~FailingMemory() { Disarm(); }

}  // namespace fulcrum::test

void* operator new(std::size_t size) { return fulcrum::test::Allocate(size, 1); }
void* operator new[](std::size_t size) { return fulcrum::test::Allocate(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return fulcrum::test::Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return fulcrum::test::Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

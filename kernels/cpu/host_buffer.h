// Page-backed host memory that never faults once made: weights, slot buffers and kernel scratch.
// Who owns which buffer for how long is the caller's; this file only gets and gives back pages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"

namespace fulcrum::cpu {

// Zero-filled, 64-byte aligned (page-aligned in fact), move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~HostBuffer();

  // At least `bytes` bytes, pages already filled in (touching fresh pages one by one costs more
  // than filling them in at once). Large buffers ask for huge pages, which weight streaming needs
  // for its TLB reach. RESOURCE_EXHAUSTED when the system has no memory.
  static absl::StatusOr<HostBuffer> Make(size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // what munmap gets: data_ may lie inside it
  size_t mapped_ = 0;
};

}  // namespace fulcrum::cpu

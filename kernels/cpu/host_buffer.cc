// Anonymous mappings, aligned for huge pages and filled in by the kernel in one call.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fulcrum::cpu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = 23;  // Linux 5.14; older headers lack the name
#else
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif

absl::Status NoMemory(size_t bytes, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("host memory: ", bytes,
                                                   " bytes: ", std::strerror(error),
                                                   "; free memory or load fewer shards"));
}

// 0, or the errno that says that memory ran out.
int FillIn(std::byte* data, size_t bytes) {
  if (madvise(data, bytes, kPopulateWrite) == 0) return 0;
  if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) return errno;
  for (size_t i = 0; i < bytes; i += kPage) {  // a system without the call: touch each page
    reinterpret_cast<volatile std::byte*>(data)[i] = std::byte{0};
  }
  return 0;
}

}  // namespace

absl::StatusOr<HostBuffer> HostBuffer::Make(size_t bytes) {
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  const bool huge = bytes >= kHugePage;
  const size_t align = huge ? kHugePage : kPage;
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  const size_t mapped = huge ? rounded + kHugePage : rounded;
  if (rounded < bytes || mapped < rounded) return NoMemory(bytes, ENOMEM);
  void* const mapping =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return NoMemory(bytes, errno);
  buffer.mapping_ = mapping;
  buffer.mapped_ = mapped;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  buffer.data_ = static_cast<std::byte*>(mapping) + ((align - address % align) % align);
  buffer.size_ = bytes;
  if (huge) madvise(buffer.data_, rounded, MADV_HUGEPAGE);  // a wish: small pages work too
  if (const int error = FillIn(buffer.data_, rounded); error != 0) return NoMemory(bytes, error);
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace fulcrum::cpu

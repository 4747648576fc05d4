#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace emulator {

namespace {

constexpr size_t HUGE = 2 << 20;

struct Buffer {
  unsigned char *begin, *pages;
  size_t bytes, page_bytes;
  bool pinned;  // not watched

  unsigned char *end() const { return begin + bytes; }
  unsigned char *pages_end() const { return pages + page_bytes; }
  unsigned char *front_canary() const { return std::max(pages, begin - 64); }
  void protect(int access) const { mprotect(pages, page_bytes, access); }
};

std::mutex lock;
std::map<unsigned char *, Buffer> buffers;  // by their first byte
std::vector<Buffer *> writable, unsettled;
bool hidden;

// The buffer whose memory or guards hold the address.
Buffer *buffer_around(unsigned char *address) {
  auto after = buffers.upper_bound(address);
  if (after != buffers.end() && address >= after->second.pages - PAGE) return &after->second;
  if (after == buffers.begin()) return nullptr;
  Buffer &before = std::prev(after)->second;
  return address < before.pages_end() + PAGE ? &before : nullptr;
}

bool contains(const std::vector<Buffer *> &list, const Buffer *buffer) {
  return std::find(list.begin(), list.end(), buffer) != list.end();
}

void open(Buffer *buffer) {
  if (buffer->pinned || contains(writable, buffer)) return;
  buffer->protect(PROT_READ | PROT_WRITE);
  writable.push_back(buffer);
}

}  // namespace

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

unsigned char *map_guarded(size_t bytes) {
  // In pages of 2 MB where they fill one: before each launch what the one before wrote is protected anew.
  const size_t room = bytes + 2 * PAGE, spare = bytes >= HUGE ? HUGE : 0;
  void *mapped =
      mmap(nullptr, room + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  unsigned char *begin = (unsigned char *)mapped, *pages = begin + PAGE;
  if (spare) {
    pages = (unsigned char *)rounded_up((size_t)pages, HUGE);
    const size_t before = (size_t)(pages - PAGE - begin);
    if (before) munmap(begin, before);
    begin += before;
    munmap(begin + room, spare - before);
    madvise(pages, bytes, MADV_HUGEPAGE);
  }
  if (mprotect(pages, bytes, PROT_READ | PROT_WRITE)) {
    munmap(begin, room);
    return nullptr;
  }
  return begin;
}

bool is_canary(const unsigned char *begin, const unsigned char *end) {
  return std::all_of(begin, end, [](unsigned char byte) { return byte == CANARY; });
}

void hide(bool dependent) {
  std::lock_guard<std::mutex> hold(lock);
  for (Buffer *buffer : writable) buffer->protect(PROT_READ);
  writable.clear();
  if (!dependent) unsettled.clear();
  for (Buffer *buffer : unsettled) buffer->protect(PROT_NONE);
  hidden = true;
}

void reveal() {
  std::lock_guard<std::mutex> hold(lock);
  if (hidden)
    for (Buffer *buffer : unsettled) buffer->protect(PROT_READ);
  hidden = false;
}

void settle() {
  std::lock_guard<std::mutex> hold(lock);
  unsettled.clear();
}

bool may_repeat(unsigned char *address, char *wrong, size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  Buffer *buffer = buffer_around(address);
  if (!buffer) {
    snprintf(wrong, bytes, "touched %p, which is no memory", (void *)address);
    return false;
  }
  bool inside = address >= buffer->pages && address < buffer->pages_end();
  if (inside && !hidden && !buffer->pinned && !contains(writable, buffer)) {
    open(buffer);
    if (!contains(unsettled, buffer)) unsettled.push_back(buffer);
    return true;
  }
  const char *did = "touched", *when = "";
  if (inside && hidden) {
    bool may_be_read = !contains(unsettled, buffer);
    if (may_be_read) did = "wrote";
    when = may_be_read ? " before wait_for_previous"
                       : " before wait_for_previous, which an earlier kernel writes";
  }
  snprintf(wrong, bytes, "%s byte %td of the buffer of %zu bytes at %p%s", did, address - buffer->begin,
           buffer->bytes, (void *)buffer->begin, when);
  return false;
}

bool find_overrun(char *wrong, size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  for (auto &[begin, buffer] : buffers) {
    bool before = !is_canary(buffer.front_canary(), begin),
         behind = !is_canary(buffer.end(), buffer.pages_end());
    if (!before && !behind) continue;
    snprintf(wrong, bytes, "wrote %s the buffer of %zu bytes at %p", before ? "before" : "behind",
             buffer.bytes, (void *)begin);
    std::fill(buffer.front_canary(), begin, CANARY);
    std::fill(buffer.end(), buffer.pages_end(), CANARY);
    return true;
  }
  return false;
}

}  // namespace emulator

// ---- what Python calls

using namespace emulator;

extern "C" {

// Memory filled with NaNs, its end (rounded up to 16 bytes) at a page that may not be touched; null: there is
// none. The host may write to it until the next launch, and to `pinned` memory whenever it likes.
void *emulator_allocate(size_t bytes, int pinned) {
  size_t room = rounded_up(bytes, 16), page_bytes = rounded_up(room ? room : 1, PAGE);
  unsigned char *mapping = map_guarded(page_bytes);
  if (!mapping) return nullptr;
  unsigned char *pages = mapping + PAGE, *begin = pages + page_bytes - room;
  Buffer buffer = {begin, pages, bytes, page_bytes, pinned != 0};
  std::fill(buffer.front_canary(), begin, CANARY);
  std::fill(begin, buffer.end(), POISON);
  std::fill(buffer.end(), buffer.pages_end(), CANARY);
  std::lock_guard<std::mutex> hold(lock);
  Buffer &kept = buffers[begin] = buffer;
  if (!pinned) writable.push_back(&kept);
  return begin;
}

void emulator_free(void *begin) {
  std::lock_guard<std::mutex> hold(lock);
  auto found = buffers.find((unsigned char *)begin);
  Buffer &buffer = found->second;
  for (auto *list : {&writable, &unsettled})
    list->erase(std::remove(list->begin(), list->end(), &buffer), list->end());
  munmap(buffer.pages - PAGE, buffer.page_bytes + 2 * PAGE);
  buffers.erase(found);
}

// Whether the address lies in a buffer, or just behind its last byte.
int emulator_owns(void *address) {
  std::lock_guard<std::mutex> hold(lock);
  Buffer *buffer = buffer_around((unsigned char *)address);
  return buffer && address >= buffer->begin && address <= buffer->end();
}

// The host writes to this device memory, on behalf of something that is not a kernel.
void emulator_open(void *address) {
  std::lock_guard<std::mutex> hold(lock);
  open(buffer_around((unsigned char *)address));
}

void emulator_settle() { settle(); }

}  // extern "C"

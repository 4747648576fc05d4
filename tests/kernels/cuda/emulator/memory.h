// The device's memory: buffers with guards, and what a kernel may touch before wait_for_previous.
//
// A kernel that calls let_next_start lets the next one start while it runs, and that one the next: until a
// launch that does not, what any of them writes is *unsettled*. To read it before wait_for_previous is a race.
#pragma once
#include <cstddef>

namespace emulator {

constexpr size_t PAGE = 4096;
constexpr unsigned char POISON = 0xff;  // a NaN in every float type
constexpr unsigned char CANARY = 0xc5;

size_t rounded_up(size_t bytes, size_t unit);
// A page that may not be touched, `bytes` of pages that may, and another of the first kind; null: there are none.
unsigned char *map_guarded(size_t bytes);
bool is_canary(const unsigned char *begin, const unsigned char *end);

// Before a launch: nothing may be written, and nothing unsettled read if the launch is `dependent`: if nothing
// but wait_for_previous makes it wait for the launches before.
void hide(bool dependent);
// From here on the launch may read and write everything.
void reveal();
// What was written so far may be read at any time.
void settle();
// A fault at `address`: true if it was a launch's first write to a buffer, which may now be repeated. Else what
// is wrong.
bool may_repeat(unsigned char *address, char *wrong, size_t bytes);
// Whether something was written around a buffer: says so once.
bool find_overrun(char *wrong, size_t bytes);

}  // namespace emulator

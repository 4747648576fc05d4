// Two stacks and a way from one to the other.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

// ucontext asks the kernel for the signal mask at every switch, 50 times dearer than these 14 instructions.
struct Context {
  void *stack_pointer;
};

extern "C" void emulator_switch(void **from, void *to);
asm(R"(
  .text
  .globl emulator_switch
  .hidden emulator_switch
  .type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulator_switch, . - emulator_switch
)");

// `start` runs on the stack at the first switch to the context, and must not return.
inline void prepare(Context &context, unsigned char *stack, size_t bytes, void (*start)()) {
  void **top = (void **)((uintptr_t)(stack + bytes) & ~(uintptr_t)15);
  *--top = nullptr;  // where `start` would return to; it also aligns the stack as a call does
  *--top = (void *)start;
  top -= 6;
  context.stack_pointer = top;
}
inline void switch_context(Context &from, Context &to) {
  emulator_switch(&from.stack_pointer, to.stack_pointer);
}

#else

}  // namespace emulator
#include <ucontext.h>
namespace emulator {

struct Context {
  ucontext_t state;
};
inline void prepare(Context &context, unsigned char *stack, size_t bytes, void (*start)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, start, 0);
}
inline void switch_context(Context &from, Context &to) { swapcontext(&from.state, &to.state); }

#endif

}  // namespace emulator

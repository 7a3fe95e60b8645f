#include "tapehead/tests/cuda_emulator/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "tapehead/tests/cuda_emulator/sanitizer.h"

// Saves what a called function must keep on the stack that
// is left, and takes it from the one that is entered.
extern "C" void tapehead_switch_stack(void** left, void* entered);
asm(R"(
  .text
  .globl tapehead_switch_stack
  .type tapehead_switch_stack, @function
tapehead_switch_stack:
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
  .size tapehead_switch_stack, .-tapehead_switch_stack
  .section .note.GNU-stack, "", @progbits
  .text
)");

namespace cuda_emulator {

static constexpr size_t kStackBytes = 256 << 10;                // instrumented code takes much of it
static thread_local Fibre *left = nullptr, *entered = nullptr;  // of the last switch

// AddressSanitizer learns that the stack was switched, and tells about the one that was left.
static void arrive(void* fake_stack) {
#ifdef CUDA_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, &left->bottom, &left->size);
#else
  (void)fake_stack;
#endif
}

void switch_to(Fibre& from, Fibre& to) {
  left = &from;
  entered = &to;
#ifdef CUDA_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
  tapehead_switch_stack(&from.stack_pointer, to.stack_pointer);
  arrive(from.fake_stack);
}

static void begin() {
  arrive(nullptr);
  entered->entry();
}

// How far below its end a stack begins: those of a block's threads, all aligned to pages, would have to share
// the few lines of the cache that such addresses have.
static size_t next_colour() {
  static size_t fibres = 0;
  return fibres++ % 61 * 64;
}

OwnFibre::OwnFibre(void (*start)()) : colour_(next_colour()) {
  entry = start;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  memory_ = mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory_, page, PROT_NONE);
  bottom = static_cast<char*>(memory_) + page;
  size = kStackBytes;
  reset();
}

OwnFibre::~OwnFibre() {
  munmap(memory_, static_cast<size_t>(static_cast<const char*>(bottom) - static_cast<char*>(memory_)) + size);
}

void OwnFibre::reset() {
  unpoison(bottom, size);
  fake_stack = nullptr;
  auto* top =
      reinterpret_cast<uintptr_t*>(const_cast<char*>(static_cast<const char*>(bottom)) + size - colour_);
  *--top = 0;  // where begin() would return to: its frame is aligned as after a call
  *--top = reinterpret_cast<uintptr_t>(&begin);
  for (int saved = 0; saved < 6; ++saved) *--top = 0;
  stack_pointer = top;
}

}  // namespace cuda_emulator

// Runs kernels: a block's threads are fibers that take turns on one processor thread and change over only where
// they meet. Blocks run one after another, those of a cluster together. One launch at a time in a process; the caller sees to it.
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "context.h"
#include "memory.h"

namespace emulator {

Thread *current;
uint3 block_size, grid_size;

namespace {

constexpr unsigned MAX_THREADS = 2048;  // of a cluster
constexpr unsigned MAX_CLUSTER = 8;
constexpr size_t STACK_BYTES = 64 << 10;
// Below the first stack: a large frame jumps over its guard page.
constexpr size_t BELOW_STACKS = 1 << 20;
constexpr size_t SHARED_ROOM = 2 << 20;  // more than any device has for the blocks of a cluster
constexpr size_t CANARY_BYTES = 64;

// ---- who waits for what

struct Copy {
  void *to;
  const void *from;
  unsigned n_bytes;
  bool valid;
  unsigned group;
};

struct Warp;
struct Fiber : Thread {
  Context context;
  Warp *warp;
  std::vector<Copy> copies;
  unsigned n_committed;
  bool waited;  // called wait_for_previous
};

// The lanes of one mask that have come to one operation.
struct Meeting {
  unsigned lanes, arrived;
  const char *name;
  const void *caller;  // of the lane that came first
  Operation *operation;
  void *operands[WARP];
};

struct Warp {
  unsigned rank;                                           // of its block in the cluster
  unsigned alive, ready, at_barrier, at_cluster, at_wait;  // lanes
  const void *barrier_caller;                              // of the lane that came last
  unsigned pending;                                        // meetings that somebody waits in
  Meeting meetings[WARP];                                  // as many as can be pending
};

Fiber fibers[MAX_THREADS];
Warp warps[MAX_THREADS / WARP];
unsigned n_warps, n_blocks, n_at_cluster;
unsigned n_alive[MAX_CLUSTER], n_at_barrier[MAX_CLUSTER];  // threads of each block
// The order in which threads get their turns; every barrier turns it round, so that a missing one shows.
bool backwards;
bool before_wait;  // no thread has gone past wait_for_previous yet
bool lets_next_start;

Context launcher;
void (*invoke)(void **);
void **arguments;
unsigned char *stacks, *shared_room;
unsigned char *static_begin, *static_end;
unsigned char *dynamic_begin[MAX_CLUSTER];  // of each block
size_t dynamic_bytes;

char *message;  // what went wrong, empty as long as all is well
size_t message_bytes;

Fiber *self() { return static_cast<Fiber *>(current); }

unsigned all_alive() {
  unsigned n = 0;
  for (unsigned rank = 0; rank < n_blocks; rank++) n += n_alive[rank];
  return n;
}

unsigned first(unsigned lanes) {
  return (unsigned)(backwards ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
}

void run(Fiber *next) {
  Fiber *from = self();
  current = next;
  switch_context(from->context, next->context);
}

// " at code 0x12": an address in the kernel's shared object, from its beginning; "" for any other.
struct Place {
  char text[40];
  explicit Place(const void *code) {
    Dl_info kernel, here;
    text[0] = 0;
    if (dladdr((void *)invoke, &kernel) && dladdr(code, &here) && here.dli_fbase == kernel.dli_fbase)
      snprintf(text, sizeof text, " at code 0x%tx", (const char *)code - (const char *)here.dli_fbase);
  }
};
// Where a call was made, from where it returns to.
Place before(const void *caller) { return Place((const char *)caller - 1); }

void describe_waiting(char *text, size_t bytes) {
  size_t used = 0;
  auto add = [&](const char *format, auto... values) {
    int n = snprintf(text + used, bytes - used, format, values...);
    used += (size_t)n < bytes - used ? (size_t)n : bytes - used - 1;
  };
  for (unsigned w = 0; w < n_warps; w++) {
    Warp &warp = warps[w];
    if (!warp.alive) continue;
    add("; warp %u:", w);
    if (warp.at_barrier)
      add(" lanes 0x%08x wait in __syncthreads%s", warp.at_barrier, before(warp.barrier_caller).text);
    if (warp.at_cluster)
      add(" lanes 0x%08x wait for the cluster%s", warp.at_cluster, before(warp.barrier_caller).text);
    for (unsigned i = 0; i < WARP; i++)
      if (warp.pending >> i & 1)
        add(" lanes 0x%08x wait in %s(0x%08x)%s", warp.meetings[i].arrived, warp.meetings[i].name,
            warp.meetings[i].lanes, before(warp.meetings[i].caller).text);
    if (~warp.alive) add(" lanes 0x%08x have ended", ~warp.alive);
  }
}

// The next thread that can go on, in the same warp if there is one.
Fiber *next_ready() {
  Fiber *fiber = self();
  unsigned w = (unsigned)(fiber->warp - warps), ready = fiber->warp->ready;
  if (ready) {
    unsigned later = backwards ? ready & ((1u << fiber->lane) - 1) : ready & ~((2u << fiber->lane) - 1);
    return &fibers[w * WARP + first(later ? later : ready)];
  }
  for (unsigned i = 0; i < n_warps; i++) {
    w = backwards ? (w ? w : n_warps) - 1 : (w + 1 < n_warps ? w + 1 : 0);
    if (warps[w].ready) return &fibers[w * WARP + first(warps[w].ready)];
  }
  return nullptr;
}

// Everybody has come to wait_for_previous, or cannot go on before those who have.
void pass_wait() {
  reveal();
  before_wait = false;
  for (unsigned w = 0; w < n_warps; w++) {
    warps[w].ready |= warps[w].at_wait;
    warps[w].at_wait = 0;
  }
}

// Gives the turn to another thread, or back to the launcher when all have ended.
void run_next() {
  Fiber *next = next_ready();
  if (!next && before_wait) {
    pass_wait();
    next = next_ready();
  }
  if (next == self()) return;
  if (next) return run(next);
  if (all_alive()) {
    char waiting[2048];
    describe_waiting(waiting, sizeof waiting);
    fail("no thread can go on%s", waiting);
  }
  switch_context(self()->context, launcher);
}

void finish(Warp &warp, Meeting &meeting) {
  if (meeting.operation) meeting.operation(meeting.operands);
  warp.ready |= meeting.arrived;
  warp.pending &= ~(1u << (&meeting - warp.meetings));
  meeting.arrived = 0;
}

void lift_barrier(unsigned rank) {
  for (unsigned w = 0; w < n_warps; w++) {
    if (warps[w].rank != rank) continue;
    warps[w].ready |= warps[w].at_barrier;
    warps[w].at_barrier = 0;
  }
  n_at_barrier[rank] = 0;
  backwards = !backwards;
}

void lift_cluster_barrier() {
  for (unsigned w = 0; w < n_warps; w++) {
    warps[w].ready |= warps[w].at_cluster;
    warps[w].at_cluster = 0;
  }
  n_at_cluster = 0;
  backwards = !backwards;
}

void run_thread() {
  invoke(arguments);
  Fiber *fiber = self();
  Warp &warp = *fiber->warp;
  unsigned bit = 1u << fiber->lane;
  warp.alive &= ~bit;
  warp.ready &= ~bit;
  n_alive[warp.rank]--;
  for (unsigned left = warp.pending; left; left &= left - 1) {
    Meeting &meeting = warp.meetings[__builtin_ctz(left)];
    meeting.operands[fiber->lane] = nullptr;
    if (meeting.arrived == (meeting.lanes & warp.alive)) finish(warp, meeting);
  }
  if (n_at_barrier[warp.rank] && n_at_barrier[warp.rank] == n_alive[warp.rank]) lift_barrier(warp.rank);
  if (n_at_cluster && n_at_cluster == all_alive()) lift_cluster_barrier();
  run_next();
}

// ---- signals: a fault or too long a run ends the launch, not the process

constexpr int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int N_FAULTS = sizeof FAULTS / sizeof *FAULTS;
struct sigaction handlers_before[N_FAULTS];
pthread_t launching_thread;
int overtime_signal() { return SIGRTMIN + 7; }

// The instruction that a signal interrupted, null on processors that this does not know.
const void *interrupted_code(void *context) {
#if defined(__x86_64__)
  return (const void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return (const void *)((ucontext_t *)context)->uc_mcontext.pc;
#else
  (void)context;
  return nullptr;
#endif
}

void on_signal(int signal, siginfo_t *info, void *context) {
  bool ours = current && pthread_equal(pthread_self(), launching_thread);
  if (signal == overtime_signal()) {
    if (ours)
      fail("still running%s: an endless loop, or a wait for another block",
           Place(interrupted_code(context)).text);
    return;
  }
  if (!ours) {  // comes again, to the handler before
    for (int i = 0; i < N_FAULTS; i++)
      if (FAULTS[i] == signal) sigaction(signal, &handlers_before[i], nullptr);
    return;
  }
  const Place place(interrupted_code(context));
  if (signal == SIGFPE) fail("division by zero%s", place.text);
  if (signal == SIGILL || signal == SIGTRAP)
    fail("an index outside its array, an address not aligned for its type, or too far a shift%s", place.text);
  unsigned char *address = (unsigned char *)info->si_addr;
  if (address >= stacks - BELOW_STACKS && address < stacks + MAX_THREADS * STACK_BYTES)
    fail("needs more than %zu bytes of stack%s", STACK_BYTES - PAGE, place.text);
  if (address >= shared_room && address < shared_room + SHARED_ROOM + 2 * PAGE)
    fail("touched byte %td of %zu bytes of dynamic shared memory%s",
         address - dynamic_begin[self()->warp->rank], dynamic_bytes, place.text);
  char wrong[200];
  if (!may_repeat(address, wrong, sizeof wrong)) fail("%s%s", wrong, place.text);
}

class Signals {
 public:
  explicit Signals(double seconds) {
    static unsigned char stack[64 << 10];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &stack_before_);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    launching_thread = pthread_self();
    for (int i = 0; i < N_FAULTS; i++) sigaction(FAULTS[i], &action, &handlers_before[i]);
    sigaction(overtime_signal(), &action, nullptr);
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = overtime_signal();
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_);
    struct itimerspec limit = {};
    limit.it_value.tv_sec = (time_t)seconds;
    limit.it_value.tv_nsec = (long)((seconds - (double)limit.it_value.tv_sec) * 1e9);
    timer_settime(timer_, 0, &limit, nullptr);
  }
  ~Signals() {
    timer_delete(timer_);
    for (int i = 0; i < N_FAULTS; i++) sigaction(FAULTS[i], &handlers_before[i], nullptr);
    sigaltstack(&stack_before_, nullptr);
  }

 private:
  stack_t stack_before_;
  timer_t timer_;
};

// ---- blocks

bool reserve() {
  if (stacks) return true;
  void *pages = mmap(nullptr, BELOW_STACKS + MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return false;
  mprotect(pages, BELOW_STACKS, PROT_NONE);
  unsigned char *first = (unsigned char *)pages + BELOW_STACKS;
  for (unsigned i = 0; i < MAX_THREADS; i++) mprotect(first + i * STACK_BYTES, PAGE, PROT_NONE);
  shared_room = map_guarded(SHARED_ROOM);
  if (!shared_room) return false;
  stacks = first;
  return true;
}

// The blocks of a cluster, side by side in x from `index` on; with several, whole warps.
void run_blocks(uint3 index, bool reversed) {
  backwards = reversed;
  unsigned of_block = block_size.x * block_size.y * block_size.z, n_threads = n_blocks * of_block;
  n_warps = (n_threads + WARP - 1) / WARP;
  n_at_cluster = 0;
  if (static_begin) memset(static_begin, POISON, (size_t)(static_end - static_begin));
  for (unsigned rank = 0; rank < n_blocks; rank++) {
    n_alive[rank] = of_block;
    n_at_barrier[rank] = 0;
    memset(dynamic_begin[rank], POISON, dynamic_bytes);
  }
  for (unsigned w = 0; w < n_warps; w++) {
    unsigned n = n_threads - w * WARP;
    warps[w].rank = w * WARP / of_block;
    warps[w].alive = warps[w].ready = n < WARP ? (1u << n) - 1 : ~0u;
    warps[w].at_barrier = warps[w].at_cluster = warps[w].at_wait = warps[w].pending = 0;
    for (Meeting &meeting : warps[w].meetings) meeting.lanes = meeting.arrived = 0;
  }
  for (unsigned i = 0; i < n_threads; i++) {
    Fiber &fiber = fibers[i];
    const unsigned in_block = i % of_block;
    fiber.index = {in_block % block_size.x, in_block / block_size.x % block_size.y,
                   in_block / block_size.x / block_size.y};
    fiber.block = {index.x + i / of_block, index.y, index.z};
    fiber.lane = i % WARP;
    fiber.warp = &warps[i / WARP];
    fiber.waited = false;
    fiber.copies.clear();
    fiber.n_committed = 0;
    // Not all at the same place of a page, or they would push each other out of the cache.
    size_t bytes = STACK_BYTES - i % 64 * 1088 % PAGE;
    prepare(fiber.context, stacks + i * STACK_BYTES, bytes, run_thread);
  }
  current = &fibers[reversed ? n_threads - 1 : 0];
  switch_context(launcher, self()->context);
  current = nullptr;
  if (*message) return;
  if (!fibers[0].waited)
    snprintf(message, message_bytes, "block (%u, %u, %u): thread 0 never called wait_for_previous", index.x,
             index.y, index.z);
  for (unsigned rank = 0; rank < n_blocks && !*message; rank++) {
    unsigned char *const begin = dynamic_begin[rank], *const end = begin + dynamic_bytes;
    if (!is_canary(end, begin + rounded_up(dynamic_bytes, 16)) || !is_canary(begin - CANARY_BYTES, begin))
      snprintf(message, message_bytes,
               "block (%u, %u, %u): wrote around its %zu bytes of dynamic shared memory", index.x + rank,
               index.y, index.z, dynamic_bytes);
  }
}

}  // namespace

// ---- what kernels call

void fail(const char *format, ...) {
  Fiber *fiber = self();
  int n = snprintf(message, message_bytes,
                   "block (%u, %u, %u), thread (%u, %u, %u) = warp %u, lane %u: ", fiber->block.x,
                   fiber->block.y, fiber->block.z, fiber->index.x, fiber->index.y, fiber->index.z,
                   (unsigned)(fiber->warp - warps), fiber->lane);
  va_list values;
  va_start(values, format);
  n += vsnprintf(message + n, message_bytes - (size_t)n, format, values);
  va_end(values);
  if ((size_t)n < message_bytes)
    snprintf(message + n, message_bytes - (size_t)n, "%s", before(__builtin_return_address(0)).text);
  switch_context(fiber->context, launcher);
  __builtin_unreachable();
}

void meet(unsigned lanes, const char *name, Operation *operation, void *operand) {
  Fiber *fiber = self();
  Warp &warp = *fiber->warp;
  unsigned bit = 1u << fiber->lane;
  if (!(lanes & bit)) fail("%s(0x%08x): the mask does not name the lane itself", name, lanes);
  // Half a warp may wait in a meeting of its own while the other half is at one of the whole warp already.
  unsigned slot = WARP;
  for (unsigned left = warp.pending; left && slot == WARP; left &= left - 1)
    if (warp.meetings[__builtin_ctz(left)].lanes == lanes) slot = (unsigned)__builtin_ctz(left);
  bool first_here = slot == WARP;
  if (first_here) slot = (unsigned)__builtin_ctz(~warp.pending);
  Meeting &meeting = warp.meetings[slot];
  if (first_here) {
    if (meeting.lanes != lanes || (meeting.lanes & ~warp.alive)) {
      memset(meeting.operands, 0, sizeof meeting.operands);
      meeting.lanes = lanes;
    }
    meeting.name = name;
    meeting.caller = __builtin_return_address(0);
    meeting.operation = operation;
    warp.pending |= 1u << slot;
  } else if (meeting.operation != operation || (meeting.name != name && strcmp(meeting.name, name) != 0)) {
    fail("%s(0x%08x)%s, while lanes 0x%08x wait in %s(0x%08x)%s", name, lanes,
         before(__builtin_return_address(0)).text, meeting.arrived, meeting.name, meeting.lanes,
         before(meeting.caller).text);
  }
  meeting.operands[fiber->lane] = operand;
  meeting.arrived |= bit;
  warp.ready &= ~bit;
  if (meeting.arrived == (lanes & warp.alive))
    finish(warp, meeting);
  else
    run_next();
}

void meet_block() {
  Fiber *fiber = self();
  fiber->warp->ready &= ~(1u << fiber->lane);
  fiber->warp->at_barrier |= 1u << fiber->lane;
  fiber->warp->barrier_caller = __builtin_return_address(0);
  const unsigned rank = fiber->warp->rank;
  if (++n_at_barrier[rank] == n_alive[rank])
    lift_barrier(rank);
  else
    run_next();
}

void meet_cluster() {
  Fiber *fiber = self();
  fiber->warp->ready &= ~(1u << fiber->lane);
  fiber->warp->at_cluster |= 1u << fiber->lane;
  fiber->warp->barrier_caller = __builtin_return_address(0);
  if (++n_at_cluster == all_alive())
    lift_cluster_barrier();
  else
    run_next();
}

// In the launch's first block nobody goes on before all are here: until then earlier results stay hidden.
void wait_for_previous() {
  Fiber *fiber = self();
  fiber->waited = true;
  if (!before_wait) return;
  fiber->warp->ready &= ~(1u << fiber->lane);
  fiber->warp->at_wait |= 1u << fiber->lane;
  run_next();
}

void let_next_start() { lets_next_start = true; }

unsigned long long nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

unsigned char *dynamic_shared() { return dynamic_begin[self()->warp->rank]; }

bool is_shared(const void *address) {
  const unsigned char *p = (const unsigned char *)address, *const begin = dynamic_shared();
  return (p >= begin && p < begin + dynamic_bytes) || (p >= static_begin && p < static_end);
}

void *shared_of(const void *address, unsigned rank) {
  const ptrdiff_t offset = (const unsigned char *)address - dynamic_shared();
  if (rank >= n_blocks || offset < 0 || offset >= (ptrdiff_t)dynamic_bytes)
    fail("no such place in block %u of the cluster: byte %td", rank, offset);
  if (!n_alive[rank]) fail("block %u of the cluster has ended", rank);
  return dynamic_begin[rank] + offset;
}

void copy_later(void *to_shared, const void *from, unsigned n_bytes, bool valid) {
  if ((uintptr_t)to_shared % n_bytes || (valid && (uintptr_t)from % n_bytes))
    fail("copy_async%u from %p to %p: one is not aligned", n_bytes, from, to_shared);
  if (!is_shared(to_shared)) fail("copy_async%u to %p, which is not shared memory", n_bytes, to_shared);
  if (valid && is_shared(from)) fail("copy_async%u from shared memory", n_bytes);
  memset(to_shared, POISON, n_bytes);
  self()->copies.push_back({to_shared, from, n_bytes, valid, self()->n_committed});
}

void commit_copies() { self()->n_committed++; }

void finish_copies(unsigned n_pending_groups) {
  Fiber *fiber = self();
  size_t n = 0;
  for (; n < fiber->copies.size(); n++) {
    Copy &copy = fiber->copies[n];
    if (copy.group + n_pending_groups >= fiber->n_committed) break;
    if (copy.valid)
      memcpy(copy.to, copy.from, copy.n_bytes);
    else
      memset(copy.to, 0, copy.n_bytes);
  }
  fiber->copies.erase(fiber->copies.begin(), fiber->copies.begin() + (ptrdiff_t)n);
}

}  // namespace emulator

using namespace emulator;

// ---- what Python calls

// The same in emulated_device.py.
struct Launch {
  void (*kernel)(void **);
  void **arguments;
  void *shared_begin, *shared_end;  // the kernel's static shared memory
  size_t dynamic_bytes;
  unsigned grid[3], block[3];
  unsigned cluster;  // blocks side by side in x
  int backwards;  // the last block and the last thread first
  int dependent;  // only wait_for_previous waits for the launches before
  int beside;  // the one before let it start when it had waited itself: what came before that one is there
  double seconds;
  char *message;
  size_t message_bytes;
};

// Returns 0, or 1 and in the message what went wrong.
extern "C" int emulator_launch(const Launch *launch) {
  message = launch->message;
  message_bytes = launch->message_bytes;
  *message = 0;
  const size_t stride = rounded_up(launch->dynamic_bytes, 16) + CANARY_BYTES;
  n_blocks = launch->cluster;
  if (!reserve() || n_blocks > MAX_CLUSTER || stride * n_blocks > SHARED_ROOM) {
    snprintf(message, message_bytes, "no memory for stacks and shared memory");
    return 1;
  }
  invoke = launch->kernel;
  arguments = launch->arguments;
  grid_size = {launch->grid[0], launch->grid[1], launch->grid[2]};
  block_size = {launch->block[0], launch->block[1], launch->block[2]};
  static_begin = (unsigned char *)launch->shared_begin;
  static_end = (unsigned char *)launch->shared_end;
  dynamic_bytes = launch->dynamic_bytes;
  for (unsigned rank = 0; rank < n_blocks; rank++) {
    unsigned char *const end = shared_room + PAGE + SHARED_ROOM - (n_blocks - 1 - rank) * stride;
    dynamic_begin[rank] = end - rounded_up(dynamic_bytes, 16);
    memset(dynamic_begin[rank] - CANARY_BYTES, CANARY, CANARY_BYTES);
    memset(dynamic_begin[rank] + dynamic_bytes, CANARY, (size_t)(end - dynamic_begin[rank]) - dynamic_bytes);
  }
  before_wait = true;
  lets_next_start = false;
  hide(launch->dependent != 0);
  // One launch runs after another here: the results of the one before are there, too.
  if (launch->beside) reveal(), before_wait = false;
  {
    Signals signals(launch->seconds);
    unsigned long long columns = grid_size.x / n_blocks, rows = grid_size.y, n = columns * rows * grid_size.z;
    for (unsigned long long i = 0; i < n && !*message; i++) {
      unsigned long long b = launch->backwards ? n - 1 - i : i;
      uint3 index = {(unsigned)(b % columns) * n_blocks, (unsigned)(b / columns % rows),
                     (unsigned)(b / columns / rows)};
      run_blocks(index, launch->backwards != 0);
    }
  }
  reveal();
  if (!lets_next_start) settle();
  return *message || find_overrun(message, message_bytes);
}

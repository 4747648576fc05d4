/* A pool of threads that run one function together, with barriers between its phases.
 *
 * Waiting threads spin for a bounded time and then sleep: pure spinning collapses when cores are shared,
 * sleeping at once costs tens of microseconds for each of the hundreds of barriers of a token.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>

#include "cpu.h"

enum { SPINS = 4000 };

struct pool {
  int threads;
  pthread_t *workers;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  atomic_int sleepers;      /* threads inside pthread_cond_wait, or about to be */
  atomic_uint round;        /* bumped for each job */
  atomic_int arrived;       /* at the current barrier */
  atomic_uint barrier;      /* bumped when a barrier opens */
  atomic_bool stop;
  struct job *job;
};

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Return once *word differs from `seen`. */
static void wait_change(struct pool *pool, atomic_uint *word, unsigned seen) {
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
    relax();
  }
  atomic_fetch_add(&pool->sleepers, 1);
  pthread_mutex_lock(&pool->mutex);
  while (atomic_load(word) == seen) pthread_cond_wait(&pool->changed, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
  atomic_fetch_sub(&pool->sleepers, 1);
}

static void bump(struct pool *pool, atomic_uint *word) {
  atomic_fetch_add(word, 1);
  if (atomic_load(&pool->sleepers)) { /* sequentially consistent with the sleeper's own count and check */
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
  }
}

void job_barrier(struct job *job) {
  struct pool *pool = job->pool;
  const unsigned seen = atomic_load(&pool->barrier);
  if (atomic_fetch_add(&pool->arrived, 1) + 1 == pool->threads) {
    atomic_store(&pool->arrived, 0);
    bump(pool, &pool->barrier);
  } else {
    wait_change(pool, &pool->barrier, seen);
  }
}

struct worker {
  struct pool *pool;
  int index;
};

static void *work(void *argument) {
  struct worker me = *(struct worker *)argument;
  free(argument);
  unsigned seen = 0;
  for (;;) {
    wait_change(me.pool, &me.pool->round, seen);
    seen++;
    if (atomic_load(&me.pool->stop)) return NULL;
    struct job *job = me.pool->job;
    job->run(job->argument, job, me.index);
    job_barrier(job);
  }
}

struct pool *pool_new(int threads) {
  struct pool *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  pool->workers = calloc((size_t)threads, sizeof *pool->workers);
  if (!pool->workers) {
    free(pool);
    return NULL;
  }
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->changed, NULL);
  pool->threads = 1;
  while (pool->threads < threads) {
    struct worker *w = malloc(sizeof *w);
    if (w) *w = (struct worker){pool, pool->threads};
    if (!w || pthread_create(&pool->workers[pool->threads], NULL, work, w)) {
      free(w);
      pool_free(pool);
      return NULL;
    }
    pool->threads++;
  }
  return pool;
}

void pool_free(struct pool *pool) {
  atomic_store(&pool->stop, true);
  bump(pool, &pool->round);
  for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i], NULL);
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->changed);
  free(pool->workers);
  free(pool);
}

int pool_threads(const struct pool *pool) { return pool->threads; }

void pool_run(struct pool *pool, struct job *job) {
  job->pool = pool;
  pool->job = job;
  if (pool->threads > 1) bump(pool, &pool->round);
  job->run(job->argument, job, 0);
  job_barrier(job); /* `job` lives on the caller's stack: nobody may still use it */
}

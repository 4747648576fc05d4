/* A pool of threads that take the tasks of a job's phases from shared counters.
 *
 * Waiting threads spin for a bounded time and then sleep: pure spinning collapses when cores are shared,
 * sleeping at once costs tens of microseconds for each of the hundreds of phases of a token.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>

#include "cpu.h"

enum { SPINS = 2000 };

struct pool {
  int threads;
  pthread_t *workers;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  atomic_int sleepers;  /* threads inside pthread_cond_wait, or about to be */
  atomic_long round;    /* bumped for each job */
  atomic_long left;     /* workers that have left the present job */
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

/* Return once *word is at least `value`, or the job (may be NULL) is cancelled. */
static void wait_for(struct pool *pool, atomic_long *word, long value, const struct job *job) {
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(word, memory_order_acquire) >= value || (job && job_cancelled(job))) return;
    relax();
  }
  atomic_fetch_add(&pool->sleepers, 1);
  pthread_mutex_lock(&pool->mutex);
  while (atomic_load(word) < value && !(job && job_cancelled(job))) pthread_cond_wait(&pool->changed, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
  atomic_fetch_sub(&pool->sleepers, 1);
}

/* Call after a word that somebody may wait for has changed; sequentially consistent with the sleeper's own count. */
static void wake(struct pool *pool) {
  if (!atomic_load(&pool->sleepers)) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->mutex);
}

int64_t job_next(struct job *job, int phase, int64_t count) {
  if (job_cancelled(job)) {
    wake(job->pool); /* those who wait for tasks that nobody will take now */
    return -1;
  }
  const int64_t task = atomic_fetch_add_explicit(&job->phases[phase].next, 1, memory_order_relaxed);
  return task < count ? task : -1;
}

void job_done(struct job *job, int phase, int64_t count) {
  if (atomic_fetch_add(&job->phases[phase].done, 1) + 1 == count) wake(job->pool);
}

void job_wait(struct job *job, int phase, int64_t count) { wait_for(job->pool, &job->phases[phase].done, count, job); }

struct worker {
  struct pool *pool;
  int index;
};

static void *work(void *argument) {
  struct worker me = *(struct worker *)argument;
  free(argument);
  for (long round = 1;; round++) {
    wait_for(me.pool, &me.pool->round, round, NULL);
    if (atomic_load(&me.pool->stop)) return NULL;
    struct job *job = me.pool->job;
    job->run(job->argument, job, me.index);
    atomic_fetch_add(&me.pool->left, 1); /* the job is gone from here on */
    wake(me.pool);
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
  atomic_fetch_add(&pool->round, 1);
  wake(pool);
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
  atomic_store(&pool->left, 0);
  atomic_fetch_add(&pool->round, 1);
  wake(pool);
  job->run(job->argument, job, 0);
  wait_for(pool, &pool->left, pool->threads - 1, NULL); /* `job` lives on the caller's stack */
}

/* What fences cost on the host: nanoseconds, the median of rounds that take turns. The producer's struct, shape and stride are one
 * allocation that counts as a use of its tensor, as in every library; the tensor is ready, and the consumer is done, before the struct
 * goes back. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dlpack_fence.h"

#include <stdio.h>
#include <time.h>

enum { ROUNDS = 21, TIMES = 200000 };

typedef struct { DLManagedTensorVersioned managed; int64_t shape, stride; } plain;
typedef struct { DLManagedTensorFenced fenced; int64_t shape, stride; DLFence done; } fenced;

static float memory[16];
static volatile double total;

static void describe(DLManagedTensorVersioned *managed, int64_t *shape, int64_t *stride) {
  DLManagedTensorVersioned made = {{1, 3}, managed, NULL, 0, {memory, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, stride, 0}};
  *shape = 16, *stride = 1;
  *managed = made;
}

static int uses = 1; /* of the producer's tensor */
static void use_begins(void) { __atomic_fetch_add(&uses, 1, __ATOMIC_RELAXED); }
static void use_over(void) {
  if (__atomic_fetch_sub(&uses, 1, __ATOMIC_ACQ_REL) == 1) abort();
}

static void plain_delete(DLManagedTensorVersioned *self) { use_over(), free(self); }
__attribute__((noinline)) static DLManagedTensorVersioned *give_plain(void) {
  plain *made = malloc(sizeof *made);
  describe(&made->managed, &made->shape, &made->stride);
  made->managed.deleter = plain_delete;
  use_begins();
  return &made->managed;
}

/* `ready` is done from the first: there is nothing to release. */
static void fenced_delete(DLManagedTensorVersioned *self) { use_over(), free(self); }
static int32_t fenced_keep(DLManagedTensorFenced *self, const DLFence *done) {
  ((fenced *)self)->done = *done; /* a producer with more to do waits for it, as the pool does */
  dlpack_fence_retain(done);
  return DLPACK_FENCE_DONE;
}
static int32_t fenced_add(DLManagedTensorFenced *self, const DLFence *done) {
  return dlpack_fence_query(done) == DLPACK_FENCE_DONE ? DLPACK_FENCE_DONE : fenced_keep(self, done);
}
__attribute__((noinline)) static DLManagedTensorFenced *give_fenced(void) {
  DLDevice host = {kDLCPU, 0};
  fenced *made = malloc(sizeof *made);
  describe(&made->fenced.managed, &made->shape, &made->stride);
  made->fenced.managed.deleter = fenced_delete;
  made->fenced.version = DLPACK_FENCE_VERSION;
  made->fenced.size = sizeof made->fenced;
  made->fenced.fence_flags = 0;
  made->fenced.ready = dlpack_fence_done(host);
  made->fenced.add_done = fenced_add;
  use_begins();
  return &made->fenced;
}

/* The use of a tensor: what a consumer reads of the description. */
static void use(const DLManagedTensorVersioned *tensor) {
  total += ((float *)((char *)tensor->dl_tensor.data + tensor->dl_tensor.byte_offset))[0] + (double)tensor->dl_tensor.shape[0];
}

static void exchange_plain(void) {
  DLManagedTensorVersioned *tensor = give_plain();
  use(tensor);
  tensor->deleter(tensor);
}

static DLFence finished; /* the consumer's, of work that is done */
static void exchange_fenced(void) {
  DLManagedTensorFenced *tensor = give_fenced();
  if (dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE) use(&tensor->managed);
  if (tensor->add_done(tensor, &finished) == DLPACK_FENCE_DONE) tensor->managed.deleter(&tensor->managed);
}

static void keep(void *flag) { (void)flag; }
static fenced producer;
/* A flag that is part of the consumer's own task: made, given to the producer, settled, and released by both. */
static void attach_and_settle(void) {
  static DLFenceFlag flag;
  DLFence done = dlpack_fence_flag(&flag, keep);
  fenced_add(&producer.fenced, &done);
  dlpack_fence_flag_settle(&flag, DLPACK_FENCE_DONE, NULL);
  dlpack_fence_release(&done);
  dlpack_fence_release(&producer.done);
}

static double measure(void (*work)(void)) {
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int i = 0; i < TIMES; i++) work();
  clock_gettime(CLOCK_MONOTONIC, &to);
  return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / TIMES;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

int main(void) {
  DLDevice host = {kDLCPU, 0};
  static void (*const work[3])(void) = {attach_and_settle, exchange_plain, exchange_fenced};
  static const char *const names[3] = {"attach and settle a fence", "exchange without fences", "exchange with both fences"};
  double ns[3][ROUNDS];
  finished = dlpack_fence_done(host);
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < 3; i++) ns[i][round] = measure(work[i]);
  for (int i = 0; i < 3; i++) {
    qsort(ns[i], ROUNDS, sizeof ns[i][0], by_size);
    printf("%-28s %6.1f ns (%.1f to %.1f)\n", names[i], ns[i][ROUNDS / 2], ns[i][0], ns[i][ROUNDS - 1]);
  }
  printf("%-28s %6.2f times\n", "with fences / without", ns[2][ROUNDS / 2] / ns[1][ROUNDS / 2]);
  return 0;
}

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dlpack_fence_check.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A check waits this long to see that nothing comes. */
enum { PAUSE_MS = 30, FLOATS = 64 };

/* Limit for events that come at once on an idle machine: DLPACK_FENCE_PATIENCE_MS in the environment, or 20 s. */
static int patience_ms(void) {
  const char *given = getenv("DLPACK_FENCE_PATIENCE_MS");
  return given ? atoi(given) : 20000;
}

static void nap(int ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&time, NULL);
}

/* The rule that is broken ends the check. */
#define RULE(rule, what)                                     \
  do {                                                       \
    if (!(what)) {                                           \
      printf("  %s is broken: not %s\n", rule, #what);       \
      fflush(stdout);                                        \
      _exit(1);                                              \
    }                                                        \
  } while (0)

/* `what` becomes true in time. */
#define COMES(rule, what)                                                     \
  do {                                                                        \
    for (int left_ = patience_ms(); left_ > 0 && !(what); left_--) nap(1);      \
    RULE(rule, what);                                                         \
  } while (0)

typedef void (*check)(const void *subject);

/* Runs a check in a child. */
static int run(const char *name, check function, const void *subject) {
  const char *only = getenv("DLPACK_FENCE_ONLY");
  if (only && strcmp(only, name) != 0) return 0;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    alarm(1 + 4 * (unsigned)patience_ms() / 1000);
    function(subject);
    fflush(stdout);
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0) status = -1;
  if (status == 0) return printf("ok      %s\n", name), 0;
  if (status > 0 && WIFSIGNALED(status))
    printf("  %s\n", WTERMSIG(status) == SIGALRM ? "it hangs" : strsignal(WTERMSIG(status)));
  return printf("FAILED  %s\n", name), 1;
}

/* A fence of the checks, whose scheduler calls subscribers, and answers, under one lock: so a subscriber that does more than take notes is
 * found. Its struct is made by hand, with nothing of the header's helpers. */
typedef struct {
  pthread_mutex_t lock;
  int32_t status;
  int holders, most, subscribers, subscribed, broken;
  DLFenceCallback callback[8];
  void *argument[8];
} strict;

static void strict_lock(strict *self) {
  if (pthread_mutex_lock(&self->lock) == EDEADLK) {
    printf("  R3 is broken: a callback calls the fence that calls it\n");
    fflush(stdout);
    _exit(1);
  }
}
static int32_t strict_query(void *context) {
  strict *self = context;
  strict_lock(self);
  int32_t status = self->status;
  pthread_mutex_unlock(&self->lock);
  return status;
}
static int32_t strict_subscribe(void *context, DLFenceCallback callback, void *argument, uint64_t *token) {
  strict *self = context;
  strict_lock(self);
  int32_t status = self->status;
  if (status == DLPACK_FENCE_PENDING && self->subscribers < 8) {
    status = DLPACK_FENCE_DONE;
    self->callback[self->subscribers] = callback;
    self->argument[self->subscribers] = argument;
    *token = (uint64_t)self->subscribers++;
  } else {
    status = DLPACK_FENCE_PENDING;
  }
  pthread_mutex_unlock(&self->lock);
  return status;
}
static int32_t strict_unsubscribe(void *context, uint64_t token) {
  strict *self = context;
  strict_lock(self);
  int32_t status = self->callback[token] ? DLPACK_FENCE_DONE : DLPACK_FENCE_PENDING;
  self->callback[token] = NULL;
  pthread_mutex_unlock(&self->lock);
  return status;
}
static const char *strict_error(void *context) { return (void)context, "the checks let it fail"; }
static void strict_count(strict *self, int change) {
  strict_lock(self);
  self->holders += change;
  if (self->holders > self->most) self->most = self->holders;
  if (self->holders < 1) self->broken = 1; /* the checks' own count */
  pthread_mutex_unlock(&self->lock);
}
static void strict_retain(void *context) { strict_count(context, 1); }
static void strict_release(void *context) { strict_count(context, -1); }

static int strict_holders(strict *self) {
  strict_lock(self);
  int holders = self->holders;
  pthread_mutex_unlock(&self->lock);
  return holders;
}

static void strict_settle(strict *self, int32_t status) {
  strict_lock(self);
  self->status = status;
  for (int i = 0; i < self->subscribers; i++) {
    DLFenceCallback callback = self->callback[i];
    self->callback[i] = NULL;
    if (callback) callback(self->argument[i], status, status < 0 ? "the checks let it fail" : NULL);
  }
  pthread_mutex_unlock(&self->lock);
}

static strict *strict_new(DLFence *fence, int calls) {
  strict *self = calloc(1, sizeof *self);
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&self->lock, &kind);
  self->status = DLPACK_FENCE_PENDING;
  self->holders = self->most = 1;
  memset(fence, 0, sizeof *fence);
  fence->version = DLPACK_FENCE_VERSION;
  fence->size = sizeof *fence;
  fence->context = self;
  fence->device.device_type = kDLCPU;
  fence->query = strict_query;
  if (calls) fence->subscribe = strict_subscribe, fence->unsubscribe = strict_unsubscribe;
  fence->error = strict_error;
  fence->retain = strict_retain;
  fence->release = strict_release;
  return self;
}

/* The content of a tensor, to see whether it changes. */
typedef struct { const unsigned char *at; size_t size; unsigned char kept[64]; } content;

static content content_of(const DLManagedTensorFenced *tensor) {
  content made = {(const unsigned char *)tensor->managed.dl_tensor.data + tensor->managed.dl_tensor.byte_offset, 64, {0}};
  memcpy(made.kept, made.at, made.size);
  return made;
}
static int unchanged(const content *self) { return memcmp(self->kept, self->at, self->size) == 0; }

static void check_struct(const DLManagedTensorFenced *tensor) {
  const DLFence *ready = &tensor->ready;
  RULE("R2", tensor->version == DLPACK_FENCE_VERSION && tensor->size >= sizeof *tensor);
  RULE("R2", tensor->managed.version.major == DLPACK_MAJOR_VERSION && tensor->managed.deleter && tensor->add_done);
  RULE("R2", ready->version == DLPACK_FENCE_VERSION && ready->size >= sizeof *ready && ready->flags == 0);
  RULE("R2", !ready->retain == !ready->release);
}

static void delete(DLManagedTensorFenced *tensor) { tensor->managed.deleter(&tensor->managed); }

/* State with which a check of a producer begins. */
typedef struct { const DLFenceProducer *it; void *library, *tensor; } world;

static world begin(const void *subject) {
  world made = {subject, NULL, NULL};
  made.library = made.it->open();
  made.tensor = made.it->tensor(made.library);
  return made;
}
static DLManagedTensorFenced *give(const world *self) {
  DLManagedTensorFenced *tensor = self->it->give(self->library, self->tensor);
  check_struct(tensor);
  return tensor;
}
static void finish(const world *self) { self->it->finish(self->library, self->tensor, 1); }
static void all_is_released(const world *self) {
  self->it->drop(self->library, self->tensor);
  COMES("R11", self->it->live(self->library) == 0);
}

static void late_readiness(const void *subject) {
  world it = begin(subject);
  DLManagedTensorFenced *tensor = give(&it);
  nap(PAUSE_MS);
  RULE("R7", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_PENDING);
  finish(&it);
  COMES("R5", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  const DLTensor *described = &tensor->managed.dl_tensor;
  RULE("R8", described->data && described->ndim >= 0 && described->shape && described->device.device_type == kDLCPU);
  content now = content_of(tensor);
  nap(PAUSE_MS);
  RULE("R4", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  RULE("R11", unchanged(&now));
  delete(tensor);
  all_is_released(&it);
}

static void failure(const void *subject) {
  world it = begin(subject);
  DLManagedTensorFenced *tensor = give(&it);
  it.it->finish(it.library, it.tensor, 0);
  COMES("R5", dlpack_fence_query(&tensor->ready) < 0);
  int32_t first = dlpack_fence_query(&tensor->ready);
  const char *text = tensor->ready.error ? tensor->ready.error(tensor->ready.context) : NULL;
  RULE("error", !tensor->ready.error || (text && text[0]));
  nap(PAUSE_MS);
  RULE("R4", dlpack_fence_query(&tensor->ready) == first);
  delete(tensor);
  all_is_released(&it);
}

typedef struct { atomic_int calls, status; } heard;
static void hear(void *argument, int32_t status, const char *message) {
  (void)message;
  atomic_store(&((heard *)argument)->status, status);
  atomic_fetch_add(&((heard *)argument)->calls, 1);
}

static void subscriptions(const void *subject) {
  world it = begin(subject);
  DLManagedTensorFenced *tensor = give(&it);
  DLFence ready = tensor->ready;
  heard kept = {0, 99}, taken_back = {0, 99}, late = {0, 99};
  uint64_t token = 0, other = 0;
  if (ready.subscribe) {
    int32_t arranged = ready.subscribe(ready.context, hear, &kept, &token);
    int32_t second = ready.subscribe(ready.context, hear, &taken_back, &other);
    int32_t back = second == DLPACK_FENCE_DONE && ready.unsubscribe ? ready.unsubscribe(ready.context, other) : DLPACK_FENCE_PENDING;
    nap(PAUSE_MS);
    RULE("subscribe", kept.calls == 0);
    finish(&it);
    if (arranged == DLPACK_FENCE_DONE) COMES("subscribe", kept.calls == 1 && kept.status == DLPACK_FENCE_DONE);
    COMES("R4", dlpack_fence_query(&ready) == DLPACK_FENCE_DONE);
    int32_t after = ready.subscribe(ready.context, hear, &late, &token);
    if (after == DLPACK_FENCE_DONE) COMES("subscribe", late.calls == 1);
    nap(PAUSE_MS);
    RULE("subscribe", kept.calls == (arranged == DLPACK_FENCE_DONE));
    RULE("unsubscribe", back != DLPACK_FENCE_DONE || taken_back.calls == 0);
    RULE("subscribe", late.calls == (after == DLPACK_FENCE_DONE));
  } else {
    finish(&it);
  }
  delete(tensor);
  all_is_released(&it);
}

static void a_retained_fence_outlives_its_tensor(const void *subject) {
  world it = begin(subject);
  DLManagedTensorFenced *tensor = give(&it);
  DLFence ready = tensor->ready;
  dlpack_fence_retain(&ready);
  delete(tensor);
  RULE("R1", dlpack_fence_query(&ready) == DLPACK_FENCE_PENDING);
  finish(&it);
  COMES("R1", dlpack_fence_query(&ready) == DLPACK_FENCE_DONE);
  all_is_released(&it);
  RULE("R1", dlpack_fence_query(&ready) == DLPACK_FENCE_DONE);
  dlpack_fence_release(&ready);
}

static void a_deleter_before_the_tensor_is_ready(const void *subject) {
  world it = begin(subject);
  delete(give(&it));
  finish(&it);
  all_is_released(&it);
}

/* A consumer's work goes on after its deleter; `calls` as in strict_new; `end` is how the work ends. */
static void done_after_deleter(const void *subject, int calls, int32_t end) {
  world it = begin(subject);
  finish(&it);
  DLManagedTensorFenced *tensor = give(&it);
  COMES("R5", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  content now = content_of(tensor);
  DLFence done;
  strict *work = strict_new(&done, calls);
  RULE("R9", tensor->add_done(tensor, &done) == DLPACK_FENCE_DONE);
  memset(&done, 0xaa, sizeof done); /* the struct was copied */
  RULE("R9", strict_holders(work) > 1);
  delete(tensor);
  if (it.it->overwrite) it.it->overwrite(it.library, it.tensor);
  nap(PAUSE_MS);
  RULE("R11", unchanged(&now));
  RULE("R11", it.it->live(it.library) == 1);
  strict_settle(work, end);
  if (it.it->overwrite) COMES("R11", !unchanged(&now));
  all_is_released(&it);
  COMES("R1", strict_holders(work) == 1);
  RULE("R1", !work->broken);
}
static void a_write_waits_for_the_consumers_fence(const void *subject) { done_after_deleter(subject, 1, DLPACK_FENCE_DONE); }
static void a_consumers_fence_that_is_polled(const void *subject) { done_after_deleter(subject, 0, DLPACK_FENCE_DONE); }
static void a_consumers_work_that_fails_ends_its_use(const void *subject) { done_after_deleter(subject, 1, DLPACK_FENCE_FAILED); }

/* A consumer's work ends by a fault; `writes`: the producer has asked for a write of the tensor, which is no reuse. */
static void fault_of_a_device(const void *subject, int writes) {
  world it = begin(subject);
  finish(&it);
  DLManagedTensorFenced *tensor = give(&it);
  COMES("R5", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  content now = content_of(tensor);
  DLFence done;
  strict *work = strict_new(&done, 1);
  RULE("R9", tensor->add_done(tensor, &done) == DLPACK_FENCE_DONE);
  delete(tensor);
  if (writes) it.it->overwrite(it.library, it.tensor);
  nap(PAUSE_MS);
  RULE("R11", unchanged(&now));
  strict_settle(work, DLPACK_FENCE_DEVICE);
  if (writes) COMES("R14", !unchanged(&now));
  it.it->drop(it.library, it.tensor);
  nap(PAUSE_MS);
  RULE("R11", it.it->live(it.library) == 1);
}
static void memory_is_not_released_after_a_fault_of_a_device(const void *subject) { fault_of_a_device(subject, 0); }
static void a_write_after_a_fault_of_a_device_begins(const void *subject) {
  if (((const DLFenceProducer *)subject)->overwrite) fault_of_a_device(subject, 1);
}

static void memory_outlives_the_producers_handle(const void *subject) {
  world it = begin(subject);
  finish(&it);
  DLManagedTensorFenced *tensor = give(&it);
  COMES("R5", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  content now = content_of(tensor);
  DLFence done;
  strict *work = strict_new(&done, 1);
  RULE("R9", tensor->add_done(tensor, &done) == DLPACK_FENCE_DONE);
  delete(tensor);
  it.it->drop(it.library, it.tensor);
  nap(PAUSE_MS);
  RULE("R11", it.it->live(it.library) == 1 && unchanged(&now));
  strict_settle(work, DLPACK_FENCE_DONE);
  COMES("R11", it.it->live(it.library) == 0);
  COMES("R1", strict_holders(work) == 1);
}

static void two_consumers(const void *subject) {
  world it = begin(subject);
  finish(&it);
  DLManagedTensorFenced *tensor[2];
  DLFence done[3];
  strict *work[3];
  for (int i = 0; i < 3; i++) work[i] = strict_new(&done[i], 1);
  for (int i = 0; i < 2; i++) tensor[i] = give(&it);
  for (int i = 0; i < 2; i++) COMES("R12", dlpack_fence_query(&tensor[i]->ready) == DLPACK_FENCE_DONE);
  content now = content_of(tensor[0]);
  RULE("R9", tensor[0]->add_done(tensor[0], &done[0]) == DLPACK_FENCE_DONE);
  RULE("R9", tensor[1]->add_done(tensor[1], &done[1]) == DLPACK_FENCE_DONE);
  RULE("R9", tensor[1]->add_done(tensor[1], &done[2]) == DLPACK_FENCE_DONE);
  for (int i = 0; i < 2; i++) delete(tensor[i]);
  if (it.it->overwrite) it.it->overwrite(it.library, it.tensor);
  for (int i = 0; i < 3; i++) {
    nap(PAUSE_MS);
    RULE("R12", unchanged(&now));
    strict_settle(work[2 - i], DLPACK_FENCE_DONE);
  }
  if (it.it->overwrite) COMES("R12", !unchanged(&now));
  all_is_released(&it);
  for (int i = 0; i < 3; i++) COMES("R1", strict_holders(work[i]) == 1);
}

static void a_write_waits_for_the_deleter(const void *subject) {
  world it = begin(subject);
  finish(&it);
  DLManagedTensorFenced *tensor = give(&it);
  COMES("R5", dlpack_fence_query(&tensor->ready) == DLPACK_FENCE_DONE);
  content now = content_of(tensor);
  DLFence done = dlpack_fence_done(tensor->ready.device);
  RULE("R9", tensor->add_done(tensor, &done) == DLPACK_FENCE_DONE);
  if (it.it->overwrite) it.it->overwrite(it.library, it.tensor);
  nap(PAUSE_MS);
  RULE("R11", unchanged(&now));
  delete(tensor);
  if (it.it->overwrite) COMES("R11", !unchanged(&now));
  all_is_released(&it);
}

static void *on_another_thread(void *argument) {
  DLManagedTensorFenced *tensor = argument;
  DLFence ready = tensor->ready, done = dlpack_fence_done(ready.device);
  dlpack_fence_retain(&ready);
  RULE("R3", dlpack_fence_query(&ready) == DLPACK_FENCE_DONE);
  if (ready.wait) RULE("R3", ready.wait(ready.context, UINT64_MAX) == DLPACK_FENCE_DONE);
  RULE("R3", tensor->add_done(tensor, &done) == DLPACK_FENCE_DONE);
  delete(tensor);
  dlpack_fence_release(&ready);
  return NULL;
}

static void other_threads(const void *subject) {
  world it = begin(subject);
  finish(&it);
  pthread_t thread[4];
  DLManagedTensorFenced *tensor[4];
  for (int i = 0; i < 4; i++) tensor[i] = give(&it);
  for (int i = 0; i < 4; i++) COMES("R5", dlpack_fence_query(&tensor[i]->ready) == DLPACK_FENCE_DONE);
  for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, on_another_thread, tensor[i]);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  all_is_released(&it);
}

static void a_forked_child(const void *subject) {
  world it = begin(subject);
  DLManagedTensorFenced *pending = give(&it);
  pid_t child = fork();
  if (child == 0) {
    alarm(1 + (unsigned)patience_ms() / 1000);
    dlpack_fence_query(&pending->ready);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  RULE("R6", status == 0);
  finish(&it);
  COMES("R5", dlpack_fence_query(&pending->ready) == DLPACK_FENCE_DONE);
  delete(pending);
  all_is_released(&it);
}

#define RUN(check) failed += run(#check, check, subject)

int dlpack_fence_check_producer(const DLFenceProducer *subject) {
  int failed = 0;
  RUN(late_readiness);
  RUN(failure);
  RUN(subscriptions);
  RUN(a_retained_fence_outlives_its_tensor);
  RUN(a_deleter_before_the_tensor_is_ready);
  RUN(a_write_waits_for_the_deleter);
  RUN(a_write_waits_for_the_consumers_fence);
  RUN(a_consumers_fence_that_is_polled);
  RUN(a_consumers_work_that_fails_ends_its_use);
  RUN(memory_is_not_released_after_a_fault_of_a_device);
  RUN(a_write_after_a_fault_of_a_device_begins);
  RUN(memory_outlives_the_producers_handle);
  RUN(two_consumers);
  RUN(other_threads);
  RUN(a_forked_child);
  return failed;
}

/* A tensor for a consumer: a page that cannot be touched before it is ready, and after the consumer says that it is done. */
typedef struct {
  DLManagedTensorFenced raw;
  int64_t shape[1], stride[1];
  float *page;
  strict *ready;
  DLFence done[8];
  atomic_int added, deleted;
} guarded;

static int32_t guarded_add(DLManagedTensorFenced *raw, const DLFence *done) {
  guarded *self = (guarded *)raw;
  int number = atomic_fetch_add(&self->added, 1);
  RULE("R10", atomic_load(&self->deleted) == 0);
  RULE("R2", done->version == DLPACK_FENCE_VERSION && done->size >= sizeof *done && !done->retain == !done->release);
  if (number >= 8) return DLPACK_FENCE_PENDING;
  self->done[number] = *done;
  dlpack_fence_retain(&self->done[number]);
  return DLPACK_FENCE_DONE;
}
static int32_t guarded_refuse(DLManagedTensorFenced *raw, const DLFence *done) { return (void)raw, (void)done, DLPACK_FENCE_PENDING; }
static void guarded_delete(DLManagedTensorVersioned *raw) {
  RULE("R10", atomic_fetch_add(&((guarded *)raw)->deleted, 1) == 0);
}

static void guard(guarded *self, int access) { mprotect(self->page, 4096, access); }

static guarded *guarded_new(int late, int calls) {
  guarded *self = calloc(1, sizeof *self);
  self->page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  self->shape[0] = FLOATS;
  self->stride[0] = 1;
  DLManagedTensorVersioned *managed = &self->raw.managed;
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->manager_ctx = self;
  managed->deleter = guarded_delete;
  managed->flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  managed->dl_tensor.data = self->page;
  managed->dl_tensor.device.device_type = kDLCPU;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.dtype.code = kDLFloat;
  managed->dl_tensor.dtype.bits = 32;
  managed->dl_tensor.dtype.lanes = 1;
  managed->dl_tensor.shape = self->shape;
  managed->dl_tensor.strides = self->stride;
  self->raw.version = DLPACK_FENCE_VERSION;
  self->raw.size = sizeof self->raw;
  self->raw.add_done = guarded_add;
  self->ready = strict_new(&self->raw.ready, calls);
  if (late) { /* nothing but version and deleter is true yet */
    self->raw.fence_flags = DLPACK_FENCE_DESCRIBED_LATE;
    memset(&managed->dl_tensor, 0xff, sizeof managed->dl_tensor);
  }
  return self;
}

static void guarded_ready(guarded *self) {
  guard(self, PROT_READ | PROT_WRITE);
  for (int i = 0; i < FLOATS; i++) self->page[i] = (float)i;
  if (self->raw.fence_flags) {
    self->raw.managed.dl_tensor = guarded_new(0, 0)->raw.managed.dl_tensor;
    self->raw.managed.dl_tensor.data = self->page;
    self->raw.managed.dl_tensor.shape = self->shape;
    self->raw.managed.dl_tensor.strides = self->stride;
  }
  guard(self, PROT_READ);
  strict_settle(self->ready, DLPACK_FENCE_DONE);
}

/* The consumer has called the deleter, and its fences have settled. */
static int is_over(guarded *self) {
  if (atomic_load(&self->deleted) != 1) return 0;
  for (int i = 0; i < self->added; i++)
    if (dlpack_fence_query(&self->done[i]) == DLPACK_FENCE_PENDING) return 0;
  return 1;
}

static void takes(const DLFenceConsumer *it, guarded *tensor) {
  void *library = it->open(), *use = it->take(library, &tensor->raw);
  double sum = 0;
  if (!use && tensor->raw.fence_flags) { /* refused, which is legal, and left to the caller */
    RULE("R10", !tensor->deleted && !tensor->added && strict_holders(tensor->ready) == 1);
    return;
  }
  nap(PAUSE_MS);
  RULE("R7", it->result(library, use, &sum) == DLPACK_FENCE_PENDING);
  RULE("R9", !is_over(tensor));
  guarded_ready(tensor);
  COMES("R9", is_over(tensor));
  guard(tensor, PROT_NONE); /* what is read from here on crashes */
  COMES("R5", it->result(library, use, &sum) == DLPACK_FENCE_DONE);
  RULE("R7", sum == FLOATS * (FLOATS - 1) / 2);
  for (int i = 0; i < tensor->added; i++) dlpack_fence_release(&tensor->done[i]);
  COMES("R1", strict_holders(tensor->ready) == 1);
  nap(PAUSE_MS);
  RULE("R10", tensor->deleted == 1 && !tensor->ready->broken);
}

static void a_tensor_that_is_ready_late(const void *subject) { takes(subject, guarded_new(0, 1)); }
static void a_fence_that_only_answers(const void *subject) { takes(subject, guarded_new(0, 0)); }
static void a_tensor_that_is_described_late(const void *subject) { takes(subject, guarded_new(1, 1)); }

static void a_producer_that_accepts_no_fence(const void *subject) {
  guarded *tensor = guarded_new(0, 1);
  tensor->raw.add_done = guarded_refuse;
  takes(subject, tensor);
}

static void a_tensor_that_is_ready_already(const void *subject) {
  const DLFenceConsumer *it = subject;
  guarded *tensor = guarded_new(0, 1);
  guarded_ready(tensor);
  DLFence forever = dlpack_fence_done(tensor->raw.ready.device);
  tensor->raw.ready = forever;
  double sum = 0;
  void *library = it->open(), *use = it->take(library, &tensor->raw);
  COMES("R9", is_over(tensor));
  guard(tensor, PROT_NONE);
  COMES("R5", it->result(library, use, &sum) == DLPACK_FENCE_DONE);
  RULE("R7", sum == FLOATS * (FLOATS - 1) / 2);
}

static void tensor_that_fails(const void *subject, int32_t status) {
  const DLFenceConsumer *it = subject;
  guarded *tensor = guarded_new(0, 1); /* its page is never readable */
  double sum = 0;
  void *library = it->open(), *use = it->take(library, &tensor->raw);
  strict_settle(tensor->ready, status);
  COMES("R7", it->result(library, use, &sum) < 0);
  COMES("R10", is_over(tensor));
  for (int i = 0; i < tensor->added; i++) dlpack_fence_release(&tensor->done[i]);
  COMES("R1", strict_holders(tensor->ready) == 1);
}

static void a_tensor_that_fails(const void *subject) { tensor_that_fails(subject, DLPACK_FENCE_FAILED); }

/* R11 is about the consumer's fences: the memory is the producer's, which knows what its device may still do. */
static void a_tensor_whose_device_breaks(const void *subject) { tensor_that_fails(subject, DLPACK_FENCE_DEVICE); }

static void two_tensors_at_once(const void *subject) {
  const DLFenceConsumer *it = subject;
  guarded *tensor[2] = {guarded_new(0, 1), guarded_new(0, 0)};
  void *library = it->open(), *use[2];
  double sum[2] = {0, 0};
  for (int i = 0; i < 2; i++) use[i] = it->take(library, &tensor[i]->raw);
  for (int i = 0; i < 2; i++) guarded_ready(tensor[i]);
  for (int i = 0; i < 2; i++) {
    COMES("R9", is_over(tensor[i]));
    COMES("R5", it->result(library, use[i], &sum[i]) == DLPACK_FENCE_DONE);
    RULE("R7", sum[i] == FLOATS * (FLOATS - 1) / 2);
  }
}

int dlpack_fence_check_consumer(const DLFenceConsumer *subject) {
  int failed = 0;
  RUN(a_tensor_that_is_ready_late);
  RUN(a_tensor_that_is_ready_already);
  RUN(a_fence_that_only_answers);
  RUN(a_tensor_that_is_described_late);
  RUN(a_producer_that_accepts_no_fence);
  RUN(a_tensor_that_fails);
  RUN(a_tensor_whose_device_breaks);
  RUN(two_tensors_at_once);
  return failed;
}

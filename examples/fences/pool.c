#include "pool.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

/* A function that a thread of the pool calls when a fence has settled. */
typedef struct task {
  struct task *next;
  pool *owner;
  void (*run)(struct task *self);
  DLFence after;
  int32_t status; /* of `after` */
  char text[160]; /* why it has failed */
  pool_tensor *tensor;
  struct version *version;
  DLManagedTensorFenced *input;
  float first, factor;
  int ms;
} task;

typedef struct queue { task *first, **last; } queue;

struct pool {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  queue ready, polled;
  int live, lost, stops, threads;
  pthread_t thread[16];
};

/* The content between two writes. */
typedef struct version {
  DLFenceFlag flag; /* first: the flag's memory is the version's */
  DLFence fence;
  int uses;     /* its maker, exports whose deleter was not called, and their fences that have not settled */
  task *writer; /* computes the next content, when this one has no use left */
  char text[200];
} version;

struct pool_tensor {
  pool *owner;
  int holders; /* the handle, tasks, and uses of versions */
  int lost;    /* a device broke in a consumer's work: the memory is never released */
  version *now;
  int64_t length;
  float *values;
};

typedef struct {
  DLManagedTensorFenced raw; /* first: what the consumer has is this */
  pool_tensor *tensor;
  version *content;
  int64_t shape, stride;
} exported;

static void push(queue *into, task *added) {
  added->next = NULL;
  if (!into->first) into->last = &into->first;
  *into->last = added;
  into->last = &added->next;
}

static task *pop(queue *from) {
  task *popped = from->first;
  if (popped) from->first = popped->next;
  return popped;
}

/* A fence calls this, under whatever lock: it takes notes only. */
static void settled(void *argument, int32_t status, const char *message) {
  task *self = argument;
  pool *owner = self->owner;
  self->status = status;
  snprintf(self->text, sizeof self->text, "%s", message ? message : "no reason was given");
  pthread_mutex_lock(&owner->lock);
  push(&owner->ready, self);
  pthread_cond_signal(&owner->changed);
  pthread_mutex_unlock(&owner->lock);
}

/* Runs `added` when `fence` has settled: it is called by the fence, or asks for it. */
static void run_after(task *added, const DLFence *fence) {
  pool *owner = added->owner;
  uint64_t token;
  DLFence after = *fence;
  dlpack_fence_retain(&after);
  added->after = after;
  /* From the subscription on the task may be gone at any time. */
  if (after.subscribe && after.subscribe(after.context, settled, added, &token) == DLPACK_FENCE_DONE) return;
  pthread_mutex_lock(&owner->lock);
  push(&owner->polled, added);
  pthread_cond_signal(&owner->changed);
  pthread_mutex_unlock(&owner->lock);
}

/* Asks for the fences that do not call. True if there are any left. */
static int poll_fences(pool *self) {
  queue left = {NULL, NULL}, asked = self->polled;
  self->polled.first = NULL;
  pthread_mutex_unlock(&self->lock);
  for (task *next; (next = pop(&asked));) {
    int32_t status = dlpack_fence_query(&next->after);
    if (status == DLPACK_FENCE_PENDING) push(&left, next);
    else settled(next, status, status < 0 && next->after.error ? next->after.error(next->after.context) : NULL);
  }
  pthread_mutex_lock(&self->lock);
  for (task *next; (next = pop(&left));) push(&self->polled, next);
  return self->polled.first != NULL;
}

static void *work(void *argument) {
  pool *self = argument;
  pthread_mutex_lock(&self->lock);
  while (!self->stops || self->live > self->lost || self->ready.first || self->polled.first) {
    task *next = pop(&self->ready);
    if (next) {
      pthread_mutex_unlock(&self->lock);
      dlpack_fence_release(&next->after);
      next->run(next);
      pthread_mutex_lock(&self->lock);
    } else if (!poll_fences(self)) {
      if (!self->ready.first && !(self->stops && self->live == self->lost)) pthread_cond_wait(&self->changed, &self->lock);
    } else if (!self->ready.first) {
      struct timespec soon;
      clock_gettime(CLOCK_REALTIME, &soon);
      soon.tv_nsec += 500000;
      if (soon.tv_nsec >= 1000000000) soon.tv_nsec -= 1000000000, soon.tv_sec++;
      pthread_cond_timedwait(&self->changed, &self->lock, &soon);
    }
  }
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
  return NULL;
}

pool *pool_create(int threads) {
  pool *self = calloc(1, sizeof *self);
  pthread_mutex_init(&self->lock, NULL);
  pthread_cond_init(&self->changed, NULL);
  self->threads = threads < 1 ? 1 : threads > 16 ? 16 : threads;
  for (int i = 0; i < self->threads; i++) pthread_create(&self->thread[i], NULL, work, self);
  return self;
}

void pool_destroy(pool *self) {
  pthread_mutex_lock(&self->lock);
  self->stops = 1;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
  for (int i = 0; i < self->threads; i++) pthread_join(self->thread[i], NULL);
  pthread_mutex_destroy(&self->lock);
  pthread_cond_destroy(&self->changed);
  free(self);
}

int pool_live(pool *self) {
  pthread_mutex_lock(&self->lock);
  int live = self->live;
  pthread_mutex_unlock(&self->lock);
  return live;
}

static void hold(pool_tensor *tensor) {
  pthread_mutex_lock(&tensor->owner->lock);
  tensor->holders++;
  pthread_mutex_unlock(&tensor->owner->lock);
}

void pool_drop(pool_tensor *tensor) {
  pool *owner = tensor->owner;
  pthread_mutex_lock(&owner->lock);
  int last = --tensor->holders == 0;
  if (last && --owner->live == owner->lost) pthread_cond_broadcast(&owner->changed);
  pthread_mutex_unlock(&owner->lock);
  if (!last) return;
  dlpack_fence_release(&tensor->now->fence);
  free(tensor->values);
  free(tensor);
}

static version *version_new(void) {
  version *made = malloc(sizeof *made);
  made->fence = dlpack_fence_flag(&made->flag, free);
  made->uses = 0;
  made->writer = NULL;
  return made;
}

static task *task_new(pool_tensor *tensor, void (*run)(task *)) {
  task *made = calloc(1, sizeof *made);
  made->owner = tensor->owner;
  made->run = run;
  made->tensor = tensor;
  hold(tensor);
  return made;
}

static void task_free(task *self) {
  pool_drop(self->tensor);
  free(self);
}

static pool_tensor *tensor_new(pool *owner, int64_t length) {
  pool_tensor *made = calloc(1, sizeof *made);
  made->owner = owner;
  made->holders = 1;
  made->now = version_new();
  made->length = length;
  made->values = malloc((size_t)length * sizeof(float) + 1);
  pthread_mutex_lock(&owner->lock);
  owner->live++;
  pthread_mutex_unlock(&owner->lock);
  return made;
}

/* One use of a version is over. The last one lets its writer go on. */
static void use_over(pool_tensor *tensor, version *content) {
  pool *owner = tensor->owner;
  pthread_mutex_lock(&owner->lock);
  task *writer = --content->uses == 0 ? content->writer : NULL;
  if (writer) {
    content->writer = NULL;
    push(&owner->ready, writer);
    pthread_cond_signal(&owner->changed);
  }
  pthread_mutex_unlock(&owner->lock);
  dlpack_fence_release(&content->fence);
  pool_drop(tensor);
}

static void use_begins(pool_tensor *tensor, version *content) {
  pthread_mutex_lock(&tensor->owner->lock);
  tensor->holders++;
  content->uses++;
  pthread_mutex_unlock(&tensor->owner->lock);
  dlpack_fence_retain(&content->fence);
}

static void consumer_done(task *self) {
  pool *owner = self->owner;
  if (self->status == DLPACK_FENCE_DEVICE) { /* Nothing is known of the consumer's work: the memory is never released. */
    pthread_mutex_lock(&owner->lock);
    if (!self->tensor->lost) self->tensor->lost = 1, self->tensor->holders++, owner->lost++;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
  }
  use_over(self->tensor, self->version);
  task_free(self);
}

static int32_t add_done(DLManagedTensorFenced *raw, const DLFence *done) {
  exported *self = (exported *)raw;
  if (dlpack_fence_query(done) == DLPACK_FENCE_DONE) return DLPACK_FENCE_DONE;
  task *waits = task_new(self->tensor, consumer_done);
  waits->version = self->content;
  use_begins(self->tensor, self->content);
  run_after(waits, done);
  return DLPACK_FENCE_DONE;
}

static void deleter(DLManagedTensorVersioned *raw) {
  exported *self = (exported *)raw;
  use_over(self->tensor, self->content);
  free(self);
}

DLManagedTensorFenced *pool_export(pool_tensor *tensor) {
  exported *made = calloc(1, sizeof *made);
  DLManagedTensorVersioned *managed = &made->raw.managed;
  made->tensor = tensor;
  made->content = tensor->now;
  made->shape = tensor->length;
  made->stride = 1;
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->manager_ctx = made;
  managed->deleter = deleter;
  managed->flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  managed->dl_tensor.data = tensor->values;
  managed->dl_tensor.device.device_type = kDLCPU;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.dtype.code = kDLFloat;
  managed->dl_tensor.dtype.bits = 32;
  managed->dl_tensor.dtype.lanes = 1;
  managed->dl_tensor.shape = &made->shape;
  managed->dl_tensor.strides = &made->stride;
  made->raw.version = DLPACK_FENCE_VERSION;
  made->raw.size = sizeof made->raw;
  made->raw.ready = tensor->now->fence;
  made->raw.add_done = add_done;
  use_begins(tensor, made->content);
  return &made->raw;
}

static void settle(task *self, int32_t status, const char *text) {
  snprintf(self->version->text, sizeof self->version->text, "%s", text ? text : "");
  dlpack_fence_flag_settle(&self->version->flag, status, self->version->text);
  use_over(self->tensor, self->version);
  task_free(self);
}

static void nap(int ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&time, NULL);
}

static void fill(task *self) {
  nap(self->ms);
  for (int64_t i = 0; i < self->tensor->length; i++) self->tensor->values[i] = self->first + (float)i;
  settle(self, DLPACK_FENCE_DONE, NULL);
}

static void fail(task *self) { settle(self, DLPACK_FENCE_FAILED, "the pool is empty"); }

static void scale(task *self) {
  DLManagedTensorVersioned *input = &self->input->managed;
  if (self->status == DLPACK_FENCE_DONE) {
    const float *from = (const float *)((const char *)input->dl_tensor.data + input->dl_tensor.byte_offset);
    for (int64_t i = 0; i < self->tensor->length; i++) self->tensor->values[i] = self->factor * from[i];
  }
  input->deleter(input);
  settle(self, self->status, self->text);
}

/* A task that makes the content of a version. */
static task *maker(pool_tensor *tensor, version *content, void (*run)(task *)) {
  task *made = task_new(tensor, run);
  made->version = content;
  use_begins(tensor, content);
  return made;
}

static void begin(task *ready) { settled(ready, DLPACK_FENCE_DONE, NULL); }

static DLFence nothing(void) {
  DLDevice host = {kDLCPU, 0};
  return dlpack_fence_done(host);
}

pool_tensor *pool_ramp(pool *self, float first, int64_t length, int ms) {
  pool_tensor *made = tensor_new(self, length);
  task *making = maker(made, made->now, fill);
  making->after = nothing();
  making->first = first;
  making->ms = ms;
  begin(making);
  return made;
}

pool_tensor *pool_fail(pool *self, int64_t length) {
  pool_tensor *made = tensor_new(self, length);
  task *making = maker(made, made->now, fail);
  making->after = nothing();
  begin(making);
  return made;
}

pool_tensor *pool_scale(pool *self, DLManagedTensorFenced *input, float factor) {
  const DLTensor *given = &input->managed.dl_tensor;
  if (input->version != DLPACK_FENCE_VERSION || input->fence_flags != 0 || given->device.device_type != kDLCPU || given->ndim != 1 ||
      given->dtype.code != kDLFloat || given->dtype.bits != 32 || (given->strides && given->strides[0] != 1))
    return NULL;
  pool_tensor *made = tensor_new(self, given->shape[0]);
  task *making = maker(made, made->now, scale);
  making->input = input;
  making->factor = factor;
  run_after(making, &input->ready);
  return made;
}

void pool_refill(pool_tensor *tensor, float first, int ms) {
  pool *owner = tensor->owner;
  version *before, *after = version_new();
  task *making = maker(tensor, after, fill);
  making->after = nothing();
  making->first = first;
  making->ms = ms;
  pthread_mutex_lock(&owner->lock);
  before = tensor->now;
  tensor->now = after;
  if (before->uses) before->writer = making;
  else push(&owner->ready, making), pthread_cond_signal(&owner->changed);
  pthread_mutex_unlock(&owner->lock);
  dlpack_fence_release(&before->fence);
}

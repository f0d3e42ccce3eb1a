#include "reader.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

struct sum {
  sum *next;
  reader *owner;
  DLFence ready;
  DLTensor described;
  int64_t shape, stride;
  DLManagedTensorFenced *kept; /* NULL once it was released */
  DLFenceFlag *done;           /* settled when the memory was read; NULL if the struct is kept until then */
  DLFence done_fence;
  int finished;
  double value;
  char failure[200];
};

struct reader {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  sum *first, **last;
  int stops, paused;
};

/* Waits on this library's own thread: by `wait` if the fence has one, else by asking. */
static int32_t wait_for(const DLFence *fence) {
  int32_t status;
  if (fence->wait) return fence->wait(fence->context, UINT64_MAX);
  while ((status = dlpack_fence_query(fence)) == DLPACK_FENCE_PENDING) {
    struct timespec soon = {0, 200000};
    nanosleep(&soon, NULL);
  }
  return status;
}

static void describe(sum *self, const DLTensor *tensor) {
  self->described = *tensor;
  self->shape = tensor->ndim == 1 ? tensor->shape[0] : 0;
  self->stride = tensor->ndim == 1 && tensor->strides ? tensor->strides[0] : 1;
}

static const char *add_up(sum *self) {
  const DLTensor *tensor = &self->described;
  const char *data = (const char *)tensor->data + tensor->byte_offset;
  if (tensor->device.device_type != kDLCPU || tensor->ndim != 1 || tensor->dtype.code != kDLFloat) return "it is no vector of floats";
  for (int64_t i = 0; i < self->shape; i++)
    self->value += tensor->dtype.bits == 64 ? ((const double *)data)[i * self->stride] : ((const float *)data)[i * self->stride];
  return NULL;
}

static void finish(sum *self) {
  int32_t status = wait_for(&self->ready);
  const char *failure = NULL;
  if (status < 0) {
    failure = self->ready.error ? self->ready.error(self->ready.context) : NULL;
    if (!failure) failure = "the producer failed without a reason";
  } else {
    if (self->kept) describe(self, &self->kept->managed.dl_tensor);
    failure = add_up(self);
  }
  snprintf(self->failure, sizeof self->failure, "%s", failure ? failure : "");
  dlpack_fence_release(&self->ready);
  /* The memory is not touched from here on. */
  if (self->kept) {
    self->kept->managed.deleter(&self->kept->managed);
  } else {
    dlpack_fence_flag_settle(self->done, DLPACK_FENCE_DONE, NULL);
    dlpack_fence_release(&self->done_fence);
  }
}

static void *work(void *argument) {
  reader *self = argument;
  pthread_mutex_lock(&self->lock);
  for (;;) {
    sum *next = self->first;
    if (next && !self->paused) {
      self->first = next->next;
      pthread_mutex_unlock(&self->lock);
      finish(next);
      pthread_mutex_lock(&self->lock);
      next->finished = 1;
      pthread_cond_broadcast(&self->changed);
    } else if (!next && self->stops) {
      break;
    } else {
      pthread_cond_wait(&self->changed, &self->lock);
    }
  }
  pthread_mutex_unlock(&self->lock);
  return NULL;
}

reader *reader_create(void) {
  reader *self = calloc(1, sizeof *self);
  pthread_mutex_init(&self->lock, NULL);
  pthread_cond_init(&self->changed, NULL);
  pthread_create(&self->thread, NULL, work, self);
  return self;
}

void reader_destroy(reader *self) {
  reader_pause(self, 0);
  pthread_mutex_lock(&self->lock);
  self->stops = 1;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
  pthread_join(self->thread, NULL);
  pthread_mutex_destroy(&self->lock);
  pthread_cond_destroy(&self->changed);
  free(self);
}

void reader_pause(reader *self, int paused) {
  pthread_mutex_lock(&self->lock);
  self->paused = paused;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

sum *reader_sum(reader *self, DLManagedTensorFenced *tensor) {
  sum *made = calloc(1, sizeof *made);
  made->owner = self;
  made->ready = tensor->ready;
  dlpack_fence_retain(&made->ready);
  made->kept = tensor;
  if (!(tensor->fence_flags & DLPACK_FENCE_DESCRIBED_LATE)) {
    describe(made, &tensor->managed.dl_tensor);
    made->done = malloc(sizeof *made->done);
    made->done_fence = dlpack_fence_flag(made->done, free);
    if (tensor->add_done(tensor, &made->done_fence) == DLPACK_FENCE_DONE) {
      made->kept = NULL;
      tensor->managed.deleter(&tensor->managed);
    } else {
      dlpack_fence_release(&made->done_fence);
    }
  }
  pthread_mutex_lock(&self->lock);
  if (!self->first) self->last = &self->first;
  *self->last = made;
  self->last = &made->next;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
  return made;
}

int sum_finished(sum *self) {
  pthread_mutex_lock(&self->owner->lock);
  int finished = self->finished;
  pthread_mutex_unlock(&self->owner->lock);
  return finished;
}

const char *sum_get(sum *self, double *value) {
  pthread_mutex_lock(&self->owner->lock);
  while (!self->finished) pthread_cond_wait(&self->owner->changed, &self->owner->lock);
  pthread_mutex_unlock(&self->owner->lock);
  *value = self->value;
  return self->failure[0] ? self->failure : NULL;
}

void sum_drop(sum *self) { free(self); }

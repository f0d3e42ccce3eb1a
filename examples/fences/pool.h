/* A small C library with a pool of threads. Its tensors are vectors of floats that tasks compute; it gives and takes them by
 * dlpack_fence.h, and knows no other library. */
#ifndef POOL_H
#define POOL_H

#include "dlpack_fence.h"

typedef struct pool pool;
typedef struct pool_tensor pool_tensor;

pool *pool_create(int threads);
/* Waits until every tensor of the pool is gone. */
void pool_destroy(pool *self);
/* Tensors whose memory was not freed. */
int pool_live(pool *self);

/* A vector: first, first + 1, ... It is computed by a task that takes `ms` milliseconds. */
pool_tensor *pool_ramp(pool *self, float first, int64_t length, int ms);
/* A vector whose task fails. */
pool_tensor *pool_fail(pool *self, int64_t length);
/* factor * input, of a tensor of any library, which the pool adopts. NULL if it is no described vector of floats on the host:
 * then the tensor stays the caller's. */
pool_tensor *pool_scale(pool *self, DLManagedTensorFenced *input, float factor);
/* Computes a new ramp in place, once the consumers of the present content are done. What is exported later is the new content. */
void pool_refill(pool_tensor *tensor, float first, int ms);
/* The present content, read-only, for a consumer. */
DLManagedTensorFenced *pool_export(pool_tensor *tensor);
void pool_drop(pool_tensor *tensor);

#endif

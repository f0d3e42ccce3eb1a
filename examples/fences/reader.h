/* A consumer with one thread: it sums vectors of floats. It knows dlpack_fence.h and no library that makes tensors. It gives a struct
 * back at once, before it has read the memory, and says by a fence when it has. */
#ifndef READER_H
#define READER_H

#include "dlpack_fence.h"

typedef struct reader reader;
typedef struct sum sum;

reader *reader_create(void);
/* Waits until every sum is there. */
void reader_destroy(reader *self);
/* Holds its thread up, so that sums come late. */
void reader_pause(reader *self, int paused);

/* Adopts the tensor. Sums are made one after the other, each after its tensor is ready. */
sum *reader_sum(reader *self, DLManagedTensorFenced *tensor);
/* Whether the sum is there, or will never be. */
int sum_finished(sum *self);
/* Waits for the sum; NULL, or why there is none, valid until `sum_drop`. */
const char *sum_get(sum *self, double *value);
void sum_drop(sum *self);

#endif

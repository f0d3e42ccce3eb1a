/* Does a library keep the rules of dlpack_fence.h? A library says how it gives or takes a tensor, by the functions below; each check runs
 * in a process of its own, so what crashes or hangs fails its check and no other.
 *
 *   int main(void) { return dlpack_fence_check_producer(&my_producer) + dlpack_fence_check_consumer(&my_consumer) != 0; }
 *
 * Compile with dlpack_fence_check.c; POSIX, C11 and threads. SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef DLPACK_FENCE_CHECK_H_
#define DLPACK_FENCE_CHECK_H_

#include "dlpack_fence.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A library that gives tensors. Called by one thread. */
typedef struct DLFenceProducer {
  /* Starts the library in this process. */
  void *(*open)(void);
  /* A new tensor of at least 64 bytes in memory of the host, whose content comes after `finish`. */
  void *(*tensor)(void *library);
  /* Lets the content be written, or (`well` is 0) fail. Returns at once. */
  void (*finish)(void *library, void *tensor, int well);
  /* A struct of the content that is current, for one consumer. */
  DLManagedTensorFenced *(*give)(void *library, void *tensor);
  /* Begins to write another content, as soon as the consumers of the current one are done. Returns at once. NULL if there are no writes. */
  void (*overwrite)(void *library, void *tensor);
  /* Gives the library's own handle up. */
  void (*drop)(void *library, void *tensor);
  /* Tensors whose memory was not released. */
  int (*live)(void *library);
} DLFenceProducer;

/* A library that takes tensors. */
typedef struct DLFenceConsumer {
  void *(*open)(void);
  /* Takes a vector of floats in memory of the host, and begins to read all of it once it is ready. Returns at once; NULL for a tensor
   * that is described late, if the library refuses those. */
  void *(*take)(void *library, DLManagedTensorFenced *tensor);
  /* DLPACK_FENCE_PENDING, DLPACK_FENCE_DONE when the sum of the floats is in `*sum`, or a negative status where the tensor failed. */
  int32_t (*result)(void *library, void *use, double *sum);
} DLFenceConsumer;

/* Runs the checks, prints a line for each, and returns how many have failed. DLPACK_FENCE_ONLY in the environment names a single check;
 * DLPACK_FENCE_PATIENCE_MS says how long a library may take for what comes at once on an idle machine (20000). */
int dlpack_fence_check_producer(const DLFenceProducer *producer);
int dlpack_fence_check_consumer(const DLFenceConsumer *consumer);

#ifdef __cplusplus
}
#endif
#endif

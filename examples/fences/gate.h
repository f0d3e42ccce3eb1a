/* A fenced tensor made by hand, for the checks of both libraries: 64 floats that are there when the gate is opened. */
#ifndef GATE_H
#define GATE_H

#include "dlpack_fence.h"

#define GATE_FLOATS 64

typedef struct {
  DLManagedTensorFenced raw;
  int64_t shape[1], stride[1];
  float values[GATE_FLOATS];
  DLFenceFlag *flag;
  int deleted; /* by a consumer, on its thread */
} gate;

static inline void gate_delete(DLManagedTensorVersioned *raw) { __atomic_store_n(&((gate *)raw->manager_ctx)->deleted, 1, __ATOMIC_RELEASE); }
static inline int32_t gate_done(DLManagedTensorFenced *raw, const DLFence *done) {
  return (void)raw, (void)done, DLPACK_FENCE_PENDING; /* none is kept, so a consumer calls the deleter when it is done */
}
static inline int gate_deleted(gate *self) { return __atomic_load_n(&self->deleted, __ATOMIC_ACQUIRE); }

static inline gate *gate_new(void) {
  gate *self = (gate *)calloc(1, sizeof *self);
  DLManagedTensorVersioned *managed = &self->raw.managed;
  self->flag = (DLFenceFlag *)malloc(sizeof *self->flag);
  self->shape[0] = GATE_FLOATS;
  self->stride[0] = 1;
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->manager_ctx = self;
  managed->deleter = gate_delete;
  managed->dl_tensor.data = self->values;
  managed->dl_tensor.device.device_type = kDLCPU;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.dtype.code = kDLFloat;
  managed->dl_tensor.dtype.bits = 32;
  managed->dl_tensor.dtype.lanes = 1;
  managed->dl_tensor.shape = self->shape;
  managed->dl_tensor.strides = self->stride;
  self->raw.version = DLPACK_FENCE_VERSION;
  self->raw.size = sizeof self->raw;
  self->raw.ready = dlpack_fence_flag(self->flag, free);
  self->raw.add_done = gate_done;
  return self;
}

static inline void gate_open(gate *self, int well) {
  for (int i = 0; well && i < GATE_FLOATS; i++) self->values[i] = (float)i;
  dlpack_fence_flag_settle(self->flag, well ? DLPACK_FENCE_DONE : DLPACK_FENCE_FAILED, well ? NULL : "the gate is broken");
}

#endif

/* dlpack_fence.h, version 1: when a tensor may be used, beside DLPack's where it is. One file, C99 and later, C++11 and later.
 *
 * A `DLFence` is a point in the work of a library: pending, done or failed. A `DLManagedTensorFenced` is a DLPack tensor with a
 * fence from its producer (`ready`) and fences from its consumer (`add_done`). Rules R1 to R14 stand where they apply; "must" marks them.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef DLPACK_FENCE_H_
#define DLPACK_FENCE_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

/* The part of DLPack 1.3 that exchanges need. A program that uses <dlpack/dlpack.h> includes that header first; the two agree. */
#if !defined(DLPACK_DLPACK_H_) && !defined(DLPACK_FENCE_DLPACK_DECLARED)
#define DLPACK_FENCE_DLPACK_DECLARED
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)
typedef struct { uint32_t major, minor; } DLPackVersion;
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLOpenCL = 4, kDLVulkan = 7, kDLMetal = 8, kDLVPI = 9, kDLROCM = 10,
  kDLROCMHost = 11, kDLExtDev = 12, kDLCUDAManaged = 13, kDLOneAPI = 14, kDLWebGPU = 15, kDLHexagon = 16, kDLMAIA = 17, kDLTrn = 18
} DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum {
  kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLOpaqueHandle = 3U, kDLBfloat = 4U, kDLComplex = 5U, kDLBool = 6U, kDLFloat8_e3m4 = 7U,
  kDLFloat8_e4m3 = 8U, kDLFloat8_e4m3b11fnuz = 9U, kDLFloat8_e4m3fn = 10U, kDLFloat8_e4m3fnuz = 11U, kDLFloat8_e5m2 = 12U,
  kDLFloat8_e5m2fnuz = 13U, kDLFloat8_e8m0fnu = 14U, kDLFloat6_e2m3fn = 15U, kDLFloat6_e3m2fn = 16U, kDLFloat4_e2m1fn = 17U
} DLDataTypeCode;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct { void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides; uint64_t byte_offset; } DLTensor;
typedef struct DLManagedTensor { DLTensor dl_tensor; void *manager_ctx; void (*deleter)(struct DLManagedTensor *self); } DLManagedTensor;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version; void *manager_ctx; void (*deleter)(struct DLManagedTensorVersioned *self); uint64_t flags; DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DLPACK_FENCE_VERSION 1u

/* Results of a fence's functions. Below zero: the work has failed, in this way. */
enum {
  DLPACK_FENCE_DONE = 0,            /* done, or accepted */
  DLPACK_FENCE_PENDING = 1,         /* not yet, or not possible in this way: query, subscribe, or wait on the host */
  DLPACK_FENCE_TIMEOUT = 2,         /* the time was up first */
  DLPACK_FENCE_INVALID = -1,        /* an argument is wrong */
  DLPACK_FENCE_FAILED = -2,         /* the work has ended without its result */
  DLPACK_FENCE_DEVICE = -3,         /* a device broke: nothing is known of the work, and memory that it uses must not be reused */
  DLPACK_FENCE_CANCELLED = -4,      /* the work will not be done */
  DLPACK_FENCE_WOULD_DEADLOCK = -7  /* a wait here could never end */
};

/* Callback of a fence that settles: the argument of the subscription, DLPACK_FENCE_DONE or a negative status, and for a failure a text or
 * NULL, valid during the call. The library may call it on any thread, under a lock of its own, and during `subscribe`: so a callback takes
 * notes only. A subscription is called once at most, and never after `unsubscribe` has returned DLPACK_FENCE_DONE. */
typedef void (*DLFenceCallback)(void *argument, int32_t status, const char *message);

/* R1  A receiver copies the struct and calls `retain`; the struct that it was given may go at once. It calls `release` once.
 * R2  A fence without `query` is done. Every other function may be NULL; `retain` and `release` only together, for a fence that lives for ever.
 * R3  Any thread may call every function, at any time between `retain` and `release`. None blocks (but `wait`), none throws.
 * R4  A fence settles once: after DLPACK_FENCE_DONE or a negative status it must not change. What happened before is visible then.
 * R5  A fence must settle whatever its consumers do, without help of the thread that asks. What can never be done, fails.
 * R6  In a child of fork(), `query` returns and nothing else must be called; a fence of the parent may stay pending there. */
typedef struct DLFence {
  uint32_t version;  /* DLPACK_FENCE_VERSION */
  uint32_t size;     /* sizeof(DLFence), which stays as it is: fences are copied, and stand in other structs */
  void *context;     /* passed to every function */
  DLDevice device;   /* where the work runs; {kDLCPU, 0} for the host */
  uint64_t flags;    /* 0; of later headers, what their receivers must know: others refuse the fence */
  /* Returns the state: DLPACK_FENCE_DONE, DLPACK_FENCE_PENDING, or how it failed. Cheap: without `subscribe` it is polled. NULL: done. */
  int32_t (*query)(void *context);
  /* Blocks until the fence has settled, or DLPACK_FENCE_TIMEOUT; UINT64_MAX for no limit. */
  int32_t (*wait)(void *context, uint64_t timeout_ns);
  /* DLPACK_FENCE_DONE: what is enqueued on `stream` of `device` from now on runs after this fence, without the host waiting. `stream` is
   * a cudaStream_t, hipStream_t, sycl::queue*, ..., used during the call only. DLPACK_FENCE_PENDING: impossible, the host must wait (R13). */
  int32_t (*order_on)(void *context, DLDevice device, void *stream);
  /* DLPACK_FENCE_DONE: `callback(argument, ...)` will be called, or was, and `*token` identifies the subscription. DLPACK_FENCE_PENDING: it
   * will not be called, for example since the fence has settled, which `query` says. */
  int32_t (*subscribe)(void *context, DLFenceCallback callback, void *argument, uint64_t *token);
  /* DLPACK_FENCE_DONE: the callback will not be called. DLPACK_FENCE_PENDING: it was called or is being called. */
  int32_t (*unsubscribe)(void *context, uint64_t token);
  /* The reason of its failure, valid until `release`; NULL if there is nothing to say. */
  const char *(*error)(void *context);
  /* A recorded event of the type that Arrow's C device interface gives to `device` (cudaEvent_t*, hipEvent_t*, sycl::event*, ...), valid
   * until `release`; NULL if there is none. */
  void *(*native)(void *context, DLDevice device);
  void (*retain)(void *context);
  void (*release)(void *context);
  void (*reserved[3])(void); /* NULL; of later headers, functions, which others leave alone */
} DLFence;

/* A DLPack tensor with fences. `managed` comes first: once `ready` is done, `&tensor->managed` is an ordinary DLPack tensor for code that
 * knows no fences, and `managed.deleter` ends the whole struct. In Python: a capsule named "dltensor_fenced" from `__dlpack_fence__`.
 *
 * R7   The consumer must not touch the data before `ready` is done, or on a stream before `ready.order_on` was accepted for that stream.
 *      If `ready` fails, no side touches the data. `ready` is the struct's own count: valid until the deleter.
 * R8   All but the data is valid at once, unless `fence_flags` has DLPACK_FENCE_DESCRIBED_LATE: then all of `managed` but version and deleter
 *      is valid when `ready` is done.
 * R9   The consumer calls `add_done` for each piece of its work that may outlive the call of the deleter, before that call. The producer
 *      copies and retains the fence. Any result but DLPACK_FENCE_DONE: not accepted, so the consumer must wait before the deleter.
 * R10  The consumer must call the deleter once, on any thread, also if `ready` is pending or failed; or it refuses the struct untouched.
 * R11  The producer must not write, free or reuse the memory before the deleter was called and every fence of `add_done` has settled. After
 *      DLPACK_FENCE_DEVICE it must not free or reuse the memory; after every failure what the consumer may write is undefined.
 * R12  Several consumers get a struct each. Read-only ones may run at once; the producer writes after all of them.
 * R13  For a stream that captures a graph `order_on` must leave the capture as it is: DLPACK_FENCE_PENDING, or what `query` says.
 * R14  A write of the tensor that waits for a done fence begins when that fence has settled, however: a failure must not hold it up. */
#define DLPACK_FENCE_DESCRIBED_LATE 1u
typedef struct DLManagedTensorFenced {
  DLManagedTensorVersioned managed;
  uint32_t version, size; /* DLPACK_FENCE_VERSION; sizeof(DLManagedTensorFenced) of the producer: later headers may append */
  uint64_t fence_flags;
  DLFence ready;
  int32_t (*add_done)(struct DLManagedTensorFenced *self, const DLFence *done);
} DLManagedTensorFenced;

/* Helpers for the usual kinds of fences. */

/* A fence with `query` alone. */
static inline DLFence dlpack_fence_of(DLDevice device, void *context, int32_t (*query)(void *)) {
  DLFence fence = {DLPACK_FENCE_VERSION, (uint32_t)sizeof(DLFence), context, device, 0, query, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, {NULL, NULL, NULL}};
  return fence;
}
/* A fence that is done already. No allocation, nothing to call, nothing to release. */
static inline DLFence dlpack_fence_done(DLDevice device) { return dlpack_fence_of(device, NULL, NULL); }

static inline int32_t dlpack_fence_query(const DLFence *fence) { return fence->query ? fence->query(fence->context) : DLPACK_FENCE_DONE; }
static inline void dlpack_fence_retain(const DLFence *fence) { if (fence->retain) fence->retain(fence->context); }
static inline void dlpack_fence_release(const DLFence *fence) { if (fence->release) fence->release(fence->context); }

#if defined(__GNUC__) /* and clang: the atomic builtins */

/* A flag of the host: settled once, by any thread. A node per subscription lives as long as the flag. */
typedef struct DLFenceFlagNode { struct DLFenceFlagNode *next; DLFenceCallback callback; void *argument; int32_t taken; } DLFenceFlagNode;
typedef struct {
  int32_t holders, status, claimed;
  DLFenceFlagNode *subscribers, settled; /* newest first; `&settled` once settled, and then `settled.next` has the list */
  const char *message;
  void (*destroy)(void *flag);
} DLFenceFlag;

static inline int32_t dlpack_fence_flag_query_(void *context) {
  return __atomic_load_n(&((DLFenceFlag *)context)->status, __ATOMIC_ACQUIRE);
}
static inline int32_t dlpack_fence_flag_subscribe_(void *context, DLFenceCallback callback, void *argument, uint64_t *token) {
  DLFenceFlag *flag = (DLFenceFlag *)context;
  DLFenceFlagNode *node = (DLFenceFlagNode *)malloc(sizeof *node);
  if (!callback || !node) return free(node), callback ? DLPACK_FENCE_PENDING : DLPACK_FENCE_INVALID;
  node->callback = callback, node->argument = argument, node->taken = 0;
  if (token) *token = (uint64_t)(uintptr_t)node;
  node->next = __atomic_load_n(&flag->subscribers, __ATOMIC_ACQUIRE);
  do {
    if (node->next == &flag->settled) return free(node), DLPACK_FENCE_PENDING;
  } while (!__atomic_compare_exchange_n(&flag->subscribers, &node->next, node, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return DLPACK_FENCE_DONE;
}
static inline int32_t dlpack_fence_flag_unsubscribe_(void *context, uint64_t token) {
  DLFenceFlagNode *node = (DLFenceFlagNode *)(uintptr_t)token;
  return (void)context, __atomic_exchange_n(&node->taken, 1, __ATOMIC_ACQ_REL) ? DLPACK_FENCE_PENDING : DLPACK_FENCE_DONE;
}
static inline const char *dlpack_fence_flag_error_(void *context) {
  return dlpack_fence_flag_query_(context) < 0 ? ((DLFenceFlag *)context)->message : NULL;
}
/* The count comes first in a flag and in an event. */
static inline void dlpack_fence_retain_(void *context) { __atomic_fetch_add((int32_t *)context, 1, __ATOMIC_RELAXED); }
static inline void dlpack_fence_flag_release_(void *context) {
  DLFenceFlag *flag = (DLFenceFlag *)context;
  DLFenceFlagNode *node, *next;
  if (__atomic_fetch_sub(&flag->holders, 1, __ATOMIC_ACQ_REL) != 1) return;
  for (node = flag->subscribers == &flag->settled ? flag->settled.next : flag->subscribers; node; node = next)
    next = node->next, free(node);
  flag->destroy(flag);
}

/* Makes a fence of `flag`, with one count, which is the caller's. `destroy` is called after the last release: `free` for a flag from
 * malloc, or what frees the struct that the flag is part of. */
static inline DLFence dlpack_fence_flag(DLFenceFlag *flag, void (*destroy)(void *flag)) {
  DLDevice host = {kDLCPU, 0};
  DLFence fence = dlpack_fence_of(host, flag, dlpack_fence_flag_query_);
  memset(flag, 0, sizeof *flag);
  flag->holders = 1, flag->status = DLPACK_FENCE_PENDING, flag->destroy = destroy;
  fence.subscribe = dlpack_fence_flag_subscribe_, fence.unsubscribe = dlpack_fence_flag_unsubscribe_;
  fence.error = dlpack_fence_flag_error_, fence.retain = dlpack_fence_retain_, fence.release = dlpack_fence_flag_release_;
  return fence;
}

/* Settles a flag, of which the caller has a count, and calls its subscribers. `message` is static, or lives as long as the flag.
 * DLPACK_FENCE_INVALID: `status` is no end, or the flag has settled before. */
static inline int32_t dlpack_fence_flag_settle(DLFenceFlag *flag, int32_t status, const char *message) {
  DLFenceFlagNode *node;
  if (status > 0 || __atomic_exchange_n(&flag->claimed, 1, __ATOMIC_ACQ_REL)) return DLPACK_FENCE_INVALID;
  flag->message = message;
  __atomic_store_n(&flag->status, status, __ATOMIC_RELEASE);
  node = flag->settled.next = __atomic_exchange_n(&flag->subscribers, &flag->settled, __ATOMIC_ACQ_REL);
  for (; node; node = node->next)
    if (!__atomic_exchange_n(&node->taken, 1, __ATOMIC_ACQ_REL)) node->callback(node->argument, status, status < 0 ? message : NULL);
  return DLPACK_FENCE_DONE;
}

#if defined(__unix__) || defined(__APPLE__)
/* An event of a device, whose runtime is found at run time. */
typedef struct {
  int32_t holders; void *event;                                   /* CUevent, or sycl::event* */
  int (*state)(void *event);                                      /* cuEventQuery, DPCTLEvent_GetCommandExecutionStatus */
  int (*cuda_mode)(int *mode);                                    /* cuThreadExchangeStreamCaptureMode */
  int (*cuda_capturing)(void *stream, int *capturing);            /* cuStreamIsCapturing */
  int (*cuda_wait)(void *stream, void *event, unsigned flags);    /* cuStreamWaitEvent */
  int (*cuda_destroy)(void *event);                               /* cuEventDestroy_v2 */
  void *(*sycl_wait)(void *queue, void *const *events, size_t n); /* DPCTLQueue_SubmitBarrierForEvents */
  void (*sycl_destroy)(void *event);                              /* DPCTLEvent_Delete */
} DLFenceEvent;

static inline int32_t dlpack_fence_event_query_(void *context) {
  DLFenceEvent *self = (DLFenceEvent *)context;
  int state, mode = 2; /* relaxed: a capture, of any thread, would forbid the query and be spoiled by it */
  if (self->cuda_mode) self->cuda_mode(&mode);
  state = self->state(self->event);
  if (self->cuda_mode) self->cuda_mode(&mode);
  if (self->sycl_wait) return state == 3 ? DLPACK_FENCE_DONE : state ? DLPACK_FENCE_PENDING : DLPACK_FENCE_DEVICE;
  return state == 0 ? DLPACK_FENCE_DONE : state == 600 ? DLPACK_FENCE_PENDING : DLPACK_FENCE_DEVICE; /* CUDA_ERROR_NOT_READY */
}
static inline int32_t dlpack_fence_event_order_(void *context, DLDevice device, void *stream) {
  DLFenceEvent *self = (DLFenceEvent *)context;
  int busy = 0;
  void *barrier = device.device_type == kDLOneAPI && self->sycl_wait ? self->sycl_wait(stream, &self->event, 1) : NULL;
  if (barrier) return self->sycl_destroy(barrier), DLPACK_FENCE_DONE;
  /* A wait would spoil the capture, and the graph would run again when the event is gone. */
  if (device.device_type != kDLCUDA || !self->cuda_wait || self->cuda_capturing(stream, &busy) || busy) return DLPACK_FENCE_PENDING;
  return self->cuda_wait(stream, self->event, 0) == 0 ? DLPACK_FENCE_DONE : DLPACK_FENCE_PENDING;
}
static inline void *dlpack_fence_event_native_(void *context, DLDevice device) {
  DLFenceEvent *self = (DLFenceEvent *)context;
  if (device.device_type == kDLCUDA && self->cuda_wait) return &self->event;
  return device.device_type == kDLOneAPI && self->sycl_wait ? self->event : NULL;
}
static inline void dlpack_fence_event_release_(void *context) {
  DLFenceEvent *self = (DLFenceEvent *)context;
  if (__atomic_fetch_sub(&self->holders, 1, __ATOMIC_ACQ_REL) != 1) return;
  if (self->cuda_destroy) self->cuda_destroy(self->event); else self->sycl_destroy(self->event);
  free(self);
}
static inline DLFence dlpack_fence_event_(DLFenceEvent *self, DLDevice device) {
  DLFence fence = dlpack_fence_of(device, self, dlpack_fence_event_query_);
  self->holders = 1, fence.order_on = dlpack_fence_event_order_, fence.native = dlpack_fence_event_native_;
  fence.retain = dlpack_fence_retain_, fence.release = dlpack_fence_event_release_;
  return fence;
}
static inline int dlpack_fence_find_(void *library, const char *name, void *function) {
  void *found = library ? dlsym(library, name) : NULL;
  return memcpy(function, &found, sizeof found), found != NULL; /* ISO C has no cast from a pointer to data */
}

/* Records an event on `stream` of a CUDA device, whose context is current: a fence with one count, the caller's. DLPACK_FENCE_PENDING: there
 * is no driver, it refuses, or the stream is capturing a graph; then the host must synchronize the stream, or the graph carry the order. */
static inline int32_t dlpack_fence_cuda(DLDevice device, void *stream, DLFence *fence) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  int (*create)(void **, unsigned), (*record)(void *, void *), busy = 0;
  DLFenceEvent *self = (DLFenceEvent *)calloc(1, sizeof *self);
  if (!self || !dlpack_fence_find_(driver, "cuStreamIsCapturing", &self->cuda_capturing) ||
      !dlpack_fence_find_(driver, "cuEventCreate", &create) || !dlpack_fence_find_(driver, "cuEventRecord", &record) ||
      !dlpack_fence_find_(driver, "cuThreadExchangeStreamCaptureMode", &self->cuda_mode) ||
      !dlpack_fence_find_(driver, "cuEventQuery", &self->state) || !dlpack_fence_find_(driver, "cuStreamWaitEvent", &self->cuda_wait) ||
      !dlpack_fence_find_(driver, "cuEventDestroy_v2", &self->cuda_destroy) || self->cuda_capturing(stream, &busy) || busy || create(&self->event, 2))
    return free(self), DLPACK_FENCE_PENDING;
  if (record(self->event, stream)) return self->cuda_destroy(self->event), free(self), DLPACK_FENCE_PENDING;
  return *fence = dlpack_fence_event_(self, device), DLPACK_FENCE_DONE;
}

/* A copy of `event`, a sycl::event* (DPCTLSyclEventRef), by `library`, what dlopen gives for libDPCTLSyclInterface. As `dlpack_fence_cuda`. */
static inline int32_t dlpack_fence_sycl(void *library, DLDevice device, void *event, DLFence *fence) {
  void *(*copy)(void *);
  DLFenceEvent *self = (DLFenceEvent *)calloc(1, sizeof *self);
  if (!self || !dlpack_fence_find_(library, "DPCTLEvent_Copy", &copy) ||
      !dlpack_fence_find_(library, "DPCTLEvent_Delete", &self->sycl_destroy) ||
      !dlpack_fence_find_(library, "DPCTLEvent_GetCommandExecutionStatus", &self->state) ||
      !dlpack_fence_find_(library, "DPCTLQueue_SubmitBarrierForEvents", &self->sycl_wait) || !(self->event = copy(event)))
    return free(self), DLPACK_FENCE_PENDING;
  return *fence = dlpack_fence_event_(self, device), DLPACK_FENCE_DONE;
}
#endif /* unix */
#endif /* __GNUC__ */

#ifdef __cplusplus
}
#endif
#endif /* DLPACK_FENCE_H_ */

/* The C interface of Estafette. Generated from bindings/c/src; see bindings/c/tests/header.rs. */

#ifndef ESTAFETTE_H
#define ESTAFETTE_H

#include <stddef.h>
#include "dlpack_fence.h"

/**
 * The version of this interface; a new major version breaks programs, a new minor version adds to it.
 */
#define ESTAFETTE_VERSION_MAJOR 0

/**
 * See `ESTAFETTE_VERSION_MAJOR`.
 */
#define ESTAFETTE_VERSION_MINOR 1

/**
 * No limit of time.
 */
#define ESTAFETTE_FOREVER UINT64_MAX

/**
 * The kind of an operator that writes its results into tensors that it is given.
 */
#define ESTAFETTE_OPERATOR_DESTINATION 0

/**
 * The same, of an operator that says first what shapes and types they will have.
 */
#define ESTAFETTE_OPERATOR_INFERRED 1

/**
 * The kind of an operator that makes its results.
 */
#define ESTAFETTE_OPERATOR_ALLOCATING 2

/**
 * A flag of an operator: outputs may be inputs as well, or overlap them.
 */
#define ESTAFETTE_OPERATOR_IN_PLACE 1

/**
 * The number of inputs of an operator that takes any number.
 */
#define ESTAFETTE_OPERATOR_ANY_NUMBER -1

/**
 * The status of a call: 0 for done, positive for "not yet", negative for an error, whose text
 * `estafette_last_error` gives.
 */
enum estafette_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Done.
   */
  ESTAFETTE_OK = 0,
  /**
   * Not ready yet; ask again, wait, or be called.
   */
  ESTAFETTE_PENDING = 1,
  /**
   * The time was up first; the work goes on.
   */
  ESTAFETTE_TIMEOUT = 2,
  /**
   * As many operations are in flight as the engine accepts, and the call was not to wait. Try again later.
   */
  ESTAFETTE_IN_FLIGHT_LIMIT = 3,
  /**
   * An argument is wrong; the text names it. Nothing happened.
   */
  ESTAFETTE_INVALID = -1,
  /**
   * The operation that should have made the data failed; the text has the root cause.
   */
  ESTAFETTE_FAILED = -2,
  /**
   * A device refused or broke.
   */
  ESTAFETTE_DEVICE = -3,
  /**
   * The operation was cancelled before it began, or what it waited for was.
   */
  ESTAFETTE_CANCELLED = -4,
  /**
   * The memory is used in a way that excludes this use; the text says by whom.
   */
  ESTAFETTE_CONFLICT = -5,
  /**
   * Only leases that were not returned hold this up; the text names them.
   */
  ESTAFETTE_LEASE_HELD = -6,
  /**
   * Waiting here could never end.
   */
  ESTAFETTE_WOULD_DEADLOCK = -7,
  /**
   * The tensor's operation has not run yet, so it has no shape, type or memory.
   */
  ESTAFETTE_NOT_DEFINED = -8,
  /**
   * The engine is shut down.
   */
  ESTAFETTE_SHUTDOWN = -9,
  /**
   * This process was forked from one that used the library, whose threads do not exist here.
   */
  ESTAFETTE_FORKED = -10,
  /**
   * The library broke, or the operating system refused something it needs. Nothing is promised about the
   * object it happened to.
   */
  ESTAFETTE_INTERNAL = -11,
  /**
   * Another process had promised the data, or is the other end of the link, and has died; the text has its
   * number.
   */
  ESTAFETTE_PEER_DIED = -12,
  /**
   * The memory of the tensor is not memory that other processes can be shown.
   */
  ESTAFETTE_NOT_SHARED = -13,
  /**
   * A signal that the program around the library handles has ended the wait; what was waited for goes on.
   * Only in an engine that Python has made or been given, on a thread whose signals Python handles: Ctrl-C
   * in a wait there. Until Python code runs on that thread and raises the exception, each wait there that
   * would block returns this again: clean up by queries, or by waits of another thread.
   */
  ESTAFETTE_INTERRUPTED = -14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum estafette_status estafette_status;
#else
typedef int32_t estafette_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The access of a consumer of memory.
 */
enum estafette_access
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Read; engine writes wait until the lease is returned.
   */
  ESTAFETTE_READ = 0,
  /**
   * Read and write, alone; every other use waits until the lease is returned.
   */
  ESTAFETTE_WRITE = 1,
  /**
   * Untracked: no lease is taken and nothing waits. For people who order things themselves.
   */
  ESTAFETTE_ALIAS = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum estafette_access estafette_access;
#else
typedef int32_t estafette_access;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

typedef struct estafette_api estafette_api;

/**
 * The listener by which other processes of the same user on this machine make links to this one.
 */
typedef struct estafette_door estafette_door;

/**
 * Schedules operations in the order that their data demands. Any thread may use an engine. One that is
 * destroyed while calls use it goes when the last of them returns.
 */
typedef struct estafette_engine estafette_engine;

/**
 * A use of a tensor outside of every operation, held until it is released.
 */
typedef struct estafette_lease estafette_lease;

/**
 * A link to another process: tensors cross it in both directions, in order, without a copy, and before they
 * are ready.
 */
typedef struct estafette_link estafette_link;

/**
 * An operation. The handle is a number with a generation, not an address: a handle of an ended operation is
 * recognized.
 *
 * A handle from a submission is held until `estafette_op_release`. A handle that a function receives is held
 * until the end of the operation is reported, and needs no release.
 */
typedef struct estafette_op estafette_op;

/**
 * Operations that are recorded once and then run any number of times, each time as one operation. Any thread
 * may use a program. A program destroyed during a call is freed when the last call returns.
 */
typedef struct estafette_program estafette_program;

/**
 * The right and the duty to say when something is done, for callers that have no fences of their own.
 */
typedef struct estafette_promise estafette_promise;

/**
 * A promise of an n-dimensional array: one count of it. Any thread may use it.
 *
 * This handle and those of leases, promises, engines, programs and operations are numbers with a generation,
 * not addresses. A function that is given one that is not in use, since it was released or never was a
 * handle, returns `ESTAFETTE_INVALID` and does nothing. What one thread releases while another uses it in a
 * call goes when that call returns.
 */
typedef struct estafette_tensor estafette_tensor;

/**
 * Names a version of a tensor for other processes: of the same user on this machine, and with `reach` in its
 * options on other machines. Its bytes may travel through anything, to processes that no link joins.
 */
typedef struct estafette_ticket estafette_ticket;

/**
 * A trace notes where the time goes in all engines of the process. Several traces may be made at once. For
 * programs that are not to be changed, the environment variable `ESTAFETTE_TRACE` names a file that the
 * whole run is recorded to.
 */
typedef struct estafette_trace estafette_trace;

/**
 * Options of an engine. All bytes zero, but for `size`, are the defaults.
 */
typedef struct estafette_engine_options {
  /**
   * `sizeof(estafette_engine_options)`.
   */
  uint32_t size;
  /**
   * Threads that run operations, at most 1,024: 0 for one per core, -1 for none: then threads that wait
   * without a limit of time run what they wait for, those that submit help once much is ready, and for all
   * other waits the engine starts a thread while they last (see `estafette_set_helping`).
   */
  int32_t workers;
  /**
   * Operations that may be in flight before a submission waits; 0 for the default of 4,096.
   */
  uint64_t in_flight_limit;
  /**
   * The time that leases alone may hold up a wait, or a submission at the in-flight limit, before it ends
   * with `ESTAFETTE_LEASE_HELD`, in nanoseconds; 0 for the default of 30 s.
   */
  uint64_t lease_timeout_ns;
  /**
   * Bytes of stack of each thread that runs operations, from 64 KiB to 1 TiB; 0 for what the system gives
   * to threads (`ulimit -s`; 8 MiB where that is unlimited, and 2 MiB at least).
   */
  uint64_t stack_size;
  /**
   * 1: all memory of this engine, on CUDA devices too, can be shown to other processes (see
   * `estafette_link_send`); 0: only that of `estafette_zeros_shared`.
   */
  uint64_t shared;
  /**
   * The time in nanoseconds after which a stall is logged as a warning, once: an operation, a lease, a
   * wait, or memory whose deleter does not return, with its sentence of `estafette_diagnose`. Of those
   * that stall for one reason, and what waits for them, the first is logged, with the number of the
   * others. 0 for no such watch.
   */
  uint64_t watchdog_ns;
} estafette_engine_options;

/**
 * Counters of an engine and of the process.
 */
typedef struct estafette_stats {
  /**
   * `sizeof(estafette_stats)`, set by the caller; as much is written.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Operations in flight in this engine.
   */
  uint64_t in_flight;
  /**
   * The number of operations that may be in flight.
   */
  uint64_t in_flight_limit;
  /**
   * Deleters of imported tensors that have been called in this process.
   */
  uint64_t deleters;
  /**
   * Tensors of this process whose memory was leaked, because its last use can never be known to be over.
   */
  uint64_t leaked;
  /**
   * Tensors of this process that were given up and whose last use is not over yet.
   */
  uint64_t releasing;
  /**
   * Failures of this engine's operations that nothing has retrieved; see `estafette_log_callback`.
   */
  uint64_t unretrieved;
} estafette_stats;

/**
 * Options of an export. All bytes zero, but for `size`, are the defaults: a read lease, where the memory is,
 * blocking.
 */
typedef struct estafette_export_options {
  /**
   * `sizeof(estafette_export_options)`.
   */
  uint32_t size;
  /**
   * An `estafette_access`.
   */
  int32_t access;
  /**
   * The device on which the consumer wants the memory; `device_type` 0 for where it is. Host memory of
   * another device's tensor is a copy.
   */
  DLDevice device;
  /**
   * The consumer's stream on that device, which gets the waits, as for `estafette_order_on`; NULL for the
   * host.
   */
  void *stream;
  /**
   * 0: a copy only if `device` asks for it; 1: always, in host memory; -1: never. A copy waits as a
   * reader, whatever `access` is.
   */
  int32_t copy;
  /**
   * 1: the call must not block, and returns `ESTAFETTE_PENDING` where it would.
   */
  int32_t nonblocking;
  /**
   * The time that a blocking call waits, in nanoseconds; 0 and `ESTAFETTE_FOREVER` for as long as it
   * takes.
   */
  uint64_t timeout_ns;
  /**
   * 1: the lease may go to another thread, and all waits for it last up to `lease_timeout_ns`. 0: it stays
   * with the thread that asks, where a wait for it then returns `ESTAFETTE_LEASE_HELD` at once.
   */
  uint64_t any_thread;
} estafette_export_options;

/**
 * Gets log events: a level (1 error, 2 warning, 3 information, 4 debug, 5 trace) and a text that is there
 * during the call. Any thread may call it, several at once. It must not block and must not throw; what it
 * calls of this library is not logged.
 *
 * Among the errors is each failure of an operation that nothing has retrieved, neither by a wait, a
 * callback, a fence nor a lease: once, with the operation's name and the error, when the last handle and
 * version that carries it goes, or when its engine is shut down or destroyed. A cancelled operation has not
 * failed.
 */
typedef void (*estafette_log_callback)(void *context, int32_t level, const char *message);

/**
 * Called once with the context, when the library will not use it any more. NULL when there is nothing to do.
 */
typedef void (*estafette_drop)(void *context);

/**
 * An option of a call: a name and a text.
 */
typedef struct estafette_attribute {
  /**
   * The name.
   */
  const char *key;
  /**
   * The value.
   */
  const char *value;
} estafette_attribute;

/**
 * The function of an operator.
 *
 * `outputs` has an entry per output, by kind of operator:
 * - destination, inferred: a tensor to write. It is lent for the call and has no deleter;
 * - allocating: NULL, to be replaced by a tensor that the caller owns from then on. On failure too whatever
 *   is there is released by the caller.
 *
 * As the function that infers, it gets lent tensors without data, and with room for 64 dimensions at
 * `dl_tensor.shape`: it writes the shape there, and sets `dl_tensor.ndim` and `dl_tensor.dtype`.
 *
 * `stream` is the native stream to enqueue on, or NULL on the host. The result is NULL, or why the call has
 * failed, as a text that stays valid until this thread calls an operator again. Any thread may call it,
 * several at once.
 */
typedef const char *(*estafette_operator_function)(const DLTensor *const *inputs,
                                                   size_t n_inputs,
                                                   DLManagedTensorVersioned **outputs,
                                                   size_t n_outputs,
                                                   const struct estafette_attribute *attributes,
                                                   size_t n_attributes,
                                                   void *stream,
                                                   void *context);

/**
 * The signature of an operator. Room for more is at the end: `size` says how much the caller knows of it.
 */
typedef struct estafette_operator_options {
  /**
   * `sizeof` this struct.
   */
  uint32_t size;
  /**
   * `ESTAFETTE_OPERATOR_DESTINATION`, `ESTAFETTE_OPERATOR_INFERRED` or `ESTAFETTE_OPERATOR_ALLOCATING`.
   */
  uint32_t kind;
  /**
   * `ESTAFETTE_OPERATOR_IN_PLACE` or 0.
   */
  uint32_t flags;
  /**
   * The number of inputs, or `ESTAFETTE_OPERATOR_ANY_NUMBER`.
   */
  int32_t n_inputs;
  /**
   * The number of outputs, from 1 to 65,536.
   */
  int32_t n_outputs;
  /**
   * Says what the outputs will look like; needed by `ESTAFETTE_OPERATOR_INFERRED` and NULL else.
   */
  estafette_operator_function infer;
} estafette_operator_options;

/**
 * Facts about an operator. The texts are there during the call that gives them.
 */
typedef struct estafette_operator_info {
  /**
   * `sizeof(estafette_operator_info)`; newer versions have more at the end.
   */
  uint32_t size;
  /**
   * `ESTAFETTE_OPERATOR_DESTINATION`, `ESTAFETTE_OPERATOR_INFERRED` or `ESTAFETTE_OPERATOR_ALLOCATING`.
   */
  uint32_t kind;
  /**
   * `ESTAFETTE_OPERATOR_IN_PLACE` or 0.
   */
  uint32_t flags;
  /**
   * The number of inputs, or `ESTAFETTE_OPERATOR_ANY_NUMBER`.
   */
  int32_t n_inputs;
  /**
   * The number of outputs.
   */
  int32_t n_outputs;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The operator's name.
   */
  const char *name;
  /**
   * The operator's origin, in words: a language, or the path of a library.
   */
  const char *origin;
} estafette_operator_info;

/**
 * Gets one operator after the other. It may call every function of this library.
 */
typedef void (*estafette_operator_callback)(void *context, const struct estafette_operator_info *info);

/**
 * Called with the context of an operation that is skipped, with why: `ESTAFETTE_FAILED`,
 * `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED`, and the text, which is only there
 * during the call. It must not throw.
 */
typedef void (*estafette_skip_callback)(void *context, estafette_status status, const char *message);

/**
 * Options of a submission. All bytes zero, but for `size`, are the defaults.
 */
typedef struct estafette_submit_options {
  /**
   * `sizeof(estafette_submit_options)`.
   */
  uint32_t size;
  /**
   * Among ready operations, higher ones are started first. Default 0. Priorities age: while operations
   * with a priority wait, of any 64 that are taken to be run at least one is an ordinary one (priority 0)
   * if one is ready, one of the oldest; and at least one is the oldest of those with a priority other
   * than 0. An operation and those that it makes ready, one after the other and up to 32, count as one.
   */
  int32_t priority;
  /**
   * Appears in messages; NULL means "c".
   */
  const char *name;
  /**
   * 1: refuses with `ESTAFETTE_IN_FLIGHT_LIMIT` instead of waiting for room.
   */
  int32_t nonblocking;
  /**
   * 0.
   */
  int32_t reserved;
  /**
   * The device that the function enqueues on; `device_type` 0 for functions that work on the host. What
   * comes before the operation on that device is waited for there, and not on the host; the function asks
   * `estafette_op_stream` for the stream, and the operation is what the function has enqueued there when
   * it reports the end.
   */
  DLDevice on;
  /**
   * NULL, or what is called in place of the function where the operation is skipped: something that it
   * reads has failed, or it was cancelled. It is called in the operation's turn, on a thread that could
   * have called the function, before `drop_context`. So the turn of a collective operation always comes,
   * and it can tell the other ranks: by `ncclCommAbort`, for example. The operation has then failed by the
   * same cause as without it.
   */
  estafette_skip_callback on_skip;
} estafette_submit_options;

/**
 * The body of an operation. It is called once, by any thread, when its operands may be used, and starts the
 * work. The end is reported by `estafette_op_complete` or a related call, inside of the function or later,
 * by any thread. The function must not block for long, and must not throw.
 */
typedef void (*estafette_function)(void *context, struct estafette_op *op);

/**
 * Options of a ticket. All bytes zero, but for `size`, are the defaults.
 */
typedef struct estafette_ticket_options {
  /**
   * `sizeof(estafette_ticket_options)`.
   */
  uint32_t size;
  /**
   * 1: for one use. The version is kept until the ticket was used and what was made with it is gone, or
   * until it is revoked, or else for as long as this process lives; `estafette_ticket_release` leaves it
   * valid. 0: for any number of uses, until it is revoked or released.
   */
  int32_t once;
  /**
   * Condition of a copy for the other process, made in shared memory once the tensor is ready. 0: its
   * memory is not shared. 1: always. -1: never.
   */
  int32_t copy;
  /**
   * NULL, or where other machines reach this one, `host` or `host:port`: the ticket is good there as well,
   * and gives a copy, which NIXL makes. The process then listens there for as long as it lives; without a
   * port the system chooses one. NIXL (`libnixl_capi.so`) must be found by the loader, here and there.
   * Data and the secret of the ticket cross the network as they are, so its machines must trust each
   * other.
   */
  const char *reach;
  /**
   * With `reach`: after how much silence a process on another machine takes this one for dead, and this
   * one suspects that, in nanoseconds, at least 2 s; 0 for 10 s.
   */
  uint64_t deadline_ns;
} estafette_ticket_options;

/**
 * Options of what is sent. All bytes zero, but for `size`, are the defaults.
 */
typedef struct estafette_send_options {
  /**
   * `sizeof(estafette_send_options)`.
   */
  uint32_t size;
  /**
   * As `copy` of `estafette_ticket_options`.
   */
  int32_t copy;
  /**
   * One of `estafette_access`. `ESTAFETTE_READ`: the other process reads the version. `ESTAFETTE_WRITE`:
   * it alone uses the tensor, which is of `estafette_zeros_shared_for_writing`, until it has released it,
   * and what it has written is the next version. That version has failed if the process could not take the
   * tensor, has failed to write it, has closed the link before it received it, or has died meanwhile. A
   * later write of the whole makes the tensor usable again. `copy` is 0 or -1 then.
   */
  int32_t access;
} estafette_send_options;

/**
 * The function that `estafette_on_ready` calls: it gets a status (never `ESTAFETTE_PENDING`), and for an
 * error its text, which is only there during the call.
 */
typedef void (*estafette_ready_callback)(void *context, estafette_status status, const char *message);

/**
 * Options of a trace. All bytes zero, but for `size`, are the defaults.
 */
typedef struct estafette_trace_options {
  /**
   * `sizeof(estafette_trace_options)`.
   */
  uint32_t size;
  /**
   * A signal (such as `SIGUSR2`) that asks for a snapshot: `run.snapshot-1.pftrace` beside `run.pftrace`,
   * then `run.snapshot-2.pftrace`, and after ten of them the first again. The library handles the signal
   * until the process ends; its handler only counts, and a thread of the library writes the file. 0 for
   * none.
   */
  int32_t signal;
  /**
   * Bytes for what is noted until it is written; 0 for 256 MiB. What does not fit is counted, and the
   * report says so.
   */
  uint64_t memory_max;
  /**
   * Keeps only what happened in so many nanoseconds before the end, or before a snapshot. 0 for
   * everything.
   */
  uint64_t last_ns;
} estafette_trace_options;

/**
 * The registrar that an entry point registers operators with. It is the library's until the entry point
 * returns.
 */
typedef struct estafette_operator_registrar {
  /**
   * `sizeof` this struct.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Ours.
   */
  void *context;
  /**
   * Adds an operator. The result is NULL, or what is wrong with it, as a text that stays valid until the
   * next call; the context is still the library's then.
   */
  const char *(*add)(struct estafette_operator_registrar *registrar,
                     const char *name,
                     estafette_operator_function function,
                     const struct estafette_operator_options *options,
                     void *context,
                     estafette_drop drop_context);
} estafette_operator_registrar;

/**
 * The entry point: registers the library's operators. The result is NULL, or why it has failed, as a text
 * that stays valid until the library is unloaded or called again.
 */
typedef const char *(*estafette_operator_entry)(struct estafette_operator_registrar *registrar);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The functions of this library in a table, for programs that load the library at run time. It lives as long
 * as the process. The Python package gives the same table by `estafette.c_api()`, as a capsule of the name
 * "estafette.c_api".
 *
 * Compare `version_major` with `ESTAFETTE_VERSION_MAJOR`. A function is there if `size` reaches beyond its
 * member. May be called by any thread, and in a forked child.
 */
const struct estafette_api *estafette_get_api(void);

/**
 * Gives a context a number, to `*device_id`, that stands for it in a `DLDevice` everywhere in this process;
 * the same context gets the same number again, and is registered once more.
 *
 * `native_handle` is a `sycl::context *` (`kDLOneAPI`), a `cl_context` (`kDLOpenCL`), a `VkDevice`
 * (`kDLVulkan`) or an `id<MTLDevice>` (`kDLMetal`). The context stays the caller's and must live until it is
 * unregistered; of a SYCL context a reference is kept. A default context of a SYCL platform keeps the number
 * of its first device and is not counted.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a kind whose devices have numbers of their own,
 * and for a SYCL context when the SYCL runtime cannot be loaded; `ESTAFETTE_DEVICE` when the runtime
 * refuses; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * `native_handle` is NULL or a live context of that kind; `device_id` is NULL or may be written.
 */
estafette_status estafette_register_context(DLDeviceType device_type, void *native_handle, int32_t *device_id);

/**
 * Ends one registration. The last one takes the number away, for good: no other context ever gets it.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a number that is not registered, or not any more;
 * `ESTAFETTE_FORKED`. May be called by any thread.
 */
estafette_status estafette_unregister_context(DLDeviceType device_type, int32_t device_id);

/**
 * The context that a number stands for, to `*native_handle`. It is lent: it lives as long as its
 * registrations.
 *
 * Returns as `estafette_unregister_context`, and `ESTAFETTE_INVALID` when `native_handle` is NULL. May be
 * called by any thread.
 *
 * The caller promises:
 * `native_handle` is NULL or may be written.
 */
estafette_status estafette_resolve_context(DLDeviceType device_type, int32_t device_id, void **native_handle);

/**
 * Describes a tensor in `*out`, without a lease: `shape` and `strides` are lent, and stay for as long as the
 * caller holds the tensor. What is at `data` may be used only inside of an operation that declares it, under
 * a lease, or by people who order things themselves.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_DEFINED` while there is nothing to describe; `ESTAFETTE_INVALID`
 * for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `tensor` may be any value.
 */
estafette_status estafette_tensor_lend(const struct estafette_tensor *tensor, DLTensor *out);

/**
 * The lengths of a tensor's dimensions: as many as fit into the `capacity` entries of `shape` (which may be
 * NULL when that is 0), and their number to `*ndim`. Known before the data is when the shape was declared.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_DEFINED`; `ESTAFETTE_INVALID` for NULL or a handle that is not in
 * use; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `shape` has `capacity` entries.
 */
estafette_status estafette_tensor_shape(const struct estafette_tensor *tensor,
                                        int64_t *shape,
                                        int32_t capacity,
                                        int32_t *ndim);

/**
 * The element type of a tensor, to `*out`. Known before the data is when it was declared.
 *
 * Returns as `estafette_tensor_shape`.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_tensor_dtype(const struct estafette_tensor *tensor, DLDataType *out);

/**
 * Stores the device of a tensor's memory to `*out`.
 *
 * Returns as `estafette_tensor_shape`.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_tensor_device(const struct estafette_tensor *tensor, DLDevice *out);

/**
 * The address of a tensor's first element, to `*out`; see `estafette_tensor_lend` for who may use what is
 * there.
 *
 * Returns as `estafette_tensor_shape`.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_tensor_data(const struct estafette_tensor *tensor, void **out);

/**
 * Stores 1 to `*out` if the owner of a tensor's memory forbids writing it, else 0.
 *
 * Returns as `estafette_tensor_shape`.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_tensor_read_only(const struct estafette_tensor *tensor, int32_t *out);

/**
 * Starts an engine. `options` may be NULL for the defaults. The caller owns the result and gives it up by
 * `estafette_engine_destroy`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `out` or a wrong option; `ESTAFETTE_FORKED`;
 * `ESTAFETTE_INTERNAL` when threads cannot be started. `*out` is written only on success. May be called by
 * any thread.
 *
 * The caller promises:
 * `options` is NULL or as long as its size says; `out` is NULL or may be written.
 */
estafette_status estafette_engine_create(const struct estafette_engine_options *options, struct estafette_engine **out);

/**
 * Releases an engine. Operations that were submitted still run. This call does not wait for them, but runs
 * what is ready where the engine has no workers (see `estafette_set_helping`). Tensors, leases and
 * operations that are held stay valid. To wait first, use `estafette_engine_shutdown` or
 * `estafette_wait_all`. NULL is legal and does nothing.
 *
 * With the last handle of the engine, failures of its operations that nothing has retrieved are logged; see
 * `estafette_log_callback`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of an engine that was
 * destroyed before; `ESTAFETTE_FORKED`: there the engine is leaked. May be called by any thread. `engine`
 * may be any value.
 */
estafette_status estafette_engine_destroy(struct estafette_engine *engine);

/**
 * Refuses new submissions and blocks until everything in flight has ended, or for `timeout_ns`; then
 * operations that only leases hold up are cancelled. Calls that wait for links and doors of the engine
 * return `ESTAFETTE_SHUTDOWN`, except for those of operations. The engine is still to be destroyed.
 *
 * Without a limit (`ESTAFETTE_FOREVER`), leases are waited for `lease_timeout_ns`; then what they hold up is
 * cancelled. Without a limit the call may run operations on this thread (see `estafette_set_helping`).
 *
 * Failures of its operations that nothing has retrieved are logged; see `estafette_log_callback`. Their
 * number is in `estafette_stats`.
 *
 * Returns `ESTAFETTE_OK` when everything has ended; `ESTAFETTE_LEASE_HELD` when operations were cancelled,
 * with their names and the leases; `ESTAFETTE_TIMEOUT` when some were still running;
 * `ESTAFETTE_WOULD_DEADLOCK` inside an operation of the engine, or where it would block in a callback: then
 * nothing happened; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be
 * called by any thread that runs no operation. `engine` may be any value.
 */
estafette_status estafette_engine_shutdown(struct estafette_engine *engine, uint64_t timeout_ns);

/**
 * Blocks until everything submitted to this engine has ended, or for `timeout_ns` (`ESTAFETTE_FOREVER` for
 * no limit). An open lease is not waited for. An operation that a lease holds up is, until
 * `lease_timeout_ns`. Fences that operations have ended with are not waited for: `estafette_wait` on the
 * outputs does that. Failures are reported where the outputs are used, not here. Without a limit it may run
 * whatever is ready on this thread (see `estafette_set_helping`); with one it runs nothing, so that it is
 * kept.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_LEASE_HELD` when only leases hold up what is left;
 * `ESTAFETTE_WOULD_DEADLOCK` inside an operation, or where it would block in a callback; `ESTAFETTE_INVALID`
 * for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `engine` may be
 * any value.
 */
estafette_status estafette_wait_all(struct estafette_engine *engine, uint64_t timeout_ns);

/**
 * Runs, on the calling thread, the operations of an engine without workers that are ready, and those that
 * they make ready in turn: for programs with one thread and a loop of their own. It waits for nothing.
 * `*ran`, which may be NULL, gets 1 if an operation was ready, else 0: that too where the engine has
 * workers, or helping is forbidden (see `estafette_set_helping`).
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * May be called by any thread.
 *
 * The caller promises:
 * `ran` is NULL or may be written. `engine` may be any value.
 */
estafette_status estafette_run_ready(struct estafette_engine *engine, int32_t *ran);

/**
 * The waits of this moment, one line per operation, for people; and a line for each deleter of this process
 * that has run for more than a quarter of a second, and for the oldest memory behind it. The caller owns the
 * text and frees it by `estafette_string_free`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * `*out` is written only on success. May be called by any thread, also while others wait.
 *
 * The caller promises:
 * `out` is NULL or may be written. `engine` may be any value.
 */
estafette_status estafette_diagnose(struct estafette_engine *engine, char **out);

/**
 * Counters. `stats->size` is set by the caller. Counters that this version of the library does not have are
 * set to 0.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or a wrong size;
 * `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * `stats` is NULL or as long as its size says. `engine` may be any value.
 */
estafette_status estafette_engine_stats(struct estafette_engine *engine, struct estafette_stats *stats);

/**
 * Waits, for at most `timeout_ns`, until the deleters of all memory that was given up before this call have
 * been called: for tests, and before something that deleters need goes away. Memory is given up when its
 * handles are released and the operations and leases that use it have ended; fences that these, or an
 * import, have left are waited for too. An operation that has not ended holds its memory, and so does an
 * import with `DLPACK_FENCE_DESCRIBED_LATE` until it is ready: `estafette_wait_all` comes first where they
 * are to be waited for. In a callback it does not wait.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FORKED`. May be called by any thread, but not by a
 * deleter.
 */
estafette_status estafette_flush_deleters(uint64_t timeout_ns);

/**
 * Hands a tensor to another library once it is defined, ready, and free for the access. `options` may be
 * NULL for the defaults. The caller owns `*out`; the lease ends when its deleter is called, which any thread
 * may do, once.
 *
 * The exported tensor is ordered for the host when this returns, and so for every stream that gets work
 * afterwards. With a stream, it is ordered for that stream, and the host does not wait for work that the
 * stream can wait for. The lease then ends when what was enqueued on the stream by the time of the deleter's
 * call is done; of a stream whose handle may not be kept, when everything on its device is.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_PENDING` where it must not block and would; `ESTAFETTE_TIMEOUT`;
 * `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED` with the root cause
 * of a failed version; `ESTAFETTE_DEVICE` also for a stream of another device, one that cannot wait, or a
 * copy that a device refuses; `ESTAFETTE_CONFLICT` for a write lease of memory that may not be written, or a
 * copy that cannot be made; `ESTAFETTE_NOT_DEFINED` for a tensor that its operation has not made, and whose
 * failure was cleared; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK`; `ESTAFETTE_INVALID` for NULL, a
 * handle that is not in use, a wrong option, a stream for the host, or a device that the memory is not on;
 * `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_export(const struct estafette_tensor *tensor,
                                  const struct estafette_export_options *options,
                                  DLManagedTensorVersioned **out);

/**
 * As `estafette_export`, to the struct from before DLPack 1.0, for consumers that know no other. It cannot
 * say that memory is read-only: memory that may not be written leaves only as a copy, and the caller sees to
 * it that the consumer keeps to `access`.
 *
 * Returns as `estafette_export`; `ESTAFETTE_CONFLICT` for memory that may not be written, unless a copy is
 * asked for.
 *
 * The caller promises:
 * As for `estafette_export`.
 */
estafette_status estafette_export_legacy(const struct estafette_tensor *tensor,
                                         const struct estafette_export_options *options,
                                         DLManagedTensor **out);

/**
 * Lends an operand of a running operation to another library, in the way it was declared, without waiting.
 * `op` is what the operation's function was given, before its end is reported. The caller owns `*out`. A
 * view that is still alive when the operation ends becomes a lease, with no gap in between.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a handle of an operation that has not begun or
 * has ended, or a tensor that is none of its operands; `ESTAFETTE_CONFLICT` for an operand to be written
 * that turned out to be read-only; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by
 * any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_op_export(struct estafette_op *op,
                                     const struct estafette_tensor *tensor,
                                     DLManagedTensorVersioned **out);

/**
 * The readiness of the version of `tensor` that is current at this call, as a fence for another scheduler,
 * to `*out`. The caller owns one count of it and gives that up by `out->release(out->context)`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `tensor` may be any value.
 */
estafette_status estafette_tensor_fence(const struct estafette_tensor *tensor, DLFence *out);

/**
 * The end of every use of `tensor` that was submitted before this call, leases included, as a fence to
 * `*out`: when it is done, the memory may be overwritten in place. Ownership as for
 * `estafette_tensor_fence`.
 *
 * A use that is to end after this fence would wait for itself: do not hand this fence back as the end of one
 * of those uses. `estafette_op_complete_after` refuses that; `estafette_lease_release` does not recognize
 * it.
 *
 * Returns as `estafette_tensor_fence`. May be called by any thread.
 *
 * The caller promises:
 * As for `estafette_tensor_fence`.
 */
estafette_status estafette_writable_fence(const struct estafette_tensor *tensor, DLFence *out);

/**
 * The end of an operation as a fence, to `*out`; the work included that it has left on a stream or behind a
 * fence. Of an operation that has left its work in one place, that is the fence of the work, which other
 * streams of the device wait for without the host. Ownership as for `estafette_tensor_fence`.
 *
 * Returns as `estafette_tensor_fence`, and `ESTAFETTE_INVALID` for a handle that is not in use or was only
 * handed to a function. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `op` may be any value.
 */
estafette_status estafette_op_fence(struct estafette_op *op, DLFence *out);

/**
 * Makes a fence that the caller settles by `estafette_promise_settle`. `name` appears in messages; NULL
 * means "a promise". The caller owns `*out` and one count of `*fence`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL; `ESTAFETTE_FORKED`. Nothing is written but on
 * success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer is NULL or what its type says.
 */
estafette_status estafette_promise_create(const char *name, struct estafette_promise **out, DLFence *fence);

/**
 * Settles and releases a promise: `ESTAFETTE_OK` for done, or a negative status with a text, which may be
 * NULL; what is not UTF-8 in it is replaced. Waiters are notified before this returns.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, as of a promise that
 * was settled before, or a status that is neither (then the promise stays the caller's); `ESTAFETTE_FORKED`.
 * May be called by any thread.
 *
 * The caller promises:
 * `message` is NULL or a text. `promise` may be any value.
 */
estafette_status estafette_promise_settle(struct estafette_promise *promise, int32_t status, const char *message);

/**
 * Gives a promise up without a word: its fence fails with `ESTAFETTE_CANCELLED`. NULL is legal and does
 * nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a promise that was
 * settled before; `ESTAFETTE_FORKED`: there the promise is leaked. May be called by any thread. `promise`
 * may be any value.
 */
estafette_status estafette_promise_drop(struct estafette_promise *promise);

/**
 * As `estafette_import`, of a tensor with fences: it is ready when its producer's `ready` is done, and its
 * description may come as late. The deleter is called when the last use is over, so no fence is added.
 *
 * Returns as `estafette_import`. If the description comes later and is invalid, the new tensor fails.
 *
 * The caller promises:
 * As for `estafette_import`.
 */
estafette_status estafette_import_fenced(struct estafette_engine *engine,
                                         DLManagedTensorFenced *fenced,
                                         struct estafette_tensor **out);

/**
 * Hands a tensor to another library at once, with fences: its `ready` is done when the tensor is ready and
 * free for `access` (`ESTAFETTE_READ` or `ESTAFETTE_WRITE`). The caller owns `*out`; the lease ends when its
 * deleter was called, and the fences that the consumer has added before are done. A tensor whose operation
 * has not run yet is described late.
 *
 * Returns `ESTAFETTE_OK`, also for a failed version, which fails `ready`; `ESTAFETTE_CONFLICT` for writing
 * what may not be written; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or another access;
 * `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_export_fenced(const struct estafette_tensor *tensor,
                                         int32_t access,
                                         DLManagedTensorFenced **out);

/**
 * Allows functions of this library to run operations on the calling thread, or forbids it: 0 forbids,
 * anything else allows. Returns the earlier setting, 0 or 1. A thread may, until it says otherwise.
 *
 * The functions that run operations on the thread that calls them, where this is not forbidden, are those
 * that wait with `ESTAFETTE_FOREVER` (they run what they wait for, `estafette_wait_all` and
 * `estafette_engine_shutdown` whatever is ready) and, in an engine without workers, those that submit and
 * `estafette_engine_destroy`. A wait with another timeout runs none. Forbid it where the thread holds a lock
 * that a function of an operation takes: the work is then done by the engine's workers, or by a thread that
 * an engine without workers starts for the time of the wait.
 *
 * May be called by any thread, and in a forked child.
 */
int32_t estafette_set_helping(int32_t allowed);

/**
 * The reason why the latest call of this thread that returned an error, `ESTAFETTE_TIMEOUT` or
 * `ESTAFETTE_IN_FLIGHT_LIMIT` did so, in words (UTF-8, at most 2,047 bytes); empty when there was none.
 * Other calls leave it as it is.
 *
 * Never NULL. The place is the library's, always the same for one thread, and valid until that thread ends;
 * the thread's next error overwrites the text. May be called in a forked child.
 */
const char *estafette_last_error(void);

/**
 * Takes a lease for work on `stream` of `device`: what is enqueued there after this returns is ordered after
 * everything that it must come after. The stream waits for work of its own runtime, and this blocks only
 * until that work is issued, and for what only the host can wait for. For the host (`kDLCPU`, `stream`
 * NULL), and for a NULL stream of any device, this blocks until the memory is ready and free for the access.
 * The caller owns `*out` and ends the lease by `estafette_lease_release`.
 *
 * `device` is the memory's own; for pinned and managed memory (`kDLCUDAHost`, `kDLCUDAManaged`) also the
 * CUDA device of the stream. A stream is a `CUstream` (for CUDA's default streams their handles 1 and 2) or
 * a pointer to a `sycl::queue`; its handle is used in this call only, but CUDA's legacy stream and SYCL
 * queues are looked at once more when the lease ends. A stream that is capturing a graph gets its waits too.
 *
 * `access` is an `estafette_access`; with `ESTAFETTE_ALIAS` nothing is waited for but the tensor's
 * definition.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or
 * `ESTAFETTE_PEER_DIED` with the root cause of a failed version; `ESTAFETTE_CONFLICT` for writing memory
 * that may not be written; `ESTAFETTE_NOT_DEFINED` as `estafette_export`; `ESTAFETTE_LEASE_HELD`;
 * `ESTAFETTE_WOULD_DEADLOCK`; `ESTAFETTE_INVALID` for NULL, an unknown access, a stream for the host, or a
 * device other than the host or the memory's own; `ESTAFETTE_DEVICE` also for a stream of another device, or
 * one that cannot wait; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_order_on(const struct estafette_tensor *tensor,
                                    int32_t access,
                                    DLDevice device,
                                    void *stream,
                                    struct estafette_lease **out);

/**
 * As `estafette_order_on`, with `access`, `device`, `stream`, `nonblocking` and `timeout_ns` of the options
 * of an export; `copy` must not be 1. NULL `options` means the defaults: a read lease for the host,
 * blocking.
 *
 * Returns as `estafette_order_on`; `ESTAFETTE_PENDING` where it must not block and would;
 * `ESTAFETTE_TIMEOUT`; `ESTAFETTE_INVALID` for a wrong option as well. `*out` is written only on success.
 * May be called by any thread.
 *
 * The caller promises:
 * As for `estafette_order_on`; `options` is NULL or as long as its size says.
 */
estafette_status estafette_order_on_with(const struct estafette_tensor *tensor,
                                         const struct estafette_export_options *options,
                                         struct estafette_lease **out);

/**
 * Takes leases of `n` tensors in one step, each as by `estafette_order_on_with`: all are granted together.
 * `accesses` has an `estafette_access` for each, but not `ESTAFETTE_ALIAS`; NULL means that of `options` for
 * all. A tensor may be named twice; if one of the two is a write, both are exclusive. The leases go to
 * `out`, which has `n` places, in the order of `tensors`; the caller owns them. An array may be NULL when
 * `n` is 0.
 *
 * Returns as `estafette_order_on_with`; `ESTAFETTE_INVALID` also for a stream without a device where the
 * tensors are on several. `out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; the arrays have `n` entries.
 */
estafette_status estafette_lease_all(struct estafette_engine *engine,
                                     struct estafette_tensor *const *tensors,
                                     const int32_t *accesses,
                                     size_t n,
                                     const struct estafette_export_options *options,
                                     struct estafette_lease **out);

/**
 * The end of a lease as a fence, to `*out`: done when it was released and the work that its owner left is
 * done. So the producer learns when its consumer is done. The caller owns one count of it and gives that up
 * by `out->release(out->context)`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says.
 */
estafette_status estafette_lease_fence(const struct estafette_lease *lease, DLFence *out);

/**
 * Ends a lease when the owner's last device work is done: `done` is copied and retained, and stays the
 * caller's. NULL means now; of a lease that was taken for a stream, when what was enqueued there by now is
 * done, which of a stream whose handle may not be kept is known only when everything on the device is. Uses
 * that conflict, and the memory's deleter, wait for it. NULL `lease` is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a lease that was
 * released before, or a fence that breaks the rules, or is one of `estafette_lease_fence` for this lease:
 * then the caller still holds the lease. In a forked child the lease is leaked, and `ESTAFETTE_FORKED`
 * returned. May be called by any thread.
 *
 * The caller promises:
 * `done` is NULL or what its type says. `lease` may be any value.
 */
estafette_status estafette_lease_release(struct estafette_lease *lease, const DLFence *done);

/**
 * Sets where the log events of this copy of the library go, up to `level` (1 to 5, see
 * `estafette_log_callback`). It replaces an earlier one, whose `drop_context` is called when no thread runs
 * the callback any more. NULL `callback` turns logging off, and then `context` is not looked at. Without a
 * call of this, nothing is logged, unless `RUST_LOG=estafette=debug` in the environment asks for all events:
 * then they are lines on the standard error stream until a call of this, whose callback gets them instead.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a level that is none; `ESTAFETTE_CONFLICT` when a Rust
 * program around this library has its own way of logging already; `ESTAFETTE_FORKED`. On an error the caller
 * keeps `context`. May be called by any thread.
 *
 * The caller promises:
 * The functions may be called by any thread.
 */
estafette_status estafette_set_log(int32_t level,
                                   estafette_log_callback callback,
                                   void *context,
                                   estafette_drop drop_context);

/**
 * Ends an operation whose function was called: `status` is `ESTAFETTE_OK`, or a negative status for a
 * failure, whose text is `message` (NULL for none; what is not UTF-8 in it is replaced). An operation that
 * ends so uses its memory no more, also with `ESTAFETTE_DEVICE`; a fence of `estafette_op_complete_after`
 * that fails with `DLPACK_FENCE_DEVICE` says that work may go on, so the memory is kept for ever. Its
 * outputs then carry that failure, as `ESTAFETTE_DEVICE`, `ESTAFETTE_PEER_DIED` or else `ESTAFETTE_FAILED`;
 * with `ESTAFETTE_CANCELLED` they are marked as cancelled.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, an operation whose end
 * was reported already or whose function was not called yet, a status that is neither, or `ESTAFETTE_OK` for
 * an operation that is to produce a tensor. May be called by any thread, once, inside of the function too.
 * Before this returns, waiters are notified and `drop_context` is called.
 *
 * The caller promises:
 * `message` is NULL or a text. `op` may be any value.
 */
estafette_status estafette_op_complete(struct estafette_op *op, int32_t status, const char *message);

/**
 * The stream of an operation that was submitted for a device, to `*stream`: a `CUstream`, or a pointer to a
 * `sycl::queue`. `op` is what the operation's function was given. The stream is the library's; it may be
 * used until the end of the operation is reported.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for an operation of the host, or one that has not
 * begun or has ended; `ESTAFETTE_FORKED`. `*stream` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * `stream` is NULL or may be written. `op` may be any value.
 */
estafette_status estafette_op_stream(struct estafette_op *op, void **stream);

/**
 * Ends an operation whose function was called when `fence` is done: what comes next on the same device is
 * ordered behind it without the host waiting, and its failure becomes the operation's. The fence is copied
 * and retained, and stays the caller's; NULL means now. `drop_context` is called when the fence has settled,
 * well or not: until then, the work that it marks may use the context.
 *
 * Returns as `estafette_op_complete`, and `ESTAFETTE_INVALID` for a fence that breaks the rules, or that
 * itself marks the end of this operation or of its output: then the end was not reported. A fence of other
 * work that waits for this operation is not recognized. May be called by any thread, once, inside of the
 * function too.
 *
 * The caller promises:
 * `fence` is NULL or what its type says. `op` may be any value.
 */
estafette_status estafette_op_complete_after(struct estafette_op *op, const DLFence *fence);

/**
 * Ends an operation that was submitted by `estafette_produce` with its result. On `ESTAFETTE_OK` the library
 * owns `managed`; a result that cannot be adopted fails the operation, and its deleter is called then. On
 * any other status the caller keeps it.
 *
 * Returns as `estafette_op_complete`; `ESTAFETTE_INVALID` for NULL, a version that is not known, or an
 * operation that is to produce no tensor. May be called by any thread, once.
 *
 * The caller promises:
 * `managed` is NULL or what its type says, as for `estafette_import`. `op` may be any value.
 */
estafette_status estafette_op_complete_with(struct estafette_op *op, DLManagedTensorVersioned *managed);

/**
 * Adds a reference to an operation.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * May be called by any thread. `op` may be any value.
 */
estafette_status estafette_op_retain(struct estafette_op *op);

/**
 * Removes a reference to an operation, which goes on. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, or that only the operation
 * itself holds; `ESTAFETTE_FORKED`. May be called by any thread. `op` may be any value.
 */
estafette_status estafette_op_release(struct estafette_op *op);

/**
 * The state of an operation, at once. One that has left work on a stream, or that ends with a fence, has
 * ended when that is done.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_PENDING`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
 * or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_INVALID` for NULL or a handle that is not in use
 * or was only given to a function; `ESTAFETTE_FORKED`. May be called by any thread. `op` may be any value.
 */
estafette_status estafette_op_query(struct estafette_op *op);

/**
 * Blocks until an operation has ended (the work that it, or the nodes of a replay, have left on streams and
 * behind fences included), or for `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 only looks), and returns
 * how it ended. Without a limit it may run operations on this thread (see `estafette_set_helping`); with one
 * it runs none, so that it is kept.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
 * or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK` inside of
 * the operation itself, or where it would block in a callback; `ESTAFETTE_INVALID` for NULL or a handle that
 * is not in use or was only given to a function; `ESTAFETTE_FORKED`. May be called by any thread. `op` may
 * be any value.
 */
estafette_status estafette_op_wait(struct estafette_op *op, uint64_t timeout_ns);

/**
 * Blocks until one of `n_ops` operations has ended, as for `estafette_op_wait`, or the current version of
 * one of `n_tensors` tensors is finished, well or not, or for `timeout_ns` (`ESTAFETTE_FOREVER` for no
 * limit; 0 only looks). The place of the first that has goes to `*out`: operations are counted first, then
 * tensors. How it has ended, `estafette_op_query` or `estafette_query` says. An array may be NULL when its
 * count is 0. Without a limit it may run operations on this thread (see `estafette_set_helping`); with one
 * it runs none.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_LEASE_HELD` or `ESTAFETTE_WOULD_DEADLOCK` where
 * none can end, as for `estafette_wait`; `ESTAFETTE_INVALID` for NULL, counts that are both 0, or a handle
 * that is not in use or was only given to a function; `ESTAFETTE_FORKED`. `*out` is written only on success.
 * May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; an array has as many entries as its count says.
 */
estafette_status estafette_wait_any(struct estafette_op *const *ops,
                                    size_t n_ops,
                                    struct estafette_tensor *const *tensors,
                                    size_t n_tensors,
                                    uint64_t timeout_ns,
                                    size_t *out);

/**
 * Calls an operation off that has not begun: its function is not called, its context is dropped, and its
 * outputs carry a failure of kind "cancelled".
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_CONFLICT` when it has begun or ended; `ESTAFETTE_INVALID` for NULL or a
 * handle that is not in use or was only given to a function; `ESTAFETTE_FORKED`. May be called by any
 * thread. `op` may be any value.
 */
estafette_status estafette_op_cancel(struct estafette_op *op);

/**
 * Registers a function as the operator `name`, for all engines of this process. `options` say how it is
 * called. `drop_context`, which may be NULL, is called once with `context` when the operator was
 * unregistered, no call of it is under way, and the work that calls have enqueued on streams is done.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `name`, `function` or `options`, or options that
 * cannot be, which the text names; `ESTAFETTE_CONFLICT` for a name that is taken; `ESTAFETTE_FORKED`. On an
 * error the caller keeps `context`. May be called by any thread, inside of operators too.
 *
 * The caller promises:
 * Each pointer is NULL or what its type says. The functions keep the contract of
 * `estafette_operator_function`, and may be called until `drop_context` is.
 */
estafette_status estafette_register_operator(const char *name,
                                             estafette_operator_function function,
                                             const struct estafette_operator_options *options,
                                             void *context,
                                             estafette_drop drop_context);

/**
 * Takes an operator out of the registry. Calls under way still end.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, and when there is no such operator;
 * `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * `name` is NULL or a text.
 */
estafette_status estafette_unregister_operator(const char *name);

/**
 * Loads the shared library at `path`, and registers its operators: all of them, or none. The library exports
 * a function `estafette_operators` of type `estafette_operator_entry`. It stays loaded as long as one of
 * them is registered or under way, or a result of one is alive. A path without a slash is looked for in
 * `LD_LIBRARY_PATH` and the folders of the system, and not in the current one; every function that the
 * library needs must be found when it is loaded. `count`, which may be NULL, gets how many there are.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `path`, or a library that cannot be loaded, has no
 * such function, registers nothing, or reports a failure, whose reason is in the text; `ESTAFETTE_CONFLICT`
 * for a name that is taken; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * Each pointer is NULL or what its type says; the library is what is written here, and may be trusted like
 * one that the program is linked to.
 */
estafette_status estafette_load_operators(const char *path, size_t *count);

/**
 * Calls `callback` with each operator of this process, by name.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `callback`; `ESTAFETTE_FORKED`. May be called by any
 * thread.
 *
 * The caller promises:
 * `callback` is NULL or does not throw.
 */
estafette_status estafette_list_operators(estafette_operator_callback callback, void *context);

/**
 * Submits a call of the operator `name`, as an operation of that name: it reads `inputs`, and begins when
 * they are there.
 *
 * Either all entries of `outputs` are tensors, which it overwrites, or all are NULL: then the call produces
 * its results, and each entry becomes a promise of one, which the caller owns and gives up by
 * `estafette_tensor_release`. An array may be NULL when its count is 0.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `name`, a handle that is not in use, for
 * an operator that there is not (the text has names that are near), a number of inputs or outputs that is
 * not the operator's, outputs that are not all of one kind, outputs given to an operator that allocates them
 * or not given to one that does not, or an attribute that is no text; `ESTAFETTE_CONFLICT` for outputs that
 * overlap another operand of an operator that does not work in place, or may not be written;
 * `ESTAFETTE_WOULD_DEADLOCK`, `ESTAFETTE_LEASE_HELD`, `ESTAFETTE_SHUTDOWN`, `ESTAFETTE_FORKED` as
 * `estafette_submit`. A failure of the operator itself is reported at its outputs. May be called by any
 * thread, inside of operations too.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `outputs` may be written.
 */
estafette_status estafette_call_operator(struct estafette_engine *engine,
                                         const char *name,
                                         struct estafette_tensor *const *inputs,
                                         size_t n_inputs,
                                         struct estafette_tensor **outputs,
                                         size_t n_outputs,
                                         const struct estafette_attribute *attributes,
                                         size_t n_attributes);

/**
 * As `estafette_call_operator`, with options (NULL for the defaults), and with a handle of the operation to
 * `*op`, which may be NULL, to query, wait for or cancel. The caller gives it up by `estafette_op_release`.
 * Of the options, `name` and `on_skip` must be 0; `on` is for calls that are given their outputs.
 *
 * Returns as `estafette_call_operator`, and `ESTAFETTE_IN_FLIGHT_LIMIT`; `ESTAFETTE_INVALID` for a wrong
 * option, and with `on` for an operator that works on the host.
 *
 * The caller promises:
 * As for `estafette_call_operator`; `options` is NULL or as long as its size says; `op` is NULL or may be
 * written.
 */
estafette_status estafette_call_operator_with(struct estafette_engine *engine,
                                              const struct estafette_submit_options *options,
                                              const char *name,
                                              struct estafette_tensor *const *inputs,
                                              size_t n_inputs,
                                              struct estafette_tensor **outputs,
                                              size_t n_outputs,
                                              const struct estafette_attribute *attributes,
                                              size_t n_attributes,
                                              struct estafette_op **op);

/**
 * Begins to record a program. `name` is that of its replays, for messages; NULL means "c". The caller owns
 * the result and gives it up by `estafette_program_destroy`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `out`, or a name that is not UTF-8;
 * `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `out` is NULL or may be written.
 */
estafette_status estafette_program_begin(struct estafette_engine *engine,
                                         const char *name,
                                         struct estafette_program **out);

/**
 * Records a node. The arguments are those of `estafette_submit_with`, but every replay calls `function` with
 * `context`, and `drop_context`, which may be NULL, is called once with it when the program was destroyed,
 * no replay is in flight, and every fence that a call of `function` has ended with has settled. Nodes have
 * the meaning that they would have as operations submitted in this order. Of the options, `priority`,
 * `nonblocking` and `on_skip` must be 0.
 *
 * A function reports its end as that of an operation does. Two replays may call it at the same time if all
 * that the program does is to read.
 *
 * Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for a program that is finished. On an error
 * the caller keeps `context`. May be called by any thread.
 *
 * The caller promises:
 * As for `estafette_submit`; the functions may be called by any thread, and `function` as often as the
 * program is replayed.
 */
estafette_status estafette_program_add(struct estafette_program *program,
                                       const struct estafette_submit_options *options,
                                       estafette_function function,
                                       void *context,
                                       estafette_drop drop_context,
                                       struct estafette_tensor *const *reads,
                                       size_t n_reads,
                                       struct estafette_tensor *const *writes,
                                       size_t n_writes);

/**
 * Ends the recording. `graph` is 0, or 1 for a program whose nodes are all on one CUDA device: it becomes
 * one graph, launched by one call of the driver per replay. Then the first replay calls the functions, once
 * each, while what they enqueue on the stream that `estafette_op_stream` gives is recorded and not run; no
 * later replay calls them.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a program that is finished, another value of
 * `graph`, or, with the node that is in the way, for a program that cannot be a graph; `ESTAFETTE_CONFLICT`
 * for a program whose replay would wait for itself, since one of its tensors is in memory under a lease that
 * another one waits for. A program that cannot be a graph, or is in conflict, can only be destroyed then,
 * and keeps the contexts of its nodes until it is. `ESTAFETTE_FORKED`. May be called by any thread.
 * `program` may be any value.
 */
estafette_status estafette_program_finish(struct estafette_program *program, int32_t graph);

/**
 * Submits one run of all nodes as one operation. `nonblocking` is 1 to be refused with
 * `ESTAFETTE_IN_FLIGHT_LIMIT` instead of waiting for room, else 0. A handle of the operation goes to `*out`,
 * which may be NULL; the caller gives it up by `estafette_op_release`.
 *
 * The replay ends when all nodes have ended, the fences included that they end with.
 *
 * A node whose input was left by a node that failed is not called, and all others are; the replay has failed
 * then, and so has everything that the program writes.
 *
 * Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for a program that is not finished. May be
 * called by any thread, inside of operations too.
 *
 * The caller promises:
 * `out` is NULL or may be written. `program` may be any value.
 */
estafette_status estafette_program_replay(struct estafette_program *program,
                                          int32_t nonblocking,
                                          struct estafette_op **out);

/**
 * Gives a program up. Replays in flight run to their end. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a program that was
 * destroyed before; `ESTAFETTE_FORKED`: there the program is leaked. May be called by any thread. `program`
 * may be any value.
 */
estafette_status estafette_program_destroy(struct estafette_program *program);

/**
 * Makes a ticket for the version of `tensor` that is current at this call, ready or not. Writes that are
 * submitted later wait until the ticket is revoked, and what was made with it is gone. Waits for nothing.
 * `options` may be NULL for the defaults. The caller owns `*out` and gives it up by
 * `estafette_ticket_revoke` or `estafette_ticket_release`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_SHARED` for memory that other processes cannot be shown, if a copy
 * was refused; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a wrong option, or when 65,536
 * tickets are alive, and with `reach` when NIXL is missing or the address is none of this machine;
 * `ESTAFETTE_FAILED` with the reason when the system refuses to open a door; `ESTAFETTE_SHUTDOWN`;
 * `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * `options` is NULL or as long as its size says, and its `reach` NULL or a text; `out` is NULL or may be
 * written. `tensor` may be any value.
 */
estafette_status estafette_ticket_create(const struct estafette_tensor *tensor,
                                         const struct estafette_ticket_options *options,
                                         struct estafette_ticket **out);

/**
 * The bytes of a ticket, for `estafette_from_ticket` in another process: as many as fit into the `capacity`
 * bytes at `bytes` (which may be NULL when that is 0), and their number to `*size`, which is less than 128,
 * or less than 384 where the ticket is for other machines.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `bytes` has `capacity` bytes.
 */
estafette_status estafette_ticket_bytes(const struct estafette_ticket *ticket,
                                        uint8_t *bytes,
                                        size_t capacity,
                                        size_t *size);

/**
 * Revokes a ticket, also one for one use, and gives its handle up: nothing new can be made with it. Tensors
 * that were made with it stay. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a ticket that was
 * revoked before; `ESTAFETTE_FORKED`: there the ticket is leaked. May be called by any thread. `ticket` may
 * be any value.
 */
estafette_status estafette_ticket_revoke(struct estafette_ticket *ticket);

/**
 * Gives the handle of a ticket up. A ticket for one use stays valid, as nothing has to keep it; any other
 * one is revoked by this. NULL is legal and does nothing.
 *
 * Returns as `estafette_ticket_revoke`. May be called by any thread. `ticket` may be any value.
 */
estafette_status estafette_ticket_release(struct estafette_ticket *ticket);

/**
 * The tensor that a ticket of another process names: a promise, to be read only, in the memory of that
 * process. The caller owns `*out` and gives it up by `estafette_tensor_release`; the owner's writes of that
 * memory wait until then. It waits as submissions do, and for nothing else.
 *
 * The promise fails with `ESTAFETTE_PEER_DIED` if that process has died before it was ready, and with
 * `ESTAFETTE_FAILED` if the ticket was revoked before.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or bytes that are no
 * ticket; `ESTAFETTE_LEASE_HELD`, `ESTAFETTE_WOULD_DEADLOCK`, `ESTAFETTE_SHUTDOWN`, `ESTAFETTE_FORKED` as
 * `estafette_submit`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `bytes` has `size` bytes.
 */
estafette_status estafette_from_ticket(struct estafette_engine *engine,
                                       const uint8_t *bytes,
                                       size_t size,
                                       struct estafette_tensor **out);

/**
 * Opens a door. The caller owns `*out` and gives it up by `estafette_door_close`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL; `ESTAFETTE_FAILED` with the reason where the system
 * refuses, as one that is not Linux does; `ESTAFETTE_FORKED`. `*out` is written only on success. May be
 * called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written.
 */
estafette_status estafette_door_open(struct estafette_door **out);

/**
 * The address of a door, as a text for `estafette_connect` in another process, which gets it by any means:
 * an argument, a pipe, a file. The caller owns the text and frees it by `estafette_string_free`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `door` may be any value.
 */
estafette_status estafette_door_address(const struct estafette_door *door, char **out);

/**
 * Waits for at most `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 only looks) for the next link that
 * another process makes at a door. The tensors that it receives are of `engine`. The caller owns `*out` and
 * gives it up by `estafette_link_close`. The calling thread runs no operation meanwhile.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or
 * a door that is closed meanwhile; `ESTAFETTE_FAILED` with the reason where the system refuses, after which
 * the next call goes on; `ESTAFETTE_WOULD_DEADLOCK` where it would block in a callback;
 * `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. Handles may be any value.
 */
estafette_status estafette_door_accept(const struct estafette_door *door,
                                       struct estafette_engine *engine,
                                       uint64_t timeout_ns,
                                       struct estafette_link **out);

/**
 * Closes a door and gives its handle up. Links that were made there stay. Calls of other threads that wait
 * at the door return `ESTAFETTE_INVALID`: it is closed. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a door that was closed
 * before; `ESTAFETTE_FORKED`: there the door is leaked. May be called by any thread. `door` may be any
 * value.
 */
estafette_status estafette_door_close(struct estafette_door *door);

/**
 * Makes a link to the process with a door at `address`, in at most `timeout_ns` (`ESTAFETTE_FOREVER` for no
 * limit); the process need not be at its door. Ownership and the rest as for `estafette_door_accept`.
 *
 * Returns as `estafette_door_accept`; `ESTAFETTE_INVALID` for an address that is none as well;
 * `ESTAFETTE_FAILED` where no door is there, or not any more; `ESTAFETTE_PEER_DIED` when the process at the
 * door has died. May be called by any thread.
 *
 * The caller promises:
 * `address` is NULL or a text; `out` is NULL or may be written. `engine` may be any value.
 */
estafette_status estafette_connect(struct estafette_engine *engine,
                                   const char *address,
                                   uint64_t timeout_ns,
                                   struct estafette_link **out);

/**
 * The number of the other process of a link, to `*out`; 0 where this process cannot see it.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
 * May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `link` may be any value.
 */
estafette_status estafette_link_process(const struct estafette_link *link, uint32_t *out);

/**
 * Lets the other process read the version of `tensor` that is current at this call, ready or not. Writes
 * that are submitted later wait until the other process has released it, has closed the link, or has died.
 * With `ESTAFETTE_WRITE` the other process writes the next version instead, and operations on the tensor
 * that are submitted later wait for that. `options` may be NULL for the defaults. Waits, for at most
 * `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 does not wait), only while the link is full: the other
 * process then has 16,384 tensors of this one, or has not received hundreds. The tensor stays the caller's.
 * The calling thread runs no operation meanwhile.
 *
 * Memory that is not shared, see `shared` in `estafette_engine_options` and `estafette_zeros_shared`, is
 * copied once the version is ready, and later writes wait for the copy alone.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_DEVICE` if there is no memory for a copy;
 * `ESTAFETTE_NOT_SHARED` for memory that other processes cannot be shown, if a copy was refused, and with
 * `ESTAFETTE_WRITE` for what is not of `estafette_zeros_shared_for_writing`; `ESTAFETTE_PEER_DIED`;
 * `ESTAFETTE_CANCELLED` once the other process has closed the link; `ESTAFETTE_INVALID` for NULL, a handle
 * that is not in use, a wrong option, or a link that is closed meanwhile; `ESTAFETTE_WOULD_DEADLOCK` where
 * it would block in a callback; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. Nothing was sent unless it returns
 * `ESTAFETTE_OK`. May be called by any thread.
 *
 * The caller promises:
 * `options` is NULL or as long as its size says. Handles may be any value.
 */
estafette_status estafette_link_send(const struct estafette_link *link,
                                     const struct estafette_tensor *tensor,
                                     const struct estafette_send_options *options,
                                     uint64_t timeout_ns);

/**
 * The next tensor of the other process, to `*out`, after at most `timeout_ns` (`ESTAFETTE_FOREVER` for no
 * limit; 0 only looks): a promise in the memory of that process. It is read-only
 * (`estafette_tensor_read_only`) unless that process has sent it for writing; what this one then writes is
 * the owner's next version once the handle is released. The caller owns it and gives it up by
 * `estafette_tensor_release`; the owner's writes of that memory wait until then. `*out` is NULL once the
 * other process has closed the link, after everything that it had sent. The calling thread runs no operation
 * meanwhile.
 *
 * A tensor that the other process had not finished when it died fails with `ESTAFETTE_PEER_DIED`. What was
 * ready stays readable.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_PEER_DIED` when that process has died, after
 * everything that it had sent; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a link that is
 * closed meanwhile, or when the other process has violated the protocol; `ESTAFETTE_WOULD_DEADLOCK` where it
 * would block in a callback; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. `*out` is written only on success.
 * May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `link` may be any value.
 */
estafette_status estafette_link_receive(const struct estafette_link *link,
                                        uint64_t timeout_ns,
                                        struct estafette_tensor **out);

/**
 * A descriptor for an event loop of the program (`epoll`, `poll`, `select`), to `*out`. It is readable while
 * a tensor may be there, or the link is over: then call `estafette_link_receive` with a timeout of 0 until
 * it returns `ESTAFETTE_TIMEOUT`, which makes the descriptor unreadable; nothing else does. It is readable
 * at first. So both level-triggered and edge-triggered loops work.
 *
 * The descriptor belongs to the link, which has none before the first call, and is closed with it: take it
 * out of the event loop before `estafette_link_close`. It must not be read, written or closed. Each call
 * gives the same number.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FAILED`
 * where the system refuses; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. `link` may be any value.
 */
estafette_status estafette_link_descriptor(const struct estafette_link *link, int32_t *out);

/**
 * Closes a link and gives its handle up. What was received stays readable. What was sent comes to the other
 * process for as long as this one lives. Calls of other threads that wait for the link return
 * `ESTAFETTE_INVALID`: it is closed. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a link that was closed
 * before; `ESTAFETTE_FORKED`: there the link is leaked. May be called by any thread. `link` may be any
 * value.
 */
estafette_status estafette_link_close(struct estafette_link *link);

/**
 * Says that process `process` on another machine is dead, or with 0 all processes on that machine: their
 * leases end, and writes that waited go on. For who knows it, such as the program that started them: silence
 * alone is not death. `host` is the address of that machine, as messages about the process have it. Returns
 * at once.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a text that is not UTF-8; `ESTAFETTE_FORKED`. May
 * be called by any thread.
 *
 * The caller promises:
 * `host` is NULL or a text.
 */
estafette_status estafette_declare_dead(const char *host, uint32_t process);

/**
 * A few words for a status, for example "invalid argument"; of a number that is none, "unknown status".
 *
 * The text lives as long as the process. May be called by any thread, and in a forked child.
 */
const char *estafette_status_text(int32_t status);

/**
 * Submits an operation. It reads the tensors in `reads` and overwrites those in `writes`; one that is in
 * both is updated in place. `function` is called with `context` when everything before it, in the order of
 * submission, that it conflicts with has been issued and what it needs is ready; it is not called at all if
 * something that it reads has failed, or when it is cancelled. `name` appears in messages; NULL means "c".
 * `drop_context`, which may be NULL, is called once with `context` when the end was reported, and the fence
 * given to `estafette_op_complete_after`, if any, has settled; or when it is known that `function` will not
 * be called. (Work that `function` has enqueued on `estafette_op_stream` may still run when the end was
 * reported without a fence.) An array may be NULL when its count is 0. When this returns, the caller may
 * release the tensors and destroy the engine: the operation keeps what it needs.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `function`, for NULL or a handle that is
 * not in use among the tensors, or a name that is not UTF-8; `ESTAFETTE_CONFLICT` for writing what may not
 * be written; `ESTAFETTE_WOULD_DEADLOCK` when there is no permit and never will be, or when it would wait
 * for room in a callback; `ESTAFETTE_LEASE_HELD` when leases of other threads have kept the in-flight limit
 * reached for the engine's `lease_timeout_ns`; `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. On an error neither
 * function is called and the caller keeps `context`. May be called by any thread, inside of operations too.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; both functions may be called by any thread.
 */
estafette_status estafette_submit(struct estafette_engine *engine,
                                  const char *name,
                                  estafette_function function,
                                  void *context,
                                  estafette_drop drop_context,
                                  struct estafette_tensor *const *reads,
                                  size_t n_reads,
                                  struct estafette_tensor *const *writes,
                                  size_t n_writes);

/**
 * As `estafette_submit`, with options (NULL for the defaults), and with a handle of the operation to `*out`,
 * which may be NULL. The caller owns the handle and gives it up by `estafette_op_release`. It is the one
 * that `function` is given.
 *
 * Returns as `estafette_submit`, and `ESTAFETTE_IN_FLIGHT_LIMIT`.
 *
 * The caller promises:
 * As for `estafette_submit`.
 */
estafette_status estafette_submit_with(struct estafette_engine *engine,
                                       const struct estafette_submit_options *options,
                                       estafette_function function,
                                       void *context,
                                       estafette_drop drop_context,
                                       struct estafette_tensor *const *reads,
                                       size_t n_reads,
                                       struct estafette_tensor *const *writes,
                                       size_t n_writes,
                                       struct estafette_op **out);

/**
 * Submits an operation whose result becomes a new tensor, `*out`: a promise until
 * `estafette_op_complete_with`. Everything else is as for `estafette_submit`. The caller owns `*out`.
 *
 * Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for NULL `out`.
 *
 * The caller promises:
 * As for `estafette_submit`; `out` is NULL or may be written.
 */
estafette_status estafette_produce(struct estafette_engine *engine,
                                   const struct estafette_submit_options *options,
                                   estafette_function function,
                                   void *context,
                                   estafette_drop drop_context,
                                   struct estafette_tensor *const *reads,
                                   size_t n_reads,
                                   struct estafette_tensor **out);

/**
 * As `estafette_produce`, with a handle of the operation to `*op`, which may be NULL, to query, wait for or
 * cancel. The caller gives it up by `estafette_op_release`. It is the one that `function` is given.
 *
 * Returns as `estafette_produce`.
 *
 * The caller promises:
 * As for `estafette_produce`; `op` is NULL or may be written.
 */
estafette_status estafette_produce_with(struct estafette_engine *engine,
                                        const struct estafette_submit_options *options,
                                        estafette_function function,
                                        void *context,
                                        estafette_drop drop_context,
                                        struct estafette_tensor *const *reads,
                                        size_t n_reads,
                                        struct estafette_tensor **out,
                                        struct estafette_op **op);

/**
 * Adopts a tensor of another library, without a copy. Memory that overlaps tensors already known is ordered
 * with them.
 *
 * The type may be one that this library does not know, and the address need not be a multiple of the
 * element's size: both are handed on as they are, and functions that need more look for themselves.
 *
 * `ready` says when its content may be read; NULL means now. The fence is copied and retained, and stays the
 * caller's. On `ESTAFETTE_OK` the library owns `managed`, and calls its deleter once, on a thread of its own
 * that holds no lock, when the last use is over; on any other status nothing was taken. The caller owns
 * `*out` and gives it up by `estafette_tensor_release`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, for a tensor or fence
 * that breaks the rules (the text names the field), or for a device that the engine does not have;
 * `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says. What `managed` describes is true until its deleter
 * is called, and only the engine's operations and leases write the memory meanwhile.
 */
estafette_status estafette_import(struct estafette_engine *engine,
                                  DLManagedTensorVersioned *managed,
                                  const DLFence *ready,
                                  struct estafette_tensor **out);

/**
 * As `estafette_import`, of the struct from before DLPack 1.0, which Triton, TensorFlow and DGL make. It
 * cannot say whether its memory may be written: `writable` is 1 if its owner allows that, and 0 if not, or
 * if the caller does not know. Then operations and leases that write are refused with `ESTAFETTE_CONFLICT`.
 * The deleter may be NULL.
 *
 * Returns as `estafette_import`; `ESTAFETTE_INVALID` for another `writable` as well.
 *
 * The caller promises:
 * As for `estafette_import`.
 */
estafette_status estafette_import_legacy(struct estafette_engine *engine,
                                         DLManagedTensor *managed,
                                         int32_t writable,
                                         const DLFence *ready,
                                         struct estafette_tensor **out);

/**
 * A new tensor of zeros in host memory, in row-major order: `shape` has `ndim` lengths, and may be NULL when
 * `ndim` is 0. The caller owns `*out` and gives it up by `estafette_tensor_release`.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a shape that cannot be,
 * or a type that DLPack does not have; `ESTAFETTE_DEVICE` when memory is exhausted; `ESTAFETTE_SHUTDOWN`;
 * `ESTAFETTE_FORKED`. May be called by any thread.
 *
 * The caller promises:
 * Each pointer but handles is NULL or what its type says; `shape` has `ndim` entries.
 */
estafette_status estafette_zeros(struct estafette_engine *engine,
                                 const int64_t *shape,
                                 int32_t ndim,
                                 DLDataType dtype,
                                 struct estafette_tensor **out);

/**
 * As `estafette_zeros`, in memory that other processes can be shown, whatever the engine's other memory is.
 *
 * Returns as `estafette_zeros`; `ESTAFETTE_DEVICE` also where the system has no such memory. May be called
 * by any thread.
 *
 * The caller promises:
 * As for `estafette_zeros`.
 */
estafette_status estafette_zeros_shared(struct estafette_engine *engine,
                                        const int64_t *shape,
                                        int32_t ndim,
                                        DLDataType dtype,
                                        struct estafette_tensor **out);

/**
 * As `estafette_zeros_shared`, in memory that one other process at a time can also be lent for writing:
 * `access` of `estafette_send_options`. Each such tensor has a segment of its own, of which a link shows
 * 1,024 at a time.
 *
 * Returns as `estafette_zeros_shared`. May be called by any thread.
 *
 * The caller promises:
 * As for `estafette_zeros`.
 */
estafette_status estafette_zeros_shared_for_writing(struct estafette_engine *engine,
                                                    const int64_t *shape,
                                                    int32_t ndim,
                                                    DLDataType dtype,
                                                    struct estafette_tensor **out);

/**
 * As `estafette_zeros`, in memory of `device`, one of the engine's. The bytes are arbitrary; where the host
 * can use the memory they are zero.
 *
 * Returns as `estafette_zeros`; `ESTAFETTE_INVALID` for a device that the engine does not have as well;
 * `ESTAFETTE_NOT_SHARED` in an engine with `shared` if memory of the device cannot be shown to other
 * processes. May be called by any thread.
 *
 * The caller promises:
 * As for `estafette_zeros`.
 */
estafette_status estafette_empty(struct estafette_engine *engine,
                                 DLDevice device,
                                 const int64_t *shape,
                                 int32_t ndim,
                                 DLDataType dtype,
                                 struct estafette_tensor **out);

/**
 * Submits a copy of `tensor` to memory of `device`, in row-major order and without gaps. `*out` is a promise
 * of the copy, which the caller owns and gives up by `estafette_tensor_release`. The copy begins when the
 * current version is ready; no thread waits for a device.
 *
 * Returns as `estafette_submit`; `ESTAFETTE_INVALID` for NULL `out` as well, and `ESTAFETTE_DEVICE` when the
 * device gives no stream. A device that the engine does not have fails the copy. `*out` is written only on
 * success. May be called by any thread.
 *
 * The caller promises:
 * `out` is NULL or may be written. Handles may be any value.
 */
estafette_status estafette_copy(struct estafette_engine *engine,
                                const struct estafette_tensor *tensor,
                                DLDevice device,
                                struct estafette_tensor **out);

/**
 * Adds a reference to a tensor. NULL is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use; `ESTAFETTE_FORKED`. May be
 * called by any thread. `tensor` may be any value.
 */
estafette_status estafette_tensor_retain(struct estafette_tensor *tensor);

/**
 * Removes a reference to a tensor. When the last reference and the last operation that uses it are gone, and
 * its last device work is done, its memory goes back to its owner, on a thread of the library. NULL is legal
 * and does nothing. In a forked child the tensor is leaked.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as after the last release;
 * `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
 */
estafette_status estafette_tensor_release(struct estafette_tensor *tensor);

/**
 * As `estafette_tensor_release`, for a caller that has used the memory outside of operations and leases,
 * until `fence` is done: the memory's deleter, and every write of the engine that begins later, wait for it.
 * NULL `fence` means that the use is over. The fence is copied and retained, and stays the caller's. NULL
 * `tensor` is legal and does nothing.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, or a fence that breaks the
 * rules; on this and on `ESTAFETTE_FORKED` the caller still holds the tensor. May be called by any thread.
 *
 * The caller promises:
 * `fence` is NULL or what its type says. `tensor` may be any value.
 */
estafette_status estafette_tensor_release_after(struct estafette_tensor *tensor, const DLFence *fence);

/**
 * State of a tensor, at once.
 *
 * Returns `ESTAFETTE_OK` when its current version may be read; `ESTAFETTE_PENDING` while it is not finished;
 * `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED` with the root cause
 * when it has failed; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May
 * be called by any thread. `tensor` may be any value.
 */
estafette_status estafette_query(const struct estafette_tensor *tensor);

/**
 * Blocks until the version that is current at this call is finished, or for `timeout_ns`
 * (`ESTAFETTE_FOREVER` for no limit; 0 only looks). Without a limit it may run operations that the tensor
 * needs on this thread (see `estafette_set_helping`); with one it runs none, so that it is kept.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
 * or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK` when the
 * wait leads back to the operation that waits, or would block in a callback; `ESTAFETTE_INVALID` for NULL or
 * a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
 */
estafette_status estafette_wait(const struct estafette_tensor *tensor, uint64_t timeout_ns);

/**
 * Calls `callback` once, when the version that is current at this call is finished: before this returns if
 * it is already (in a callback: when that one has returned), else on whatever thread learns it, under no
 * lock. It must be short, must not block and must not throw: a call of this library that would block in it
 * returns `ESTAFETTE_WOULD_DEADLOCK` instead. `drop_context`, which may be NULL, is called once with
 * `context` afterwards.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `tensor` or `callback`, or a handle that is not in
 * use; `ESTAFETTE_FORKED`. On an error neither function is called and the caller keeps `context`. May be
 * called by any thread.
 *
 * The caller promises:
 * Both functions may be called by any thread. `tensor` may be any value.
 */
estafette_status estafette_on_ready(const struct estafette_tensor *tensor,
                                    estafette_ready_callback callback,
                                    void *context,
                                    estafette_drop drop_context);

/**
 * Declares the current version good after a failure or cancellation that has left the data intact.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_CONFLICT` while a write is unfinished; `ESTAFETTE_INVALID` for NULL or
 * a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
 */
estafette_status estafette_clear_error(const struct estafette_tensor *tensor);

/**
 * Begins a trace, which `estafette_trace_end` writes to the file `path`. Until then what is noted is also
 * written to a file beside it, several times a second: `run.pftrace.4711.unfinished` for process 4711, which
 * stays if the process ends before in any way. `estafette report` reads both. `options` may be NULL for the
 * defaults.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a path that is no UTF-8 or where no file can be
 * written, or a wrong option, such as a signal that the program handles; `ESTAFETTE_FORKED`. `*out` is
 * written only on success. May be called by any thread.
 *
 * The caller promises:
 * `path` is NULL or ends with a NUL; `options` is NULL or as long as its size says; `out` is NULL or may be
 * written.
 */
estafette_status estafette_trace_begin(const char *path,
                                       const struct estafette_trace_options *options,
                                       struct estafette_trace **out);

/**
 * Ends a trace and writes its file. The file has its old content until the new one is whole.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INTERNAL` when the file cannot be written: the text names the
 * unfinished file, which stays, and the trace is over all the same; `ESTAFETTE_INVALID` for NULL or a handle
 * that is not in use; `ESTAFETTE_FORKED`: there the trace is its parent's. May be called by any thread.
 * `trace` may be any value.
 */
estafette_status estafette_trace_end(struct estafette_trace *trace);

/**
 * Writes what a trace has so far to the file `path`, and goes on.
 *
 * Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or a file that cannot
 * be written, which is as it was before; `ESTAFETTE_FORKED`. May be called by any thread. `trace` may be any
 * value.
 *
 * The caller promises:
 * `path` is NULL or ends with a NUL.
 */
estafette_status estafette_trace_snapshot(struct estafette_trace *trace, const char *path);

/**
 * The version of the library that is loaded, as numbers. Each pointer may be NULL.
 *
 * May be called by any thread, and in a forked child.
 *
 * The caller promises:
 * Each pointer is NULL or may be written.
 */
void estafette_version(uint32_t *major, uint32_t *minor);

/**
 * The version of the library that is loaded, as text, with all its parts: "0.1.0". It lives as long as the
 * process.
 */
const char *estafette_version_text(void);

/**
 * Frees a text that a function of this library has made for the caller. NULL is legal.
 *
 * The caller promises:
 * NULL, or a text that `estafette_diagnose` or another function that says so has given, not freed before.
 */
void estafette_string_free(char *text);

/**
 * The functions of this library, with the version of the interface in front. Members that are words of C++
 * have a `_` at the end. A new minor version adds functions at the end, and `size` grows.
 */
struct estafette_api {
  uint32_t size;
  uint32_t version_major;
  uint32_t version_minor;
  uint32_t reserved;
  void (*version)(uint32_t *major, uint32_t *minor);
  const char *(*version_text)(void);
  const struct estafette_api *(*get_api)(void);
  void (*string_free)(char *text);
  const char *(*last_error)(void);
  estafette_status (*clear_error)(const struct estafette_tensor *tensor);
  const char *(*status_text)(int32_t status);
  estafette_status (*set_log)(int32_t level, estafette_log_callback callback, void *context, estafette_drop drop_context);
  estafette_status (*engine_create)(const struct estafette_engine_options *options, struct estafette_engine **out);
  estafette_status (*engine_destroy)(struct estafette_engine *engine);
  estafette_status (*engine_shutdown)(struct estafette_engine *engine, uint64_t timeout_ns);
  estafette_status (*wait_all)(struct estafette_engine *engine, uint64_t timeout_ns);
  estafette_status (*diagnose)(struct estafette_engine *engine, char **out);
  estafette_status (*engine_stats)(struct estafette_engine *engine, struct estafette_stats *stats);
  estafette_status (*flush_deleters)(uint64_t timeout_ns);
  int32_t (*set_helping)(int32_t allowed);
  estafette_status (*import_)(struct estafette_engine *engine, DLManagedTensorVersioned *managed, const DLFence *ready, struct estafette_tensor **out);
  estafette_status (*import_fenced)(struct estafette_engine *engine, DLManagedTensorFenced *fenced, struct estafette_tensor **out);
  estafette_status (*zeros)(struct estafette_engine *engine, const int64_t *shape, int32_t ndim, DLDataType dtype, struct estafette_tensor **out);
  estafette_status (*tensor_retain)(struct estafette_tensor *tensor);
  estafette_status (*tensor_release)(struct estafette_tensor *tensor);
  estafette_status (*tensor_release_after)(struct estafette_tensor *tensor, const DLFence *fence);
  estafette_status (*query)(const struct estafette_tensor *tensor);
  estafette_status (*wait)(const struct estafette_tensor *tensor, uint64_t timeout_ns);
  estafette_status (*on_ready)(const struct estafette_tensor *tensor, estafette_ready_callback callback, void *context, estafette_drop drop_context);
  estafette_status (*tensor_shape)(const struct estafette_tensor *tensor, int64_t *shape, int32_t capacity, int32_t *ndim);
  estafette_status (*tensor_dtype)(const struct estafette_tensor *tensor, DLDataType *out);
  estafette_status (*tensor_device)(const struct estafette_tensor *tensor, DLDevice *out);
  estafette_status (*tensor_data)(const struct estafette_tensor *tensor, void **out);
  estafette_status (*tensor_read_only)(const struct estafette_tensor *tensor, int32_t *out);
  estafette_status (*tensor_lend)(const struct estafette_tensor *tensor, DLTensor *out);
  estafette_status (*tensor_fence)(const struct estafette_tensor *tensor, DLFence *out);
  estafette_status (*writable_fence)(const struct estafette_tensor *tensor, DLFence *out);
  estafette_status (*order_on)(const struct estafette_tensor *tensor, int32_t access, DLDevice device, void *stream, struct estafette_lease **out);
  estafette_status (*export_)(const struct estafette_tensor *tensor, const struct estafette_export_options *options, DLManagedTensorVersioned **out);
  estafette_status (*export_fenced)(const struct estafette_tensor *tensor, int32_t access, DLManagedTensorFenced **out);
  estafette_status (*op_export)(struct estafette_op *op, const struct estafette_tensor *tensor, DLManagedTensorVersioned **out);
  estafette_status (*lease_fence)(const struct estafette_lease *lease, DLFence *out);
  estafette_status (*lease_release)(struct estafette_lease *lease, const DLFence *done);
  estafette_status (*submit)(struct estafette_engine *engine, const char *name, estafette_function function, void *context, estafette_drop drop_context, struct estafette_tensor *const *reads, size_t n_reads, struct estafette_tensor *const *writes, size_t n_writes);
  estafette_status (*submit_with)(struct estafette_engine *engine, const struct estafette_submit_options *options, estafette_function function, void *context, estafette_drop drop_context, struct estafette_tensor *const *reads, size_t n_reads, struct estafette_tensor *const *writes, size_t n_writes, struct estafette_op **out);
  estafette_status (*produce)(struct estafette_engine *engine, const struct estafette_submit_options *options, estafette_function function, void *context, estafette_drop drop_context, struct estafette_tensor *const *reads, size_t n_reads, struct estafette_tensor **out);
  estafette_status (*op_complete)(struct estafette_op *op, int32_t status, const char *message);
  estafette_status (*op_stream)(struct estafette_op *op, void **stream);
  estafette_status (*op_complete_after)(struct estafette_op *op, const DLFence *fence);
  estafette_status (*op_complete_with)(struct estafette_op *op, DLManagedTensorVersioned *managed);
  estafette_status (*op_retain)(struct estafette_op *op);
  estafette_status (*op_release)(struct estafette_op *op);
  estafette_status (*op_query)(struct estafette_op *op);
  estafette_status (*op_wait)(struct estafette_op *op, uint64_t timeout_ns);
  estafette_status (*op_cancel)(struct estafette_op *op);
  estafette_status (*op_fence)(struct estafette_op *op, DLFence *out);
  estafette_status (*promise_create)(const char *name, struct estafette_promise **out, DLFence *fence);
  estafette_status (*promise_settle)(struct estafette_promise *promise, int32_t status, const char *message);
  estafette_status (*promise_drop)(struct estafette_promise *promise);
  estafette_status (*program_begin)(struct estafette_engine *engine, const char *name, struct estafette_program **out);
  estafette_status (*program_add)(struct estafette_program *program, const struct estafette_submit_options *options, estafette_function function, void *context, estafette_drop drop_context, struct estafette_tensor *const *reads, size_t n_reads, struct estafette_tensor *const *writes, size_t n_writes);
  estafette_status (*program_finish)(struct estafette_program *program, int32_t graph);
  estafette_status (*program_replay)(struct estafette_program *program, int32_t nonblocking, struct estafette_op **out);
  estafette_status (*program_destroy)(struct estafette_program *program);
  estafette_status (*register_context)(DLDeviceType device_type, void *native_handle, int32_t *device_id);
  estafette_status (*unregister_context)(DLDeviceType device_type, int32_t device_id);
  estafette_status (*resolve_context)(DLDeviceType device_type, int32_t device_id, void **native_handle);
  estafette_status (*register_operator)(const char *name, estafette_operator_function function, const struct estafette_operator_options *options, void *context, estafette_drop drop_context);
  estafette_status (*unregister_operator)(const char *name);
  estafette_status (*load_operators)(const char *path, size_t *count);
  estafette_status (*list_operators)(estafette_operator_callback callback, void *context);
  estafette_status (*call_operator)(struct estafette_engine *engine, const char *name, struct estafette_tensor *const *inputs, size_t n_inputs, struct estafette_tensor **outputs, size_t n_outputs, const struct estafette_attribute *attributes, size_t n_attributes);
  estafette_status (*trace_begin)(const char *path, const struct estafette_trace_options *options, struct estafette_trace **out);
  estafette_status (*trace_snapshot)(struct estafette_trace *trace, const char *path);
  estafette_status (*trace_end)(struct estafette_trace *trace);
  estafette_status (*import_legacy)(struct estafette_engine *engine, DLManagedTensor *managed, int32_t writable, const DLFence *ready, struct estafette_tensor **out);
  estafette_status (*export_legacy)(const struct estafette_tensor *tensor, const struct estafette_export_options *options, DLManagedTensor **out);
  estafette_status (*zeros_shared)(struct estafette_engine *engine, const int64_t *shape, int32_t ndim, DLDataType dtype, struct estafette_tensor **out);
  estafette_status (*ticket_create)(const struct estafette_tensor *tensor, const struct estafette_ticket_options *options, struct estafette_ticket **out);
  estafette_status (*ticket_bytes)(const struct estafette_ticket *ticket, uint8_t *bytes, size_t capacity, size_t *size);
  estafette_status (*ticket_revoke)(struct estafette_ticket *ticket);
  estafette_status (*from_ticket)(struct estafette_engine *engine, const uint8_t *bytes, size_t size, struct estafette_tensor **out);
  estafette_status (*door_open)(struct estafette_door **out);
  estafette_status (*door_address)(const struct estafette_door *door, char **out);
  estafette_status (*door_accept)(const struct estafette_door *door, struct estafette_engine *engine, uint64_t timeout_ns, struct estafette_link **out);
  estafette_status (*door_close)(struct estafette_door *door);
  estafette_status (*connect)(struct estafette_engine *engine, const char *address, uint64_t timeout_ns, struct estafette_link **out);
  estafette_status (*link_process)(const struct estafette_link *link, uint32_t *out);
  estafette_status (*link_send)(const struct estafette_link *link, const struct estafette_tensor *tensor, const struct estafette_send_options *options, uint64_t timeout_ns);
  estafette_status (*link_receive)(const struct estafette_link *link, uint64_t timeout_ns, struct estafette_tensor **out);
  estafette_status (*link_descriptor)(const struct estafette_link *link, int32_t *out);
  estafette_status (*link_close)(struct estafette_link *link);
  estafette_status (*declare_dead)(const char *host, uint32_t process);
  estafette_status (*produce_with)(struct estafette_engine *engine, const struct estafette_submit_options *options, estafette_function function, void *context, estafette_drop drop_context, struct estafette_tensor *const *reads, size_t n_reads, struct estafette_tensor **out, struct estafette_op **op);
  estafette_status (*call_operator_with)(struct estafette_engine *engine, const struct estafette_submit_options *options, const char *name, struct estafette_tensor *const *inputs, size_t n_inputs, struct estafette_tensor **outputs, size_t n_outputs, const struct estafette_attribute *attributes, size_t n_attributes, struct estafette_op **op);
  estafette_status (*wait_any)(struct estafette_op *const *ops, size_t n_ops, struct estafette_tensor *const *tensors, size_t n_tensors, uint64_t timeout_ns, size_t *out);
  estafette_status (*order_on_with)(const struct estafette_tensor *tensor, const struct estafette_export_options *options, struct estafette_lease **out);
  estafette_status (*lease_all)(struct estafette_engine *engine, struct estafette_tensor *const *tensors, const int32_t *accesses, size_t n, const struct estafette_export_options *options, struct estafette_lease **out);
  estafette_status (*copy)(struct estafette_engine *engine, const struct estafette_tensor *tensor, DLDevice device, struct estafette_tensor **out);
  estafette_status (*empty)(struct estafette_engine *engine, DLDevice device, const int64_t *shape, int32_t ndim, DLDataType dtype, struct estafette_tensor **out);
  estafette_status (*run_ready)(struct estafette_engine *engine, int32_t *ran);
  estafette_status (*ticket_release)(struct estafette_ticket *ticket);
  estafette_status (*zeros_shared_for_writing)(struct estafette_engine *engine, const int64_t *shape, int32_t ndim, DLDataType dtype, struct estafette_tensor **out);
};

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ESTAFETTE_H */

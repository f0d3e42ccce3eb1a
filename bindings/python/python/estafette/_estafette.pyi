"""The extension behind the package `estafette`."""

import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer, CapsuleType, Self, Unpack

from ._dtype import DType
from ._errors import OperationError
from ._reports import Device, DeviceInfo, Diagnosis, Peer, ShutdownReport, Stats, UnorderedExchange
from .typing import (
    Body,
    CallOptions,
    DeviceLike,
    DtypeLike,
    FutureLike,
    Like,
    ShapeLike,
    StreamLike,
    SubmitOptions,
    Submitter,
    SupportsArrow,
    SupportsDLPack,
    Using,
)

__all__ = ["Access", "Door", "Engine", "Exporter", "Link", "Operation", "Operator", "Operators", "Program", "Tensor", "Ticket", "Variable", "View", "__version__", "_after_fork_in_child", "_after_fork_in_parent", "_at_exit", "_before_fork", "_before_threads_end", "_begin_trace", "_call_back", "_check_interpreter", "_check_output", "_command", "_device_text", "_dtype_name", "_end_trace", "_engine_states", "_failed", "_from_tickets", "_hold_barriers", "_kept_errors", "_kind_modules", "_may_block", "_read_chrome", "_read_report", "_replace_file", "_run_in_spans", "_set_helping", "_set_program_name", "_shown", "_snapshot_trace", "_stand_for", "_wait_any", "_write_observation", "c_api", "declare_dead", "devices", "engine_from_c", "peers", "record_call_sites", "register_context", "unordered_exchanges", "unregister_context"]

__version__: str

_Function = TypeVar("_Function", bound=Callable[..., Any])
_P = ParamSpec("_P")
_T_co = TypeVar("_T_co", covariant=True)
_Names: TypeAlias = str | Iterable[str]
_Tensors: TypeAlias = Tensor | Iterable[Tensor]
_Operands: TypeAlias = Tensor | Variable | Iterable[Tensor | Variable]

@final
class Engine:
    """Schedules operations in the order that their data demands.

    The results are the same as if the operations had run one by one in the order of submission. As a context
    manager, it waits at the end of the block until everything submitted has ended::

        >>> with est.Engine(workers=2) as eng:
        ...     x = eng.from_dlpack(np.arange(3.0))
        ...     y = eng.call(np.square, x, using=np.from_dlpack)
        ...     eng.submit(lambda y: np.add(y, 1, out=y), writes=[y], using=np.from_dlpack)
        ...     np.from_dlpack(y).tolist()
        <estafette.Operation ...>
        [1.0, 2.0, 5.0]

    workers: threads for operations, at most 1,024; default one per core. Python functions share the
        interpreter's lock, so the engine measures how many of its workers run at once with the best
        throughput. With 0, operations run on threads that wait without a timeout, and on threads that submit
        once 32 operations are ready; for an ``await``, a callback or a wait with a timeout the engine starts
        a thread. A program that only asks `done` or `is_ready` runs none.
    in_flight_limit: operations in flight before a submission waits; default 4,096.
    lease_timeout: seconds that leases alone may hold up a wait (blocking or ``await``), or a submission at
        the in-flight limit, before the wait raises `LeaseHeldError`; default 30. A blocking wait for a lease
        of the same thread raises at once. A submission raises `WouldDeadlockError` at once if only such
        leases keep the in-flight limit reached.
    watchdog: seconds after which the logger ``estafette`` of `logging` logs, once each, a stalled operation
        or a deleter that does not return, with its line of `diagnose()`; default None, never.
    failures: what happens to an *unretrieved* failure of an operation: no wait, no ``await`` and no use of
        the operation's outputs has raised it. ``"raise"``, the default: the failure is reported when the
        operation's last tensor or `Operation` object is dropped, at the level *error* of the logger
        ``estafette`` (if logging is configured) and by `sys.unraisablehook`; the end of the block, or
        `shutdown`, raises the failure, several failures as an ``ExceptionGroup``. If the block raises another
        exception, the end of the block reports the failures instead. ``"log"``: the failure is reported and
        never raised. ``"ignore"``: neither. Cancelled operations are not failures.
    stack_size: bytes of stack of each thread that runs operations, from 64 KiB to 1 TiB, or 0 for the
        system's size (``ulimit -s``; 8 MiB if unlimited, and 2 MiB at least); default the value of
        `threading.stack_size` when the engine is made, as for Python's own threads.
    using: the function that makes arrays of tensors, for calls that name none, for example
        ``np.from_dlpack``. Without it functions get the tensors themselves, except for those of a library, as
        ``np.add``, which get its own arrays, also where the engine's is the ``from_dlpack`` of another
        library. NumPy's functions, which take arrays of others, get what the engine's makes.
    shared: True if other processes can be shown all memory that the engine makes, of the host and of CUDA
        devices; default False.
    """

    def __new__(
        cls,
        workers: int | None = None,
        *,
        in_flight_limit: int | None = None,
        lease_timeout: float | None = None,
        watchdog: float | None = None,
        failures: Literal["raise", "log", "ignore"] | None = None,
        stack_size: int | None = None,
        using: Using | None = None,
        shared: bool = False,
    ) -> Self: ...
    @property
    def workers(self) -> int:
        """Number of worker threads."""
    @property
    def operators(self) -> Operators:
        """The operators of this process, by name. Calls through this mapping run in this engine."""
    def from_dlpack(
        self,
        x: SupportsDLPack | CapsuleType | Buffer,
        /,
        *,
        device: DeviceLike | None = None,
        copy: bool | None = None,
        writable: bool | None = None,
        freed_on: StreamLike | None = None,
    ) -> Tensor:
        """Returns a promise of the memory behind `x`, without a copy. `x` is an object that speaks DLPack, a raw
        capsule, or an object with a buffer of numbers, such as `bytearray`, `array.array` and `memoryview`.

        The engine orders memory that overlaps known tensors with these tensors. An Estafette tensor is
        returned as it is. The call does not wait for an object with ``__dlpack_fence__``: the tensor is
        ready when the fence of that object is done. With ``writable=True`` or `freed_on`, and with
        ``writable=False`` where `device` or ``copy=True`` asks for a copy, the call takes such an object by
        ``__dlpack__``, which may wait.

        device: device of the result; default the device of `x`. With `device`, and without ``copy=True``, the
            call waits for a promise whose device is not known yet.
        copy: True always copies, False never copies, None copies only if necessary.
        writable: whether operations may write the memory. Default: the producer's flag. A DLPack struct
            before version 1.0 has no such flag, so the default for it is False, unless `est.peers()` lists
            the library as one that allows writes. True: the caller vouches that writes are allowed; raises
            `BufferError` if the producer declares the memory read-only or never changes its arrays. False:
            operations may not write, also not a copy that `x` makes. A copy that the engine makes is
            writable.
        freed_on: the CUDA stream in whose order the allocator of `x` reuses its memory: a handle, or an
            object with ``__cuda_stream__``, which the tensor keeps. For PyTorch and CuPy, this stream is the
            one that was current when the memory was *allocated*. The caller vouches for the stream. The
            engine then releases the memory as soon as that stream waits for the last use, instead of after
            the last use.

            >>> x = np.zeros(4, "float32")
            >>> t = eng.from_dlpack(x)
            >>> t.shape, t.dtype, t.data_ptr == x.ctypes.data
            ((4,), 'float32', True)
        """
    def from_future(
        self,
        future: FutureLike,
        /,
        *,
        alias_of: _Tensors | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A promise of what a future of another scheduler will deliver: an array, or anything else that speaks
        DLPack, adopted as the result of `call` is. Returns at once; operations on the tensor wait for the
        future.

        future: what has ``add_done_callback`` (`concurrent.futures`, Dask, PyTorch), on any thread and
            without blocking one; an asyncio future or task, while its loop runs; a coroutine or another
            awaitable, which becomes a task of the running loop. Without such a loop it raises `RuntimeError`.
            Where its result is a promise, as from a pool of processes, that is waited for too.
        alias_of, like, copy: as in `call`.

        The wait for the future is an operation in flight, called `name`: it has a permit, `wait_all` and
        `shutdown` wait for it, and `diagnose` lists it. If the future fails, so does the operation, with the
        exception as ``__cause__``; a cancelled future raises `CancelledError`. A future that is dropped
        before it has a result fails it too, unless a callback of the tensor keeps the future. Giving up a
        wait for the tensor cancels nothing.

            >>> from concurrent.futures import ThreadPoolExecutor
            >>> with ThreadPoolExecutor() as pool:
            ...     t = eng.from_future(pool.submit(np.arange, 3))
            ...     doubled = eng.call(lambda x: x * 2, t, using=np.from_dlpack)
            ...     np.from_dlpack(doubled).tolist()
            [0, 2, 4]

        On an event loop::

            >>> async def fetch():
            ...     await asyncio.sleep(0)
            ...     return np.ones(2)
            >>> async def main():
            ...     t = eng.from_future(fetch())
            ...     return np.from_dlpack(await t).tolist()
            >>> asyncio.run(main())
            [1.0, 1.0]
        """
    def from_mxnet(self, array: Any, /, *, write: bool = False, name: str | None = None) -> Tensor:
        """A promise of the memory of an array of MXNet 1.9, without a copy, and without waiting for MXNet's
        engine: the tensor is ready when the writes are done that MXNet was asked for before this call.
        Operations chain on it meanwhile.

        The other way round, MXNet's engine waits for us: what it is asked for afterwards begins to write the
        array when the tensor, and every view of it, is gone. With ``write=True`` operations may write the
        tensor, and MXNet's readers wait as well.

        The wait for MXNet is an operation in flight, called `name`, as with `from_future`. If an operation of
        MXNet failed before, so does it.

            >>> import mxnet as mx                                       # doctest: +SKIP
            >>> x = mx.nd.ones((1000, 1000))                             # doctest: +SKIP
            >>> t = eng.from_mxnet(mx.nd.dot(x, x))                      # doctest: +SKIP
            >>> y = eng.call(np.sqrt, t, using=np.from_dlpack)           # doctest: +SKIP
        """
    def from_arrow(self, x: SupportsArrow | tuple[CapsuleType, CapsuleType], /) -> Tensor:
        """Returns a promise of the memory behind an Arrow array, without a copy: an object with
        ``__arrow_c_device_array__`` or ``__arrow_c_array__`` (an array of pyarrow, nanoarrow, ...), a pair of
        their capsules, or an object with ``__arrow_c_stream__`` that has one chunk (a column of a table of
        pyarrow, a series of polars or pandas).

        The tensor has one dimension and is read-only, as Arrow's memory never changes. The array must have
        integers or floats and no nulls; `InvalidTensorError` names what a tensor cannot have.
        """
    def empty(
        self, shape: ShapeLike, dtype: DtypeLike, *, device: DeviceLike | None = None, shared: bool | Literal["write"] = False
    ) -> Tensor:
        """Returns a tensor of the given shape and element type, for operations to fill: in host memory, or in
        memory of `device`, for example ``"sycl:cpu"``. With `shared`, other processes can be shown the
        memory, which is on the host or a CUDA device, else `NotSharedError`; with ``"write"``, on the host
        alone, another process can also be lent it for writing (`Link.send`).
        """
    def zeros(self, shape: ShapeLike, dtype: DtypeLike, *, shared: bool | Literal["write"] = False) -> Tensor:
        """Returns a tensor of zeros in host memory. `shared` is as for `empty`."""
    def door(self) -> Door:
        """Opens a door, where other processes of the same user on this machine make links to this one. What they
        send becomes tensors of this engine.
        """
    def connect(self, address: str, /, timeout: float | None = None) -> Link:
        """Makes a link to the process with a door at `address`, in at most `timeout` seconds."""
    def connect_async(self, address: str, /) -> Awaitable[Link]:
        """As `connect`, to be awaited."""
    def from_ticket(self, ticket: Ticket | bytes, /) -> Tensor:
        """Returns a promise of the tensor that a ticket of another process names: a `Ticket`, or the bytes of
        one. It is read-only and has its memory in that process. Returns at once. The tensor fails if that
        process has died, or has revoked the ticket.
        """
    def var(self) -> Variable:
        """Returns a variable: an object without memory that operations are ordered by."""
    def c_handle(self) -> int:
        """Returns a handle of the engine for C, an ``estafette_engine*`` as an integer. The caller owns it, and
        gives it up by ``estafette_engine_destroy``, which leaves the engine as it is for Python.
        """
    def tensor_from_c(self, handle: int) -> Tensor:
        """Returns the tensor of a handle from C, an ``estafette_tensor*`` as an integer. The handle stays its
        owner's. The tensor is ordered with all uses of it, in C and here; no memory is exchanged. Raises
        `ValueError` for what is no such handle.
        """
    def operation_from_c(self, handle: int) -> Operation:
        """Returns the operation of a handle from C, an ``estafette_op*`` as an integer. The handle stays its
        owner's. Raises `ValueError` for what is no handle of a submitted operation.
        """
    def submit(
        self,
        fn: Body,
        *,
        reads: _Operands | None = None,
        writes: _Operands | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        on_skip: Callable[[OperationError], object] | None = None,
    ) -> Operation:
        """Submits an operation: ``fn(*reads, *writes)``, each passed through `using` first, for example
        ``np.from_dlpack``. Both lists are given by name. `call` takes arguments as ``Executor.submit`` does.

        Returns at once. The function runs when everything submitted before on its operands has come far
        enough: reads see what earlier writes left, writes have the memory to themselves. A tensor in both
        lists is updated in place. What the function returns is ignored; what it raises is raised again where
        the operation or what it writes is awaited. An ``async def`` function, and a coroutine that the
        function returns, run as a task on the event loop of the submitter; a generator function is refused.

        Among operations that are ready, those of higher `priority` are started first. Priorities age: while
        operations with a priority wait, of any 64 that are taken to be run at least one is an ordinary one
        (priority 0) if one is ready, one of the oldest; and at least one is the oldest of those with a
        priority other than 0. An operation and those that it makes ready, one after the other and up to 32,
        count as one.

        An operation is skipped if an input has failed, or if it is cancelled. Then `on_skip` is called in the
        operation's turn, on a worker, with the exception that awaiting the operation raises. Collective
        operations need it: all ranks take part in them, or all must learn why not, for example by an abort of
        the communicator. The operation fails by the same cause as without it; what `on_skip` raises goes to
        `sys.unraisablehook`. What `fn` and `using` raise is no skip.

            >>> y = eng.zeros(3, "int64")
            >>> op = eng.submit(lambda y: y.fill(7), writes=[y], using=np.from_dlpack, name="fill")
            >>> op.wait()
            >>> op.name, np.from_dlpack(y).tolist()
            ('fill', [7, 7, 7])

            >>> grad = eng.zeros(3, "float64")
            >>> comm, causes = eng.var(), []
            >>> op = eng.submit(lambda grad: 1 / 0, writes=[grad], name="backward")
            >>> op = eng.submit(print, reads=[grad], writes=[grad, comm], on_skip=causes.append)
            >>> op.exception().operation, causes[0].operation
            ('backward', 'backward')
        """
    def program(self, name: str | None = None, *, graph: bool = False) -> Program:
        """Begins to record a program: operations that are described once and replayed often, each time as one
        operation called `name`. See `Program`.

        graph: one graph of its CUDA device, launched by one call of the driver per replay. Then all nodes
            name that device or queues of the engine there with `on`, and the first replay calls the
            functions, once each, while what they launch is recorded and not run; no later replay calls them.
            So what they read on the host stays as it was then. They must write into their operands: memory
            that they allocate while they are recorded may be given to others afterwards, and every replay
            would write there.

            >>> y = eng.zeros(2, "int64")
            >>> with eng.program("count") as count:
            ...     count.submit(lambda y: np.add(y, 1, out=y), writes=[y], using=np.from_dlpack)
            >>> for _ in range(10):
            ...     op = count.replay()
            >>> op.name, np.from_dlpack(y).tolist()
            ('count', [10, 10])
        """
    def submit_async(
        self,
        fn: Body,
        *,
        reads: _Operands | None = None,
        writes: _Operands | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        on_skip: Callable[[OperationError], object] | None = None,
    ) -> Awaitable[Operation]:
        """As `submit`, but waits for a permit without stopping the event loop:
        ``op = await eng.submit_async(...)``. Submits nothing before the ``await``: an awaitable that is
        dropped without one warns of that, with a ``RuntimeWarning``, as a coroutine does.
        """
    # A call without options is checked: positional arguments may have any type, since tensors stand in the place of
    # arrays, but their number must be right, and keyword arguments must be those of the function. A call with options
    # is not: no keyword parameter can stand beside `*args: P.args`. So each overload for such calls requires an option.
    @overload
    def call(
        self, fn: Callable[Concatenate[Any, Any, Any, Any, _P], object], a: Any, b: Any, c: Any, d: Any, /,
        *args: _P.args, **kwargs: _P.kwargs
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Callable[Concatenate[Any, Any, Any, _P], object], a: Any, b: Any, c: Any, /,
        *args: _P.args, **kwargs: _P.kwargs
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Callable[Concatenate[Any, Any, _P], object], a: Any, b: Any, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Callable[Concatenate[Any, _P], object], a: Any, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Tensor: ...
    @overload
    def call(  # type: ignore[overload-overlap]
        self, fn: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, a: Any, b: Any, c: Any, d: Any, e: Any, /, *args: Any, using: Using | None = None,
        alias_of: _Tensors | None = None, like: Like | None = None, copy: bool | None = None, outputs: None = None,
        name: str | None = None, on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None, alias_of: _Tensors | None = None, like: Like | None = None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None, like: Like | None = None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: Like | None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None, priority: int = 0, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int, **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: None = None,
        copy: bool | None = None, outputs: Literal[0], name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Operation: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: list[Like] | None = None, copy: bool | None = None, outputs: int, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: dict[str, Like] | None = None, copy: bool | None = None, outputs: list[str] | tuple[str, ...],
        name: str | None = None, on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> dict[str, Tensor]: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: list[Like],
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def call(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: dict[str, Like], copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Submits an operation whose result becomes a new tensor, and returns the promise of it at once.

        Tensors may be anywhere among the arguments, in lists, tuples, dicts, deques and dataclasses too, and
        among the arguments of a `functools.partial`, also where that is `fn`. The function gets an array in
        place of each, which `using` makes, for example ``np.from_dlpack``. A tensor in a set or in a view of
        a dict raises `TypeError`. Everything else is passed on as it is. A keyword argument of the function
        that has the name of an option here raises `TypeError`: it is given by `functools.partial`, or to what
        `wrap` makes. (For NumPy's functions with a `like`, ``(shape, dtype)`` is the option.) What the
        function returns (anything that speaks DLPack) becomes the promise's memory, without a copy. A result
        that overlaps memory already known is copied, unless `alias_of` names the tensors that it is a view
        of; with ``copy=False`` that is a failure instead, and ``copy=True`` always copies. `like`, a
        ``(shape, dtype)`` pair or something with these two attributes, declares shape and dtype, so that they
        are known at once. An ``async def`` function runs as a task on the event loop of the submitter.

        The function may return several arrays, in tuples, lists, dicts, deques and dataclasses, and what is
        no array: a number, text, bytes, any other object, or nothing. The promise is unpacked as what it
        returns (``a, b = eng.call(...)``, ``t["loss"]``, ``await t``), with a promise in place of each array.
        That waits for the function, unless the results are declared:

        outputs: the number of arrays that the function returns in a tuple or list, at most 65,536, or a list
            of their names in a dict. `call` then returns a tuple or dict of promises at once; for 0 an
            `Operation`.
        like: a list or dict of what each output is like declares them too.
        using: makes an array of a tensor; default the ``from_dlpack`` of the library whose function `fn` is,
            or of whose class, and else the engine's. Functions of OpenCV, SciPy, scikit-learn, scikit-image,
            Pillow, Numba and pandas get arrays of NumPy. An engine's that is no library's own ``from_dlpack``
            comes first.

        Type checkers compare a call that has no options with the parameters of the function: the number of up
        to four positional arguments, which may have any type, since tensors stand in the place of arrays, and
        names and types of keyword arguments. With options nothing is compared; `wrap` takes them apart from
        the arguments.

            >>> a = eng.from_dlpack(np.eye(2))
            >>> np.from_dlpack(eng.call(np.sum, [a, a], axis=0)).tolist()
            [[2.0, 0.0], [0.0, 2.0]]
            >>> quotient, rest = eng.call(np.divmod, a, 3, outputs=2)
            >>> np.from_dlpack(rest).tolist()
            [[1.0, 0.0], [0.0, 1.0]]
            >>> b = eng.call(np.add, a, a, like=((2, 2), "float64"))
            >>> b.shape                       # declared, so it is known before it is there
            (2, 2)
            >>> np.from_dlpack(b).tolist()
            [[2.0, 0.0], [0.0, 2.0]]
        """
    @overload
    def call_async(
        self, fn: Callable[Concatenate[Any, Any, Any, Any, _P], object], a: Any, b: Any, c: Any, d: Any, /,
        *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Callable[Concatenate[Any, Any, Any, _P], object], a: Any, b: Any, c: Any, /,
        *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Callable[Concatenate[Any, Any, _P], object], a: Any, b: Any, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Callable[Concatenate[Any, _P], object], a: Any, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(  # type: ignore[overload-overlap]
        self, fn: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, a: Any, b: Any, c: Any, d: Any, e: Any, /, *args: Any, using: Using | None = None,
        alias_of: _Tensors | None = None, like: Like | None = None, copy: bool | None = None, outputs: None = None,
        name: str | None = None, on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None, alias_of: _Tensors | None = None, like: Like | None = None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None, like: Like | None = None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: Like | None,
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: Like | None = None, copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int, **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: None = None,
        copy: bool | None = None, outputs: Literal[0], name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[Operation]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: list[Like] | None = None, copy: bool | None = None, outputs: int, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[tuple[Tensor, ...]]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: dict[str, Like] | None = None, copy: bool | None = None, outputs: list[str] | tuple[str, ...],
        name: str | None = None, on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[dict[str, Tensor]]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None, like: list[Like],
        copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[tuple[Tensor, ...]]: ...
    @overload
    def call_async(
        self, fn: Body, /, *args: Any, using: Using | None = None, alias_of: _Tensors | None = None,
        like: dict[str, Like], copy: bool | None = None, outputs: None = None, name: str | None = None,
        on: DeviceLike | object | None = None, priority: int = 0, **kwargs: Any,
    ) -> Awaitable[dict[str, Tensor]]:
        """As `call`, but waits for a permit without stopping the event loop: ``z = await eng.call_async(...)``
        gives the promise. A forgotten ``await`` warns, as that of `submit_async` does.
        """
    @overload
    def wrap(
        self, fn: Callable[_P, object], /, *, outputs: None = None, like: Like | None = None,
        **options: Unpack[CallOptions]
    ) -> Submitter[_P, Tensor]: ...
    @overload
    def wrap(  # type: ignore[overload-overlap]
        self, fn: Callable[_P, object], /, *, outputs: Literal[0], like: None = None, **options: Unpack[CallOptions]
    ) -> Submitter[_P, Operation]: ...
    @overload
    def wrap(
        self, fn: Callable[_P, object], /, *, outputs: int, like: list[Like] | None = None,
        **options: Unpack[CallOptions]
    ) -> Submitter[_P, tuple[Tensor, ...]]: ...
    @overload
    def wrap(
        self, fn: Callable[_P, object], /, *, outputs: list[str] | tuple[str, ...], like: dict[str, Like] | None = None,
        **options: Unpack[CallOptions]
    ) -> Submitter[_P, dict[str, Tensor]]: ...
    @overload
    def wrap(
        self, fn: Callable[_P, object], /, *, outputs: None = None, like: list[Like], **options: Unpack[CallOptions]
    ) -> Submitter[_P, tuple[Tensor, ...]]: ...
    @overload
    def wrap(
        self, fn: Callable[_P, object], /, *, outputs: None = None, like: dict[str, Like],
        **options: Unpack[CallOptions]
    ) -> Submitter[_P, dict[str, Tensor]]:
        """Returns a function that submits a call of `fn` with its arguments, and returns the promise of its
        result. `options` are those of `call`. Type checkers compare calls with the parameters of `fn`, see
        `estafette.typing.Submitter`.

            >>> add = eng.wrap(np.add)
            >>> np.from_dlpack(add(eng.from_dlpack(np.arange(3)), 1)).tolist()
            [1, 2, 3]
        """
    @overload
    def op(self, fn: Callable[_P, object], /) -> Submitter[_P, Tensor]: ...
    @overload
    def op(
        self, fn: None = None, /, *, reads: _Names | None = None, writes: _Names, **options: Unpack[SubmitOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, Operation]]: ...
    @overload
    def op(
        self, *, reads: _Names | None = None, writes: None = None, outputs: None = None, like: Like | None = None,
        **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, Tensor]]: ...
    @overload
    def op(  # type: ignore[overload-overlap]
        self, *, reads: _Names | None = None, writes: None = None, outputs: Literal[0], like: None = None,
        **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, Operation]]: ...
    @overload
    def op(
        self, *, reads: _Names | None = None, writes: None = None, outputs: int, like: list[Like] | None = None,
        **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, tuple[Tensor, ...]]]: ...
    @overload
    def op(
        self, *, reads: _Names | None = None, writes: None = None, outputs: list[str] | tuple[str, ...],
        like: dict[str, Like] | None = None, **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, dict[str, Tensor]]]: ...
    @overload
    def op(
        self, *, reads: _Names | None = None, writes: None = None, outputs: None = None, like: list[Like],
        **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, tuple[Tensor, ...]]]: ...
    @overload
    def op(
        self, *, reads: _Names | None = None, writes: None = None, outputs: None = None, like: dict[str, Like],
        **options: Unpack[CallOptions]
    ) -> Callable[[Callable[_P, object]], Submitter[_P, dict[str, Tensor]]]:
        """Makes a decorator: the function becomes one that submits itself, and returns the `Operation`.

        writes: names of the parameters whose tensors the function changes, or one name. Without it the
            function is wrapped as by `wrap`, and without options `@eng.op` is the decorator.
        reads: names of the parameters whose tensors it reads; default all that `writes` does not name. A
            parameter that the function changes in place stands in both. One in `writes` alone is overwritten:
            an earlier failure of it is forgotten.
        options: `using`, `name`, `on` and `priority`, as in `submit`, and with `writes` its `on_skip`.

            >>> @eng.op(writes="out", using=np.from_dlpack)
            ... def scale(x, factor, out):
            ...     np.multiply(x, factor, out=out)
            >>> y = eng.zeros(3, "float64")
            >>> scale(eng.from_dlpack(np.arange(3.0)), 10, out=y).wait()
            >>> np.from_dlpack(y).tolist()
            [0.0, 10.0, 20.0]
        """
    @overload
    def access(
        self, reads: _Tensors | None = None, writes: _Tensors | None = None, using: None = None
    ) -> Access[tuple[View, ...]]: ...
    @overload
    def access(
        self, reads: _Tensors | None = None, writes: _Tensors | None = None, *, using: Using
    ) -> Access[tuple[Any, ...]]:
        """Scoped leases of several tensors, taken all at once:
        ``with eng.access(reads=[a], writes=[b]) as (x, y)``, or ``async with``. The block gets a view of
        each, or what `using` makes of it; reads first.

            >>> a, b = eng.from_dlpack(np.arange(3.0)), eng.zeros(3, "float64")
            >>> with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
            ...     y[:] = x + 1
            ...     del x, y                  # what outlives the block keeps its lease
            >>> np.from_dlpack(b).tolist()
            [1.0, 2.0, 3.0]
        """
    def wait_all(self, timeout: float | None = None) -> None:
        """Blocks until every operation of this engine has ended, at most `timeout` seconds. This method does not
        raise the failures of operations; their outputs do, and so does the end of the engine. Raises
        `WouldDeadlockError` where an operation goes on only when an event loop does that this thread ran and
        has stopped.
        """
    def diagnose(self) -> Diagnosis:
        """Returns which operation waits for which, and which deleter does not return, at this moment: print the
        result, or read its fields.
        """
    def stats(self) -> Stats:
        """Returns counters, and the operations that are running, ready and stalled at this moment."""
    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """Refuses new submissions and waits until every operation in flight has ended, at most `timeout`
        seconds. Operations that only leases hold up are then cancelled, and reported with the leases. Without
        a timeout, the call waits as long as an operation runs, and `lease_timeout` seconds for leases. What
        waits for links and doors of the engine, except for functions of operations, ends by `ShutdownError`.

        Raises unretrieved failures: one failure as itself, several as an ``ExceptionGroup``. The argument
        `failures` of the class selects other ways.
        """
    def _is_usable(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> Awaitable[None]: ...

@final
class Tensor:
    """A promise of an n-dimensional array.

    Code can query whether the tensor is ready, ``await`` it, pass it to operations, and pass it to any
    library that speaks DLPack: ``np.from_dlpack(t)`` waits until the tensor is ready and reads its memory
    without a copy, under a *read lease*: engine writes wait until the array is gone.

    A tensor of one element is a number where Python asks for one: ``float(t)``, ``int(t)``, ``t.item()``,
    ``if t:``. These wait for the value, under a read lease, and in a coroutine ``await t`` comes first.
    """

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def call_in_report(self, name: str) -> None:
        """Names the tensor in reports of traces, also of those that begin later."""
    def is_ready(self) -> bool:
        """Returns True if it is known how the current version ends, with or without a failure: as `done`. Never
        waits, and runs nothing in an engine without workers. A version that was cancelled has failed at once,
        while earlier operations may still use the memory.
        """
    def is_defined(self) -> bool:
        """Returns True if the tensor has its memory and shape. Never waits."""
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the version current at this call is finished, at most `timeout` seconds.

        On a thread with a running event loop, the tensor must be ready; use ``await`` there. A wait that only
        leases hold up raises `LeaseHeldError` after the engine's `lease_timeout`. If the waiting thread has
        taken one of these leases, the wait raises at once, whatever `timeout` is: the thread cannot return
        its lease while it waits.

            >>> def fails(_):
            ...     raise ValueError("no data")
            >>> t = eng.zeros(1, "int8")
            >>> op = eng.submit(fails, writes=[t], name="load")
            >>> t.wait()
            Traceback (most recent call last):
            estafette.OperationError: operation `load` (op ...) failed: ValueError: no data
        """
    def block_until_ready(self, timeout: float | None = None) -> Self:
        """As `wait`, and returns the tensor, under the name that JAX's arrays have for it.

        >>> eng.zeros(2, "int8").block_until_ready().shape
        (2,)
        """
    def __await__(self) -> Generator[Any, None, Any]: ...
    def done(self) -> bool:
        """Returns True if it is known how the promise ends, with or without a failure. Never waits, and
        runs nothing in an engine without workers.
        """
    def cancelled(self) -> bool:
        """Returns True if the operation was cancelled. Never waits."""
    def result(self, timeout: float | None = None) -> Any:
        """Waits as `wait` does, and returns what ``await`` gives."""
    def exception(self, timeout: float | None = None) -> OperationError | None:
        """Waits as `wait` does, and returns the `OperationError` of a failure, or None. Raises
        `CancelledError` for a cancelled operation, and ``TimeoutError`` when time is up.
        """
    def add_done_callback(self, fn: Callable[[Self], object], /) -> None:
        """Calls ``fn(self)`` once when the promise is done: at once if it is, else on a thread of the
        package that calls one callback after the other. What the function raises is logged.
        ``self.result()`` in the function waits for a later write of the tensor, if there is one; the
        future that `future` returns keeps the end of its version.
        """
    def future(self) -> Future[Any]:
        """Returns a `concurrent.futures.Future` that ends as the current version of the promise does,
        for `asyncio.wrap_future` and other code that wants an instance of that class. It is cancelled
        if the operation was.
        """
    def _failed(self) -> bool: ...
    def _on_end(self, fn: Callable[[Self, Any], object], /) -> Any: ...
    def _awaited(self) -> Any: ...
    @property
    def _state(self) -> str: ...
    @property
    def _condition(self) -> Any: ...
    @property
    def _waiters(self) -> Any: ...
    def writable(self) -> Awaitable[Self]:
        """``await t.writable()`` waits until the memory may be overwritten (no unfinished write, no reader, no
        lease), and returns `t`.
        """
    def __dlpack_fence__(
        self,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """The tensor for a consumer that knows `dlpack_fence.h`: a capsule named ``dltensor_fenced``, with a
        fence that is done when the data may be read. Never waits. The read lease lasts until the consumer has
        called the deleter and its own fences are done. `BufferError` where `__dlpack__` has to be called
        instead.
        """
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface (version 3). Only tensors in CUDA memory have this attribute. The engine does
        not track the consumer's view: the consumer must finish before any operation writes the tensor.
        `t.read()` and `eng.access` return views under a lease.
        """
    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        """The SYCL USM array interface, for libraries of SYCL without DLPack. Only tensors in SYCL memory have
        this attribute. Waits until the data is ready. The consumer does not report the end of its use, so no
        operation may write the tensor meanwhile.
        """
    def c_handle(self) -> int:
        """Returns a handle of the tensor for C, an ``estafette_tensor*`` as an integer. The caller owns it, and
        gives it up by ``estafette_tensor_release``.
        """
    def end_captures(self) -> int:
        """Ends the leases of exports into captures of CUDA graphs, and returns how many leases it ended. Call
        this method when no such graph will be launched again.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension, in elements. Raises `NotDefinedError` while the tensor has no shape
        yet.
        """
    @property
    def ndim(self) -> int:
        """Number of dimensions."""
    @property
    def dtype(self) -> DType:
        """Element type: a `DType`, which is equal to NumPy's name of the type, ``"float32"``."""
    @property
    def __numpy_dtype__(self) -> Any:
        """The ``numpy.dtype`` of the elements. NumPy and JAX read this attribute to find the type of an
        argument. Raises `AttributeError` if NumPy has no such type.
        """
    @property
    def device(self) -> Device:
        """Device of the data: a ``(type, id)`` pair in DLPack's numbers that prints as ``cpu:0``."""
    @property
    def size(self) -> int:
        """Number of elements."""
    @property
    def itemsize(self) -> int:
        """Bytes of one element; elements of less than a byte are rounded up."""
    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps between them."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Distance of neighbours in each dimension, in elements, as in DLPack and PyTorch; NumPy's strides are
        in bytes. Raises `NotDefinedError` while the tensor has no memory yet.
        """
    @property
    def data_ptr(self) -> int:
        """Address of the first element. Code may read the memory only in an operation or under a lease."""
    @property
    def read_only(self) -> bool:
        """True if the owner of the memory forbids writing it."""
    @property
    def version(self) -> int:
        """Number of finished writes to the tensor's memory."""
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Hands the tensor to a consumer under a read lease; the array API's protocol. Waits until it is ready."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """Device of the data as a ``(type, id)`` pair; the array API's protocol. Waits until the tensor
        is defined.
        """
    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **kwargs: None
    ) -> tuple[CapsuleType, CapsuleType]:
        """Exports the memory by Arrow's C device interface (``pyarrow.array(t)``), without a copy, as an
        array that is never written. Waits until the tensor is ready.

        Returns capsules of the schema and of the array. The tensor must have one dimension, no gaps,
        and integers, or floats of 16 to 64 bits; any other tensor raises `InvalidTensorError`. The
        method ignores the type in `requested_schema`, as the interface allows: the consumer casts.
        """
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[CapsuleType, CapsuleType]:
        """As `__arrow_c_device_array__`, for consumers of Arrow that know host memory alone."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any:
        """``np.asarray(t, dtype)``, for elements that Python's buffers lack: an array with a lease, or a
        copy.
        """
    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface (version 3). Only tensors in host memory, in row-major order, have this
        attribute. The interface names a ``memoryview`` and no address, so the read lease lasts as long as
        that ``memoryview``. Waits until the tensor is ready.
        """
    def __len__(self) -> int: ...
    def item(self) -> Any:
        """Returns the only element as a number of Python, or the number that a call has returned. Waits until
        the tensor is ready, takes a read lease meanwhile, and copies from a device. Raises ``ValueError`` for
        more elements or none.

            >>> loss = eng.call(np.mean, eng.from_dlpack(np.arange(4.0)))
            >>> loss.item(), f"{float(loss):.3f}", bool(eng.call(np.any, loss))
            (1.5, '1.500', True)
        """
    def tolist(self) -> Any:
        """Returns the elements as numbers of Python, in a list, or in nested ones, as arrays of NumPy do. Waits
        as `item`.
        """
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __format__(self, spec: str, /) -> str:
        """For an empty `spec` the text of the tensor, else the only element in this format. Waits as `item`."""
    def __index__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def to_host(self) -> Tensor:
        """Returns a promise of the data in host memory (``cpu:0``): `t` itself if its data is on the host
        already, otherwise a copy, made by an operation. Raises `BufferError` for memory that the host cannot
        read.
        """
    def for_write(self) -> Exporter:
        """Returns an object to pass to a library that writes: ``np.from_dlpack(t.for_write())`` takes a *write
        lease*. The lease is exclusive, and lasts until the array is gone.

            >>> t = eng.zeros(3, "int64")
            >>> x = np.from_dlpack(t.for_write())
            >>> x[:] = 5
            >>> del x
            >>> np.from_dlpack(t).tolist()
            [5, 5, 5]
        """
    def alias(self) -> Exporter:
        """Returns an object to pass to a library that uses the memory *untracked*: an export takes no lease and
        waits for nothing. For programs that order the accesses by other means.
        """
    @overload
    def read(self, using: None = None) -> Access[View]: ...
    @overload
    def read(self, using: Using) -> Access[Any]:
        """Returns a scoped read lease: ``with t.read() as view`` or ``async with t.read() as view``. With
        `using`, for example ``np.from_dlpack``, `view` is the result of `using`; default that of the engine.
        The plain `View` of an engine with a `using` is ``using=lambda view: view``.

            >>> t = eng.from_dlpack(np.arange(3))
            >>> with t.read(using=np.from_dlpack) as view:
            ...     int(view.sum())
            3
        """
    @overload
    def write(self, using: None = None) -> Access[View]: ...
    @overload
    def write(self, using: Using) -> Access[Any]:
        """Returns a scoped write lease, with the arguments of `read`."""
    def ticket(
        self, *, once: bool = False, copy: bool | None = None, reach: str | None = None, deadline: float = 10.0
    ) -> Ticket:
        """Returns a ticket for the current version, ready or not, which another process gives to
        `Engine.from_ticket`. Later writes wait until the ticket is gone, and what was made with it. Never
        waits.

        once: makes a ticket for one use, which nothing has to keep: later writes wait until it was used, and
            what was made with it is gone.

        copy: as for `Link.send`.

        reach: an address of this machine, ``"host"`` or ``"host:port"``, where processes on other machines
        reach this one: the ticket is good there too, and gives a copy, which NIXL makes. Both processes need
        the package ``nixl-cu12``. See the page on other processes.

        deadline: with `reach`, seconds of silence after which a process on another machine takes this one for
        dead, and is suspected itself; the least is 2.
        """
    def clear_error(self) -> None:
        """Declares the current version good after a failure or cancellation that left the data intact. Raises
        `ConflictError` while a write is unfinished, which a cancelled one is until its turn:
        ``await t.writable()`` first, or wait for the operation that the error names.
        """

@final
class Exporter:
    """A tensor on its way to a library, with the access that it shall have. Each export takes a lease of its
    own.
    """

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any:
        """``np.asarray(t, dtype)``, for elements that Python's buffers lack: an array with a lease, or a
        copy.
        """
    @property
    def tensor(self) -> Tensor:
        """The tensor that is exported."""
    @property
    def access(self) -> str:
        """``"write"`` or ``"alias"``."""
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Hands the memory out; the array API's protocol. Waits until the memory is free for this
        access.
        """
    def __dlpack_fence__(
        self,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """As `Tensor.__dlpack_fence__`, with this access. An alias has no fences: `BufferError`."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """Device of the data as a ``(type, id)`` pair; the array API's protocol. Waits until the tensor
        is defined.
        """

@final
class Access(Generic[_T_co]):
    """Leases of several tensors, taken together at the beginning of a ``with`` or ``async with`` block and
    returned at its end. A view that outlives the block keeps its lease.
    """

    def __enter__(self) -> _T_co: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[_T_co]: ...
    def __aexit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> Awaitable[None]: ...

@final
class View:
    """A tensor under a scoped lease. Pass it to ``from_dlpack`` of any library; that waits for nothing."""

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any:
        """``np.asarray(t, dtype)``, for elements that Python's buffers lack: an array with a lease, or a
        copy.
        """
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface (version 3), of CUDA memory, under this lease."""
    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        """The memory for libraries of SYCL that know no DLPack, while the block lasts. Missing on memory that is
        not SYCL's.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension, in elements. Raises `NotDefinedError` while the tensor has no shape
        yet.
        """
    @property
    def dtype(self) -> DType:
        """Element type: a `DType`, which is equal to NumPy's name of the type, ``"float32"``."""
    @property
    def __numpy_dtype__(self) -> Any:
        """The ``numpy.dtype`` of the elements. NumPy and JAX read this attribute to find the type of an
        argument. Raises `AttributeError` if NumPy has no such type.
        """
    @property
    def device(self) -> Device:
        """Device of the data: a ``(type, id)`` pair in DLPack's numbers that prints as ``cpu:0``."""
    @property
    def access(self) -> str:
        """``"read"`` or ``"write"``."""
    def used_on(self, stream: Any, /) -> None:
        """Makes the end of this lease wait for the work that is on ``stream`` now, besides the stream that the
        view was handed to: PyTorch's ``record_stream``, for memory of Estafette. Call this method once the
        last work with the memory is enqueued on ``stream``, a stream object or a handle as for
        ``__dlpack__``.

        Raises `ValueError` for memory that is not used on streams, and for a stream of another device;
        `InvalidError` while a graph is captured on ``stream``.
        """
    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **kwargs: None
    ) -> tuple[CapsuleType, CapsuleType]:
        """Exports the memory by Arrow's C device interface (``pyarrow.array(t)``), without a copy, as an
        array that is never written. Waits until the tensor is ready.

        Returns capsules of the schema and of the array. The tensor must have one dimension, no gaps,
        and integers, or floats of 16 to 64 bits; any other tensor raises `InvalidTensorError`. The
        method ignores the type in `requested_schema`, as the interface allows: the consumer casts.
        """
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[CapsuleType, CapsuleType]:
        """As `__arrow_c_device_array__`, for consumers of Arrow that know host memory alone."""
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Hands the memory out; the array API's protocol. Waits until the memory is free for this
        access.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """Device of the data as a ``(type, id)`` pair; the array API's protocol. Waits until the tensor
        is defined.
        """

@final
class Operation:
    """A submitted operation: can be awaited, waited for and cancelled. Releasing it changes nothing for the
    operation; a failure that nothing has looked at is reported then, or when the last tensor that it concerns
    goes.
    """

    @property
    def name(self) -> str:
        """The name given at submission."""
    @property
    def id(self) -> int:
        """Identity, as in errors and diagnoses."""
    def c_handle(self) -> int:
        """Returns a handle of the operation for C, an ``estafette_op*`` as an integer, to query, wait for,
        cancel, or have a fence of. The caller owns it, and gives it up by ``estafette_op_release``.
        """
    def is_done(self) -> bool:
        """True if the operation has ended, well or not."""
    def cancel(self) -> bool:
        """Cancels the operation if it has not begun; says whether it was. Its outputs then raise
        `CancelledError`; memory that it would have changed is untouched.

        An ``async def`` function that has begun is cancelled as asyncio cancels a task: ``CancelledError`` of
        asyncio is raised where it awaits, from any thread, and True says that this was asked for. The
        operation is cancelled if the task ends so; the function may have changed memory before. A plain
        function that runs is not interrupted.

            >>> t = eng.zeros(1, "int8")
            >>> held = np.from_dlpack(t)
            >>> op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack, name="late")
            >>> op.cancel()
            True
            >>> op.wait()
            Traceback (most recent call last):
            estafette.CancelledError: operation `late` (op ...) was cancelled: cancelled before it began
        """
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the operation has ended, at most `timeout` seconds. Raises `OperationError` when it
        failed, and `LeaseHeldError` as `Tensor.wait` does: at once where it waits for a lease that this very
        thread has taken.
        """
    def __await__(self) -> Generator[Any, None, None]: ...
    def done(self) -> bool:
        """Returns True if it is known how the promise ends, with or without a failure. Never waits, and
        runs nothing in an engine without workers.
        """
    def cancelled(self) -> bool:
        """Returns True if the operation was cancelled. Never waits."""
    def result(self, timeout: float | None = None) -> None:
        """Waits as `wait` does, and returns what ``await`` gives."""
    def exception(self, timeout: float | None = None) -> OperationError | None:
        """Waits as `wait` does, and returns the `OperationError` of a failure, or None. Raises
        `CancelledError` for a cancelled operation, and ``TimeoutError`` when time is up.
        """
    def add_done_callback(self, fn: Callable[[Self], object], /) -> None:
        """Calls ``fn(self)`` once when the promise is done: at once if it is, else on a thread of the
        package that calls one callback after the other. What the function raises is logged.
        ``self.result()`` in the function waits for a later write of the tensor, if there is one; the
        future that `future` returns keeps the end of its version.
        """
    def future(self) -> Future[None]:
        """Returns a `concurrent.futures.Future` that ends as the current version of the promise does,
        for `asyncio.wrap_future` and other code that wants an instance of that class. It is cancelled
        if the operation was.
        """
    def _failed(self) -> bool: ...
    def _on_end(self, fn: Callable[[Self, Any], object], /) -> Any: ...
    def _awaited(self) -> Any: ...
    @property
    def _state(self) -> str: ...
    @property
    def _condition(self) -> Any: ...
    @property
    def _waiters(self) -> Any: ...

@final
class Program:
    """Operations that are recorded once and then run any number of times, each time as one operation. Made by
    `Engine.program`; the nodes are recorded by `submit`, in a ``with`` block at the end of which the program
    is finished::

        >>> x = eng.from_dlpack(np.ones(4))
        >>> y = eng.zeros(4, "float64")
        >>> with eng.program("step") as step:
        ...     step.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack)
        ...     step.submit(lambda y, x: np.add(x, y, out=x), reads=[y], writes=[x], using=np.from_dlpack)
        >>> len(step)
        2
        >>> for _ in range(3):
        ...     op = step.replay()            # one operation, ordered with all others by what it uses
        >>> op.wait()
        >>> np.from_dlpack(x).tolist()
        [27.0, 27.0, 27.0, 27.0]

    A program keeps its functions and tensors, and a handle of its engine. The caller may drop the program
    while replays are in flight.
    """

    @property
    def name(self) -> str:
        """The name given when recording began. Every replay has this name."""
    @property
    def is_graph(self) -> bool:
        """True if the program is one graph of its device."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def submit(
        self,
        fn: Body,
        *,
        reads: _Operands | None = None,
        writes: _Operands | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
    ) -> None:
        """Records a node, with the arguments of `Engine.submit` but `priority` and `on_skip`: a node is skipped
        without a word where an earlier one has failed. No function runs before a replay. Every replay calls
        ``fn(*reads, *writes)``, in a copy of the context of this call.

        An ``async def`` function runs at every replay as a task on the event loop of the thread that called
        `submit`. A view of an operand that the function keeps belongs to the replay: the view becomes a lease
        when the replay ends, and later nodes do not wait for that lease.
        """
    def finish(self) -> None:
        """Ends the recording; the end of the ``with`` block calls this method. With ``graph=True``, raises
        `InvalidError` if the program cannot be a graph; the error names the node that prevents the graph.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def replay(self) -> Operation:
        """Submits one run of all nodes as one operation, and returns at once: ``program.replay().wait()``, or
        ``await program.replay()``.

        Nodes behave as operations submitted in the order of recording. If a node fails, the replay does not
        call nodes that read its outputs, and calls all others. The replay then fails with the failure of the
        node that was recorded first among the failed nodes, and so does everything that the program writes.
        Raises as `Engine.submit`.
        """
    def replay_async(self) -> Awaitable[Operation]:
        """As `replay`, but waits for a permit without stopping the event loop:
        ``op = await program.replay_async()``. A forgotten ``await`` warns, as that of `Engine.submit_async`
        does.
        """

@final
class Operators:
    """The operators of this process, by name: functions that one library brings and any other has scheduled.

    A mapping of names to `Operator`; what is called through it runs in this engine::

        >>> @eng.operators.register("doc.scale", using=np.from_dlpack, inputs=1)
        ... def scale(x, *, by=2):
        ...     return x * by
        >>> t = eng.from_dlpack(np.arange(3.0))
        >>> np.from_dlpack(eng.operators["doc.scale"](t, by=10)).tolist()
        [0.0, 10.0, 20.0]
        >>> "doc.scale" in eng.operators, eng.operators["doc.scale"].kind
        (True, 'allocating')
        >>> eng.operators.unregister("doc.scale")
    """

    def __getitem__(self, name: str, /) -> Operator: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def register(
        self,
        name: str,
        fn: None = None,
        *,
        using: Using | None = None,
        inputs: int | None = None,
        outputs: int = 1,
        destination: bool = False,
        infer: Callable[..., Any] | None = None,
    ) -> Callable[[_Function], _Function]: ...
    @overload
    def register(
        self,
        name: str,
        fn: _Function,
        *,
        using: Using | None = None,
        inputs: int | None = None,
        outputs: int = 1,
        destination: bool = False,
        infer: Callable[..., Any] | None = None,
    ) -> _Function:
        """Registers a Python function under a name that is not taken; without a function, gives a decorator.
        Returns the function.

        ``fn(*inputs, **attributes)`` gets each input through `using`, and its result becomes the operator's.
        It is called on any worker, perhaps several at once, with attributes as `Operator` says.

        inputs: how many; default any number.
        outputs: how many, from 1 to 65,536. With more than one, the function returns a list or a tuple of
            them, and a call gives as many promises.
        destination: the function is ``fn(*inputs, *outputs, **attributes)``, and writes to outputs that its
            caller passes.
        infer: ``infer(*inputs, **attributes)`` says what the outputs will look like, and the engine makes
            them for a function that writes to them as with `destination`, on the device of the first input.
            It gets `Tensor` objects and gives a ``(shape, dtype)`` pair, or a sequence of them.
        """
    def load(self, path: str | os.PathLike[str]) -> list[str]:
        """Loads a shared library of operators in C, and gives their names. The library exports
        `estafette_operators`, as the C header says; its operators are registered all, or none.
        """
    def unregister(self, name: str) -> None:
        """Takes an operator out of the registry. Calls under way still end."""

@final
class Operator:
    """A function with a name: ``op(*inputs, out=None, **attributes)``.

    A call returns at once: with promises of the results (one, or a tuple of several), or with `out`, a tensor
    or a sequence of them that the operator writes to. Inputs are `Tensor` objects; what they wait for, the
    call waits for, in the graph.

    Attributes are plain data (None, booleans, numbers, text, and lists and tuples of these, at most 64 in one
    another), so that operators of all languages take the same: a function in C gets them as text, what is no
    text as JSON writes it (with ``NaN`` and ``Infinity``), a Python function as they are, but for lists,
    which become tuples. What callers in other languages pass is text, of which a Python function gets what
    reads like a number or other plain data as that.

    Raises `TypeError` for other data, and `ValueError` for what has no text.
    """

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def kind(self) -> str:
        """The side that decides where results go: ``"destination"``, the caller; ``"inferred"``, the operator
        says what they look like and the engine makes them; ``"allocating"``, the operator.
        """
    @property
    def inputs(self) -> int | None:
        """The number of inputs; None for any number."""
    @property
    def outputs(self) -> int:
        """The number of outputs."""
    @property
    def origin(self) -> str:
        """Its origin: a language, the path of a library, the full name of a Python function."""
    def __call__(self, *inputs: Tensor, out: Tensor | Sequence[Tensor] | None = None, **attributes: Any) -> Any: ...

@final
class Door:
    """The listener by which other processes of the same user on this machine make links to this one:
    ``eng.door()``. Its address goes to them by any means. A door that is closed leaves its links open.
    """

    @property
    def address(self) -> str:
        """The address of the door, for `Engine.connect` in another process."""
    def accept(self, timeout: float | None = None) -> Link:
        """Returns the next link that another process makes, after at most `timeout` seconds. Raises
        `ShutdownError` once the engine has ended.
        """
    def accept_async(self) -> Awaitable[Link]:
        """As `accept`, to be awaited."""
    def close(self) -> None:
        """Closes the door. Where others wait at it, `InvalidError` is raised."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

@final
class Link:
    """A link to another process: tensors cross it in both directions, in order, without a copy.

    A tensor may be sent before it is ready. The other process gets a promise, which is read-only unless it
    was sent for writing. The sender's later writes wait until the other process has released it, has closed
    the link, or has died. A block ``with link`` closes the link at its end, and so does the end of its last
    reference. Iterating over a link gives what the other process sends, until that process closes the link;
    ``async for`` works as well. The end of the engine ends what waits for its links: `ShutdownError` is
    raised there.
    """

    @property
    def process(self) -> int:
        """The number of the other process."""
    def send(
        self,
        tensor: Tensor,
        /,
        timeout: float | None = None,
        *,
        access: Literal["read", "write"] = "read",
        copy: bool | None = None,
    ) -> None:
        """Sends the current version of a tensor, ready or not. Waits, at most `timeout` seconds, only while the
        link is full: the other process then has 16,384 tensors of this one, or has not received hundreds.

        copy: memory that other processes cannot be shown, see ``shared`` of `Engine.zeros`, is copied once it
        is ready, and ``stats().copied_for_processes`` counts the bytes; later writes then wait for the copy
        alone. True copies other memory as well. False copies nothing: `NotSharedError` is raised, or is the
        failure of the tensor if it has no memory yet.

        access: with ``"write"`` the other process alone uses the tensor until it is done, and what it has
        written is the next version. The version has failed if that process failed to write it, or died. For
        memory made with ``shared="write"``; else `NotSharedError`.

        A tensor of a third process is passed on: that process shows its memory itself. Raises
        `PeerDiedError`; `DeviceError` once the other process has closed the link.
        """
    def send_async(
        self, tensor: Tensor, /, *, access: Literal["read", "write"] = "read", copy: bool | None = None
    ) -> Awaitable[None]:
        """As `send`, to be awaited. A forgotten ``await`` warns, as that of `Engine.submit_async` does."""
    def receive(self, timeout: float | None = None) -> Tensor | None:
        """Returns the next tensor of the other process, after at most `timeout` seconds, or None once that
        process has closed the link. Raises `PeerDiedError` when that process has died, after everything that
        it had sent; `ShutdownError` once the engine has ended.
        """
    def receive_async(self) -> Awaitable[Tensor | None]:
        """As `receive`, to be awaited."""
    def close(self) -> None:
        """Closes the link. What was received stays readable. What was sent comes to the other process while this
        one lives. Where others wait for the link, `InvalidError` is raised.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> Tensor: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Tensor]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

@final
class Ticket:
    """Names a version of a tensor for other processes of the same user on this machine: ``t.ticket()``,
    `Engine.from_ticket`.

    ``bytes(ticket)`` may travel through anything, and a ticket can be pickled. The version is kept from later
    writes for as long as this object lives, and then until everything that was made with it is gone. A ticket
    that was made from bytes, or by pickle, keeps nothing. A block ``with t.ticket() as ticket`` revokes the
    ticket at its end.
    """

    def __new__(cls, bytes: Ticket | bytes, /) -> Self: ...
    @property
    def process(self) -> int:
        """The number of the process that has the tensor."""
    def revoke(self) -> None:
        """Revokes the ticket, if this process made it: nothing new can be made with it. Tensors that were made
        with it stay. A ticket for one use that was not used gives its version free by that.
        """
    def _reaching(self, reach: str) -> Ticket: ...
    def __bytes__(self) -> bytes: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

@final
class Variable:
    """Something whose order is kept and that has no memory: a file, a counter, a device setting. Use it in the
    `reads` and `writes` of `submit`; the function does not get it as an argument.
    """

    @property
    def id(self) -> int:
        """Identity, as in diagnoses."""
    @property
    def version(self) -> int:
        """Number of writes that have finished."""

def declare_dead(host: str, process: int | None = None) -> None:
    """Says that a process on another machine is dead, or, without `process`, all processes on that machine:
    their leases end, and writes that waited go on. For who knows it, such as the program that started them:
    silence alone is not death. Returns at once.

    host: the address of that machine, as messages about the process have it.
    """
def devices() -> tuple[DeviceInfo, ...]:
    """The device table, and whatever else has memory: a tuple of `estafette.DeviceInfo`. Loads the drivers that
    there are.
    """
def register_context(context: object, /, *, device_type: int = 14) -> tuple[int, int]:
    """Gives a native context a number that can travel in DLPack: the `(type, id)` pair. `context` is a
    `dpctl.SyclContext`, or a pointer. The context must stay alive until `unregister_context`.
    """
def unregister_context(device: tuple[int, int], /) -> None:
    """Ends one registration of a context."""
def peers() -> tuple[Peer, ...]:
    """The table for people to read: a tuple of `estafette.Peer`."""
def unordered_exchanges() -> tuple[UnorderedExchange, ...]:
    """The last exchanges of this process that could not be ordered, oldest first: `UnorderedExchange` objects,
    at most 64. How many there were in all is in ``Engine.stats().unordered``.
    """
def _after_fork_in_child() -> None: ...
def _after_fork_in_parent() -> None: ...
def _at_exit() -> None: ...
def _before_fork() -> None: ...
def _before_threads_end() -> None: ...
def c_api() -> CapsuleType:
    """Returns the functions of `estafette.h` in a table: a capsule named ``estafette.c_api`` with a pointer to
    the struct `estafette_api`.

    Code in C takes the pointer by `PyCapsule_GetPointer`. It needs no other library, and what it does is in
    the graph of this process, beside what Python does. ``python -m estafette config`` names the header, and
    how to link instead.
    """

def engine_from_c(handle: int) -> Engine:
    """Returns the engine of a handle from C, an ``estafette_engine*`` as an integer. The handle stays its
    owner's. From now on the engine runs Python functions beside those of C, as one that Python has made: its
    workers share the interpreter's lock, the exit of the interpreter waits for it, and unretrieved failures
    are raised at its end. Its options are those that C gave, or Python. Raises `ValueError` for what is no
    handle of an engine, such as one of another copy of the library in this process.
    """

def record_call_sites(on: bool = True, /) -> bool:
    """Switches on or off that leases taken from now on note the file, line and function that take them, and the
    type of the object that they are for where that is known. Returns the former setting. Off, as it is at
    first, taking a lease costs less.

    See `Diagnosis` and `Lease` for where it is shown.

        >>> before = est.record_call_sites()
        >>> t = eng.zeros(3, "float32")
        >>> array = np.from_dlpack(t)
        >>> op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack, name="fill")
        >>> (waiting,) = [op for op in eng.diagnose().operations if op.name == "fill"]
        >>> lease = waiting.blocked_by[0].lease
        >>> lease.access, lease.line, lease.function
        ('read', 1, '<module>')
        >>> est.record_call_sites(before)
        True
    """
def _failed(engine: Engine, error: BaseException, /) -> Tensor: ...
def _from_tickets(engine: Engine, tickets: list[Ticket | bytes], /, timeout: float | None = None) -> list[Tensor]: ...
def _engine_states() -> list[tuple[Stats, Diagnosis]]: ...
def _read_chrome(path: str, /) -> tuple[bytes, list[str]]: ...
def _check_output(path: str, is_page: bool, /) -> None: ...
def _replace_file(path: str, content: bytes, /) -> None: ...
def _run_in_spans(on: bool, /) -> None: ...
def _set_helping(allowed: bool) -> bool: ...
def _stand_for(thread: int, /) -> None: ...
def _shown(name: str, /) -> str: ...
def _call_back(function: Callable[[], object]) -> None: ...

def _may_block() -> bool: ...

def _wait_any(promises: list[Tensor | Operation], timeout: float | None) -> list[Tensor | Operation]: ...
def _check_interpreter() -> None: ...
def _command(arguments: list[str], /) -> int: ...
def _hold_barriers(hold: bool, /) -> None: ...
def _device_text(device_type: int, device_id: int, /) -> str: ...
def _kind_modules() -> list[str]: ...
def _dtype_name(dtype: object, /) -> str: ...
def _kept_errors() -> list[tuple[BaseException, TracebackType | None, BaseException | None]]: ...
def _begin_trace(path: str, memory_max: int | None, last: float | None, signal: int | None, /) -> int: ...
def _end_trace(number: int, /) -> None: ...
def _snapshot_trace(number: int, path: str, /) -> None: ...
def _set_program_name(name: str, /) -> None: ...
def _write_observation(path: str, program: str, times: tuple[int, int, int], tracks: list[tuple[str, str]], noted: tuple[list[Any], list[Any]], missing: list[str], /) -> None: ...
def _read_report(paths: list[str], width: int, short: bool, page: str | None, /) -> tuple[str, str]: ...

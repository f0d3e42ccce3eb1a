//! Memory from other libraries and to them: protocols of Python, what is known of peers, and what could not
//! be ordered.
//!
//! | part | what it has |
//! |---|---|
//! | `array_interface` | The common part of CUDA's and SYCL's array interfaces |
//! | `arrow` | Arrow's PyCapsule interface, both ways: `__arrow_c_device_array__`, and `__arrow_c_array__` for host memory |
//! | `buffer` | Python's buffer protocol: `memoryview(t)`, `bytes(t)`, `np.asarray(t)` |
//! | `buffer_import` | Python's buffer protocol inward |
//! | `capsule` | DLPack's capsules: the names say what is inside and whether it was consumed |
//! | `conversions` | `from_dlpack` of other libraries, in a shorter way for tensors in host memory that functions get as arrays |
//! | `copy` | Copies, each of which is an operation: ordered like any other, and seen in a diagnosis |
//! | `dtype` | Element types in Python: `estafette.DType`, and the types of NumPy that they are |
//! | `elements` | The elements of a tensor as numbers of Python: `t.item()`, `t.tolist()`, `float(t)` |
//! | `exchange_table` | Our own C exchange table: how consumers that know it take our tensors, and make them, without a Python call |
//! | `export` | Giving tensors to other libraries: what `__dlpack__` asks for, and where the answer comes from |
//! | `fence` | `__dlpack_fence__`: tensors with fences of both sides in a capsule, both ways |
//! | `from_future` | Futures of other schedulers as promises: `eng.from_future(f)` |
//! | `import` | Taking tensors from other libraries, by the rules of the array API and DLPack's Python specification |
//! | `mxnet` | Arrays of MXNet 1.9 as promises: `eng.from_mxnet(array)` |
//! | `numpy_array` | Arrays of NumPy without a call of Python |
//! | `one_export` | Producers that must not export an array beside another export of it, or beside a deleter |
//! | `origin` | The origin of an array's memory |
//! | `peer_table` | Taking tensors through the C exchange tables of other libraries, without a Python call |
//! | `peers` | Facts about other libraries: one table, a row for each, with the source of what it says |
//! | `protocols` | The protocol methods by which other libraries take the memory of a `Tensor`, an `Exporter` or a `View` |
//! | `typestr` | NumPy's notation of element types: `typestr` of the array interfaces, and the format of a buffer |
//! | `unordered` | Exchanges that could not be ordered |

pub(crate) mod array_interface;
pub(crate) mod arrow;
pub(crate) mod buffer;
pub(crate) mod buffer_import;
pub(crate) mod capsule;
pub(crate) mod conversions;
pub(crate) mod copy;
pub(crate) mod dtype;
pub(crate) mod elements;
pub(crate) mod exchange_table;
pub(crate) mod export;
pub(crate) mod fence;
pub(crate) mod from_future;
pub(crate) mod import;
pub(crate) mod mxnet;
pub(crate) mod numpy_array;
pub(crate) mod one_export;
pub(crate) mod origin;
pub(crate) mod peer_table;
pub(crate) mod peers;
pub(crate) mod protocols;
pub(crate) mod typestr;
pub(crate) mod unordered;

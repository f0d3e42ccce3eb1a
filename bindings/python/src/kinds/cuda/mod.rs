//! CUDA in Python.
//!
//! | part | what it has |
//! |---|---|
//! | `array` | The CUDA array interface |
//! | `stream` | What consumers write as `stream`, and which of our devices is behind memory |

pub(crate) mod array;
pub(crate) mod stream;

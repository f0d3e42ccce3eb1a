//! Order of grants: operations have the meaning of their order of submission.
//!
//! | part | what it has |
//! |---|---|
//! | `access` | readers together, writers alone, no starvation |
//! | `at_once` | exports without a wait |
//! | `many_operands` | operations of many tensors |
//! | `never_lost` | work that is added while an operation runs; tensors of the same memory |
//! | `priorities_age` | urgent operations keep no other one waiting for ever |
//! | `sequential` | readers, writers, priorities, versions |
//! | `submit_many` | many submissions with one wake-up |

mod access;
mod at_once;
mod many_operands;
mod never_lost;
mod priorities_age;
mod sequential;
mod submit_many;

//! The report for people.
//!
//! | module | content |
//! |---|---|
//! | `html` | the report as one page |
//! | `terminal` | the report as text |

pub mod html;
pub mod terminal;

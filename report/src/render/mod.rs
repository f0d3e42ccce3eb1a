//! The report for people.
//!
//! | module | content |
//! |---|---|
//! | `csv` | its operations as comma-separated values |
//! | `html` | the report as one page |
//! | `terminal` | the report as text |

pub mod csv;
pub mod html;
pub mod terminal;

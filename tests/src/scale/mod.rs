//! Cost of each call when very much is alive: counts of instructions at 100, 2,000 and 40,000 of
//! something, whose growth is asserted. Counts have next to no noise, so a machine may be as busy as it
//! likes.
//!
//! The table is [`table::CALLS`]; what can be alive is in [`world`]. The program `scale` runs itself under
//! callgrind, once for each kind of things alive, and judges what that has counted.

pub mod handles;
pub mod judge;
pub mod meter;
pub mod table;
pub mod world;

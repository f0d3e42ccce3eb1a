//! CUDA devices pass the suite that every device has to pass, and keep the order in the cases where others
//! have lost it. They run on a simulator of the driver, which is no GPU and also finds what nothing ordered;
//! with `ESTAFETTE_CUDA=gpu` on the driver of the machine, without what only a simulator can do.

mod capture;
mod chains;
mod faults;
mod foreign;
mod harness;
mod memory;
mod ordering;
mod programs;
mod suite;
mod timing;

/// Attributes of devices, by the driver's numbers.
const ATTRIBUTES: &[(i32, i32)] = &[];
/// Functions that the driver lacks.
const MISSING: &[&str] = &[];

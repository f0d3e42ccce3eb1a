//! Imports and exports with random drops, as a library: for the memory test and for the program under
//! memcheck.

use estafette::exchange::Abi;
use estafette::exchange::arrow::{ArrowDeviceArray, ArrowSchema};
use estafette::{Access, Engine, Error, ExportOptions, ManagedTensor, Tensor};

use crate::dice::Dice;
use crate::foreign::{Deleted, Memory};

/// Limit of what one thread keeps alive, tensors and exports each.
const KEPT_MAX: usize = 32;

/// Elements of each tensor: leaking one in ten thousand would show in resident memory.
const ELEMENTS: usize = 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Tensors imported: as many deleters must run.
    pub imported: usize,
    /// Tensors exported, round trips included.
    pub exported: usize,
    /// Exports that were Arrow arrays.
    pub arrow: usize,
    /// Round trips: exports that were imported again.
    pub derived: usize,
    pub operations: usize,
}

/// Imports `count` tensors of a foreign library, uses, exports and drops them in random order, and leaves
/// nothing.
pub fn churn(engine: &Engine, count: usize, seed: u64, deleted: &Deleted) -> Result<Done, Error> {
    let mut churn =
        Churn { engine, dice: Dice::new(seed), tensors: vec![], exports: vec![], done: Done::default() };
    for _ in 0..count {
        churn.import(deleted)?;
        churn.touch()?;
        churn.export()?;
        churn.release_some();
    }
    Ok(churn.done)
}

struct Churn<'e> {
    engine: &'e Engine,
    dice: Dice,
    tensors: Vec<Tensor>,
    exports: Vec<Exported>,
    done: Done,
}

enum Exported {
    Managed(#[expect(dead_code, reason = "kept, and dropped")] ManagedTensor),
    Arrow(#[expect(dead_code, reason = "kept, and dropped")] (ArrowSchema, ArrowDeviceArray)),
}

impl Churn<'_> {
    fn import(&mut self, deleted: &Deleted) -> Result<(), Error> {
        let memory = Memory::of(&[1.0; ELEMENTS]);
        // SAFETY: fresh tensors that describe their memory truly.
        let managed = unsafe {
            if self.dice.once_in(4) {
                ManagedTensor::from_raw(memory.legacy(0, ELEMENTS, deleted, |_| ()), Abi::Legacy)?
            } else {
                ManagedTensor::from_raw(memory.versioned(0, ELEMENTS, deleted, |_| ()), Abi::Versioned)?
            }
        };
        self.done.imported += 1;
        // SAFETY: as above; only operations and leases use the memory.
        self.tensors.push(unsafe { self.engine.import(managed) }?);
        Ok(())
    }

    fn touch(&mut self) -> Result<(), Error> {
        if !self.dice.once_in(3) {
            return Ok(());
        }
        let at = self.dice.roll(self.tensors.len());
        let tensor = &self.tensors[at];
        let fails = self.dice.once_in(8);
        let op = self.engine.op("touch").updates([tensor]).run(move |[], [], [mut tensor]| {
            tensor.as_mut_slice::<f32>()?[0] += 1.0;
            if fails { Err("one in eight fails".into()) } else { Ok(()) }
        });
        match op {
            Ok(op) if self.dice.once_in(8) => drop(op.cancel()),
            Ok(_) => {}
            // A derived tensor under a read lease.
            Err(Error::Conflict(_)) => return Ok(()),
            // All that is in flight waits for exports that this thread holds, or other threads as well.
            Err(Error::WouldDeadlock(_) | Error::LeaseHeld(_)) => self.exports.clear(),
            Err(error) => return Err(error),
        }
        self.done.operations += 1;
        Ok(())
    }

    fn export(&mut self) -> Result<(), Error> {
        let at = self.dice.roll(self.tensors.len());
        if self.dice.once_in(4) {
            return self.export_arrow(at);
        }
        let access = self.dice.pick(&[Access::Read, Access::Read, Access::Alias, Access::Write]);
        let abi = self.dice.pick(&[Abi::Versioned, Abi::Legacy]);
        let options = ExportOptions { abi, ..ExportOptions::from(access) };
        let exported = match self.tensors[at].export_wait(&options) {
            Ok(exported) => exported,
            Err(error) => return expected(error),
        };
        self.done.exported += 1;
        if self.dice.once_in(4) {
            self.done.derived += 1;
            // SAFETY: the lease keeps the memory, which this test owns.
            self.tensors.push(unsafe { self.engine.import(exported) }?);
        } else {
            self.exports.push(Exported::Managed(exported));
        }
        Ok(())
    }

    fn export_arrow(&mut self, at: usize) -> Result<(), Error> {
        let (schema, array) = match self.tensors[at].export_arrow_wait(None) {
            Ok(exported) => exported,
            Err(error) => return expected(error),
        };
        self.done.exported += 1;
        self.done.arrow += 1;
        if self.dice.once_in(4) {
            self.done.derived += 1;
            // SAFETY: the lease keeps the memory, which this test owns.
            self.tensors.push(unsafe { self.engine.import_arrow(c"f", array) }?);
        } else {
            self.exports.push(Exported::Arrow((schema, array)));
        }
        Ok(())
    }

    fn release_some(&mut self) {
        while self.tensors.len() > self.dice.roll(KEPT_MAX) {
            let at = self.dice.roll(self.tensors.len());
            self.tensors.swap_remove(at);
        }
        while self.exports.len() > self.dice.roll(KEPT_MAX) {
            let at = self.dice.roll(self.exports.len());
            self.exports.swap_remove(at);
        }
    }
}

/// Failed on purpose, read-only, or held by this thread: what a user would see as well.
fn expected(error: Error) -> Result<(), Error> {
    match error {
        Error::Failed(_) | Error::Cancelled(_) | Error::Conflict(_) | Error::LeaseHeld(_) => Ok(()),
        error => Err(error),
    }
}

/// Resident memory of this process in bytes, where the system reports it.
pub fn resident_bytes() -> Option<usize> {
    // Fields of statm are in pages: total, resident, ...
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

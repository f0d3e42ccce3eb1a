//! The budget for reading a file: memory in proportion to its size, be it made by this project or not.

/// Bytes of a trace in memory for each byte of its file. Files that are written here take some ten times
/// their size.
const PER_BYTE: usize = 64;

/// The memory that any file may take, however small it is.
const FREE: usize = 16 << 20;

/// The bytes that a reading may still take.
#[derive(Debug)]
pub struct Budget {
    whole: usize,
    left: usize,
}

/// There are not as many bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent;

impl Budget {
    /// The budget of a file of so many bytes.
    pub fn of(file_bytes: usize) -> Self {
        let whole = file_bytes.saturating_mul(PER_BYTE).max(FREE);
        Self { whole, left: whole }
    }

    /// The bytes that are left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Spent`] where there are not as many left.
    pub fn take(&mut self, bytes: usize) -> Result<(), Spent> {
        self.left = self.left.checked_sub(bytes).ok_or(Spent)?;
        Ok(())
    }

    /// The exceeded budget, in words.
    pub fn words(&self, file_bytes: usize) -> String {
        format!(
            "reading has stopped: what the file holds takes more than its budget of {} MiB of memory ({PER_BYTE} times its size of \
             {file_bytes} bytes, at least {} MiB)",
            self.whole >> 20,
            FREE >> 20
        )
    }
}

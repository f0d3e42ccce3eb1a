//! The kernels that the simulator knows, by the names they have in the real PTX of the GPU suite.

use std::ffi::c_void;

use crate::command::Touch;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernel {
    /// `delay_ns(u64 nanoseconds)`
    Delay,
    /// `fill_u8(u8 *out, u64 count, u32 value)`
    Fill,
    /// `add_f32(float *out, const float *a, const float *b, u64 count)`
    Add,
    /// `scale_f32(float *out, const float *a, float factor, u64 count)`
    Scale,
}

impl Kernel {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "delay_ns" => Some(Self::Delay),
            "fill_u8" => Some(Self::Fill),
            "add_f32" => Some(Self::Add),
            "scale_f32" => Some(Self::Scale),
            _ => None,
        }
    }

    /// Reads the arguments of a launch.
    ///
    /// # Safety
    ///
    /// `arguments` points to as many pointers as the kernel has parameters, each to a value of the
    /// parameter's type.
    pub(crate) unsafe fn with(self, arguments: *mut *mut c_void) -> Launch {
        // SAFETY: promised by the caller.
        unsafe {
            let long = |index: usize| *(*arguments.add(index)).cast::<u64>();
            match self {
                Self::Delay => Launch::Delay { nanoseconds: long(0) },
                Self::Fill => Launch::Fill {
                    out: long(0),
                    count: long(1),
                    value: *(*arguments.add(2)).cast::<u32>() as u8,
                },
                Self::Add => Launch::Add { out: long(0), a: long(1), b: long(2), count: long(3) },
                Self::Scale => Launch::Scale {
                    out: long(0),
                    a: long(1),
                    factor: *(*arguments.add(2)).cast::<f32>(),
                    count: long(3),
                },
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Launch {
    Delay { nanoseconds: u64 },
    Fill { out: u64, count: u64, value: u8 },
    Add { out: u64, a: u64, b: u64, count: u64 },
    Scale { out: u64, a: u64, factor: f32, count: u64 },
}

impl Launch {
    pub(crate) fn touches(&self) -> Vec<Touch> {
        match *self {
            Self::Delay { .. } => Vec::new(),
            Self::Fill { out, count, .. } => vec![Touch::write(out, count)],
            Self::Add { out, a, b, count } => {
                vec![Touch::read(a, 4 * count), Touch::read(b, 4 * count), Touch::write(out, 4 * count)]
            }
            Self::Scale { out, a, count, .. } => {
                vec![Touch::read(a, 4 * count), Touch::write(out, 4 * count)]
            }
        }
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        if let Self::Delay { nanoseconds } = self { *nanoseconds } else { 0 }
    }

    /// Computes.
    ///
    /// # Safety
    ///
    /// All that it touches is memory of the simulator that is still there.
    pub(crate) unsafe fn compute(&self) {
        // SAFETY: promised by the caller; elements may lie anywhere, as on a device that allows it.
        unsafe {
            let get = |address: u64, index: u64| ((address + 4 * index) as *const f32).read_unaligned();
            let set =
                |address: u64, index: u64, value| ((address + 4 * index) as *mut f32).write_unaligned(value);
            match *self {
                Self::Delay { .. } => {}
                Self::Fill { out, count, value } => {
                    std::ptr::write_bytes(out as *mut u8, value, count as usize)
                }
                Self::Add { out, a, b, count } => {
                    (0..count).for_each(|index| set(out, index, get(a, index) + get(b, index)));
                }
                Self::Scale { out, a, factor, count } => {
                    (0..count).for_each(|index| set(out, index, factor * get(a, index)));
                }
            }
        }
    }
}

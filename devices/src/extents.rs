//! Blocks in large pieces of memory that others can be shown.
//!
//! A piece costs calls of a system or a driver, and a mapping in each process that has it, so there are few: each is twice as large as the
//! one before. Of those that are empty the largest stays, and the others go back. What is free is noted beside the memory, so that memory
//! which the host cannot use is divided as well.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The first piece.
const PIECE_MIN: usize = 16 << 20;

/// A piece of memory.
pub trait Span {
    /// Blocks begin and end at a multiple of this.
    const GRAIN: usize;

    /// Its address.
    fn start(&self) -> usize;

    /// Its length.
    fn bytes(&self) -> usize;
}

/// Pieces, and what is free in them.
#[derive(Debug)]
pub struct Extents<S> {
    extents: Vec<Extent<S>>,
}

/// A piece and what is free in it: lengths by offsets, no two of them adjacent.
#[derive(Debug)]
struct Extent<S> {
    span: Arc<S>,
    free: BTreeMap<usize, usize>,
}

impl<S: Span> Extent<S> {
    /// The offset of a block that was free. Pieces are aligned as far as `align` goes; what is beyond is of no use.
    fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let start = self.span.start();
        let fits = |(offset, length): (&usize, &usize)| {
            let begin = (start + offset).next_multiple_of(align) - start;
            let end = begin.checked_add(bytes)?;
            (end <= offset + length).then_some((*offset, *length, begin))
        };
        let (offset, length, begin) = self.free.iter().find_map(fits)?;
        self.free.remove(&offset);
        if begin > offset {
            self.free.insert(offset, begin - offset);
        }
        let (end, free_end) = (begin + bytes, offset + length);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        Some(begin)
    }

    fn give_back(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((before, length)) =
            self.free.range(..offset).next_back().map(|(before, length)| (*before, *length))
            && before + length == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, length + bytes);
        }
        bytes += self.free.remove(&(offset + bytes)).unwrap_or(0);
        self.free.insert(offset, bytes);
    }

    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.span.bytes())
    }
}

impl<S: Span> Default for Extents<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Span> Extents<S> {
    /// None.
    pub const fn new() -> Self {
        Self { extents: Vec::new() }
    }

    /// The pieces.
    pub fn spans(&self) -> impl Iterator<Item = &Arc<S>> {
        self.extents.iter().map(|extent| &extent.span)
    }

    /// A block of `bytes` bytes: its piece, and where in it the block begins. `make` makes a piece of at least that many bytes.
    ///
    /// # Errors
    /// That of `make`, for the least that is needed.
    pub fn take<E>(
        &mut self,
        bytes: usize,
        align: usize,
        mut make: impl FnMut(usize) -> Result<S, E>,
    ) -> Result<(Arc<S>, usize), E> {
        let (bytes, align) = (size::<S>(bytes), align.max(S::GRAIN));
        let mut extents = self.extents.iter_mut();
        if let Some(found) =
            extents.find_map(|extent| Some((Arc::clone(&extent.span), extent.take(bytes, align)?)))
        {
            return Ok(found);
        }
        let largest = self.spans().map(|span| span.bytes().saturating_mul(2)).max();
        let least = bytes.saturating_add(align);
        let span = make(largest.unwrap_or(PIECE_MIN).max(least)).or_else(|_| make(least))?;
        let free = BTreeMap::from([(0, span.bytes())]);
        let mut extent = Extent { span: Arc::new(span), free };
        let offset = extent.take(bytes, align).expect("a new piece is large enough");
        let span = Arc::clone(&extent.span);
        self.extents.push(extent);
        Ok((span, offset))
    }

    /// Takes a block back. Gives the piece that is not kept any more, to be dropped under no lock. A piece of another process, which this
    /// one was forked from, is not known here.
    #[must_use]
    pub fn give_back(&mut self, span: &Arc<S>, offset: usize, bytes: usize) -> Option<Arc<S>> {
        let extents = &mut self.extents;
        let at = extents.iter().position(|extent| Arc::ptr_eq(&extent.span, span))?;
        extents[at].give_back(offset, size::<S>(bytes));
        if !extents[at].is_empty() {
            return None;
        }
        let other = (0..extents.len()).find(|other| *other != at && extents[*other].is_empty())?;
        let smaller = if extents[at].span.bytes() <= extents[other].span.bytes() { at } else { other };
        Some(extents.swap_remove(smaller).span)
    }

    /// The piece that has `bytes` bytes at `address`, and where in it they are; `None` for other memory.
    pub fn find(&self, address: usize, bytes: usize) -> Option<(Arc<S>, usize)> {
        self.spans().find_map(|span| {
            let offset = address.checked_sub(span.start())?;
            let end = offset.checked_add(bytes)?;
            (end <= span.bytes()).then(|| (Arc::clone(span), offset))
        })
    }

    /// Whether one piece is left, and nothing is in it.
    pub fn is_one_empty(&self) -> bool {
        matches!(&self.extents[..], [extent] if extent.is_empty())
    }
}

/// What a block of `bytes` bytes takes. More than there is stays more than there is.
fn size<S: Span>(bytes: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(S::GRAIN).unwrap_or(usize::MAX)
}

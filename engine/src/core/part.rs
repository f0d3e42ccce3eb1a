//! Parts of a memory: what one variable orders may be written through several tensors, each of which covers a part.

use std::ops::Range;

use smallvec::SmallVec;

/// The elements of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The addresses from the first element's to the end of the last one.
    pub(crate) range: Range<usize>,
    /// Shape, strides and item size of a tensor whose elements leave gaps in the range.
    pub(crate) gaps: Option<Box<[i64]>>,
}

impl Part {
    /// What of this part remains after all of `written` has been replaced.
    pub(crate) fn without(self, written: &Self) -> SmallVec<[Self; 2]> {
        let disjoint = self.range.end <= written.range.start || written.range.end <= self.range.start;
        if self == *written {
            return SmallVec::new();
        }
        if disjoint || written.gaps.is_some() {
            return SmallVec::from_iter([self]);
        }
        let before = self.range.start..written.range.start;
        let after = written.range.end..self.range.end;
        if self.gaps.is_some() {
            // The gaps of a remainder would be described by other strides.
            let is_covered = before.is_empty() && after.is_empty();
            return (!is_covered).then_some(self).into_iter().collect();
        }
        let left = [before, after].into_iter().filter(|range| !range.is_empty());
        left.map(|range| Self { range, gaps: None }).collect()
    }

    /// The part of these elements that lies in `range`, as if there were no gaps; `None` if there is none.
    pub(crate) fn within(&self, range: &Range<usize>) -> Option<Self> {
        if range.start <= self.range.start && self.range.end <= range.end {
            return Some(self.clone());
        }
        let range = self.range.start.max(range.start)..self.range.end.min(range.end);
        (!range.is_empty()).then_some(Self { range, gaps: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(range: Range<usize>) -> Part {
        Part { range, gaps: None }
    }

    fn column(start: usize) -> Part {
        Part { range: start..start + 13, gaps: Some(Box::new([4, 4, 1])) }
    }

    #[track_caller]
    fn left(part: Part, written: &Part, expected: &[Part]) {
        assert_eq!(part.without(written).as_slice(), expected);
    }

    #[test]
    fn a_write_takes_out_what_it_covers() {
        left(whole(10..20), &whole(10..20), &[]);
        left(whole(10..20), &whole(0..30), &[]);
        left(whole(10..20), &whole(20..30), &[whole(10..20)]);
        left(whole(10..20), &whole(0..12), &[whole(12..20)]);
        left(whole(10..20), &whole(12..15), &[whole(10..12), whole(15..20)]);
    }

    #[test]
    fn elements_with_gaps_cover_the_same_elements_only() {
        left(column(10), &column(10), &[]);
        left(column(10), &column(11), &[column(10)]);
        left(column(10), &whole(0..40), &[]);
        left(column(10), &whole(0..12), &[column(10)]);
        left(whole(10..23), &column(10), &[whole(10..23)]);
    }

    #[test]
    fn a_part_is_cut_to_a_range() {
        assert_eq!(whole(10..20).within(&(0..12)), Some(whole(10..12)));
        assert_eq!(column(10).within(&(0..40)), Some(column(10)));
        assert_eq!(column(10).within(&(0..12)), Some(whole(10..12)));
        assert_eq!(whole(10..20).within(&(20..30)), None);
    }
}

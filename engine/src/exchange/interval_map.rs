//! Known memory by its addresses: an ordered, locked interval map, one per address space.
//!
//! Memory is kept in *size classes*: class `c` holds ranges of more than `2^(c-1)` and at most `2^c` bytes,
//! ordered by start. A range of class `c` that overlaps `[start, end)` begins after `start - 2^c`, so each
//! class answers with one short scan: of disjoint ranges at most one is looked at in vain. Without classes
//! one huge range would make every question look back over everything below it.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::iter;
use std::ops::Range;

use estafette_devices::{DLDevice, DeviceType};
use estafette_sync::sync::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// The space that two addresses must share to mean the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AddressSpace {
    /// The unified virtual address space of the process: host memory of every kind, CUDA and ROCm memory of
    /// all devices, and oneAPI's USM. Their runtimes hand out addresses that are unique in the process. The
    /// same memory appears under different device types (managed memory as CUDA by PyTorch, as CUDA-managed
    /// by CuPy, as host memory by NumPy). If a runtime ever did give two devices one address, their tensors
    /// would be ordered without need, which is harmless; the opposite mistake would be a race.
    Unified,
    /// Handles of one device whose memory has no addresses (OpenCL, Vulkan, Metal), and devices we do not
    /// know.
    Handles {
        /// The kind of device.
        device_type: DeviceType,
        /// The device among its kind.
        device_id: i32,
    },
}

impl AddressSpace {
    /// The space that data pointers of `device` belong to.
    pub(crate) fn of(device: DLDevice) -> Self {
        if device.device_type.has_addresses() {
            return Self::Unified;
        }
        Self::Handles { device_type: device.device_type, device_id: device.device_id }
    }
}

/// An entry of [`IntervalMap`], for taking it out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IntervalKey {
    space: AddressSpace,
    class: usize,
    start: usize,
    /// Unique in the map, ascending; 0 for an empty range, which is kept nowhere.
    id: u64,
}

/// Ranges of memory with a value each; they may overlap and repeat. Thread-safe: one lock around everything.
///
/// Values are cloned out under the lock and dropped outside of it; `Clone` must be short and call nothing
/// foreign (an `Arc` or `Weak` is what it is made for). An empty range overlaps nothing.
pub(crate) struct IntervalMap<V> {
    table: Mutex<Table<V>>,
}

/// The result of a range that is [resolved](IntervalMap::resolve).
#[derive(Debug)]
pub(crate) enum Resolution<V> {
    /// It is not entered.
    Nothing,
    /// An entry of its own.
    Insert(V),
    /// One more use of the entry with this place among those that were found, which has the same range.
    Share(usize),
}

/// The values that overlap a range, in the order of addresses, older entries first where they begin
/// together.
pub type Overlapping<V> = SmallVec<[V; 4]>;

impl<V: Clone> IntervalMap<V> {
    estafette_sync::const_fn! {
        /// An empty map.
        pub(crate) fn new() -> Self {
            let table = Table { unified: Classes::new(), handles: BTreeMap::new(), ids: 0, len: 0 };
            Self { table: Mutex::new(table) }
        }
    }

    /// Gives one use of an entry up; the last one takes it out. `None` before that, if it has been done
    /// already, or if the range was empty.
    pub(crate) fn remove(&self, key: IntervalKey) -> Option<V> {
        self.lock().remove(key)
    }

    /// Finds the values that overlap `range`, and inserts what `decide` answers, in one step. Of two threads
    /// that resolve overlapping ranges at once, the second sees what the first inserted.
    ///
    /// `decide` runs under the lock: it must be short and call nothing foreign, nor this map.
    pub(crate) fn resolve<R>(
        &self,
        space: AddressSpace,
        range: Range<usize>,
        decide: impl FnOnce(&[V]) -> (Resolution<V>, R),
    ) -> (Option<IntervalKey>, R) {
        // Declared before the guard, so dropped after it: the last clone of a value may run code of the
        // engine's.
        let mut found = Overlapping::new();
        let mut table = self.lock();
        let keys = table.find(space, &range, &mut found);
        let (answer, result) = decide(&found);
        let key = match answer {
            Resolution::Nothing => None,
            Resolution::Insert(value) => Some(table.insert(space, range, value)),
            Resolution::Share(place) => Some(table.share(keys[place])),
        };
        drop(table);
        (key, result)
    }

    fn lock(&self) -> MutexGuard<'_, Table<V>> {
        // A panic in `decide` leaves the table as it was: it is changed only after `decide` has returned.
        self.table.lock()
    }
}

impl<V: Clone> Default for IntervalMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Sizes of 1 byte to the whole address space.
const CLASSES: usize = usize::BITS as usize + 1;

struct Table<V> {
    /// Of the space of nearly all memory.
    unified: Classes<V>,
    handles: BTreeMap<AddressSpace, Classes<V>>,
    ids: u64,
    len: usize,
}

struct Classes<V> {
    /// Bit `c` is set when class `c` has entries: most programs use few of them.
    occupied: u128,
    trees: [BTreeMap<(usize, u64), Interval<V>>; CLASSES],
}

struct Interval<V> {
    end: usize,
    value: V,
    uses: usize,
}

impl<V: Clone> Table<V> {
    fn insert(&mut self, space: AddressSpace, range: Range<usize>, value: V) -> IntervalKey {
        if range.is_empty() {
            return IntervalKey { space, class: 0, start: range.start, id: 0 };
        }
        self.ids += 1;
        self.len += 1;
        let key = IntervalKey { space, class: class_of(range.len()), start: range.start, id: self.ids };
        let classes = match space {
            AddressSpace::Unified => &mut self.unified,
            handles => self.handles.entry(handles).or_insert_with(Classes::new),
        };
        classes.occupied |= 1 << key.class;
        classes.trees[key.class].insert((key.start, key.id), Interval { end: range.end, value, uses: 1 });
        key
    }

    fn share(&mut self, key: IntervalKey) -> IntervalKey {
        let classes = self.classes_mut(key.space).expect("it was found there");
        let entry = classes.trees[key.class].get_mut(&(key.start, key.id)).expect("it was found there");
        entry.uses += 1;
        key
    }

    fn remove(&mut self, key: IntervalKey) -> Option<V> {
        let classes = self.classes_mut(key.space)?;
        let tree = &mut classes.trees[key.class];
        let btree_map::Entry::Occupied(mut found) = tree.entry((key.start, key.id)) else { return None };
        found.get_mut().uses -= 1;
        if found.get().uses > 0 {
            return None;
        }
        let entry = found.remove();
        if tree.is_empty() {
            classes.occupied &= !(1 << key.class);
        }
        self.len -= 1;
        Some(entry.value)
    }

    /// Adds the values that overlap `range` to `found`, and returns their keys.
    fn find(
        &self,
        space: AddressSpace,
        range: &Range<usize>,
        found: &mut Overlapping<V>,
    ) -> SmallVec<[IntervalKey; 4]> {
        let mut keys = SmallVec::new();
        let Some(classes) = self.classes(space).filter(|_| !range.is_empty()) else { return keys };
        let mut occupied = classes.occupied;
        while occupied != 0 {
            let class = occupied.trailing_zeros() as usize;
            occupied &= occupied - 1;
            let first = range.start.saturating_sub(longest(class) - 1);
            for (&(start, id), entry) in classes.trees[class].range((first, 0)..(range.end, 0)) {
                if entry.end > range.start {
                    keys.push(IntervalKey { space, class, start, id });
                    found.push(entry.value.clone());
                }
            }
        }
        // One class alone is in order.
        if !keys.is_sorted_by_key(|key| (key.start, key.id)) {
            let mut both: Vec<_> = iter::zip(keys.drain(..), found.drain(..)).collect();
            both.sort_unstable_by_key(|(key, _)| (key.start, key.id));
            (keys, *found) = both.into_iter().unzip();
        }
        keys
    }

    fn classes(&self, space: AddressSpace) -> Option<&Classes<V>> {
        match space {
            AddressSpace::Unified => Some(&self.unified),
            handles => self.handles.get(&handles),
        }
    }

    fn classes_mut(&mut self, space: AddressSpace) -> Option<&mut Classes<V>> {
        match space {
            AddressSpace::Unified => Some(&mut self.unified),
            handles => self.handles.get_mut(&handles),
        }
    }
}

impl<V> Classes<V> {
    const fn new() -> Self {
        Self { occupied: 0, trees: [const { BTreeMap::new() }; CLASSES] }
    }
}

/// The class of a range of `len` bytes, not 0: the binary logarithm, rounded up.
fn class_of(len: usize) -> usize {
    (usize::BITS - (len - 1).leading_zeros()) as usize
}

/// The most bytes that a range of this class has.
fn longest(class: usize) -> usize {
    1_usize.checked_shl(class as u32).unwrap_or(usize::MAX)
}

#[cfg(test)]
impl<V: Clone> IntervalMap<V> {
    /// Adds a range.
    pub(crate) fn insert(&self, space: AddressSpace, range: Range<usize>, value: V) -> IntervalKey {
        self.lock().insert(space, range, value)
    }

    /// The values of all entries that share at least one byte with `range`.
    pub(crate) fn overlapping(&self, space: AddressSpace, range: Range<usize>) -> Overlapping<V> {
        let mut found = Overlapping::new();
        self.lock().find(space, &range, &mut found);
        found
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.lock().len
    }

    /// True if there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::{Arc, Barrier};

    use proptest::prelude::*;

    #[test]
    fn classes_round_up_and_cover_every_size() {
        for (len, class) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (4096, 12), (4097, 13), (usize::MAX, 64)]
        {
            assert_eq!(class_of(len), class);
            assert!(len <= longest(class));
        }
    }

    #[test]
    fn touching_ranges_do_not_overlap_and_empty_ones_never_do() {
        let ranges = IntervalMap::new();
        let key = ranges.insert(AddressSpace::Unified, 100..200, "a");
        assert!(ranges.overlapping(AddressSpace::Unified, 0..100).is_empty());
        assert!(ranges.overlapping(AddressSpace::Unified, 200..300).is_empty());
        assert_eq!(ranges.overlapping(AddressSpace::Unified, 199..200).as_slice(), ["a"]);
        assert_eq!(ranges.overlapping(AddressSpace::Unified, 0..usize::MAX).as_slice(), ["a"]);
        assert!(ranges.overlapping(AddressSpace::Unified, 150..150).is_empty());
        let empty = ranges.insert(AddressSpace::Unified, 150..150, "nothing");
        assert_eq!((ranges.len(), ranges.remove(empty)), (1, None));
        assert_eq!((ranges.remove(key), ranges.remove(key)), (Some("a"), None));
        assert!(ranges.is_empty());
    }

    #[test]
    fn an_entry_with_several_uses_is_found_once_until_the_last_is_given_up() {
        let ranges = IntervalMap::new();
        let first = ranges.insert(AddressSpace::Unified, 0..10, "a");
        let share = |seen: &[&'static str]| (Resolution::Share(0), seen.to_vec());
        let (second, seen) = ranges.resolve(AddressSpace::Unified, 0..10, share);
        assert_eq!((second, seen, ranges.len()), (Some(first), vec!["a"], 1));
        assert_eq!(ranges.remove(first), None);
        assert_eq!(ranges.overlapping(AddressSpace::Unified, 5..6).as_slice(), ["a"]);
        assert_eq!((ranges.remove(first), ranges.remove(first)), (Some("a"), None));
    }

    #[test]
    fn the_whole_address_space_is_a_range() {
        let ranges = IntervalMap::new();
        ranges.insert(AddressSpace::Unified, 0..usize::MAX, 1);
        ranges.insert(AddressSpace::Unified, usize::MAX - 1..usize::MAX, 2);
        assert_eq!(ranges.overlapping(AddressSpace::Unified, usize::MAX - 1..usize::MAX).as_slice(), [1, 2]);
        assert_eq!(ranges.overlapping(AddressSpace::Unified, 5..6).as_slice(), [1]);
    }

    #[test]
    fn kinds_of_memory_with_addresses_share_a_space_and_handles_do_not() {
        let space = |device_type, id| AddressSpace::of(DLDevice::new(device_type, id));
        let handles = DeviceType(99);
        assert_eq!(space(DeviceType::CPU, 0), space(DeviceType::EXT_DEV, 0));
        assert_eq!(space(DeviceType::EXT_DEV, 0), space(DeviceType::EXT_DEV, 1));
        assert_ne!(space(handles, 0), space(handles, 1));
        assert_ne!(space(handles, 0), AddressSpace::Unified);
        let ranges = IntervalMap::new();
        ranges.insert(space(handles, 0), 10..20, ());
        assert!(ranges.overlapping(space(handles, 1), 10..20).is_empty());
    }

    #[test]
    fn of_two_racing_resolvers_the_second_sees_the_first() {
        for round in 0..200 {
            let ranges = Arc::new(IntervalMap::new());
            let barrier = Arc::new(Barrier::new(2));
            let threads: Vec<_> = (0..2)
                .map(|thread| {
                    let (ranges, barrier) = (ranges.clone(), barrier.clone());
                    std::thread::spawn(move || {
                        barrier.wait();
                        let range = 100 + thread * 50..200 + thread * 50;
                        ranges
                            .resolve(AddressSpace::Unified, range, |seen| {
                                (Resolution::Insert(thread), seen.to_vec())
                            })
                            .1
                    })
                })
                .collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen == [vec![], vec![0]] || seen == [vec![1], vec![]], "round {round}: {seen:?}");
        }
    }

    #[test]
    fn resolve_may_decline_and_a_panic_in_it_changes_nothing() {
        let ranges = IntervalMap::new();
        ranges.insert(AddressSpace::Unified, 0..10, 7);
        let (key, seen) = ranges.resolve(AddressSpace::Unified, 5..15, |seen| (Resolution::Nothing, seen[0]));
        assert_eq!((key, seen, ranges.len()), (None, 7, 1));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ranges.resolve(AddressSpace::Unified, 5..15, |_| -> (Resolution<i32>, ()) { panic!("decide") })
        }));
        assert!(panicked.is_err());
        assert_eq!(ranges.overlapping(AddressSpace::Unified, 0..20).as_slice(), [7]);
    }

    #[derive(Debug, Clone)]
    enum MapEdit {
        Insert(usize, usize),
        Remove(prop::sample::Index),
        Ask(usize, usize),
        Resolve(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<MapEdit>> {
        // Small addresses make overlaps common; the sizes span eleven classes, and some touch the end of
        // the space.
        let start = || prop_oneof![9 => 0_usize..2000, 1 => usize::MAX - 2000..usize::MAX];
        let len =
            || prop_oneof![1 => Just(0_usize), 6 => 1_usize..20, 3 => 1_usize..1200, 1 => Just(usize::MAX)];
        let step = prop_oneof![
            4 => (start(), len()).prop_map(|(start, len)| MapEdit::Insert(start, len)),
            2 => any::<prop::sample::Index>().prop_map(MapEdit::Remove),
            4 => (start(), len()).prop_map(|(start, len)| MapEdit::Ask(start, len)),
            2 => (start(), len()).prop_map(|(start, len)| MapEdit::Resolve(start, len)),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_sequence_answers_like_a_plain_list(steps in steps()) {
            let ranges = IntervalMap::new();
            let mut oracle: Vec<(Range<usize>, IntervalKey, usize)> = Vec::new();
            let expected = |oracle: &[(Range<usize>, IntervalKey, usize)], asked: &Range<usize>| -> Vec<usize> {
                let mut hits: Vec<_> = oracle
                    .iter()
                    .filter(|(range, ..)| range.start.max(asked.start) < range.end.min(asked.end))
                    .collect();
                // Values ascend with the order of insertion, so they break ties as the map does.
                hits.sort_by_key(|(range, _, value)| (range.start, *value));
                hits.into_iter().map(|(_, _, value)| *value).collect()
            };
            for (value, step) in steps.into_iter().enumerate() {
                let of = |start: usize, len: usize| start..start.saturating_add(len);
                match step {
                    MapEdit::Insert(start, len) => {
                        let key = ranges.insert(AddressSpace::Unified, of(start, len), value);
                        if !of(start, len).is_empty() {
                            oracle.push((of(start, len), key, value));
                        }
                    }
                    MapEdit::Remove(index) if !oracle.is_empty() => {
                        let (_, key, value) = oracle.swap_remove(index.index(oracle.len()));
                        prop_assert_eq!(ranges.remove(key), Some(value));
                    }
                    MapEdit::Remove(_) => prop_assert!(ranges.is_empty()),
                    MapEdit::Ask(start, len) => {
                        let found = ranges.overlapping(AddressSpace::Unified, of(start, len));
                        prop_assert_eq!(found.to_vec(), expected(&oracle, &of(start, len)));
                    }
                    MapEdit::Resolve(start, len) => {
                        let range = of(start, len);
                        let (key, seen) = ranges.resolve(AddressSpace::Unified, range.clone(), |seen| {
                            let own = |known: &(Range<usize>, IntervalKey, usize)| known.0 == range && known.2 == seen[0];
                            let answer = if seen.is_empty() {
                                Resolution::Insert(value)
                            } else if oracle.iter().any(own) {
                                Resolution::Share(0)
                            } else {
                                Resolution::Nothing
                            };
                            (answer, seen.to_vec())
                        });
                        prop_assert_eq!(&seen, &expected(&oracle, &range));
                        let shared = oracle.iter().find(|known| Some(known.1) == key).cloned();
                        prop_assert!(key.is_some() || !seen.is_empty());
                        if let Some((range, key, value)) = shared {
                            // One more use of it, which is found once and is there until both are given up.
                            prop_assert_eq!(ranges.remove(key), None);
                            prop_assert!(ranges.overlapping(AddressSpace::Unified, range).contains(&value));
                        } else if let Some(key) = key && !range.is_empty() {
                            oracle.push((range, key, value));
                        }
                    }
                }
                prop_assert_eq!(ranges.len(), oracle.len());
            }
        }
    }
}

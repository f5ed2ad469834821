//! A table of objects that occupy address ranges.

use hashbrown::HashTable;

/// A map from addresses to the objects that occupy them. Objects may be added and removed in any
/// order. They may occupy the same addresses, or be nested.
///
/// The *class* of an object is its length, rounded up to a power of two. For each class, the
/// address space is divided into blocks of that size. An object occupies only the block in which it
/// starts, and perhaps the next one. A lookup therefore searches two blocks for each class in use.
/// Few objects start in the same block, so a lookup compares few objects. An ordered map would need
/// less code, but would add 45 ns to opening memory and 60 ns to closing it
/// (`docs/unified-runtime.md`).
pub(super) struct Spans<T> {
    /// The objects, hashed by the block in which they start.
    things: HashTable<Span<T>>,
    /// The number of objects in each class.
    counts: [u32; usize::BITS as usize + 1],
    /// One bit for each class, which is set if the class has objects.
    classes: u64,
}

/// An object, and the address range that it occupies.
pub(crate) struct Span<T> {
    /// The first address.
    pub(crate) start: usize,
    /// The length in bytes, which is never 0.
    pub(crate) len: usize,
    pub(crate) thing: T,
}

/// The smallest class: 64 bytes, which is the minimum size of allocations.
const SMALLEST: u32 = 6;

/// Returns the class of a length, as the base-2 logarithm of the rounded length.
#[inline]
fn class_of(len: usize) -> u32 {
    (usize::BITS - (len - 1).leading_zeros()).max(SMALLEST)
}

/// Returns the hash of the block that contains an address, for the blocks of one class. Allocators
/// choose the addresses, so a multiplication mixes them well enough.
#[inline]
fn hash_of(address: usize, class: u32) -> u64 {
    let block = (address as u64 >> class) << 6 | u64::from(class);
    let product = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 32
}

impl<T> Span<T> {
    #[inline]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.len
    }

    fn hash(&self) -> u64 {
        hash_of(self.start, class_of(self.len))
    }
}

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Self {
            things: HashTable::new(),
            counts: [0; usize::BITS as usize + 1],
            classes: 0,
        }
    }
}

impl<T> Spans<T> {
    /// Adds an object that occupies `len` bytes starting at `start`.
    #[inline(always)] // A call would copy the thing on its way.
    pub(super) fn add(&mut self, start: usize, len: usize, thing: T) {
        let class = class_of(len);
        self.counts[class as usize] += 1;
        self.classes |= 1 << class;
        let span = Span { start, len, thing };
        self.things
            .insert_unique(hash_of(start, class), span, Span::hash);
    }

    /// Removes one object that starts at `start` and that `is_right` accepts.
    #[inline]
    pub(super) fn remove(&mut self, start: usize, is_right: impl Fn(&T) -> bool) -> Option<T> {
        for class in bits(self.classes) {
            // The table may also yield objects of other classes that have the same hash.
            let is_it = |span: &Span<T>| {
                span.start == start && class_of(span.len) == class && is_right(&span.thing)
            };
            if let Ok(found) = self.things.find_entry(hash_of(start, class), is_it) {
                self.counts[class as usize] -= 1;
                if self.counts[class as usize] == 0 {
                    self.classes &= !(1 << class);
                }
                return Some(found.remove().0.thing);
            }
        }
        None
    }

    /// Returns the innermost object that contains an address: the one with the highest start.
    #[inline]
    pub(super) fn at(&self, address: usize) -> Option<&Span<T>> {
        let mut innermost: Option<&Span<T>> = None;
        for class in bits(self.classes) {
            let before = address.wrapping_sub(1 << class);
            for block in [address, before] {
                for span in self.things.iter_hash(hash_of(block, class)) {
                    if span.contains(address)
                        && innermost.is_none_or(|other| other.start < span.start)
                    {
                        innermost = Some(span);
                    }
                }
            }
        }
        innermost
    }

    /// Returns whether an object occupies any of these addresses. This function compares all
    /// objects.
    pub(super) fn overlaps(&self, start: usize, len: usize) -> bool {
        let mut all = self.things.iter();
        all.any(|span| span.contains(start) || span.start.wrapping_sub(start) < len)
    }
}

/// Returns the indexes of the set bits.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros();
            word &= word - 1;
            bit
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A linear list with the same behaviour as [`Spans`].
    #[derive(Default)]
    struct Model(Vec<(usize, usize, u32)>);

    impl Model {
        fn starts_at(&self, address: usize) -> Option<usize> {
            let contains =
                |(start, len, _): &&(usize, usize, u32)| (*start..start + len).contains(&address);
            self.0.iter().filter(contains).map(|span| span.0).max()
        }
    }

    /// The count of each class is exact. The test uses so few objects that most classes have only
    /// one object. All objects are in one group of the hash table, in which equal hashes collide.
    #[test]
    fn classes_are_counted_exactly() {
        for base in (1..5_000).map(|number| number << 21) {
            let mut spans = Spans::default();
            let start_of = |class: u32| base + 4096 * class as usize;
            for class in SMALLEST..SMALLEST + 6 {
                spans.add(start_of(class), 1 << class, class);
            }
            // The search visits the smaller classes first.
            for class in (SMALLEST..SMALLEST + 6).rev() {
                let removed = spans.remove(start_of(class), |_| true);
                assert_eq!(removed, Some(class), "at {base:#x}");
            }
            assert_eq!(spans.classes, 0);
        }
    }

    #[test]
    fn they_find_what_a_plain_list_finds() {
        // Each block has 100 addresses. Each span is within one block.
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % below
        };
        let mut spans = Spans::default();
        let mut model = Model::default();
        for number in 0..20_000 {
            let block = 1 + next(20);
            let start = block * 100 + next(4) * 10;
            let len = [90, (block + 1) * 100 - start - 1][next(2)].min((block + 1) * 100 - start);
            if next(2) == 0 && model.0.len() < 40 {
                spans.add(start, len, number);
                model.0.push((start, len, number));
            } else {
                let odd = number % 2;
                let found = spans.remove(start, |number| number % 2 == odd);
                let is_it = |span: &(usize, usize, u32)| span.0 == start && span.2 % 2 == odd;
                let expected = |span: &_| is_it(span) && found.is_none_or(|one| span.2 == one);
                let place = model.0.iter().position(expected);
                assert_eq!(found, place.map(|place| model.0.remove(place).2));
            }
            let address = 100 + next(2100);
            let found = spans.at(address);
            assert_eq!(found.map(|span| span.start), model.starts_at(address));
            let len = 1 + next(200);
            let overlaps = (address..address + len).any(|one| model.starts_at(one).is_some());
            assert_eq!(spans.overlaps(address, len), overlaps, "{address} {len}");
        }
    }
}

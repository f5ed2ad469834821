//! Things that take up addresses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;

/// Things by the addresses that they take up: looked up by any of them, added and removed in any
/// order. Several may be at the same place, and one inside another.
///
/// Their lengths, rounded up to powers of two, are their *classes*. Addresses are divided into
/// blocks of that size, so that a thing lies in the block in which it starts and at most in the
/// next one: to find what is at an address, two blocks are looked up for each class that occurs.
/// Things that don't overlap are at most two in a block (or as many as fit into the smallest one),
/// so that the list of each block is short.
pub(super) struct Spans<T> {
    /// What a removed thing leaves free is used for the next one.
    nodes: Vec<Node<T>>,
    /// The first of the list of free nodes.
    free: Link,
    /// The first thing that starts in each block, the one that was added last.
    blocks: HashMap<Block, u32, BuildHasherDefault<Fold>>,
    /// How many things there are of each class.
    counts: [u32; usize::BITS as usize + 1],
    /// A bit for each class that occurs.
    classes: u64,
}

/// A thing, and where it is.
pub(super) struct Span<T> {
    pub(super) start: usize,
    /// Never 0.
    pub(super) len: usize,
    pub(super) thing: T,
}

struct Node<T> {
    /// `None` for a free one.
    span: Option<Span<T>>,
    /// The next of its block, or of those that are free.
    next: Link,
}

type Link = Option<u32>;

/// The smallest class; allocations have no less.
const SMALLEST: u32 = 6;

/// Which class, and which of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block(u64);

impl Block {
    #[inline]
    fn of(address: usize, class: u32) -> Self {
        Self((address as u64 >> class) << 6 | u64::from(class))
    }
}

#[inline]
fn class_of(len: usize) -> u32 {
    (usize::BITS - (len - 1).leading_zeros()).max(SMALLEST)
}

impl<T> Span<T> {
    #[inline]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.len
    }
}

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: None,
            blocks: HashMap::default(),
            counts: [0; usize::BITS as usize + 1],
            classes: 0,
        }
    }
}

impl<T> Spans<T> {
    #[inline(always)] // A call would copy the thing on its way.
    pub(super) fn add(&mut self, start: usize, len: usize, thing: T) {
        let place = self.link(start, class_of(len));
        self.nodes[place].span = Some(Span { start, len, thing });
    }

    /// A free node, as the first of its block.
    #[inline]
    fn link(&mut self, start: usize, class: u32) -> usize {
        let place = self.free.unwrap_or_else(|| {
            self.nodes.push(Node {
                span: None,
                next: None,
            });
            (self.nodes.len() - 1) as u32
        });
        let before = self.blocks.insert(Block::of(start, class), place);
        let node = &mut self.nodes[place as usize];
        let after = mem::replace(&mut node.next, before);
        if self.free.is_some() {
            self.free = after;
        }
        self.counts[class as usize] += 1;
        self.classes |= 1 << class;
        place as usize
    }

    /// Removes the thing that was added last of those that start here and are right.
    #[inline]
    pub(super) fn remove(&mut self, start: usize, is_right: impl Fn(&T) -> bool) -> Option<T> {
        let is_it = |span: &Span<T>| span.start == start && is_right(&span.thing);
        for class in bits(self.classes) {
            let block = Block::of(start, class);
            let mut previous = None;
            let mut link = self.blocks.get(&block).copied();
            while let Some(place) = link {
                let node = &mut self.nodes[place as usize];
                if node.span.as_ref().is_some_and(is_it) {
                    let span = node.span.take();
                    let next = mem::replace(&mut node.next, self.free);
                    self.free = Some(place);
                    self.unlink(block, previous, next);
                    self.counts[class as usize] -= 1;
                    if self.counts[class as usize] == 0 {
                        self.classes &= !(1 << class);
                    }
                    return span.map(|span| span.thing);
                }
                previous = link;
                link = node.next;
            }
        }
        None
    }

    /// Lets what came before a removed node of a block continue with what comes after.
    #[inline]
    fn unlink(&mut self, block: Block, previous: Link, next: Link) {
        match (previous, next) {
            (Some(previous), next) => self.nodes[previous as usize].next = next,
            (None, Some(next)) => {
                self.blocks.insert(block, next);
            }
            (None, None) => {
                self.blocks.remove(&block);
            }
        }
    }

    /// The innermost thing that contains an address.
    #[inline]
    pub(super) fn at(&self, address: usize) -> Option<&Span<T>> {
        let mut innermost: Option<&Span<T>> = None;
        for class in bits(self.classes) {
            let own = Block::of(address, class);
            let before = Block::of(address.wrapping_sub(1 << class), class);
            for block in [own, before] {
                let mut link = self.blocks.get(&block).copied();
                while let Some(place) = link {
                    let node = &self.nodes[place as usize];
                    if let Some(span) = &node.span
                        && span.contains(address)
                        && innermost.is_none_or(|other| other.start < span.start)
                    {
                        innermost = Some(span);
                    }
                    link = node.next;
                }
            }
        }
        innermost
    }

    /// Whether something has one of these addresses. Looks at everything.
    pub(super) fn overlaps(&self, start: usize, len: usize) -> bool {
        let mut all = self.nodes.iter().filter_map(|node| node.span.as_ref());
        all.any(|span| span.contains(start) || span.start.wrapping_sub(start) < len)
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros();
            word &= word - 1;
            bit
        })
    })
}

/// Spreads the bits of one number; what allocators choose needs no more.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same without any cleverness.
    #[derive(Default)]
    struct Model(Vec<(usize, usize, u32)>);

    impl Model {
        fn starts_at(&self, address: usize) -> Option<usize> {
            let contains =
                |(start, len, _): &&(usize, usize, u32)| (*start..start + len).contains(&address);
            self.0.iter().filter(contains).map(|span| span.0).max()
        }
    }

    #[test]
    fn they_find_what_a_plain_list_finds() {
        // Blocks of 100 addresses, and spans from somewhere in a block up to its end.
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
                let place = model.0.iter().rposition(is_it);
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

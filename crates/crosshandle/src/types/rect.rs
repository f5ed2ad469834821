//! Rectangles of memory, of two or three dimensions.

use crate::error::{Error, Result};

/// The size of a rectangle: `slices` slices of `rows` rows of `width` bytes. It is empty if any of
/// them is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The bytes of a row.
    pub width: usize,
    /// The rows of a slice.
    pub rows: usize,
    /// The number of slices; 1 for a rectangle of two dimensions.
    pub slices: usize,
}

/// The layout of a rectangle in its memory: the distances between the starts of rows and of slices, in
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pitches {
    /// The distance from row to row: at least the width.
    pub row: usize,
    /// The distance from slice to slice: a multiple of the row pitch, and at least all rows. It has no
    /// meaning if there is only one slice.
    pub slice: usize,
}

impl Region {
    /// Returns the size of a rectangle of two dimensions.
    pub fn new_2d(width: usize, rows: usize) -> Self {
        Self {
            width,
            rows,
            slices: 1,
        }
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(self) -> bool {
        self.width == 0 || self.rows == 0 || self.slices == 0
    }

    /// Returns the number of the region's bytes, which is at most the length that it was checked
    /// against.
    pub(crate) fn bytes(self) -> usize {
        self.width
            .saturating_mul(self.rows)
            .saturating_mul(self.slices)
    }

    /// Refuses pitches with which the rectangle is not inside `len` bytes, or its rows or slices
    /// overlap.
    pub(crate) fn check(self, pitches: Pitches, what: &str, len: usize) -> Result<()> {
        let fits = self.span(pitches).is_some_and(|span| span <= len);
        if self.is_empty() || fits {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} × {} rows of {} bytes, every {} and {} bytes, are not inside the {what} of {} \
             bytes, or not apart, or slices don't start at whole rows",
            self.slices, self.rows, self.width, pitches.slice, pitches.row, len
        )))
    }

    /// Returns the number of bytes from the rectangle's first to its last; `None` for pitches that
    /// are not allowed.
    fn span(self, pitches: Pitches) -> Option<usize> {
        if pitches.row < self.width {
            return None;
        }
        let more_slices = self.slices.saturating_sub(1);
        if more_slices > 0 {
            let slice = self.rows.checked_mul(pitches.row)?;
            if pitches.slice < slice || !pitches.slice.is_multiple_of(pitches.row) {
                return None;
            }
        }
        let rows = self.rows.saturating_sub(1).checked_mul(pitches.row)?;
        let slices = match more_slices {
            0 => 0,
            more => more.checked_mul(pitches.slice)?,
        };
        slices.checked_add(rows)?.checked_add(self.width)
    }

    /// Returns a region of the same bytes in as few and as long rows as possible, and changes the
    /// pitches of each side to suit it: rows without a gap become one. The region was checked with these
    /// pitches.
    pub(crate) fn simplify(mut self, sides: &mut [Pitches]) -> Self {
        if self.rows == 1 {
            self.slices_become_rows(sides);
        }
        let has_gaps = |side: &Pitches| side.slice != self.rows.saturating_mul(side.row);
        if self.slices > 1 && !sides.iter().any(has_gaps) {
            self.rows *= self.slices;
            self.slices = 1;
        }
        if self.rows > 1 && sides.iter().all(|side| side.row == self.width) {
            self.width *= self.rows;
            self.slices_become_rows(sides);
        }
        if self.slices == 1 {
            for side in sides {
                side.slice = self.rows.saturating_mul(side.row);
            }
        }
        self
    }

    fn slices_become_rows(&mut self, sides: &mut [Pitches]) {
        self.rows = self.slices;
        self.slices = 1;
        for side in sides {
            side.row = side.slice;
        }
    }
}

impl Pitches {
    /// Returns the pitches of a rectangle of two dimensions, whose rows start every `row` bytes.
    pub fn new_2d(row: usize) -> Self {
        Self { row, slice: 0 }
    }

    /// Returns the pitches of a rectangle without gaps.
    pub fn tight(region: Region) -> Self {
        Self {
            row: region.width,
            slice: region.width.saturating_mul(region.rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simplified(region: (usize, usize, usize), pitches: [(usize, usize); 2]) -> [usize; 7] {
        let region = Region {
            width: region.0,
            rows: region.1,
            slices: region.2,
        };
        let mut sides = pitches.map(|(row, slice)| Pitches { row, slice });
        let simple = region.simplify(&mut sides);
        let [to, from] = sides;
        [
            simple.width,
            simple.rows,
            simple.slices,
            to.row,
            to.slice,
            from.row,
            from.slice,
        ]
    }

    #[test]
    fn what_has_no_gaps_is_one_row() {
        assert_eq!(
            simplified((4, 3, 2), [(4, 12), (4, 12)])[..3],
            [24, 1, 1],
            "all of it"
        );
        assert_eq!(
            simplified((4, 3, 2), [(4, 12), (4, 16)]),
            [12, 2, 1, 12, 24, 16, 32],
            "slices"
        );
        assert_eq!(
            simplified((4, 3, 2), [(8, 24), (6, 18)]),
            [4, 6, 1, 8, 48, 6, 36],
            "rows apart, slices not"
        );
        assert_eq!(
            simplified((4, 1, 5), [(4, 8), (6, 12)]),
            [4, 5, 1, 8, 40, 12, 60],
            "slices of one row"
        );
        assert_eq!(simplified((4, 1, 1), [(9, 0), (7, 3)])[..3], [4, 1, 1]);
        assert_eq!(
            simplified((4, 3, 2), [(5, 20), (6, 24)]),
            [4, 3, 2, 5, 20, 6, 24],
            "nothing to be done"
        );
    }
}

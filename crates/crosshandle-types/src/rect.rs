//! Rectangles in memory, with two or three dimensions.

use crate::error::{Error, Result};

/// The size of a rectangle, which has `slices` slices of `rows` rows of `width` bytes each. The
/// rectangle is empty if one of them is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Number of bytes in a row.
    pub width: usize,
    /// Number of rows in a slice.
    pub rows: usize,
    /// Number of slices, which is 1 for a rectangle of two dimensions.
    pub slices: usize,
}

/// The layout of a rectangle in its memory, as the distances in bytes between the starts of rows
/// and of slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pitches {
    /// The distance between the starts of two rows, at least the width.
    pub row: usize,
    /// The distance between the starts of two slices. It is a multiple of the row pitch, and large
    /// enough for all rows of a slice. Ignored if there is only one slice.
    pub slice: usize,
}

impl Region {
    /// Creates the size of a rectangle of two dimensions.
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

    /// Returns the number of bytes in the region. It does not exceed the length that the region was
    /// checked against.
    pub fn bytes(self) -> usize {
        self.width
            .saturating_mul(self.rows)
            .saturating_mul(self.slices)
    }

    /// Rejects pitches if the rectangle is not inside `len` bytes, or if its rows or slices
    /// overlap.
    pub fn check(self, pitches: Pitches, what: &str, len: usize) -> Result<()> {
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

    /// Returns the number of bytes from the rectangle's first to its last, or `None` if the pitches
    /// are invalid.
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

    /// Returns an equivalent region with rows that are as few and as long as possible, by merging
    /// rows without a gap. Adapts the pitches of each side. The caller must have checked the region
    /// with these pitches.
    pub fn simplify(mut self, sides: &mut [Pitches]) -> Self {
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
    /// Creates the pitches of a rectangle of two dimensions whose rows start every `row` bytes.
    pub fn new_2d(row: usize) -> Self {
        Self { row, slice: 0 }
    }

    /// Creates the pitches of a rectangle without gaps.
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

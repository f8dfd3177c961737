//! Rotation of a head's numbers by their token's position.

use crate::isa::{Isa, Vectorized};

/// The angles of every position up to some length, as cosines and sines.
#[derive(Clone, Debug)]
pub struct Angles {
    /// For each position as many cosines as there are pairs.
    pub cosines: Vec<f32>,
    /// See `cosines`.
    pub sines: Vec<f32>,
    /// Pairs of numbers that are turned; what a head has beyond them stays.
    pub pairs: usize,
    /// Whether a pair are neighbours, or lie half of the turned numbers apart.
    pub neighbours: bool,
}

impl Angles {
    /// Turns the heads of `head` numbers that lie one after the other in `row`, which is the token at `position`.
    pub fn turn(&self, isa: Isa, row: &mut [f32], head: usize, position: usize) {
        isa.run(Turn(self, row, head, position));
    }
}

struct Turn<'a>(&'a Angles, &'a mut [f32], usize, usize);

impl Vectorized for Turn<'_> {
    #[inline(always)]
    fn run(self) {
        let Turn(angles, row, head, position) = self;
        let place = position * angles.pairs..(position + 1) * angles.pairs;
        let (cosines, sines) = (&angles.cosines[place.clone()], &angles.sines[place]);
        for numbers in row.chunks_exact_mut(head) {
            if angles.neighbours {
                turn_neighbours(numbers, cosines, sines);
            } else {
                turn_halves(numbers, cosines, sines);
            }
        }
    }
}

#[inline(always)]
fn turn_halves(numbers: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = numbers[..2 * cosines.len()].split_at_mut(cosines.len());
    for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}

#[inline(always)]
fn turn_neighbours(numbers: &mut [f32], cosines: &[f32], sines: &[f32]) {
    for ((pair, cosine), sine) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
        let [a, b] = *pair;
        *pair = [a * cosine - b * sine, b * cosine + a * sine];
    }
}

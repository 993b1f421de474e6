//! Each step alike.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::is_ready;
use crate::{
    batch::Draw,
    error::{Error, Result},
    ring::Ring,
};

/// Steps that cannot be drawn yet are passed over; after so many of them in a row, all are looked at.
const MISSES: usize = 256;

/// Draws steps of which it has not been looked at whether they can be drawn: nearly all can, and whoever copies them sees.
pub(super) fn draw_unseen(
    ring: &Ring,
    count: usize,
    random: &mut Xoshiro256PlusPlus,
    draws: &mut Vec<Draw>,
) -> Result<()> {
    draws.clear();
    let (oldest, cursor) = (ring.oldest(), ring.cursor());
    if oldest == cursor {
        return Err(empty());
    }
    let probability = 1.0 / (cursor - oldest) as f64;
    draws.extend((0..count).map(|_| Draw { ticket: random.random_range(oldest..cursor), probability }));
    Ok(())
}

pub(super) fn draw(ring: &Ring, count: usize, random: &mut Xoshiro256PlusPlus, draws: &mut Vec<Draw>) -> Result<()> {
    draws.clear();
    let (oldest, cursor) = (ring.oldest(), ring.cursor());
    let probability = 1.0 / (cursor - oldest).max(1) as f64;
    let mut misses = 0;
    while draws.len() < count {
        if oldest == cursor {
            return Err(empty());
        }
        let ticket = random.random_range(oldest..cursor);
        if is_ready(ring, ring.place(ticket)) {
            misses = 0;
            draws.push(Draw { ticket, probability });
            continue;
        }
        misses += 1;
        if misses == MISSES {
            let ready: Vec<_> = (oldest..cursor).filter(|ticket| is_ready(ring, ring.place(*ticket))).collect();
            if ready.is_empty() {
                return Err(empty());
            }
            while draws.len() < count {
                let ticket = ready[random.random_range(0..ready.len())];
                draws.push(Draw { ticket, probability: 1.0 / ready.len() as f64 });
            }
        }
    }
    Ok(())
}

pub(super) fn empty() -> Error {
    Error::NotReady(
        "there is no step to draw: one can be drawn when what followed it is known, by the next step of its environment or a final \
         observation; add more before sampling"
            .into(),
    )
}

//! How an episode begins where a state may be left out: whether None is as good as zeros.

use relevo_abi::DType;

use crate::{
    guess::{Example, Guess, Purpose, is_float},
    probe::Found,
    shim::{Program, Result},
};

/// Outputs may differ by so much, relative plus absolute.
const TOLERANCE: f64 = 1e-5;

/// The bytes of a number by which a row of a state says that it begins an episode: a NaN that no calculation gives.
pub(crate) fn mark(dtype: DType) -> Vec<u8> {
    match dtype.size() {
        2 => 0x7E4F_u16.to_ne_bytes().to_vec(),
        8 => 0x7FF8_0000_0000_4E4F_u64.to_ne_bytes().to_vec(),
        _ => 0x7FC0_4E4F_u32.to_ne_bytes().to_vec(),
    }
}

/// The inputs of a method some of whose arguments are states that are None by default.
pub(crate) struct Starts<'a> {
    pub(crate) states: &'a [String],
    pub(crate) names: &'a [String],
    pub(crate) purposes: &'a [Purpose],
    pub(crate) found: &'a Found,
}

/// What the states hold in a pass.
enum Held {
    Zeros,
    Marks,
    MadeUp,
}

impl Starts<'_> {
    /// Whether any result changes with the states.
    pub(crate) fn are_used(&self, program: &Program) -> Result<bool> {
        Ok(differ(&self.run(program, &Held::Zeros)?, &self.run(program, &Held::MadeUp)?))
    }

    /// Which inputs are to hold marks where an episode begins: none, unless the module makes something else of None than of
    /// zeros. The program is set to look for them then. Where it draws, nothing can be compared, and None is as good.
    pub(crate) fn marked(&self, program: &mut Program, draws: bool) -> Result<Vec<usize>> {
        let (states, found) = (self.states, self.found);
        let is_float_state = |at: &usize| self.is_state(*at) && is_float(found.guesses[*at].scalar);
        let inputs: Vec<_> = (0..self.names.len()).filter(is_float_state).collect();
        let Some(first) = inputs.first() else { return Ok(inputs) };
        let axes: Vec<_> = found.guesses.iter().map(|guess| guess.axis).collect();
        program.start_empty(states, *first, &axes, &found.batch_axes)?;
        let zeros = self.run(program, &Held::Zeros)?;
        // What fails on None begins with zeros.
        if self.run(program, &Held::Marks).is_ok_and(|none| draws || differ(&none, &zeros)) {
            return Ok(inputs);
        }
        program.start_empty(&[], *first, &axes, &[])?;
        Ok(Vec::new())
    }

    fn is_state(&self, at: usize) -> bool {
        self.states.iter().any(|state| Some(&**state) == self.names[at].split('.').next())
    }

    /// The numbers that come out of a pass.
    fn run(&self, program: &Program, held: &Held) -> Result<Vec<Vec<f64>>> {
        let rows: &[usize] = if self.found.single.is_some() { &[0] } else { &[0, 1] };
        let example = |(at, (guess, purpose)): (usize, (&Guess, &Purpose))| match held {
            Held::Zeros if self.is_state(at) => Example::filled(guess, rows, &[0; 8]),
            Held::Marks if self.is_state(at) => Example::filled(guess, rows, &mark(guess.scalar.dtype())),
            _ => Example::new(guess, *purpose, rows),
        };
        let examples: Vec<_> = self.found.guesses.iter().zip(self.purposes).enumerate().map(example).collect();
        let tensors: Vec<_> = examples.iter().map(Example::tensor).collect();
        let mut session = program.session(true)?;
        let shown = session.probe(&tensors)?;
        shown.iter().enumerate().map(|(at, output)| session.probed(at, output.shape.iter().product())).collect()
    }
}

/// Whether results of two passes are not the same, as far as rounding goes.
fn differ(ones: &[Vec<f64>], others: &[Vec<f64>]) -> bool {
    let apart = |(one, other): (&f64, &f64)| (one - other).abs() > TOLERANCE * (1.0 + other.abs());
    ones.iter().zip(others).any(|(one, other)| one.len() == other.len() && one.iter().zip(other).any(apart))
}

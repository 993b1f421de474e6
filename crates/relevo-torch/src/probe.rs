//! Finding the shapes that a module does not declare, by calling it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::{
    guess::{Example, Guess, Hints, LARGE_ROW, Purpose},
    scalar::{Scalar, Shown},
    shim::{Program, Result, Session},
};

/// The search ends after so many calls, or so long.
const MOST_CALLS: usize = 6_000;
const LONGEST: Duration = Duration::from_secs(8);
/// Widths that no policy has: what accepts them takes any.
const IMPOSSIBLE: [usize; 2] = [7919, 7907];
/// Rounds of a search where the module's tensors tell nothing: each learns a width or two.
const BLIND_ROUNDS: usize = 8;
/// Different failures of a round that are read.
const MOST_FAILURES: usize = 64;
/// A row in a batch may differ by so much from the row alone, relative plus absolute.
const TOLERANCE: f64 = 1e-3;
/// Why a module with memory takes one row.
const REMEMBERS: &str = "its state lives in the module";

/// What calling showed.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// One for each input.
    pub(crate) guesses: Vec<Guess>,
    pub(crate) outputs: Vec<Shown>,
    /// The axis of each output that grows with the batch; `None` for all where batches fail.
    pub(crate) batch_axes: Vec<Option<usize>>,
    /// Why batches cannot be run; `None` where they can.
    pub(crate) single: Option<String>,
}

impl Found {
    /// What the outputs behind the first are like, the last ones first: states that came out may go in.
    pub(crate) fn begun(&self) -> Vec<Guess> {
        let mut begun: Vec<Guess> = Vec::new();
        for (output, batch_axis) in self.outputs.iter().zip(&self.batch_axes).skip(1).rev() {
            let axes = (0..output.shape.len()).filter(|axis| match (&self.single, batch_axis) {
                (None, known) => *known == Some(*axis),
                (Some(_), _) => output.shape[*axis] == 1,
            });
            for axis in axes {
                let mut row = output.shape.clone();
                row.remove(axis);
                let guess = Guess { scalar: output.scalar, row, axis };
                if !begun.contains(&guess) {
                    begun.push(guess);
                }
            }
        }
        begun
    }
}

/// Inputs that are guessed together: the parts of a tuple that holds states are alike, and often all states are.
struct Group {
    leaves: Vec<usize>,
    guesses: Vec<Guess>,
}

/// The inputs of a method, and what is known of them.
pub(crate) struct Inputs<'a> {
    pub(crate) names: &'a [String],
    pub(crate) purposes: &'a [Purpose],
    /// Rows that the user gave, or that the module's own methods tell; where there are several, one of them holds.
    pub(crate) given: &'a BTreeMap<String, Vec<Vec<usize>>>,
    /// Types that are known.
    pub(crate) types: &'a BTreeMap<String, Scalar>,
    /// What a state may be like, as it comes out where none goes in.
    pub(crate) begun: &'a [Guess],
    /// Whether the outputs differ from call to call anyway.
    pub(crate) random: bool,
}

/// Finds types and shapes of the inputs with which the method runs: for batches where there are such.
///
/// # Errors
/// Where nothing runs, with the last failure.
pub(crate) fn find(program: &Program, inputs: &Inputs<'_>) -> Result<Found> {
    let mut hints = Hints::of(&program.tensors());
    let mut search = Search {
        program,
        inputs,
        session: program.session(true)?,
        remembers: program.remembers(),
        calls: 0,
        begun: Instant::now(),
        failure: String::new(),
        failures: BTreeSet::new(),
    };
    let unknown = inputs.names.iter().filter(|name| !inputs.given.contains_key(*name)).count();
    if unknown == 1 && inputs.names.len() == 1 {
        search.ask_for_the_width(&mut hints)?;
    }
    let is_blind = hints.tells_nothing() && inputs.names.len() > 1;
    if is_blind {
        hints.pretend(IMPOSSIBLE[0]);
    }
    // What a failure says of widths may be what was missing.
    for _ in 0..if is_blind { BLIND_ROUNDS } else { 3 } {
        let loose = inputs.loose_states();
        for alike in [true, false].into_iter().skip(usize::from(loose < 2)) {
            if let Some(found) = search.run(&groups(inputs, &hints, alike)) {
                return Ok(found);
            }
        }
        let failure = search.failure.clone();
        let mut learned = false;
        if is_blind {
            for failure in std::mem::take(&mut search.failures) {
                learned |= hints.learn(&failure, &IMPOSSIBLE);
            }
        } else {
            learned = hints.learn(&failure, &[]);
        }
        if search.is_over() || !learned {
            break;
        }
    }
    Err(search.failure)
}

impl Inputs<'_> {
    /// How many states are unknown, and in no tuple.
    fn loose_states(&self) -> usize {
        let states = self.names.iter().zip(self.purposes).filter(|(_, purpose)| **purpose == Purpose::State);
        states.filter(|(name, _)| !name.contains('.') && !self.given.contains_key(*name)).count()
    }
}

/// What is guessed together; with `alike`, all states that are in no tuple.
fn groups(inputs: &Inputs<'_>, hints: &Hints, alike: bool) -> Vec<Group> {
    let mut groups: Vec<(Option<&str>, Group)> = Vec::new();
    for (leaf, (name, purpose)) in inputs.names.iter().zip(inputs.purposes).enumerate() {
        if let Some(rows) = inputs.given.get(name) {
            let mut guesses = hints.given(rows, *purpose);
            if let Some(scalar) = inputs.types.get(name) {
                for guess in &mut guesses {
                    guess.scalar = *scalar;
                }
                guesses.dedup();
            }
            groups.push((None, Group { leaves: vec![leaf], guesses }));
            continue;
        }
        let tuple = match name.split_once('.') {
            _ if *purpose != Purpose::State => None,
            None => alike.then_some(""),
            Some((tuple, _)) => Some(tuple),
        };
        if let Some((_, group)) = groups.iter_mut().find(|(known, _)| tuple.is_some() && *known == tuple) {
            group.leaves.push(leaf);
            continue;
        }
        let begun = if *purpose == Purpose::State { inputs.begun } else { &[] };
        groups.push((tuple, Group { leaves: vec![leaf], guesses: [begun, &hints.guesses(*purpose)].concat() }));
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

struct Search<'a> {
    program: &'a Program,
    inputs: &'a Inputs<'a>,
    session: Session,
    /// Whether the module has memory of its own.
    remembers: bool,
    calls: usize,
    begun: Instant,
    /// The last failure of a single row.
    failure: String,
    /// Different ones of this round.
    failures: BTreeSet<String>,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.calls >= MOST_CALLS || self.begun.elapsed() > LONGEST
    }

    /// Calls the only input with widths that cannot be, so that the error tells the true one.
    fn ask_for_the_width(&mut self, hints: &mut Hints) -> Result<()> {
        for row in [vec![], vec![1]] {
            let mut accepted = 0;
            for width in IMPOSSIBLE {
                let row = [&row[..], &[width]].concat();
                match self.call(&[Guess { scalar: hints.scalar, row, axis: 0 }], &[0]) {
                    Ok(_) => accepted += 1,
                    Err(error) => {
                        hints.learn(&error, &IMPOSSIBLE);
                    }
                }
            }
            if accepted == IMPOSSIBLE.len() {
                return Err("it takes inputs of any width".into());
            }
        }
        Ok(())
    }

    /// Tries every combination of guesses.
    fn run(&mut self, groups: &[Group]) -> Option<Found> {
        let mut single = None;
        let mut position = vec![0; groups.len()];
        while !self.is_over() && groups.iter().all(|group| !group.guesses.is_empty()) {
            let mut guesses = vec![Guess { scalar: Scalar::FLOAT, row: Vec::new(), axis: 0 }; self.inputs.names.len()];
            for (group, index) in groups.iter().zip(&position) {
                for leaf in &group.leaves {
                    guesses[*leaf] = group.guesses[*index].clone();
                }
            }
            match self.attempt(&guesses) {
                Ok(found) if self.remembers => return Some(found),
                Ok(found) if found.single.is_none() => {
                    // Batches of other types show nothing: whole numbers may lack what mixes the rows of a batch.
                    let scalars = |found: &Found| found.guesses.iter().map(|guess| guess.scalar).collect::<Vec<_>>();
                    let before = single.take();
                    return before.filter(|known| scalars(known) != scalars(&found)).or(Some(found));
                }
                Ok(found) => single = single.or(Some(found)),
                Err(failure) => {
                    if self.failures.len() < MOST_FAILURES {
                        self.failures.insert(failure.clone());
                    }
                    self.failure = failure;
                }
            }
            // The next combination; the last group changes fastest.
            let Some(next) = (0..groups.len()).rev().find(|group| position[*group] + 1 < groups[*group].guesses.len())
            else {
                break;
            };
            position[next] += 1;
            position[next + 1..].fill(0);
        }
        single
    }

    /// Whether these guesses run, alone and in batches.
    fn attempt(&mut self, guesses: &[Guess]) -> Result<Found> {
        let outputs = self.call(guesses, &[0])?;
        if guesses.iter().any(|guess| IMPOSSIBLE.iter().any(|width| guess.row.contains(width))) {
            return Err("it takes inputs of any width".into());
        }
        self.session = self.program.session(true)?;
        // What remembers serves one actor at a time anyway.
        let batches = if self.remembers { Err(REMEMBERS.into()) } else { self.batches(guesses, &outputs) };
        let (batch_axes, single) = match batches {
            Ok(axes) => (axes, None),
            Err(reason) => (vec![None; outputs.len()], Some(reason)),
        };
        self.session = self.program.session(true)?;
        Ok(Found { guesses: guesses.to_vec(), outputs, batch_axes, single })
    }

    /// The batch axis of each output. Fails where batches do not run, or where their rows are not what each is alone.
    fn batches(&mut self, guesses: &[Guess], alone: &[Shown]) -> Result<Vec<Option<usize>>> {
        let two = self.call(guesses, &[0, 1]).map_err(|error| format!("a batch of 2 rows fails: {error}"))?;
        let three = self.call(guesses, &[0, 1, 2]).map_err(|error| format!("a batch of 3 rows fails: {error}"))?;
        if two.len() != alone.len() || three.len() != alone.len() {
            return Err("the number of results changes with the batch".into());
        }
        let grows =
            |(two, three): (&Shown, &Shown)| two.shape.iter().zip(&three.shape).position(|sizes| sizes == (&2, &3));
        let found: Vec<_> = two.iter().zip(&three).map(grows).collect();
        if found.iter().all(Option::is_none) {
            return Err("no result grows with the batch".into());
        }
        if !self.inputs.random {
            self.compare_rows(guesses, &[0, 1], &found)?;
            self.compare_rows(guesses, &[0, 1, 2], &found)?;
            // Some modules refuse, or cannot look up, what is so large.
            self.session = self.program.session(true)?;
            let last = if self.call(guesses, &[LARGE_ROW]).is_ok() { LARGE_ROW } else { 8 };
            self.compare_rows(guesses, &[0, 1, 2, 3, 4, 5, 6, 7, last], &found)?;
        }
        Ok(found)
    }

    /// Fails unless each of these rows is in a batch of them what it is alone.
    fn compare_rows(&mut self, guesses: &[Guess], rows: &[usize], batch_axes: &[Option<usize>]) -> Result<()> {
        let values = |session: &Session, shown: &[Shown]| {
            let count = |shape: &[usize]| shape.iter().product();
            let each = shown.iter().enumerate().map(|(index, output)| session.probed(index, count(&output.shape)));
            each.collect::<Result<Vec<_>>>()
        };
        self.session = self.program.session(true)?;
        let count = rows.len();
        let together = self.call(guesses, rows).map_err(|error| format!("a batch of {count} rows fails: {error}"))?;
        let batch = values(&self.session, &together)?;
        for (row, number) in rows.iter().enumerate() {
            self.session = self.program.session(true)?;
            let shown = self.call(guesses, &[*number])?;
            let alone = values(&self.session, &shown)?;
            for (index, axis) in batch_axes.iter().enumerate().filter_map(|(index, axis)| Some((index, (*axis)?))) {
                let inner: usize = together[index].shape[axis + 1..].iter().product();
                let of_row = batch[index].chunks(inner.max(1)).skip(row).step_by(count).flatten();
                // What comes of large numbers is rounded as they are.
                let finite = alone[index].iter().map(|value| value.abs()).filter(|value| value.is_finite());
                let largest = if *number == LARGE_ROW { finite.fold(0.0, f64::max) } else { 0.0 };
                let differs = |(one, other): (&f64, &f64)| {
                    (one - other).abs() > TOLERANCE * (1.0 + largest.max(other.abs()))
                        && !(one.is_nan() && other.is_nan())
                };
                if of_row.clone().count() != alone[index].len() || of_row.zip(&alone[index]).any(differs) {
                    return Err("rows of a batch come out otherwise than each alone".into());
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, guesses: &[Guess], rows: &[usize]) -> Result<Vec<Shown>> {
        self.calls += 1;
        let examples: Vec<_> = guesses
            .iter()
            .zip(self.inputs.purposes)
            .map(|(guess, purpose)| Example::new(guess, *purpose, rows))
            .collect();
        let tensors: Vec<_> = examples.iter().map(Example::tensor).collect();
        let outputs = self.session.probe(&tensors)?;
        if outputs.is_empty() { Err("it gives no tensor".into()) } else { Ok(outputs) }
    }
}

//! A loaded TorchScript file.

use std::{collections::BTreeMap, path::Path};

use relevo_abi::{
    BatchKind, Device, FailureKind,
    export::{self, Call, Description, Failure, Options, Source, StateLink, TensorSpec},
};
use sha2::{Digest, Sha256};

use crate::{
    Torch,
    archive::{self, Kind},
    declared::{self, Declared},
    device,
    guess::{Example, Guess, LARGE_ROW, Purpose},
    probe::{self, Found, Inputs},
    scalar::{Scalar, Shown},
    shim::{self, Program},
    start::{self, Starts},
};

/// Methods that put a module's memory back, as exporters call them.
const RESETS: [&str; 8] = [
    "reset_memory",
    "clear_memory",
    "reset",
    "reset_state",
    "reset_states",
    "reset_hidden",
    "reset_hidden_state",
    "reset_hidden_states",
];

/// A TorchScript module, with what calling it showed.
pub(crate) struct TorchModel {
    program: Program,
    description: Description,
    path: String,
}

/// One caller's copy of it.
pub(crate) struct TorchSession {
    session: shim::Session,
    inputs: Vec<String>,
    path: String,
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::ModelLoad, message)
}

impl TorchModel {
    pub(crate) fn load(source: Source<'_>, options: &Options, torch: &Torch) -> export::Result<Self> {
        let path = source.path.display().to_string();
        let read;
        let bytes = if let Some(bytes) = source.bytes {
            bytes
        } else {
            read = std::fs::read(source.path)
                .map_err(|error| refused(format!("{error}; check that the path names a readable file")))?;
            &read
        };
        let kind = archive::kind(bytes);
        if kind != Kind::TorchScript {
            return Err(refused(kind.refusal()));
        }
        let device = device::check(&options.device, &path, torch)
            .map_err(|reason| Failure::new(FailureKind::DeviceUnavailable, reason))?;
        let program = Program::load(bytes, &device, options.threads).map_err(|reason| {
            refused(format!("torch cannot read it: {}; copy or export it again", first_line(&reason)))
        })?;
        let mut described = Described::find(program, options, source.path)?;
        described.description.producer = format!("TorchScript, run by torch {}", torch.version);
        // Metal's tensors are no addresses.
        let cuda = device.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        described.description.input_device = cuda.map(Device::cuda);
        described.description.declared = described.program.declared().unwrap_or_default();
        described.description.sha256 = format!("{:x}", Sha256::digest(bytes));
        Ok(Self { program: described.program, description: described.description, path })
    }
}

/// The first line of a message: torch adds more than anybody reads.
fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it does not say why")
}

/// A program with its description.
struct Described {
    program: Program,
    description: Description,
}

impl Described {
    fn find(mut program: Program, options: &Options, path: &Path) -> export::Result<Self> {
        let methods = program.methods(false);
        let has = |name: &str| methods.iter().any(|method| method == name);
        // RelayRL 0.4's modules act by `step`, and tell their widths.
        let method = match (has("forward"), has("step") && (!has("forward") || has("get_obs_dim"))) {
            (_, true) => "step",
            (true, false) => "forward",
            (false, false) => {
                let methods = methods.join(", ");
                return Err(refused(format!("it has no method `forward` (its methods: {methods}); export one")));
            }
        };
        let optional = program.optional_arguments(method).map_err(refused)?;
        let of = |purpose| optional.iter().filter(move |name| Purpose::of(name, false) == purpose).cloned();
        let masks: Vec<_> = of(Purpose::Mask).collect();
        let states: Vec<_> = of(Purpose::State).collect();
        let declared = program.declared().map_or_else(|| Ok(BTreeMap::new()), |text| declared::read(&text));
        let declared = declared.map_err(|reason| refused(format!("its relevo.json: {reason}; export it again")))?;
        // With everything that may be of use first.
        let mut tried = vec![[masks.clone(), states.clone()].concat(), masks.clone(), Vec::new()];
        tried.dedup();
        let mut shapes = options.shapes.clone();
        // What a folder says comes first, but gives way where no forward pass agrees with it.
        let folders = match shapes.remove("") {
            Some(row) => vec![Some(row), None],
            None => vec![None],
        };
        // What comes out where no state goes in shows what states are like.
        let mut begun = Vec::new();
        if !states.is_empty()
            && let Ok(names) = program.prepare(method, &masks)
            && let Ok(search) =
                Search::new(&program, &names, &shapes, &declared, &options.states, folders[0].as_deref())
            && let Ok((_, found)) = search.found(&program)
        {
            begun = found.begun();
        }
        let mut failure = None;
        for (included, folder) in tried.iter().flat_map(|included| folders.iter().map(move |folder| (included, folder)))
        {
            let names = program.prepare(method, included).map_err(|reason| {
                refused(format!(
                    "{}; export a method of tensors, tuples or dictionaries of tensors",
                    first_line(&reason)
                ))
            })?;
            if let Some(weight) = program.weights_with_nan().map_err(refused)?.first() {
                return Err(refused(format!(
                    "its {weight}, as a training that went astray leaves it; export an earlier checkpoint"
                )));
            }
            let mut search = Search::new(&program, &names, &shapes, &declared, &options.states, folder.as_deref())?;
            search.begun.clone_from(&begun);
            match search.found(&program) {
                Ok((search, found)) => {
                    let mut description = search.description(&found);
                    if has_loose_state(&description, included) {
                        continue;
                    }
                    let empty: Vec<_> = states.iter().filter(|name| included.contains(name)).cloned().collect();
                    if !empty.is_empty() && !add_start(&mut program, &empty, &search, &found, &mut description)? {
                        continue;
                    }
                    add_notes(&mut description, method, optional.iter().filter(|name| !included.contains(name)));
                    add_states(&mut program, &search, &found, &mut description, path)?;
                    return Ok(Self { program, description });
                }
                Err(reason) => failure = failure.or(Some(reason)),
            }
        }
        Err(failure.unwrap_or_else(|| refused("its shapes are not known")))
    }
}

/// Whether an argument that may be left out would be a state that the module gives no next value of.
fn has_loose_state(description: &Description, included: &[String]) -> bool {
    let is_linked = |input: usize| description.states.iter().any(|link| link.input == input);
    description.inputs.iter().enumerate().any(|(input, spec)| {
        let argument = spec.name.split('.').next().unwrap_or(&spec.name);
        included.iter().any(|name| name == argument)
            && Purpose::of(argument, false) == Purpose::State
            && !is_linked(input)
    })
}

/// The inputs, and what is known of their shapes.
struct Search<'a> {
    names: &'a [String],
    purposes: Vec<Purpose>,
    /// Rows that are known; where there are several, one of them holds.
    given: BTreeMap<String, Vec<Vec<usize>>>,
    /// Types that the file declares.
    types: BTreeMap<String, Scalar>,
    /// Inputs whose row the module itself tells.
    told: Vec<String>,
    random: Vec<String>,
    /// What states may be like.
    begun: Vec<Guess>,
}

impl<'a> Search<'a> {
    /// `states` are inputs of which the user says that they are states; `folder` is the row of the first observation, as a folder's
    /// `metadata.json` says it.
    fn new(
        program: &Program,
        names: &'a [String],
        shapes: &BTreeMap<String, Vec<usize>>,
        declared: &BTreeMap<String, Declared>,
        states: &[String],
        folder: Option<&[usize]>,
    ) -> export::Result<Self> {
        if let Some(unknown) = shapes.keys().find(|name| !names.contains(name)) {
            let message =
                format!("shapes names `{unknown}`, but the model has no such input; it has {}", names.join(", "));
            return Err(Failure::new(FailureKind::Config, message));
        }
        let purposes = Purpose::all(names, states);
        let mut given: BTreeMap<_, _> = shapes.iter().map(|(name, row)| (name.clone(), vec![row.clone()])).collect();
        let observation = purposes.iter().position(|purpose| *purpose == Purpose::Observation);
        if let (Some(row), Some(index)) = (folder, observation) {
            // A leading 1 that was taken for the batch may have been a part of the row.
            given.insert(names[index].clone(), vec![row.to_vec(), [&[1], row].concat()]);
        }
        let mut told = Vec::new();
        let mut types = BTreeMap::new();
        for (name, input) in declared.iter().filter(|(name, _)| names.contains(name)) {
            types.insert(name.clone(), input.scalar);
            if !given.contains_key(name) {
                given.insert(name.clone(), vec![input.row.clone()]);
                told.push(format!("`{name}` has the type and the shape that the file declares in relevo.json"));
            }
        }
        for (purpose, method) in [(Purpose::Observation, "get_obs_dim"), (Purpose::Mask, "get_act_dim")] {
            let mut of_purpose = names.iter().zip(&purposes).filter(|(_, own)| **own == purpose);
            if let (Some((name, _)), None) = (of_purpose.next(), of_purpose.next())
                && !given.contains_key(name)
                && let Some(width) = program.number(method).ok().and_then(|width| usize::try_from(width).ok())
            {
                given.insert(name.clone(), vec![vec![width]]);
                told.push(format!("`{name}` has the width that `{method}` tells"));
            }
        }
        let random = program.random_operators().map_err(refused)?;
        Ok(Self { names, purposes, given, types, told, random, begun: Vec::new() })
    }

    fn found(self, program: &Program) -> export::Result<(Self, Found)> {
        let inputs = Inputs {
            names: self.names,
            purposes: &self.purposes,
            given: &self.given,
            types: &self.types,
            begun: &self.begun,
            random: !self.random.is_empty(),
        };
        match probe::find(program, &inputs) {
            Ok(mut found) => {
                // No batch that is tried can show what all others do.
                if let Some(line) = program.branches(&found.guesses).map_err(refused)?.first() {
                    found.single = Some(format!("its code decides for a whole batch at once, in `{line}`"));
                    found.batch_axes.fill(None);
                }
                Ok((self, found))
            }
            Err(reason) => {
                let missing = self.names.iter().filter(|name| !self.given.contains_key(*name));
                let missing: Vec<_> = missing.map(|name| format!("\"{name}\": (…,)")).collect();
                let reason = first_line(&reason);
                Err(refused(if missing.is_empty() {
                    let shapes: Vec<_> =
                        self.given.iter().map(|(name, rows)| format!("{name} {:?}", rows[0])).collect();
                    format!(
                        "it does not run on rows of {}: {reason}; check shapes, or input_shape in a folder's metadata.json",
                        shapes.join(", ")
                    )
                } else {
                    format!(
                        "the file does not say how wide its inputs are ({}), and no forward pass told it: {reason}; give the \
                         shape of one row by shapes={{{}}}",
                        self.names.join(", "),
                        missing.join(", ")
                    )
                }))
            }
        }
    }

    fn description(&self, found: &Found) -> Description {
        let dim = |rows: Option<usize>, axis: usize, index: usize, size: usize| match rows {
            None if index == axis => None,
            _ => Some(size),
        };
        let fixed = found.single.is_some().then_some(1);
        let inputs = self.names.iter().zip(&found.guesses).map(|(name, guess)| TensorSpec {
            name: name.clone(),
            dtype: guess.scalar.dtype(),
            dims: guess
                .shape(1)
                .iter()
                .enumerate()
                .map(|(index, size)| dim(fixed, guess.axis, index, *size as usize))
                .collect(),
        });
        let mut names: Vec<String> = Vec::new();
        let outputs = found.outputs.iter().zip(&found.batch_axes).map(|(output, axis)| {
            let mut name = output.name.clone();
            while names.contains(&name) {
                name.push('_');
            }
            names.push(name.clone());
            let sizes = output.shape.iter().enumerate();
            let dims = sizes.map(|(index, size)| (Some(index) != *axis).then_some(*size)).collect();
            TensorSpec { name, dtype: output.scalar.dtype(), dims }
        });
        let (batch, batch_reason) = match &found.single {
            Some(reason) => (BatchKind::One, reason.clone()),
            None if self.random.is_empty() => {
                (BatchKind::Dynamic, "batches of 2, 3 and 9 rows gave what each row gives alone".into())
            }
            None => (BatchKind::Dynamic, "batches of 2 and 3 rows ran".into()),
        };
        let mut notes = self.told.clone();
        let rows = if fixed.is_some() { "1" } else { "batch" };
        let searched = self.names.iter().zip(&found.guesses).filter(|(name, _)| !self.given.contains_key(*name));
        notes.extend(searched.map(|(name, guess)| {
            let shape: Vec<_> = guess
                .shape(1)
                .iter()
                .enumerate()
                .map(|(index, size)| if index == guess.axis { rows.to_string() } else { size.to_string() })
                .collect();
            format!(
                "`{name}` is {} [{}]: the file does not say so, forward passes ran with it",
                guess.scalar.name(),
                shape.join(", ")
            )
        }));
        Description {
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            states: self.links(found),
            producer: String::new(),
            sha256: String::new(),
            random_ops: self.random.clone(),
            notes,
            batch,
            batch_reason,
            input_device: None,
            declared: String::new(),
        }
    }

    /// States that are inputs and outputs: an input that may be one, and the next output of the same type and shape.
    fn links(&self, found: &Found) -> Vec<StateLink> {
        let mut links: Vec<StateLink> = Vec::new();
        for (input, (guess, purpose)) in found.guesses.iter().zip(&self.purposes).enumerate() {
            let fits = |(output, shown): &(usize, &Shown)| {
                let shape: Vec<_> = shown.shape.iter().map(|size| *size as i64).collect();
                shown.scalar == guess.scalar
                    && shape == guess.shape(1)
                    && (found.single.is_some() || found.batch_axes[*output] == Some(guess.axis))
                    && links.iter().all(|link| link.output != *output)
            };
            // The first output is the answer.
            let output = found.outputs.iter().enumerate().skip(1).find(fits).map(|(output, _)| output);
            if let (Purpose::State, Some(output)) = (purpose, output) {
                links.push(StateLink { input, output, initial: Vec::new() });
            }
        }
        links
    }
}

/// Lets an episode begin with what the module makes of None, where that is something else than zeros. Gives whether the module
/// uses those states at all.
fn add_start(
    program: &mut Program,
    empty: &[String],
    search: &Search<'_>,
    found: &Found,
    description: &mut Description,
) -> export::Result<bool> {
    let starts = Starts { states: empty, names: search.names, purposes: &search.purposes, found };
    if !starts.are_used(program).map_err(refused)? {
        return Ok(false);
    }
    let marked = starts.marked(program, !search.random.is_empty()).map_err(refused)?;
    for link in description.states.iter_mut().filter(|link| marked.contains(&link.input)) {
        let guess = &found.guesses[link.input];
        link.initial = start::mark(guess.scalar.dtype()).repeat(guess.row.iter().product());
    }
    if !marked.is_empty() {
        let names: Vec<_> = empty.iter().map(|name| format!("`{name}`")).collect();
        description.notes.push(format!(
            "{} is None at the start of an episode, of which the module makes another state than zeros",
            names.join(" and ")
        ));
    }
    Ok(true)
}

fn add_notes<'a>(description: &mut Description, method: &str, left_out: impl Iterator<Item = &'a String>) {
    if method != "forward" {
        description.notes.push(format!("the method `{method}` is called"));
    }
    for name in left_out {
        description.notes.push(format!("the argument `{name}` is left at its default"));
    }
}

/// Finds the memory that the module holds itself, and makes inputs and outputs of it.
fn add_states(
    program: &mut Program,
    search: &Search<'_>,
    found: &Found,
    description: &mut Description,
    path: &Path,
) -> export::Result<()> {
    // Large numbers show what is remembered above a threshold alone.
    let passes = [0, LARGE_ROW, LARGE_ROW + 1, LARGE_ROW + 2];
    let examples: Vec<_> = passes
        .iter()
        .flat_map(|row| {
            let pairs = found.guesses.iter().zip(&search.purposes);
            pairs.map(|(guess, purpose)| Example::new(guess, *purpose, &[*row]))
        })
        .collect();
    let tensors: Vec<_> = examples.iter().map(Example::tensor).collect();
    let methods = program.methods(true);
    let reset = RESETS.into_iter().find(|name| methods.iter().any(|method| method == name));
    let unusable = |reason: String| {
        let (path, reason) = (path.display(), first_line(&reason).to_owned());
        Failure::new(
            FailureKind::Contract,
            format!(
                "the model {path} cannot serve actors: {reason}; export it with its memory in tensors of fixed size"
            ),
        )
    };
    let states = program.find_state(&tensors, passes.len(), reset).map_err(unusable)?;
    if states.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = states.iter().map(|state| format!("`{}`", state.name)).collect();
    for (index, state) in states.iter().enumerate() {
        let elements: usize = state.shape.iter().product();
        let initial = program.initial(index, elements * state.scalar.dtype().size()).map_err(refused)?;
        let initial = if initial.iter().all(|byte| *byte == 0) { Vec::new() } else { initial };
        let spec = TensorSpec {
            name: state.name.clone(),
            dtype: state.scalar.dtype(),
            dims: state.shape.iter().map(|size| Some(*size)).collect(),
        };
        description.states.push(StateLink {
            input: description.inputs.len(),
            output: description.outputs.len(),
            initial,
        });
        description.inputs.push(spec.clone());
        description.outputs.push(spec);
    }
    // One row at a time, whatever was found before the states were known.
    for (spec, axis) in description.inputs.iter_mut().zip(found.guesses.iter().map(|guess| guess.axis)) {
        spec.dims[axis] = Some(1);
    }
    for (spec, shown) in description.outputs.iter_mut().zip(&found.outputs) {
        spec.dims = shown.shape.iter().map(|size| Some(*size)).collect();
    }
    description.batch = BatchKind::One;
    description.batch_reason =
        format!("its state lives in the module, in {}, for one actor at a time", names.join(" and "));
    let start = reset.map_or_else(|| "as in the file".to_owned(), |method| format!("as `{method}()` leaves it"));
    description.notes.push(format!("passes change {}: an actor's memory, which begins {start}", names.join(" and ")));
    Ok(())
}

impl export::Model for TorchModel {
    type Session = TorchSession;

    fn description(&self) -> Description {
        self.description.clone()
    }

    fn session(&self) -> export::Result<TorchSession> {
        let session = self
            .program
            .session(false)
            .map_err(|reason| Failure::new(FailureKind::Inference, format!("the model {}: {reason}", self.path)))?;
        let inputs = self.description.inputs.iter().map(|input| input.name.clone()).collect();
        Ok(TorchSession { session, inputs, path: self.path.clone() })
    }
}

impl export::Session for TorchSession {
    fn forward(&mut self, call: &Call<'_>) -> export::Result<()> {
        self.session.forward(call).map_err(|reason| {
            let inputs = self.inputs.iter().zip(call.inputs).map(|(name, input)| {
                // SAFETY: the caller gives whole tensors.
                format!("{name} {:?}", unsafe { input.sizes() })
            });
            let inputs: Vec<_> = inputs.collect();
            let message = format!("the model {} failed: {}; inputs: {}", self.path, reason.trim(), inputs.join(", "));
            Failure::new(FailureKind::Inference, message)
        })
    }
}

//! A backend behind a C table, from one end to the other: results, failures, panics, tables that do not fit.

#![expect(unsafe_code, reason = "a table is handed over as a pointer")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    cell::Cell,
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use relevo_abi::{
    ABI_VERSION, BackendTable, BatchKind, DType, Device as DeviceId, FailureKind, Slice, Text,
    export::{self, Call, Description, Failure, Options, Source, StateLink, TensorSpec},
};
use relevo_core::{
    Error,
    policy::{Backend, Batch, Device, ForeignBackend, LoadOptions, ModelSource, Session},
    spec::{DType as OwnDType, Dim},
    tensor::{DeviceMemory, Tensor, TensorView, as_bytes},
};

/// Models and sessions of [`Adder`] that are alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// The device that the models claim to run on. Its memory is the CPU's.
const THERE: DeviceId = DeviceId::cuda(1);

thread_local! {
    /// Where the first input of the last call was.
    static GIVEN: Cell<Option<DeviceId>> = const { Cell::new(None) };
    /// Whether asking for devices panics.
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

struct Adder;

struct Sum {
    add: f32,
}

struct Alive(f32);

impl Alive {
    fn new(add: f32) -> Self {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Self(add)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

impl export::Backend for Adder {
    type Model = Sum;

    fn format(&self) -> &'static str {
        "adder"
    }

    fn version(&self) -> &'static str {
        "1.2"
    }

    fn accepts(&self, path: &Path) -> bool {
        path.to_str() != Some("panic") && path.ends_with("one.adder")
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        assert_ne!(bytes, b"panic", "no such bytes");
        bytes == b"adder"
    }

    fn devices(&self) -> export::Result<Vec<export::Device>> {
        assert!(!PANICS.with(Cell::get), "no devices");
        let device =
            |name: &str, fault: Option<&str>| export::Device { name: name.into(), fault: fault.map(Into::into) };
        Ok(vec![device("cpu", None), device("cuda:1", Some("it is elsewhere; fetch it"))])
    }

    fn load(&self, source: Source<'_>, options: &Options) -> export::Result<Sum> {
        match source.path.to_str() {
            Some("panic") => panic!("loading went wrong"),
            Some("contract") => Err(Failure::new(FailureKind::Contract, "no contract")),
            Some("config") => Err(Failure::new(FailureKind::Config, "no such setting")),
            Some("device") => Err(Failure::new(FailureKind::DeviceUnavailable, format!("no {}", options.device))),
            Some("load") => Err(Failure::new(FailureKind::ModelLoad, "it is torn")),
            _ => {
                assert_eq!(source.bytes, Some(&b"adder"[..]));
                assert_eq!(options.shapes["x"], [2, 3]);
                assert_eq!(options.states, ["state"]);
                Ok(Sum { add: options.threads as f32 })
            }
        }
    }
}

impl export::Model for Sum {
    type Session = Alive;

    fn description(&self) -> Description {
        let spec = |name: &str| TensorSpec { name: name.into(), dtype: DType::FLOAT32, dims: vec![None, Some(2)] };
        Description {
            inputs: vec![spec("x"), spec("state")],
            outputs: vec![spec("y"), spec("next")],
            states: vec![StateLink { input: 1, output: 1, initial: vec![0, 0, 128, 63, 0, 0, 128, 63] }],
            producer: "a test".into(),
            sha256: "0".into(),
            random_ops: vec!["dice".into()],
            notes: vec!["one".into(), "two".into()],
            batch: BatchKind::Dynamic,
            batch_reason: "it adds".into(),
            input_device: Some(THERE),
            declared: "{}".into(),
        }
    }

    fn session(&self) -> export::Result<Alive> {
        Ok(Alive::new(self.add))
    }
}

impl export::Session for Alive {
    fn forward(&mut self, call: &Call<'_>) -> export::Result<()> {
        // SAFETY: whole tensors of float32 are given.
        let read = |index: usize| unsafe {
            let input = &call.inputs[index];
            let elements = input.sizes().iter().product::<i64>() as usize;
            (input.sizes().to_vec(), std::slice::from_raw_parts(input.data.cast::<f32>(), elements))
        };
        GIVEN.set(Some(call.inputs[0].device));
        let (shape, x) = read(0);
        assert!(!x.contains(&13.0), "thirteen");
        if x.contains(&14.0) {
            return Err(Failure::new(FailureKind::Inference, "fourteen"));
        }
        let shape = if x.contains(&15.0) { vec![1] } else { shape };
        for (position, wanted) in call.wanted.iter().enumerate() {
            let (_, values) = read(*wanted);
            let memory = call.output(position, DType::FLOAT32, &shape)?;
            for (index, value) in values.iter().take(shape.iter().product::<i64>() as usize).enumerate() {
                // SAFETY: the memory is for as many elements as the shape has.
                unsafe { memory.cast::<f32>().add(index).write(value + self.0) };
            }
        }
        Ok(())
    }
}

fn backend() -> ForeignBackend {
    // SAFETY: the table is whole, and stays.
    unsafe { ForeignBackend::new("relevo-adder", export::table(Adder)) }.unwrap()
}

fn options() -> LoadOptions {
    let shapes = BTreeMap::from([("x".into(), vec![2, 3])]);
    LoadOptions { threads: 3, shapes, states: vec!["state".into()], ..LoadOptions::default() }
}

fn load(path: &str) -> Result<Arc<dyn relevo_core::policy::Model>, Error> {
    backend().load(ModelSource { path: Path::new(path), bytes: Some(b"adder") }, &options())
}

/// A forward pass on two rows of `x`, which asks for the second output, then the first.
fn forward(session: &mut dyn Session, x: f32, outputs: &mut [Tensor]) -> Result<(), Error> {
    let (x, state) = ([x, 1.0, 2.0, 3.0], [10.0_f32, 20.0, 30.0, 40.0]);
    let view = |values| TensorView { dtype: OwnDType::Float32, shape: &[2, 2], bytes: as_bytes(values), device: None };
    session.forward(&[view(&x), view(&state)], &[1, 0], outputs)
}

fn empty() -> Vec<Tensor> {
    (0..2).map(|_| Tensor::zeros(OwnDType::Float32, &[0])).collect()
}

#[test]
fn a_model_comes_across_whole() {
    let backend = backend();
    assert_eq!((backend.format(), backend.version()), ("adder", "1.2"));
    assert!(backend.accepts(Path::new("folder/one.adder")));
    assert!(!backend.accepts(Path::new("one.onnx")));
    assert!(backend.recognises(b"adder"));

    let model = load("one.adder").unwrap();
    assert_eq!(model.inputs()[1].name, "state");
    assert_eq!(model.outputs()[0].shape, [Dim::Dynamic(String::new()), Dim::Fixed(2)]);
    assert_eq!(model.facts().random_ops, ["dice"]);
    assert_eq!(model.facts().notes, ["one", "two"]);
    assert_eq!(model.facts().declared, "{}");
    assert_eq!(model.facts().batch, Some(Batch::Dynamic { reason: "it adds".into() }));
    assert_eq!(model.states()[0].initial, as_bytes(&[1.0_f32, 1.0]));

    let mut session = model.session().unwrap();
    // A session may outlive its model.
    drop(model);
    let mut outputs = empty();
    forward(&mut *session, 0.0, &mut outputs).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [13.0, 23.0, 33.0, 43.0]);
    assert_eq!(outputs[1].values::<f32>(), [3.0, 4.0, 5.0, 6.0]);
    assert_eq!(outputs[1].shape(), [2, 2]);
    // Now they have memory, which is written in place.
    let address = outputs[1].bytes().as_ptr();
    forward(&mut *session, 5.0, &mut outputs).unwrap();
    assert_eq!(outputs[1].values::<f32>(), [8.0, 4.0, 5.0, 6.0]);
    assert_eq!(outputs[1].bytes().as_ptr(), address);
}

#[test]
fn an_older_description_ends_earlier() {
    let empty = Slice::new(&[]);
    let whole = relevo_abi::Description {
        size: relevo_abi::Description::LEAST_SIZE,
        inputs: Slice::new(&[]),
        outputs: Slice::new(&[]),
        states: Slice::new(&[]),
        producer: Text::of("a test"),
        sha256: Text::of("0"),
        random_ops: empty,
        notes: empty,
        batch: 1,
        batch_reason: Text::of("it adds"),
        input_device: THERE,
        declared: Text::of("what lies behind it"),
    };
    // SAFETY: it is longer than it says.
    let read = unsafe { relevo_abi::Description::read(&raw const whole, whole.size) };
    // SAFETY: its texts are alive.
    let texts = unsafe { (read.batch_reason.text(), read.declared.text()) };
    assert_eq!(texts, ("it adds".into(), String::new()));
}

#[test]
fn an_input_on_the_model_s_device_is_read_there() {
    let model = load("one.adder").unwrap();
    assert_eq!(model.device(), THERE);
    let mut session = model.session().unwrap();
    // The session panics when it sees thirteen.
    let (poison, there, state) = ([13.0_f32; 4], [0.0_f32, 1.0, 2.0, 3.0], [10.0_f32; 4]);
    let bytes = as_bytes(&there);
    // SAFETY: the bytes are there for the whole test.
    let memory = |device: DeviceId| Some(unsafe { DeviceMemory::new(device, bytes.as_ptr(), bytes.len()) });
    let mut sum = |bytes, device| {
        let view = |bytes, device| TensorView { dtype: OwnDType::Float32, shape: &[2, 2], bytes, device };
        let mut outputs = empty();
        session.forward(&[view(bytes, device), view(as_bytes(&state), None)], &[1, 0], &mut outputs)?;
        Ok((GIVEN.get(), outputs[1].values::<f32>().to_vec()))
    };
    let added = vec![3.0, 4.0, 5.0, 6.0];
    assert_eq!(sum(as_bytes(&poison), memory(THERE)), Ok((Some(THERE), added.clone())));
    assert_eq!(sum(&[], memory(THERE)), Ok((Some(THERE), added.clone())));
    assert_eq!(sum(&[], memory(DeviceId::CPU)), Ok((Some(DeviceId::CPU), added.clone())));
    // Another device is not the model's: the values are taken from the CPU's memory, where they must be.
    assert_eq!(sum(as_bytes(&there), memory(DeviceId::cuda(0))), Ok((Some(DeviceId::CPU), added)));
    let refused: Result<_, Error> = sum(&[], memory(DeviceId::cuda(0)));
    assert!(matches!(refused, Err(Error::Contract(reason)) if reason.contains("0 bytes") && reason.contains("cuda:1")));
}

#[test]
fn failures_and_panics_become_errors() {
    let error = |path| load(path).err().unwrap();
    assert_eq!(error("contract"), Error::Contract("no contract".into()));
    assert_eq!(error("config"), Error::Config("no such setting".into()));
    assert_eq!(error("device"), Error::DeviceUnavailable("no cpu".into()));
    assert_eq!(error("load"), Error::model_load("load", "it is torn"));
    assert!(error("panic").to_string().contains("the backend panicked: loading went wrong"));
    assert!(!backend().recognises(b"panic"));

    let mut session = load("one.adder").unwrap().session().unwrap();
    let mut failure = |x: f32| forward(&mut *session, x, &mut empty()).err().unwrap();
    assert!(matches!(failure(13.0), Error::Inference(reason) if reason.contains("panicked: thirteen")));
    assert_eq!(failure(14.0), Error::Inference("fourteen".into()));
    // It is usable afterwards, and an output of another shape than the caller's is refused.
    let mut outputs = empty();
    forward(&mut *session, 0.0, &mut outputs).unwrap();
    let refused = forward(&mut *session, 15.0, &mut outputs).err().unwrap();
    assert!(matches!(refused, Error::Inference(reason) if reason.contains("[2, 2]")));
}

#[test]
fn devices_are_told_unless_the_table_ends_before_them() {
    let device = |name: &str, fault: Option<&str>| Device { name: name.into(), fault: fault.map(Into::into) };
    assert_eq!(
        backend().devices().unwrap(),
        [device("cpu", None), device("cuda:1", Some("it is elsewhere; fetch it"))]
    );
    let mut older = export::table(Adder).clone();
    older.size = BackendTable::LEAST_SIZE;
    // SAFETY: it is longer than it says, and stays.
    let older = unsafe { ForeignBackend::new("relevo-adder", Box::leak(Box::new(older))) }.unwrap();
    assert_eq!(older.devices().unwrap(), [device("cpu", None)]);

    PANICS.set(true);
    let panicked = backend().devices().err().unwrap();
    PANICS.set(false);
    assert!(matches!(panicked, Error::DeviceUnavailable(reason) if reason.contains("panicked: no devices")));
}

#[test]
fn sessions_are_given_back() {
    // Other tests hold some meanwhile, so it is the difference of many that counts.
    let model = load("one.adder").unwrap();
    let sessions: Vec<_> = (0..1000).map(|_| model.session().unwrap()).collect();
    assert!(ALIVE.load(Ordering::SeqCst) >= 1000);
    drop(sessions);
    assert!(ALIVE.load(Ordering::SeqCst) < 1000);
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let refusal = |change: fn(&mut BackendTable)| {
        let table = export::table(Adder);
        // SAFETY: it is a copy of the table's bytes, which are plain.
        let mut copy = unsafe { std::ptr::read(table) };
        change(&mut copy);
        // SAFETY: it is as long as it says, or longer, and stays.
        unsafe { ForeignBackend::new("relevo-adder", Box::leak(Box::new(copy))) }.err().unwrap().to_string()
    };
    let newer = refusal(|table| table.abi_version = 9);
    assert!(newer.contains("version 9") && newer.contains(&format!("version {ABI_VERSION}")), "{newer}");
    assert!(newer.ends_with("pip install --upgrade relevo"), "{newer}");
    let older = refusal(|table| table.abi_version = 0);
    assert!(older.ends_with("pip install --upgrade relevo-adder"), "{older}");
    let short = refusal(|table| table.size = BackendTable::LEAST_SIZE - 8);
    let size = BackendTable::LEAST_SIZE;
    assert!(short.contains(&format!("{} bytes", size - 8)) && short.contains(&size.to_string()), "{short}");
}

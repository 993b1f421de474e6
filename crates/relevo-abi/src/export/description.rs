//! A description as the table gives it out: structs that point into what it owns.

use std::ptr;

use super::{Description, TensorSpec};
use crate::data::{self, Dim, Slice, StateLink, Text};

/// A description with everything that it points to.
pub(super) struct Exported {
    whole: Box<data::Description<'static>>,
    _parts: Parts,
}

/// What the pointers lead to. Boxed slices stay where they are when their owner moves.
struct Parts {
    _owned: Box<Description>,
    _dims: Vec<Box<[Dim<'static>]>>,
    _specs: [Box<[data::TensorSpec<'static>]>; 2],
    _states: Box<[StateLink<'static>]>,
    _texts: [Box<[Text<'static>]>; 2],
}

impl Exported {
    pub(super) fn new(description: Description) -> Self {
        let owned = Box::new(description);
        let mut dims = Vec::new();
        let inputs = specs(&owned.inputs, &mut dims);
        let outputs = specs(&owned.outputs, &mut dims);
        let states: Box<[_]> = owned.states.iter().map(state).collect();
        let random_ops = texts(&owned.random_ops);
        let notes = texts(&owned.notes);
        let whole = data::Description {
            size: size_of::<data::Description<'static>>(),
            inputs: Slice::new(kept(&*inputs)),
            outputs: Slice::new(kept(&*outputs)),
            states: Slice::new(kept(&*states)),
            producer: text(&owned.producer),
            sha256: text(&owned.sha256),
            random_ops: Slice::new(kept(&*random_ops)),
            notes: Slice::new(kept(&*notes)),
            batch: owned.batch as i32,
            batch_reason: text(&owned.batch_reason),
            input_device: owned.input_device.unwrap_or(data::Device { kind: 0, index: 0 }),
            declared: text(&owned.declared),
        };
        let parts = Parts {
            _owned: owned,
            _dims: dims,
            _specs: [inputs, outputs],
            _states: states,
            _texts: [random_ops, notes],
        };
        Self { whole: Box::new(whole), _parts: parts }
    }

    pub(super) fn get(&self) -> &data::Description<'static> {
        &self.whole
    }
}

/// A reference without its lifetime: what it leads to is kept in [`Parts`] for as long as the pointer is.
fn kept<T: ?Sized>(part: &T) -> &'static T {
    // SAFETY: every part is owned by the `Exported` that holds the pointers, is never changed, and lies on the heap, so
    // that it does not move with its owner. `Exported::get` gives the pointers out for its own lifetime; C holds them
    // until it releases the model, as the table says.
    unsafe { &*ptr::from_ref(part) }
}

fn text(text: &str) -> Text<'static> {
    Text::of(kept(text))
}

fn texts(texts: &[String]) -> Box<[Text<'static>]> {
    texts.iter().map(|owned| text(owned)).collect()
}

fn state(state: &super::StateLink) -> StateLink<'static> {
    StateLink { input: state.input, output: state.output, initial: Slice::new(kept(&*state.initial)) }
}

fn specs(specs: &[TensorSpec], dims: &mut Vec<Box<[Dim<'static>]>>) -> Box<[data::TensorSpec<'static>]> {
    let spec = |spec: &TensorSpec| {
        let size = |size: &Option<usize>| Dim { size: size.map_or(-1, |size| size as i64), name: Text::of("") };
        let sizes: Box<[_]> = spec.dims.iter().map(size).collect();
        let exported = data::TensorSpec { name: text(&spec.name), dtype: spec.dtype, dims: Slice::new(kept(&*sizes)) };
        dims.push(sizes);
        exported
    };
    specs.iter().map(spec).collect()
}

//! The C++ part, in Rust's terms.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr, slice,
};

use relevo_abi::{Allocate, Tensor, Text, export::Call};

use crate::{
    guess::Guess,
    scalar::{Scalar, Shown},
};

type Message = *mut c_char;
type EachText = unsafe extern "C" fn(context: *mut c_void, data: *const u8, size: usize);
type EachTensor =
    unsafe extern "C" fn(context: *mut c_void, name: *const u8, size: usize, kind: i32, sizes: *const i64, ndim: usize);

#[repr(C)]
struct RawProgram {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawSession {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn relevo_torch_free(message: Message);
    fn relevo_torch_load(
        data: *const c_void,
        size: usize,
        device: *const c_char,
        threads: i32,
        program: *mut *mut RawProgram,
    ) -> Message;
    fn relevo_torch_release(program: *mut RawProgram);
    fn relevo_torch_methods(program: *const RawProgram, plain: bool, each: EachText, context: *mut c_void);
    fn relevo_torch_tensors(program: *const RawProgram, each: EachTensor, context: *mut c_void);
    fn relevo_torch_number(program: *const RawProgram, method: *const c_char, number: *mut i64) -> Message;
    fn relevo_torch_prepare(
        program: *mut RawProgram,
        method: *const c_char,
        optional: *const Text<'_>,
        optional_count: usize,
        each: EachText,
        context: *mut c_void,
    ) -> Message;
    fn relevo_torch_start_empty(
        program: *mut RawProgram,
        empty: *const Text<'_>,
        empty_count: usize,
        input: usize,
        input_axes: *const i64,
        output_axes: *const i64,
        output_count: usize,
    ) -> Message;
    fn relevo_torch_optional_arguments(
        program: *const RawProgram,
        method: *const c_char,
        each: EachText,
        context: *mut c_void,
    ) -> Message;
    fn relevo_torch_weights_with_nan(program: *const RawProgram, each: EachText, context: *mut c_void) -> Message;
    fn relevo_torch_random_operators(program: *const RawProgram, each: EachText, context: *mut c_void) -> Message;
    fn relevo_torch_declared(program: *const RawProgram, each: EachText, context: *mut c_void);
    fn relevo_torch_remembers(program: *const RawProgram) -> bool;
    fn relevo_torch_branches(
        program: *const RawProgram,
        axes: *const usize,
        ranks: *const usize,
        each: EachText,
        context: *mut c_void,
    ) -> Message;
    fn relevo_torch_find_state(
        program: *mut RawProgram,
        inputs: *const Tensor,
        count: usize,
        passes: usize,
        reset: *const c_char,
    ) -> Message;
    fn relevo_torch_state(program: *const RawProgram, each: EachTensor, context: *mut c_void);
    fn relevo_torch_initial(program: *const RawProgram, index: usize, bytes: *mut c_void, size: usize) -> Message;
    fn relevo_torch_session(program: *const RawProgram, apart: bool, session: *mut *mut RawSession) -> Message;
    fn relevo_torch_release_session(session: *mut RawSession);
    fn relevo_torch_probe(
        session: *mut RawSession,
        inputs: *const Tensor,
        count: usize,
        each: EachTensor,
        context: *mut c_void,
    ) -> Message;
    fn relevo_torch_probed(session: *const RawSession, output: usize, values: *mut f64, count: usize) -> Message;
    fn relevo_torch_forward(
        session: *mut RawSession,
        inputs: *const Tensor,
        count: usize,
        wanted: *const usize,
        outputs: *const Tensor,
        wanted_count: usize,
        allocate: Allocate,
        context: *mut c_void,
    ) -> Message;
}

/// A failure in torch's own words.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// A TorchScript module, and how it is called.
pub(crate) struct Program(*mut RawProgram);

// SAFETY: torch's modules may be called and copied by many threads; what changes a program takes `&mut self`.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// One caller's copy of it.
pub(crate) struct Session(*mut RawSession);

// SAFETY: a session is used by one thread at a time, whichever.
unsafe impl Send for Session {}

fn check(message: Message) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: messages are C strings, which are freed once, here.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        relevo_torch_free(message);
        Err(text)
    }
}

unsafe extern "C" fn push_text(context: *mut c_void, data: *const u8, size: usize) {
    // SAFETY: the context is the vector that the caller of the listing gave, and the text lives for the call.
    let (texts, text) = unsafe { (&mut *context.cast::<Vec<String>>(), slice::from_raw_parts(data, size)) };
    texts.push(String::from_utf8_lossy(text).into_owned());
}

unsafe extern "C" fn push_tensor(
    context: *mut c_void,
    name: *const u8,
    size: usize,
    kind: i32,
    sizes: *const i64,
    ndim: usize,
) {
    // SAFETY: as in `push_text`; a scalar's sizes may have no address.
    unsafe {
        let sizes = if ndim == 0 { &[] } else { slice::from_raw_parts(sizes, ndim) };
        (*context.cast::<Vec<Shown>>()).push(Shown {
            name: String::from_utf8_lossy(slice::from_raw_parts(name, size)).into_owned(),
            scalar: Scalar(kind),
            shape: sizes.iter().map(|size| *size as usize).collect(),
        });
    }
}

fn name(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| format!("`{text}` holds a null character"))
}

impl Program {
    /// Loads an archive. Calls use so many threads.
    pub(crate) fn load(bytes: &[u8], device: &str, threads: usize) -> Result<Self> {
        let device = name(device)?;
        let threads = i32::try_from(threads).map_err(|_| format!("{threads} threads are too many"))?;
        let mut program = ptr::null_mut();
        // SAFETY: the bytes live for the call; torch copies what it keeps.
        check(unsafe {
            relevo_torch_load(bytes.as_ptr().cast(), bytes.len(), device.as_ptr(), threads, &raw mut program)
        })?;
        Ok(Self(program))
    }

    /// What `relevo.export` put into the archive about the inputs.
    pub(crate) fn declared(&self) -> Option<String> {
        let mut texts: Vec<String> = Vec::new();
        // SAFETY: the program is whole, and the context is what `push_text` expects.
        unsafe { relevo_torch_declared(self.0, push_text, (&raw mut texts).cast()) };
        texts.pop()
    }

    /// Methods; `plain` leaves those that can be called without arguments.
    pub(crate) fn methods(&self, plain: bool) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        // SAFETY: the program is whole, and the context is what `push_text` expects.
        unsafe { relevo_torch_methods(self.0, plain, push_text, (&raw mut names).cast()) };
        names
    }

    /// Parameters, buffers and other tensor attributes.
    pub(crate) fn tensors(&self) -> Vec<Shown> {
        let mut tensors: Vec<Shown> = Vec::new();
        // SAFETY: as above, with `push_tensor`.
        unsafe { relevo_torch_tensors(self.0, push_tensor, (&raw mut tensors).cast()) };
        tensors
    }

    /// What a method without arguments gives.
    pub(crate) fn number(&self, method: &str) -> Result<i64> {
        let method = name(method)?;
        let mut number = 0;
        // SAFETY: the program is whole.
        check(unsafe { relevo_torch_number(self.0, method.as_ptr(), &raw mut number) })?;
        Ok(number)
    }

    /// Chooses the method to call; gives the names of its inputs.
    pub(crate) fn prepare(&mut self, method: &str, optional: &[String]) -> Result<Vec<String>> {
        let method = name(method)?;
        let optional: Vec<_> = optional.iter().map(|text| Text::of(text)).collect();
        let mut names: Vec<String> = Vec::new();
        // SAFETY: the program is whole, `&mut self` keeps others out, and the context is what `push_text` expects.
        check(unsafe {
            let context = (&raw mut names).cast();
            relevo_torch_prepare(self.0, method.as_ptr(), optional.as_ptr(), optional.len(), push_text, context)
        })?;
        Ok(names)
    }

    /// From now on the arguments named in `empty` are None for rows whose part of this input begins with [`crate::start::mark`];
    /// with no names, nothing is. There is an axis of rows for each input, and one for each output that has rows.
    pub(crate) fn start_empty(
        &mut self,
        empty: &[String],
        input: usize,
        input_axes: &[usize],
        output_axes: &[Option<usize>],
    ) -> Result<()> {
        let empty: Vec<_> = empty.iter().map(|text| Text::of(text)).collect();
        let inputs: Vec<_> = input_axes.iter().map(|axis| *axis as i64).collect();
        let outputs: Vec<_> = output_axes.iter().map(|axis| axis.map_or(-1, |axis| axis as i64)).collect();
        // SAFETY: the program is whole, `&mut self` keeps others out, and there is an axis for each input that `prepare` gave.
        check(unsafe {
            let (empty, count) = (empty.as_ptr(), empty.len());
            relevo_torch_start_empty(self.0, empty, count, input, inputs.as_ptr(), outputs.as_ptr(), outputs.len())
        })
    }

    /// Arguments of the method that hold tensors and may be left out.
    pub(crate) fn optional_arguments(&self, method: &str) -> Result<Vec<String>> {
        let method = name(method)?;
        let mut names: Vec<String> = Vec::new();
        // SAFETY: as above.
        check(unsafe { relevo_torch_optional_arguments(self.0, method.as_ptr(), push_text, (&raw mut names).cast()) })?;
        Ok(names)
    }

    /// Weights that hold NaN, and constants of the prepared method that do, with how many of their numbers.
    pub(crate) fn weights_with_nan(&self) -> Result<Vec<String>> {
        let mut texts: Vec<String> = Vec::new();
        // SAFETY: as above.
        check(unsafe { relevo_torch_weights_with_nan(self.0, push_text, (&raw mut texts).cast()) })?;
        Ok(texts)
    }

    /// Whether the code of the prepared method may change the module itself.
    pub(crate) fn remembers(&self) -> bool {
        // SAFETY: the program is whole.
        unsafe { relevo_torch_remembers(self.0) }
    }

    /// Operators of the prepared method that draw random numbers.
    pub(crate) fn random_operators(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        // SAFETY: as above.
        check(unsafe { relevo_torch_random_operators(self.0, push_text, (&raw mut names).cast()) })?;
        Ok(names)
    }

    /// Lines of the prepared method's code that decide for a whole batch by what is in it, or by how many rows it has. There
    /// is a guess for each input.
    pub(crate) fn branches(&self, guesses: &[Guess]) -> Result<Vec<String>> {
        let axes: Vec<usize> = guesses.iter().map(|guess| guess.axis).collect();
        let ranks: Vec<usize> = guesses.iter().map(|guess| guess.row.len() + 1).collect();
        let mut lines: Vec<String> = Vec::new();
        // SAFETY: as above; both arrays have a number for each input that `prepare` gave.
        check(unsafe {
            relevo_torch_branches(self.0, axes.as_ptr(), ranks.as_ptr(), push_text, (&raw mut lines).cast())
        })?;
        Ok(lines)
    }

    /// Finds the tensors of the module that a call may change. There are inputs for so many passes, one after the other; those
    /// behind the first may fail. `reset` names the method that puts the tensors back.
    pub(crate) fn find_state(&mut self, inputs: &[Tensor], passes: usize, reset: Option<&str>) -> Result<Vec<Shown>> {
        let reset = reset.map(name).transpose()?;
        let reset = reset.as_ref().map_or(ptr::null(), |reset| reset.as_ptr());
        let mut states: Vec<Shown> = Vec::new();
        // SAFETY: as above; the inputs are whole.
        unsafe {
            let count = inputs.len() / passes.max(1);
            check(relevo_torch_find_state(self.0, inputs.as_ptr(), count, passes, reset))?;
            relevo_torch_state(self.0, push_tensor, (&raw mut states).cast());
        }
        Ok(states)
    }

    /// The bytes of a state at the start of an episode.
    pub(crate) fn initial(&self, index: usize, size: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        // SAFETY: as many bytes are there as the call is told.
        check(unsafe { relevo_torch_initial(self.0, index, bytes.as_mut_ptr().cast(), size) })?;
        Ok(bytes)
    }

    /// A session. One `apart` changes nothing of the program, whatever the method does.
    pub(crate) fn session(&self, apart: bool) -> Result<Session> {
        let mut session = ptr::null_mut();
        // SAFETY: the program is whole.
        check(unsafe { relevo_torch_session(self.0, apart, &raw mut session) })?;
        Ok(Session(session))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it is released once. Sessions hold what they need themselves.
        unsafe { relevo_torch_release(self.0) }
    }
}

impl Session {
    /// Calls the method, and tells of the outputs.
    pub(crate) fn probe(&mut self, inputs: &[Tensor]) -> Result<Vec<Shown>> {
        let mut outputs: Vec<Shown> = Vec::new();
        // SAFETY: the session is whole and used by nobody else; the inputs are whole, and copied by a session apart.
        check(unsafe {
            relevo_torch_probe(self.0, inputs.as_ptr(), inputs.len(), push_tensor, (&raw mut outputs).cast())
        })?;
        Ok(outputs)
    }

    /// The values of an output of the last probe.
    pub(crate) fn probed(&self, output: usize, count: usize) -> Result<Vec<f64>> {
        let mut values = vec![0.0; count];
        // SAFETY: there is room for as many values as the call is told.
        check(unsafe { relevo_torch_probed(self.0, output, values.as_mut_ptr(), count) })?;
        Ok(values)
    }

    /// A forward pass.
    pub(crate) fn forward(&mut self, call: &Call<'_>) -> Result<()> {
        // SAFETY: the session is used by nobody else; the call's arrays are whole, and live until it returns.
        check(unsafe {
            relevo_torch_forward(
                self.0,
                call.inputs.as_ptr(),
                call.inputs.len(),
                call.wanted.as_ptr(),
                call.outputs.as_ptr(),
                call.outputs.len(),
                call.allocate,
                call.allocate_context,
            )
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: it is released once.
        unsafe { relevo_torch_release_session(self.0) }
    }
}

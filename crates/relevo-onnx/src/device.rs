//! Devices: which ones the installed ONNX Runtime has, and sessions on them.

#![expect(unsafe_code, reason = "`ort` has no call that lists the execution providers of the library")]

use std::{
    ffi::{CStr, c_char},
    fmt,
    path::Path,
    ptr,
};

use ort::{
    ep::{CUDA, CoreML, ExecutionProvider, ExecutionProviderDispatch},
    session::builder::SessionBuilder,
};
use relevo_core::policy::Device as DeviceState;

use crate::{library::Library, value::result};

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    /// A GPU of NVIDIA, by its number.
    Cuda(i32),
    /// What Apple's Core ML chooses: neural engine, GPU or CPU.
    CoreMl,
}

impl Device {
    /// The device that goes by this name; `mps` is what PyTorch calls Apple's GPU.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            "coreml" | "mps" => Some(Self::CoreMl),
            _ => {
                let number = name.strip_prefix("cuda:")?;
                let digits = !number.is_empty() && number.bytes().all(|letter| letter.is_ascii_digit());
                digits.then(|| number.parse().ok())?.map(Self::Cuda)
            }
        }
    }

    /// Has sessions of this builder run on the device. The error is ONNX Runtime's.
    pub(crate) fn register(self, builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        let provider: ExecutionProviderDispatch = match self {
            Self::Cpu => return Ok(builder),
            // TF32 keeps 10 bits of each number, too few for a batch to agree with its rows.
            Self::Cuda(number) => CUDA::default().with_device_id(number).with_tf32(false).build(),
            Self::CoreMl => CoreML::default().build(),
        };
        Ok(builder.with_execution_providers([provider.error_on_failure()])?)
    }

    /// Why no session can be made on the device, as far as the library itself tells; what to install is said too.
    pub(crate) fn missing(self, library: &Library) -> Option<String> {
        let (provider, remedy) = match self {
            Self::Cpu => return None,
            Self::Cuda(_) if !has_driver() => {
                (CUDA::NAME, "NVIDIA's driver is not here either, without which no GPU of theirs can be used")
            }
            Self::Cuda(_) => {
                (CUDA::NAME, "install `onnxruntime-gpu` in place of `onnxruntime` (`pip install \"relevo[onnx-gpu]\"`)")
            }
            Self::CoreMl => (CoreML::NAME, "Core ML is in the `onnxruntime` package for macOS alone"),
        };
        let there = match providers() {
            Ok(there) if there.iter().any(|name| name == provider) => return None,
            Ok(there) => there.join(", "),
            Err(reason) => reason,
        };
        let (version, path) = (&library.version, library.path.display());
        Some(format!("ONNX Runtime {version} at {path} has no {provider}, only {there}; {remedy}"))
    }

    /// The devices that ONNX Runtime can have on this system, and what is wrong with each; `try_out` makes a session there.
    pub(crate) fn all(library: &Library, try_out: impl Fn(Self) -> Result<(), String>) -> Vec<DeviceState> {
        let gpu = if cfg!(target_os = "macos") { Self::CoreMl } else { Self::Cuda(0) };
        let state = |device: Self| {
            let fault = device.missing(library).or_else(|| try_out(device).err());
            DeviceState { name: device.to_string(), fault }
        };
        let mut devices = vec![state(Self::Cpu), state(gpu)];
        // A machine may have more GPUs than one.
        while let (Self::Cuda(_), Some(DeviceState { fault: None, .. })) = (gpu, devices.last()) {
            let next = state(Self::Cuda(devices.len() as i32 - 1));
            if next.fault.is_some() {
                break;
            }
            devices.push(next);
        }
        devices
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(number) => write!(formatter, "cuda:{number}"),
            Self::CoreMl => formatter.write_str("coreml"),
        }
    }
}

/// Whether NVIDIA's driver is here: where it is missing, nothing that can be installed for Python helps.
fn has_driver() -> bool {
    let program = if cfg!(windows) { "nvidia-smi.exe" } else { "nvidia-smi" };
    let on_path =
        |paths: std::ffi::OsString| std::env::split_paths(&paths).any(|folder| folder.join(program).is_file());
    Path::new("/proc/driver/nvidia/version").exists() || std::env::var_os("PATH").is_some_and(on_path)
}

/// Names of the execution providers that were compiled into the library.
fn providers() -> Result<Vec<String>, String> {
    let (mut names, mut count): (*mut *mut c_char, _) = (ptr::null_mut(), 0);
    // SAFETY: both pointers are live; on success they say where the names are.
    result(unsafe { (ort::api().GetAvailableProviders)(&raw mut names, &raw mut count) })?;
    let name = |index: usize| {
        // SAFETY: there are `count` names, each a string that ends in a null.
        unsafe { CStr::from_ptr(*names.add(index)) }.to_string_lossy().into_owned()
    };
    let list = (0..usize::try_from(count).unwrap_or(0)).map(name).collect();
    // SAFETY: the names came from the call above and are not used any more.
    result(unsafe { (ort::api().ReleaseAvailableProviders)(names, count) })?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_go_by_their_names() {
        for (name, device) in [
            ("cpu", Some(Device::Cpu)),
            ("cuda", Some(Device::Cuda(0))),
            ("cuda:3", Some(Device::Cuda(3))),
            ("mps", Some(Device::CoreMl)),
            ("coreml", Some(Device::CoreMl)),
        ] {
            assert_eq!(Device::named(name), device, "{name}");
        }
        for name in ["", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:99999999999", "cpu:0"] {
            assert_eq!(Device::named(name), None, "{name}");
        }
    }
}

//! Devices, by what torch says of them.

use relevo_abi::export::Device;
use tch::Cuda;

use crate::Torch;

/// The device in torch's terms.
///
/// # Errors
/// Where it is not there: what is, and why the one asked for is not.
pub(crate) fn check(asked: &str, path: &str, torch: &Torch) -> Result<String, String> {
    let (kind, index) = asked.split_once(':').map_or((asked, None), |(kind, index)| (kind, Some(index)));
    let number = index.map(str::parse::<i64>);
    let reason = match (kind, number) {
        ("cpu" | "mps", None) if kind == "cpu" || tch::utils::has_mps() => return Ok(asked.into()),
        ("cuda", None) if Cuda::is_available() => return Ok("cuda:0".into()),
        ("cuda", Some(Ok(index))) if Cuda::is_available() && (0..Cuda::device_count()).contains(&index) => {
            return Ok(asked.into());
        }
        ("cuda", Some(Ok(_))) if Cuda::is_available() => format!("torch finds {} CUDA device(s)", Cuda::device_count()),
        ("cuda", None | Some(Ok(_))) => no_cuda(torch).0.into(),
        ("mps", None) => no_mps().into(),
        _ => "there is no such device; the names are cpu, cuda, cuda:0, cuda:1, …, mps".into(),
    };
    let there: Vec<_> =
        all(torch).into_iter().filter(|device| device.fault.is_none()).map(|device| device.name).collect();
    Err(format!(
        "{path} was to run on the device `{asked}`, but {reason}; there {}: {}",
        if there.len() == 1 { "is" } else { "are" },
        there.join(", ")
    ))
}

/// The devices that torch can have on this system, and what is wrong with those that cannot be used.
pub(crate) fn all(torch: &Torch) -> Vec<Device> {
    let usable = |name: String| Device { name, fault: None };
    let mut devices = vec![usable("cpu".into())];
    devices.extend((0..Cuda::device_count()).map(|index| usable(format!("cuda:{index}"))));
    if cfg!(target_os = "macos") {
        devices.push(Device { name: "mps".into(), fault: (!tch::utils::has_mps()).then(|| no_mps().into()) });
    } else if devices.len() == 1 {
        let (reason, remedy) = no_cuda(torch);
        devices.push(Device { name: "cuda:0".into(), fault: Some(format!("{reason}; {remedy}")) });
    }
    devices
}

/// Why torch has no CUDA device, and what to do about it.
fn no_cuda(torch: &Torch) -> (&'static str, &'static str) {
    if torch.has_cuda {
        ("torch finds no NVIDIA GPU, or no driver for it", "see what nvidia-smi says")
    } else {
        ("the torch that is installed is built without CUDA", "install one that is built with it, as pytorch.org says")
    }
}

fn no_mps() -> &'static str {
    if cfg!(target_os = "macos") { "torch finds no Metal device on this Mac" } else { "it takes a Mac" }
}

//! Devices, by what torch says of them.

use tch::Cuda;

/// The device in torch's terms.
///
/// # Errors
/// Where it is not there: what is, and why the one asked for is not.
pub(crate) fn check(asked: &str, path: &str) -> Result<String, String> {
    let (kind, index) = asked.split_once(':').map_or((asked, None), |(kind, index)| (kind, Some(index)));
    let number = index.map(str::parse::<i64>);
    let reason = match (kind, number) {
        ("cpu" | "mps", None) if kind == "cpu" || tch::utils::has_mps() => return Ok(asked.into()),
        ("cuda", None) if Cuda::is_available() => return Ok("cuda:0".into()),
        ("cuda", Some(Ok(index))) if Cuda::is_available() && (0..Cuda::device_count()).contains(&index) => {
            return Ok(asked.into());
        }
        ("cuda", Some(Ok(_))) if Cuda::is_available() => format!("torch finds {} CUDA device(s)", Cuda::device_count()),
        ("cuda", None | Some(Ok(_))) if tch::utils::has_cuda() => {
            "torch finds no NVIDIA GPU, or no driver for it: see what nvidia-smi says".into()
        }
        ("cuda", None | Some(Ok(_))) => "the torch that is installed is built without CUDA".into(),
        ("mps", None) if cfg!(target_os = "macos") => "torch finds no Metal device on this Mac".into(),
        ("mps", None) => "it takes a Mac".into(),
        _ => "there is no such device; the names are cpu, cuda, cuda:0, cuda:1, …, mps".into(),
    };
    Err(format!(
        "{path} was to run on the device `{asked}`, but {reason}; there {}: {}",
        if available().len() == 1 { "is" } else { "are" },
        available().join(", ")
    ))
}

/// The devices that are there.
pub(crate) fn available() -> Vec<String> {
    let mut devices = vec!["cpu".to_owned()];
    devices.extend((0..Cuda::device_count()).map(|index| format!("cuda:{index}")));
    devices.extend(tch::utils::has_mps().then(|| "mps".to_owned()));
    devices
}
